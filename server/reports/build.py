"""Builds a report from facts: classifies pairs, drops duplicates and sorts the worst first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import log
from typing import Any

from warpwatch.contract.rounds import times_of_rounds
from warpwatch.contract.words import Reason, StatementDirection, StatementKind, StatementSource
from warpwatch.db.reads.reports import CellFact, ChangeFact, JobFact, PairFact, ReportFacts, ResultFact
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
from warpwatch.server.reports.words import change_text
from warpwatch.server.verdicts.held import classify
from warpwatch.server.verdicts.statements import Statement

MAX_ROWS = 1000
_CONCLUSIONS: tuple[Conclusion, ...] = ("success", "failure", "error")
_ORACLE = {"check": "a check against the float64 reference", "bench": "a check of the outputs of the timed loop"}
_ORDER: dict[ReportRowKind, int] = {kind: place for place, kind in enumerate(KINDS)}


def build_report(facts: ReportFacts, address: str) -> Report:
    """The report on a submission; `address` is where people reach the server, such as https://warpwatch.example."""
    # What a trial measured stands in the rows of the change that it decided.
    known = {change.regression_id for change in facts.changes}
    facts = replace(facts, pairs=[pair for pair in facts.pairs if pair.regression_id not in known])
    pairs = list(_pair_rows(facts, address))
    decided = {_place(row) for row in pairs if row.kind in ("slower", "accepted", "faster")}
    compared = {
        (p.cell.operator, p.cell.variant, p.cell.case, p.cell.device_key) for p in facts.pairs if p.status == "ok"
    }
    changes = [
        row
        for row in _change_rows(facts, address)
        if _place(row) not in decided and not (row.kind == "unsure" and _place(row) in compared)
    ]
    overruled = {_place(row) for row in changes}
    pairs = [row for row in pairs if _place(row) not in overruled]
    faults = _worst_of_each(_fault_rows(facts, address))
    failed = {_place(row) for row in faults}
    pairs = [row for row in pairs if row.kind not in ("failed", "skipped") or _place(row) not in failed]
    rows = sorted([*faults, *pairs, *changes, *_job_rows(facts, address)], key=_badness)
    return _report(facts, address, rows, len(compared), len(compared) - _about_compared(rows, compared))


def _report(facts: ReportFacts, address: str, rows: list[ReportRow], compared: int, same: int) -> Report:
    per_kind = Counter(row.kind for row in rows)
    counts = {kind: per_kind[kind] for kind in KINDS if per_kind[kind]}
    code = exit_code(counts)
    # With a base, an operator counts as unchanged when its comparison was left out. Its check may have been left out
    # because of any other commit.
    left_out = {
        job.cell.operator
        for job in facts.jobs
        if job.unchanged_since and (job.kind == "compare" or facts.base_sha is None)
    }
    unchanged = sorted(left_out)
    conclusion: Conclusion = "pending" if facts.pending else _CONCLUSIONS[code]
    return Report(
        submission_id=facts.submission_id,
        repository=facts.repository,
        url=f"{address}/runs/{facts.submission_id}",
        head_sha=facts.head_sha,
        base_sha=facts.base_sha,
        conclusion=conclusion,
        exit_code=code,
        summary=_summary(facts, counts, compared, unchanged),
        pending=facts.pending,
        results=facts.results,
        counts=counts,
        compared=compared,
        same=same,
        unchanged=unchanged,
        created_at=facts.created_at,
        rows=rows[:MAX_ROWS],
        left_out=max(len(rows) - MAX_ROWS, 0),
    )


def _summary(facts: ReportFacts, counts: dict[ReportRowKind, int], compared: int, unchanged: list[str]) -> str:
    """One line, short enough for a commit status: failures, comparisons, the other findings, what is outstanding."""
    is_failing = (FAILURES | ERRORS).__contains__
    parts = [f"{count} {KINDS[kind]}" for kind, count in counts.items() if is_failing(kind)]
    parts += [f"{compared} compared"] if compared and counts else []
    parts += [f"{count} {KINDS[kind]}" for kind, count in counts.items() if not is_failing(kind)]
    sentences = [", ".join(parts)] if parts else _without_findings(facts, compared, unchanged)
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
        yield _row(
            kind,
            fault.cell,
            fault.status,
            fault.message,
            _decided(fault),
            f"{address}/jobs/{fault.job_id}",
            is_known_before=fault.known_before,
        )


