"""Builds a report from facts: classifies pairs, drops duplicates and sorts the worst first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import log
from typing import Any, NamedTuple

from warpwatch.contract.report_facts import CellFact, ChangeFact, JobFact, PairFact, ReportFacts, TimedFact
from warpwatch.contract.rounds import times_of_rounds
from warpwatch.contract.words import Cause, Reason, Signal, StatementDirection, StatementKind, StatementSource
from warpwatch.server.reports.formats import plural
from warpwatch.server.reports.model import (
    ERRORS,
    FAILURES,
    KINDS,
    Conclusion,
    Report,
    ReportRow,
    ReportRowKind,
    exit_code,
)
from warpwatch.server.reports.sensitivity import (
    CaseSensitivity,
    ReportSensitivity,
    detectable_text,
    required_text,
    summarize,
)
from warpwatch.server.reports.trade_words import summarize_trades, traded_text
from warpwatch.server.reports.words import change_text
from warpwatch.server.verdicts.held import PairVerdict, classify, classify_comparison, classify_trial
from warpwatch.server.verdicts.noise import SURELY, Reading, detectable, learn
from warpwatch.server.verdicts.statements import Statement
from warpwatch.server.verdicts.thresholds import kind_of_time, thresholds_of

MAX_ROWS = 1000
FALSE_BY_HISTORY = 0.02 * 0.025
"""How often the same code is called slower where nothing but history compares it: 20 of 1,000 readings are suspected at
most, and of these the interval of paired rounds lies beyond the threshold in one of forty at most."""
_CONCLUSIONS: tuple[Conclusion, ...] = ("success", "failure", "error")
_ORACLE = {"check": "a check against the float64 reference", "bench": "a check of the outputs of the timed loop"}
_ORDER: dict[ReportRowKind, int] = {kind: place for place, kind in enumerate(KINDS)}


def build_report(facts: ReportFacts, address: str) -> Report:
    """The report on a submission; `address` is where people reach the server, such as https://warpwatch.example."""
    # What a trial measured stands in the rows of the change that it decided.
    known = {change.regression_id for change in facts.changes}
    facts = replace(facts, pairs=[pair for pair in facts.pairs if pair.regression_id not in known])
    verdicts = [(pair, _classify(pair, sum(other.status == "ok" for other in facts.pairs))) for pair in facts.pairs]
    pairs = list(_pair_rows(verdicts, facts.ends, address))
    decided = {_timed_place(row) for row in pairs if row.kind in ("slower", "accepted", "fixed", "faster")}
    measured = [pair for pair in facts.pairs if pair.status == "ok"]
    compared = {(p.cell.operator, p.cell.variant, p.cell.case, p.cell.device_key) for p in measured}
    timed = {
        (p.cell.operator, p.cell.variant, p.cell.case, p.cell.device_key, p.metric == Signal.LAUNCH) for p in measured
    }
    changes = [
        row
        for row in _change_rows(facts, address)
        if _timed_place(row) not in decided and not (row.kind == "unsure" and _timed_place(row) in timed)
    ]
    overruled = {_timed_place(row) for row in changes}
    pairs = [row for row in pairs if _timed_place(row) not in overruled]
    faults = _worst_of_each(_fault_rows(facts, address))
    failed = {_place(row) for row in faults}
    pairs = [row for row in pairs if row.kind not in ("failed", "skipped") or _place(row) not in failed]
    rows = [*faults, *pairs, *changes, *_job_rows(facts, address)]
    cases = _sensitivities(facts, verdicts, address)
    sensitivity = summarize(
        [item.case for item in cases], None if facts.required is None else facts.required / 100, MAX_ROWS
    )
    if not facts.pending:
        rows = _with_blind(rows, cases, sensitivity)
    elif not cases:
        # What was benched is read once everything is decided.
        sensitivity = replace(sensitivity, summary="Which slow-downs it would have found is known at the end")
    rows.sort(key=_badness)
    same = len(compared) - _about_compared(rows, compared)
    return _report(facts, address, rows, len(compared), same, sensitivity)


