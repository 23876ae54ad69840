"""The thresholds of all verdicts, one table per kind of time.

Every threshold stands here and nowhere else. Durations are nanoseconds. A ratio is the time at the newer commit (head)
over the time at the older one (base). A share is a part of the time: 0.01 is 1 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Literal

from warpwatch.contract.measurement import is_reported
from warpwatch.contract.rounds import (
    CONFIRMED,
    CONFIRMED_LAUNCH,
    CONFIRMED_LAUNCH_NS,
    FEWEST_ROUNDS,
    ROUNDS,
    StopRule,
    launch_ratio,
)
from warpwatch.contract.words import Signal

TimeKind = Literal["cuda", "cpu", "launch"]
"""Kind of a time: that of a GPU, that of a CPU, or that of the host of a GPU until the GPU has the work of a call."""
BUSY_LOAD = 2.0
"""Runnable tasks per core from which on the host of a CPU is busy: a benchmark keeps each core with one, and the
service itself takes some of the rest."""
BUSY_READINGS = 2
"""Readings at a new level that a busy host must show before they are compared."""


@dataclass(frozen=True, slots=True)
class ThresholdRow:
    """One line of the table, for people. name: of the field, as `suspicion.least`. unit, meaning: plain text."""

    name: str
    unit: str
    meaning: str
    values: dict[TimeKind, float]


def _documented(unit: str, meaning: str) -> dict[str, str]:
    return {"unit": unit, "meaning": meaning}


@dataclass(frozen=True, slots=True)
class ShiftRule:
    """How far the log time of a series must shift to count: `least` + `deviations` · s + `tail` · s².

    s is the standard deviation between runs. The square is there because noisy series have heavier tails than normal
    ones.
    """

    least: float = field(metadata=_documented("share of the time", "Shift that counts in a series without any noise."))
    deviations: float = field(
        metadata=_documented("standard deviations", "Shift asked for per standard deviation between runs.")
    )
    tail: float = field(
        metadata=_documented("per squared standard deviation", "Shift asked for in addition in noisy series.")
    )
    least_ns: float = field(
        metadata=_documented("ns", "Least absolute change: below it a timer, not a kernel, may have changed.")
    )
    least_before: int = field(
        metadata=_documented("readings", "Readings before a shift that fewer than four readings may show.")
    )

    def threshold(self, deviation: float) -> float:
        """The least shift of log time that counts where runs differ by this standard deviation of log time."""
        return self.least + self.deviations * deviation + self.tail * deviation**2


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The thresholds for one kind of time; `list_thresholds` gives every field with its unit and meaning."""

    suspicion: ShiftRule = field(
        metadata=_documented(
            "rule", "Shift in history that is worth a comparison, which then decides: about one reading in fifty."
        )
    )
    alarm: ShiftRule = field(
        metadata=_documented("rule", "Shift that history alone calls a change: about one false alarm in 500 readings.")
    )
    level_readings: int = field(
        metadata=_documented("readings", "Readings without which a series has no level to change from.")
    )
    prior_between: float = field(
        metadata=_documented(
            "share of the time",
            "Standard deviation between runs assumed for a series without history: on a GPU the median of public "
            "H100 series re-run on the same commit, on a CPU what two shared cores show.",
        )
    )
    worth_comparing: float = field(
        metadata=_documented(
            "share of the time",
            "Changed code is compared where a series would not show a change of this size by itself.",
        )
    )
    confirm_ratio: float = field(
        metadata=_documented(
            "ratio", "The whole interval of a comparison must lie beyond this ratio to confirm a change."
        )
    )
    expected_ratio: float = field(
        metadata=_documented(
            "ratio",
            "Least change that a comparison must exclude to dismiss a suspicion, however small the suspected change: "
            "rounds that still allow for it are unsure.",
        )
    )
    undone_ratio: float = field(
        metadata=_documented(
            "ratio", "What may be left of a slow-down after confirmed changes back for it to count as fixed."
        )
    )
    plain_ratio: float = field(
        metadata=_documented("ratio", "From this change on, a step of a bisection takes few rounds.")
    )
    same_ratio: float = field(
        metadata=_documented(
            "ratio",
            "Slow-down that must be excluded before two commits that somebody compared are called not slower; no "
            "change excludes a speed-up by it, too.",
        )
    )
    least_ns: float = field(
        metadata=_documented(
            "ns", "Least absolute change of a comparison that somebody asked for; of a launch, of every comparison."
        )
    )
    confidence: float = field(metadata=_documented("probability", "Confidence of the interval of a median ratio."))
    rounds: int = field(
        metadata=_documented("rounds", "Rounds of a comparison, which ends earlier when fewer of them decide.")
    )
    earliest: int = field(
        metadata=_documented("rounds", "Rounds before which a comparison that tests a suspicion does not end.")
    )
    earliest_unsuspected: int = field(
        metadata=_documented(
            "rounds",
            "The same where nothing is suspected: a change among many pairs must not appear by chance.",
        )
    )
    earliest_plain: int = field(
        metadata=_documented(
            "rounds",
            "Rounds that show a plain change where nothing is suspected: beyond the eighth power of the ratio that "
            "confirms, after three. On a CPU some code runs at one of two speeds, and three rounds show such code "
            "changed in one comparison of 32.",
        )
    )
    more_rounds: int = field(
        metadata=_documented(
            "rounds",
            "Rounds of the second try where no series is confirmed and one is unsure; its interval is half as wide.",
        )
    )
    few_rounds: int = field(metadata=_documented("rounds", "Rounds of a step of a bisection of a plain change."))