def _decided(fault: ResultFact) -> str:
    return _ORACLE.get(fault.kind, "a run") if fault.status == "wrong" else f"a {fault.kind} run"


def _job_rows(facts: ReportFacts, address: str) -> Iterator[ReportRow]:
    for job in facts.jobs:
        kind = _kind_of(job, facts.base_sha)
        if kind is not None:
            yield _row(kind, job.cell, job.state, job.message, f"job {job.job_id}", f"{address}/jobs/{job.job_id}")


def _kind_of(job: JobFact, base_sha: str | None) -> ReportRowKind | None:
    if job.state == "done":
        return None
    if job.reason == Reason.INTERPRETER_MISMATCH:
        return "mismatch"
    # A base that cannot be measured is no fault of the change.
    return "unsure" if job.cell.head_sha == base_sha else "not_run"


def _pair_rows(facts: ReportFacts, address: str) -> Iterator[ReportRow]:
    among = sum(pair.status == "ok" for pair in facts.pairs)
    for pair in facts.pairs:
        url = f"{address}/jobs/{pair.job_id}"
        if pair.status != "ok":
            yield _row(_kind_of_pair(pair), pair.cell, pair.status, pair.message, "an A/B run that did not finish", url)
            continue
        is_trial, kind_of_device = pair.regression_id is not None, pair.cell.device_kind
        verdict = classify(pair.base_ns, pair.head_ns, kind_of_device, among, pair.reason, is_trial=is_trial)
        if verdict.outcome == "same" or verdict.outcome == "not_slower":
            continue
        kind: ReportRowKind = "accepted" if verdict.outcome == "slower" and pair.is_accepted else verdict.outcome
        yield _row(
            kind,
            pair.cell,
            pair.status,
            "",
            f"{len(pair.base_ns)} interleaved A/B rounds on one device",
            url,
            ratio=verdict.ratio,
            low=verdict.low,
            high=verdict.high,
            **_paired(pair),
        )


def _paired(fact: PairFact | ChangeFact) -> dict[str, Any]:
    """Fields of a row about the rounds: their number, and the times of base and head."""
    base_ns, head_ns = times_of_rounds(fact.base_ns, fact.head_ns)
    return {"rounds": len(fact.base_ns), "base_ns": base_ns, "head_ns": head_ns}


def _kind_of_pair(pair: PairFact) -> ReportRowKind:
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
        return "suspected from history" if change.can_confirm else "suspected from history, cannot be confirmed here"
    return f"suspected from history, then {len(change.base_ns)} interleaved A/B rounds on one device"


def _kind_of_change(change: ChangeFact) -> ReportRowKind:
    if change.verdict == "suspected":
        return "suspected"
    if change.verdict != "confirmed":
        return "unsure"
    if change.direction == "faster":
        return "faster"
    return "accepted" if change.state in ("accepted", "invalid") else "slower"


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
    return replace(row, statement=_statement(row, regression_id, can_confirm=can_confirm))


_STATED: dict[ReportRowKind, tuple[StatementKind, StatementDirection | None, StatementSource]] = {
    "wrong": (StatementKind.FAILED, None, StatementSource.CHECK),
    "failed": (StatementKind.FAILED, None, StatementSource.CHECK),
    "slower": (StatementKind.CONFIRMED, StatementDirection.SLOWER, StatementSource.TRIAL),
    "accepted": (StatementKind.CONFIRMED, StatementDirection.SLOWER, StatementSource.TRIAL),
    "faster": (StatementKind.CONFIRMED, StatementDirection.FASTER, StatementSource.TRIAL),
    "unsure": (StatementKind.NOT_TOLD_APART, None, StatementSource.TRIAL),
}


def _statement(row: ReportRow, regression_id: int | None, *, can_confirm: bool) -> Statement:
    """The finding as pages state it. What was fixed since, or accepted, is over."""
    kind, direction, source = _STATED.get(row.kind, (StatementKind.NO_DATA, None, StatementSource.NONE))
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
        is_ended=row.kind == "accepted" or row.fixed_by_sha is not None,
    )


def _place(row: ReportRow) -> tuple[str, str | None, str | None, str]:
    return row.operator, row.variant, row.case, row.device


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
            if row.kind in ("slower", "accepted", "faster", "unsure") and _place(row) in compared
        }
    )