def _report(
    facts: ReportFacts, address: str, rows: list[ReportRow], compared: int, same: int, sensitivity: ReportSensitivity
) -> Report:
    per_kind = Counter(row.kind for row in rows)
    counts = {kind: per_kind[kind] for kind in KINDS if per_kind[kind]}
    code = exit_code(counts)
    unchanged = sorted({job.cell.operator for job in _left_out(facts)})
    conclusion: Conclusion = "pending" if facts.pending else _CONCLUSIONS[code]
    return Report(
        submission_id=facts.submission_id,
        repository=facts.repository,
        url=f"{address}/runs/{facts.submission_id}",
        head_sha=facts.head_sha,
        base_sha=facts.base_sha,
        conclusion=conclusion,
        exit_code=code,
        summary=_summary(facts, rows, counts, compared, unchanged),
        pending=facts.pending,
        results=facts.results,
        counts=counts,
        compared=compared,
        same=same,
        unchanged=unchanged,
        created_at=facts.created_at,
        rows=rows[:MAX_ROWS],
        left_out=max(len(rows) - MAX_ROWS, 0),
        traded=traded_text(summarize_trades(facts.trades)),
        sensitivity=sensitivity,
        device_names=facts.device_names,
    )


def _left_out(facts: ReportFacts) -> Iterator[JobFact]:
    """The jobs of unchanged operators. With a base, an operator counts as unchanged when its comparison was left out;
    its check may have been left out because of any other commit."""
    return (job for job in facts.jobs if job.unchanged_since and (job.kind == "compare" or facts.base_sha is None))


def _summary(
    facts: ReportFacts, rows: list[ReportRow], counts: dict[ReportRowKind, int], compared: int, unchanged: list[str]
) -> str:
    """One line, short enough for a commit status: failures, comparisons, the other findings, what is outstanding."""
    is_failing = (FAILURES | ERRORS).__contains__
    launches = Counter(row.kind for row in rows if row.metric == Signal.LAUNCH)
    texts = {
        kind: f"{count} {KINDS[kind]}" + (f" ({launches[kind]} launch)" if launches[kind] else "")
        for kind, count in counts.items()
    }
    parts = [text for kind, text in texts.items() if is_failing(kind)]
    parts += [f"{compared} compared"] if compared else []
    parts += [text for kind, text in texts.items() if not is_failing(kind)]
    is_quiet = counts.keys() <= {"fixed"}
    sentences = [*_without_findings(facts, compared, unchanged), *texts.values()] if is_quiet else [", ".join(parts)]
    sentences += [f"{len(unchanged)} unchanged"] if unchanged else []
    if facts.pending:
        # Before the first result everything outstanding is a job; later it may be a verdict.
        sentences.append(
            f"{facts.pending} left" if facts.results or compared else f"{plural(facts.pending, 'job')} left"
        )
    return " · ".join(sentences)


def _without_findings(facts: ReportFacts, compared: int, unchanged: list[str]) -> list[str]:
    """The summary of a submission that has no findings, or none yet."""
    comparisons = [f"no slow-downs in {plural(compared, 'comparison')}"] if compared else []
    if facts.results.get("ok"):
        return ["Passing so far" if facts.pending else "Checks pass", *comparisons]
    if comparisons:
        return [comparisons[0].capitalize()]
    return ["No findings yet" if facts.pending else "Nothing new" if unchanged else "No findings"]


def _fault_rows(facts: ReportFacts, address: str) -> Iterator[ReportRow]:
    for fault in facts.faults:
        kind: ReportRowKind = (
            "wrong" if fault.status == "wrong" else "skipped" if fault.status == "skipped" else "failed"
        )
        kind = "fixed" if fault.right_at is not None and kind != "skipped" else kind
        yield _row(
            kind,
            fault.cell,
            fault.status,
            fault.message,
            _ORACLE.get(fault.kind, "a run") if fault.status == "wrong" else f"a {fault.kind} run",
            f"{address}/jobs/{fault.job_id}",
            is_known_before=fault.known_before,
            right_at=fault.right_at,
        )


def _job_rows(facts: ReportFacts, address: str) -> Iterator[ReportRow]:
    for job in facts.jobs:
        kind = _kind_of(job, facts.base_sha)
        if kind is not None:
            url, decided_by = f"{address}/jobs/{job.job_id}", f"job {job.job_id}"
            yield _row(kind, job.cell, job.state, job.message, decided_by, url, right_at=job.right_at)


def _kind_of(job: JobFact, base_sha: str | None) -> ReportRowKind | None:
    if job.state == "done":
        return None
    if job.reason == Reason.INTERPRETER_MISMATCH:
        return "mismatch"
    # A base that cannot be measured is no fault of the change.
    if job.cell.head_sha == base_sha:
        return "unsure"
    return "not_run" if job.right_at is None else "fixed"