THRESHOLDS: dict[TimeKind, Thresholds] = {
    "cuda": Thresholds(
        suspicion=ShiftRule(least=0.010, deviations=1.75, tail=8.0, least_ns=50.0, least_before=3),
        alarm=ShiftRule(least=0.018, deviations=2.0, tail=18.0, least_ns=50.0, least_before=4),
        level_readings=3,
        prior_between=0.008,
        worth_comparing=0.02,
        confirm_ratio=CONFIRMED["cuda"],
        expected_ratio=1.01,
        undone_ratio=1.008,
        plain_ratio=1.05,
        same_ratio=1.02,
        least_ns=50.0,
        confidence=0.95,
        rounds=ROUNDS,
        earliest=3,
        earliest_unsuspected=6,
        earliest_plain=3,
        more_rounds=36,
        few_rounds=6,
    ),
    "cpu": Thresholds(
        suspicion=ShiftRule(least=0.015, deviations=1.0, tail=8.0, least_ns=200.0, least_before=3),
        alarm=ShiftRule(least=0.04, deviations=3.0, tail=18.0, least_ns=200.0, least_before=4),
        level_readings=3,
        prior_between=0.03,
        worth_comparing=0.03,
        confirm_ratio=CONFIRMED["cpu"],
        expected_ratio=1.03,
        undone_ratio=1.025,
        plain_ratio=1.15,
        same_ratio=1.05,
        least_ns=50.0,
        confidence=0.95,
        rounds=ROUNDS,
        earliest=3,
        earliest_unsuspected=6,
        earliest_plain=6,
        more_rounds=36,
        few_rounds=6,
    ),
    "launch": Thresholds(
        suspicion=ShiftRule(least=0.05, deviations=1.75, tail=8.0, least_ns=CONFIRMED_LAUNCH_NS, least_before=3),
        alarm=ShiftRule(least=0.08, deviations=3.0, tail=18.0, least_ns=CONFIRMED_LAUNCH_NS, least_before=4),
        level_readings=3,
        prior_between=0.03,
        worth_comparing=0.10,
        confirm_ratio=CONFIRMED_LAUNCH,
        expected_ratio=1.06,
        undone_ratio=1.055,
        plain_ratio=1.20,
        same_ratio=1.10,
        least_ns=CONFIRMED_LAUNCH_NS,
        confidence=0.95,
        rounds=ROUNDS,
        earliest=3,
        earliest_unsuspected=6,
        earliest_plain=6,
        more_rounds=36,
        few_rounds=6,
    ),
}


REPORTED = " reported"
"""End of the name of a kind of time that programs report."""


def _without_floors(thresholds: Thresholds) -> Thresholds:
    suspicion, alarm = (replace(rule, least_ns=0.0) for rule in (thresholds.suspicion, thresholds.alarm))
    return replace(thresholds, suspicion=suspicion, alarm=alarm, least_ns=0.0)


_THRESHOLDS_REPORTED = {
    kind + REPORTED: _without_floors(thresholds) for kind, thresholds in THRESHOLDS.items() if kind != "launch"
}
"""Of times that a program reports: means over so many iterations that a nanosecond is theirs, or samples whose interval
holds the tick of their clock."""


def kind_of_time(device_kind: str, metric: str | None, protocol: str) -> str:
    """Kind of the time that a metric of a device is. protocol: that of the series; one that is not the harness's is of
    times that a program reports, which have no least absolute change."""
    if metric == Signal.LAUNCH:
        return Signal.LAUNCH
    return device_kind + REPORTED if is_reported(protocol) else device_kind


def thresholds_of(time_kind: str) -> Thresholds:
    """The thresholds for a kind of time, see kind_of_time; ValueError for an unknown kind."""
    for kind, thresholds in (*THRESHOLDS.items(), *_THRESHOLDS_REPORTED.items()):
        if kind == time_kind:
            return thresholds
    raise ValueError(f"time kind {time_kind!r} has no thresholds; use one of {', '.join(THRESHOLDS)}")


def stop_rule(device_kind: str, is_suspected: bool) -> StopRule:
    """When a comparison on such a device ends early. is_suspected: it tests a suspicion about few series."""
    thresholds = thresholds_of(device_kind)
    if is_suspected:
        return StopRule(thresholds.earliest, thresholds.confirm_ratio, suspected=thresholds.expected_ratio)
    plain = thresholds.earliest_plain if thresholds.earliest_plain > FEWEST_ROUNDS else None
    return StopRule(thresholds.earliest_unsuspected, thresholds.confirm_ratio, plain=plain)


def confirmed_change(time_kind: str, base_ns: Sequence[float]) -> float:
    """The smallest change, as a ratio, that a comparison confirms; base_ns: its rounds of the base. That of a launch is
    its least absolute change, too."""
    return launch_ratio(base_ns) if time_kind == Signal.LAUNCH else thresholds_of(time_kind).confirm_ratio


def list_thresholds() -> list[ThresholdRow]:
    """Every threshold with its unit, its meaning and its value per kind of time, in the order of the table."""
    rows: list[ThresholdRow] = []
    for threshold in fields(Thresholds):
        values = {kind: getattr(thresholds, threshold.name) for kind, thresholds in THRESHOLDS.items()}
        if threshold.metadata["unit"] != "rule":
            rows.append(ThresholdRow(threshold.name, threshold.metadata["unit"], threshold.metadata["meaning"], values))
            continue
        for part in fields(ShiftRule):
            parts = {kind: getattr(rule, part.name) for kind, rule in values.items()}
            meaning = f"{threshold.metadata['meaning']} {part.metadata['meaning']}"
            rows.append(ThresholdRow(f"{threshold.name}.{part.name}", part.metadata["unit"], meaning, parts))
    return rows
