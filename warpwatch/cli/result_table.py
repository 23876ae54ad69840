"""The results of one operator as lines for a terminal: a row per case and variant."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from warpwatch.contract.measurement import METRICS
from warpwatch.contract.outcome import Comparison, Finding, Outcome
from warpwatch.contract.rounds import StopRule, times_of_rounds
from warpwatch.contract.words import NO_FAILURE, JobKind, Reason, Signal, Status
from warpwatch.server.reports.formats import change, duration, headline, interval, share
from warpwatch.server.reports.sensitivity import CaseSensitivity
from warpwatch.server.verdicts.held import PairOutcome, PairVerdict, classify_comparison
from warpwatch.server.verdicts.thresholds import kind_of_time

_WORDS: dict[PairOutcome, tuple[str, str]] = {
    "slower": ("slower", "red"),
    "faster": ("faster", "green"),
    "same": ("no change", ""),
    "not_slower": ("not slower", ""),
    "unsure": ("inconclusive", "yellow"),
}
_CONTROLS = {
    Reason.CONTROL_MOVED: "the base differed from itself",
    Reason.CONTROL_MISSED: "a wait added to the base was not found",
}


@dataclass(slots=True)
class _Row:
    check: str = ""
    time: str = ""
    times: str = ""
    ratio: str = ""
    words: str = ""
    style: str = ""


@dataclass(slots=True)
class ResultTable:
    """Checks, times and comparisons of one operator on one kind of device, cpu or cuda. wrong, slower, unsure: counts.
    sensitivities: the smallest slow-down that is found in each comparison."""

    device_kind: str
    wrong: int = 0
    slower: int = 0
    unsure: int = 0
    sensitivities: list[CaseSensitivity] = field(default_factory=list)
    _rows: dict[tuple[str, str], _Row] = field(default_factory=dict)
    _unsupported: dict[str, str] = field(default_factory=dict)

    def add(self, kind: JobKind, outcome: Outcome, stop: StopRule | None = None) -> None:
        """Adds the results of one job. stop: the rule that ended its comparison early."""
        for finding in outcome.findings:
            if kind is not JobKind.COMPARE:
                self._add_finding(kind, finding)
        with_launch = {(item.variant, item.case) for item in outcome.comparisons if item.metric == Signal.LAUNCH}
        for comparison in outcome.comparisons:
            is_launch = comparison.metric == Signal.LAUNCH
            time_kind = kind_of_time(self.device_kind, comparison.metric, comparison.protocol)
            rounds = comparison.base_ns, comparison.head_ns
            verdict = classify_comparison(*rounds, time_kind, len(outcome.comparisons), stop, comparison.reason)
            self.slower += verdict.outcome == "slower"
            self.unsure += verdict.outcome == "unsure" and comparison.status is Status.OK
            variant = f"{comparison.variant} launch" if is_launch else comparison.variant
            is_kernel = not is_launch and (comparison.variant, comparison.case) in with_launch
            signal = Signal.LAUNCH if is_launch else Signal.KERNEL if is_kernel else None
            row = self._row(comparison.case, variant)
            _add_comparison(row, comparison, verdict, signal)
            if is_launch:
                continue
            # A gate is asked what it would have missed of the device's time.
            sensitivity = _sense(comparison, verdict, self.device_kind)
            self.sensitivities.append(sensitivity)
            if sensitivity.detectable is not None and not sensitivity.is_decided:
                row.words += f"; finds slow-downs from {share(sensitivity.detectable, 1)} on"

    def lines(self) -> Iterator[tuple[str, str]]:
        """Every line with its style; columns that nothing stands in are left out."""
        rows = [
            ([case, variant, row.check, row.time, row.times, row.ratio, row.words], row.style)
            for (case, variant), row in self._rows.items()
        ]
        widths = [max(map(len, column)) for column in zip(*(cells for cells, _ in rows), strict=True)]
        for cells, style in rows:
            shown = (f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True) if width)
            yield "  ".join(shown).rstrip(), style
        if self._unsupported:
            reasons = (f"{name} ({reason})" if reason else name for name, reason in self._unsupported.items())
            yield f"unsupported here: {', '.join(reasons)}", "dim"

    def _row(self, case: str, variant: str) -> _Row:
        return self._rows.setdefault((case, variant), _Row())

    def _add_finding(self, kind: JobKind, finding: Finding) -> None:
        if finding.status is Status.UNSUPPORTED:
            self._unsupported[finding.variant] = " ".join(finding.message.split())
            return
        row = self._row(finding.case, finding.variant)
        status = finding.status.replace("_", " ")
        if finding.status not in NO_FAILURE:
            self.wrong += 1
            row.style, row.words = "red", _words_of(finding.message)
        if kind is JobKind.CHECK:
            row.check = "pass" if finding.status is Status.OK else status
        elif kind is JobKind.BENCH:
            times = {m.metric: m.median_ns for m in finding.bench.measurements} if finding.bench else {}
            row.time = duration(times.get(METRICS[self.device_kind][0])) if finding.status is Status.OK else status


def _words_of(message: str) -> str:
    return headline(message) if "Traceback (most recent call last)" in message else " ".join(message.split())


def _add_comparison(row: _Row, comparison: Comparison, verdict: PairVerdict, signal: Signal | None) -> None:
    if not comparison.head_ns:
        row.words = " ".join(comparison.message.split())
        return
    word, style = _WORDS[verdict.outcome]
    word = f"{signal} {word}" if signal is not None and verdict.outcome in ("slower", "faster") else word
    row.times = " → ".join(map(duration, times_of_rounds(comparison.base_ns, comparison.head_ns)))
    row.ratio = change(verdict.ratio)
    row.words = f"{word} ({interval(verdict.low, verdict.high)})" if verdict.low is not None else word
    if verdict.outcome == "unsure":
        row.words += _describe_limits(comparison, verdict)
    row.style = row.style or style


def _sense(comparison: Comparison, verdict: PairVerdict, device_kind: str) -> CaseSensitivity:
    return CaseSensitivity(
        "",
        comparison.variant,
        comparison.case,
        device_kind,
        verdict.detectable,
        "none" if verdict.detectable is None else "rounds",
        verdict.false_alarm,
        verdict.outcome in ("slower", "faster"),
    )


def _describe_limits(comparison: Comparison, verdict: PairVerdict) -> str:
    """The changes that inconclusive rounds exclude."""
    if comparison.reason is not None:
        return f": {_CONTROLS.get(comparison.reason, comparison.reason)}"
    return ": no larger change" if verdict.low is not None else ": too few rounds exclude nothing"