def _classify(pair: PairFact, among: int) -> PairVerdict | None:
    """The verdict on one of so many pairs; None where it was not measured."""
    if pair.status != "ok":
        return None
    is_trial = pair.regression_id is not None
    time_kind = kind_of_time(pair.cell.device_kind, pair.metric, pair.protocol)
    if pair.is_local:
        return classify_comparison(pair.base_ns, pair.head_ns, time_kind, among, pair.stop, pair.reason)
    return classify(pair.base_ns, pair.head_ns, time_kind, among, pair.reason, is_trial=is_trial)


def _pair_rows(
    verdicts: Sequence[tuple[PairFact, PairVerdict | None]], ends: Mapping[str, str], address: str
) -> Iterator[ReportRow]:
    """ends: of each commit that is not the newest of its line, the newest one. What that does not show is over."""
    right = {
        (pair.cell.base_sha, pair.cell.head_sha, *_pair_place(pair))
        for pair, verdict in verdicts
        if verdict is not None and verdict.outcome in ("same", "not_slower", "faster")
    }
    for pair, verdict in verdicts:
        url = f"{address}/jobs/{pair.job_id}"
        end = ends.get(pair.cell.head_sha)
        right_at = end if (pair.cell.base_sha, end, *_pair_place(pair)) in right else None
        if verdict is None:
            kind = _kind_of_pair(pair)
            kind = "fixed" if kind == "failed" and right_at is not None else kind
            decided_by = "an A/B run that did not finish"
            yield _row(kind, pair.cell, pair.status, pair.message, decided_by, url, right_at=right_at)
            continue
        if verdict.outcome == "same" or verdict.outcome == "not_slower":
            continue
        kind = verdict.outcome
        if kind == "slower":
            kind = "accepted" if pair.is_accepted else "slower" if right_at is None else "fixed"
        yield _row(
            kind,
            pair.cell,
            pair.status,
            "",
            _rounds_text(pair),
            url,
            ratio=verdict.ratio,
            low=verdict.low,
            high=verdict.high,
            right_at=right_at if kind == "fixed" else None,
            **_paired(pair),
        )


def _pair_place(pair: PairFact) -> tuple[str, str | None, str | None, str, str]:
    return pair.cell.operator, pair.cell.variant, pair.cell.case, pair.cell.device_key, pair.metric


def _rounds_text(pair: PairFact) -> str:
    return f"{len(pair.base_ns)} interleaved A/B rounds on one device"


def _paired(fact: PairFact | ChangeFact) -> dict[str, Any]:
    """Fields of a row about the rounds: their metric, their number, and the times of base and head."""
    base_ns, head_ns = times_of_rounds(fact.base_ns, fact.head_ns)
    rounds = len(fact.base_ns)
    return {"metric": fact.metric, "signal": fact.signal, "rounds": rounds, "base_ns": base_ns, "head_ns": head_ns}


def _kind_of_pair(pair: PairFact) -> ReportRowKind:
    if pair.status == "unsupported" and pair.metric == Signal.LAUNCH:
        return "unsure"
    if pair.status == "unsupported":
        return "mismatch"
    if pair.status == "skipped":
        return "skipped"
    return "unsure" if pair.reason == Reason.BASE_FAILED else "failed"


def _change_rows(facts: ReportFacts, address: str) -> Iterator[ReportRow]:
    for change in facts.changes:
        yield _row(
            _kind_of_change(change),
            change.cell,
            change.verdict,
            change_text(change.message, change.merged_sha, change.merged_subject),
            _decided_change(change),
            f"{address}/regressions/{change.regression_id}",
            ratio=change.ratio,
            low=change.low,
            high=change.high,
            **_paired(change),
            merged_sha=change.merged_sha,
            left_ratio=change.left_ratio if change.fixed_by_sha is None else None,
            fixed_by_sha=change.fixed_by_sha,
            can_confirm=change.can_confirm,
            regression_id=change.regression_id,
        )


def _decided_change(change: ChangeFact) -> str:
    if change.verdict == "suspected":
        return _suspicion(change) + ("" if change.can_confirm else ", cannot be confirmed here")
    return f"{_suspicion(change)}, then {len(change.base_ns)} interleaved A/B rounds on one device"


def _suspicion(change: ChangeFact) -> str:
    return "suspected from a change of code" if change.cause == Cause.CODE else "suspected from history"


def _kind_of_change(change: ChangeFact) -> ReportRowKind:
    if change.verdict == "suspected":
        return "suspected"
    if change.verdict != "confirmed":
        return "unsure"
    if change.direction == "faster":
        return "faster"
    if change.state in ("accepted", "invalid"):
        return "accepted"
    return "fixed" if change.is_over else "slower"


# --- slow-downs that it would have found ---------------------------------------------------------------------


class _Sensed(NamedTuple):
    """The sensitivity of one case, and what a finding on it says."""

    case: CaseSensitivity
    cell: CellFact
    decided_by: str
    url: str
    ratios: dict[str, Any]


def _sensitivities(
    facts: ReportFacts, verdicts: Iterable[tuple[PairFact, PairVerdict | None]], address: str
) -> list[_Sensed]:
    """By paired rounds where there are any, else by the noise between runs. What was not measured is unknown. A gate is
    asked what it would have missed of the device's time."""
    sensed: dict[tuple[str, str | None, str | None, str], _Sensed] = {}
    for pair, verdict in verdicts:
        if pair.metric == Signal.LAUNCH:
            continue
        ratios = {} if verdict is None else {"ratio": verdict.ratio, "low": verdict.low, "high": verdict.high}
        case = _sense(pair.cell, verdict)
        sensed[_place(case)] = _Sensed(
            case, pair.cell, _rounds_text(pair), f"{address}/jobs/{pair.job_id}", ratios | _paired(pair)
        )
    for change in facts.changes:
        if change.metric == Signal.LAUNCH:
            continue
        time_kind = kind_of_time(change.cell.device_kind, change.metric, change.protocol)
        verdict = classify_trial(change.base_ns, change.head_ns, time_kind)
        case = replace(_sense(change.cell, verdict), is_decided=change.verdict == "confirmed")
        url = f"{address}/regressions/{change.regression_id}"
        sensed.setdefault(_place(case), _Sensed(case, change.cell, _decided_change(change), url, _paired(change)))
    # Beside a base, what is timed and not compared has the code of the base.
    compared = {pair.cell.operator for pair in facts.pairs} | {job.cell.operator for job in _left_out(facts)}
    for timed in facts.timed:
        if timed.operator in compared:
            continue
        names = timed.operator, timed.variant, timed.case, timed.device_key
        cell = CellFact(*names, timed.device_kind, facts.head_sha or "", facts.base_sha, "")
        url, decided_by = f"{address}/runs/{facts.submission_id}", "the noise between runs of the series"
        sensed.setdefault(names, _Sensed(_sense_timed(timed, cell), cell, decided_by, url, {}))
    return list(sensed.values())


def _sense(cell: CellFact, verdict: PairVerdict | None) -> CaseSensitivity:
    names = cell.operator, cell.variant or "", cell.case or "", cell.device_key
    if verdict is None or verdict.ratio is None:
        return CaseSensitivity(*names, None, "none")
    is_decided = verdict.outcome in ("slower", "faster")
    return CaseSensitivity(*names, verdict.detectable, "rounds", verdict.false_alarm, is_decided)


def _sense_timed(timed: TimedFact, cell: CellFact) -> CaseSensitivity:
    """The sensitivity of the trial of a commit, or of a history that has as many readings as a level needs."""
    time_kind = kind_of_time(timed.device_kind, None, timed.protocol)
    if timed.base_ns:
        return _sense(cell, classify_trial(timed.base_ns, timed.head_ns, time_kind, timed.reason))
    names = timed.operator, timed.variant, timed.case, timed.device_key
    readings = [Reading(int(ordinal), int(commit_id), 1, *times) for ordinal, commit_id, *times in timed.readings]
    if len({reading.commit_id for reading in readings}) < thresholds_of(time_kind).level_readings:
        return CaseSensitivity(*names, None, "none")
    noise = learn(readings, time_kind)
    least = detectable(noise, time_kind, readings[-1].median_ns, SURELY)
    return CaseSensitivity(*names, least, "history", FALSE_BY_HISTORY)


def _with_blind(rows: list[ReportRow], cases: Iterable[_Sensed], sensitivity: ReportSensitivity) -> list[ReportRow]:
    """The rows with those of cases that would have hidden a slow-down of the required size; what is inconclusive is
    told by them."""
    if sensitivity.required is None:
        return rows
    told = {_place(row) for row in rows if row.kind in FAILURES | ERRORS}
    blind = [
        _row(
            "blind",
            item.cell,
            "ok",
            f"the smallest slow-down that is found with 95 % is {detectable_text(item.case)}; "
            f"{required_text(sensitivity.required)} is required",
            item.decided_by,
            item.url,
            **item.ratios,
        )
        for item in cases
        if item.case.misses(sensitivity.required) and _place(item.case) not in told
    ]
    places = {_place(row) for row in blind}
    return [row for row in rows if row.kind != "unsure" or _place(row) not in places] + blind


def _row(
    kind: ReportRowKind,
    cell: CellFact,
    status: str,
    message: str,
    decided_by: str,
    url: str,
    *,
    can_confirm: bool = True,
    regression_id: int | None = None,
    signal: str | None = None,
    **more: Any,
) -> ReportRow:
    row = ReportRow(
        kind,
        cell.operator,
        cell.variant,
        cell.case,
        cell.device_key,
        cell.head_sha,
        cell.base_sha,
        status,
        message,
        decided_by,
        url,
        cell.replay,
        **more,
    )
    statement = _statement(row, regression_id, can_confirm=can_confirm)
    return replace(row, statement=replace(statement, signal=None if signal is None else Signal(signal)))


_STATED: dict[ReportRowKind, tuple[StatementKind, StatementDirection | None, StatementSource]] = {
    "wrong": (StatementKind.FAILED, None, StatementSource.CHECK),
    "failed": (StatementKind.FAILED, None, StatementSource.CHECK),
    "slower": (StatementKind.CONFIRMED, StatementDirection.SLOWER, StatementSource.TRIAL),
    "accepted": (StatementKind.CONFIRMED, StatementDirection.SLOWER, StatementSource.TRIAL),
    "faster": (StatementKind.CONFIRMED, StatementDirection.FASTER, StatementSource.TRIAL),
    "blind": (StatementKind.NOT_TOLD_APART, None, StatementSource.TRIAL),
    "unsure": (StatementKind.NOT_TOLD_APART, None, StatementSource.TRIAL),
}


def _statement(row: ReportRow, regression_id: int | None, *, can_confirm: bool) -> Statement:
    """The finding as pages state it. What was fixed since, or accepted, is over."""
    kind, direction, source = _STATED.get(row.kind, (StatementKind.NO_DATA, None, StatementSource.NONE))
    if row.kind == "fixed":
        kind, direction, source = _STATED["failed" if row.ratio is None else "slower"]
    if row.kind == "suspected":
        kind, source = StatementKind.SUSPECTED, StatementSource.HISTORY
        direction = StatementDirection.SLOWER if (row.ratio or 1.0) > 1 else StatementDirection.FASTER
    return Statement(
        kind,
        direction,
        row.ratio if row.left_ratio is None else row.left_ratio,
        row.low if row.left_ratio is None else None,
        row.high if row.left_ratio is None else None,
        source,
        regression_id=regression_id,
        commit_sha=row.head_sha,
        status=row.status if kind == StatementKind.FAILED else None,
        can_confirm=can_confirm,
        is_ended=row.kind in ("accepted", "fixed") or row.fixed_by_sha is not None,
    )


def _place(row: ReportRow | CaseSensitivity) -> tuple[str, str | None, str | None, str]:
    return row.operator, row.variant, row.case, row.device


def _timed_place(row: ReportRow) -> tuple[str, str | None, str | None, str, bool]:
    """The place of a row about one of the two times of a call."""
    return *_place(row), row.metric == Signal.LAUNCH


def _worst_of_each(rows: Iterable[ReportRow]) -> list[ReportRow]:
    """One row per case: a variant that is wrong in its check and in its benchmark counts once."""
    worst: dict[object, ReportRow] = {}
    for row in rows:
        key = (*_place(row), row.head_sha)
        if key not in worst or _ORDER[row.kind] < _ORDER[worst[key].kind]:
            worst[key] = row
    return list(worst.values())


def _badness(row: ReportRow) -> tuple[object, ...]:
    """Sort key: kind, then distance of the ratio from 1, then names."""
    return (
        _ORDER[row.kind],
        -abs(log(row.ratio)) if row.ratio else 0.0,
        row.operator,
        row.case or "",
        row.variant or "",
        row.device,
    )


def _about_compared(rows: list[ReportRow], compared: set[tuple[str, str | None, str | None, str]]) -> int:
    return len(
        {
            _place(row)
            for row in rows
            if row.kind in ("slower", "accepted", "faster", "unsure", "blind") and _place(row) in compared
        }
    )
