"""Results of A/B comparisons of two commits, and their meaning for the times of separate runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median

from warpwatch.db.reads.code import CommitRow
from warpwatch.db.reads.commits import CommitComparison, ComparedRow, compare_commits
from warpwatch.db.reads.paired import PairedRounds, list_paired_rounds
from warpwatch.db.reads.query import Session
from warpwatch.server.verdicts.held import PairOutcome, classify


@dataclass(frozen=True, slots=True)
class PairedOutcome:
    """One series of two commits in their newest A/B comparison. ratio: head over base, with its interval. base_ns,
    head_ns: medians of the rounds."""

    operator: str
    case: str
    variant: str
    device_key: str
    series_id: int
    metric: str
    job_id: int
    outcome: PairOutcome
    ratio: float | None
    low: float | None
    high: float | None
    rounds: int
    base_ns: float | None
    head_ns: float | None


def list_paired_outcomes(
    session: Session, base_commit_id: int, head_commit_id: int, device_id: int | None = None
) -> list[PairedOutcome]:
    """The outcome of every series that an A/B comparison measured at both commits, on one device or on all."""
    pairs = list_paired_rounds(session, base_commit_id, head_commit_id, device_id)
    among = sum(not pair.is_trial for pair in pairs)
    return [_outcome(pair, among) for pair in pairs]


def compare_commits_paired(
    session: Session, base: CommitRow, head: CommitRow, device_id: int, metric: str, operator: str | None = None
) -> CommitComparison:
    """Two commits by the times of their separate runs, and by what A/B comparisons of the two say; series that nothing
    but these measured come last."""
    comparison = compare_commits(session, base, head, device_id, metric, operator)
    outcomes = {
        (item.operator, item.case, item.variant): item
        for item in list_paired_outcomes(session, base.id, head.id, device_id)
        if item.metric == metric and operator in (None, item.operator)
    }
    rows = [_with(row, outcomes.pop((row.operator, row.case, row.left_variant), None)) for row in comparison.rows]
    rows += [_with(_unmeasured(item), item) for item in outcomes.values()]
    return comparison._replace(rows=rows)


def _with(row: ComparedRow, found: PairedOutcome | None) -> ComparedRow:
    if found is None:
        return row
    return replace(
        row,
        paired_outcome=found.outcome,
        paired_ratio=found.ratio,
        paired_low=found.low,
        paired_high=found.high,
        paired_left_ns=found.base_ns,
        paired_right_ns=found.head_ns,
        paired_job_id=found.job_id,
    )


def _unmeasured(item: PairedOutcome) -> ComparedRow:
    """A series that has no times of separate runs at either commit."""
    return ComparedRow(
        operator=item.operator,
        case=item.case,
        left_variant=item.variant,
        right_variant=item.variant,
        left_status=None,
        right_status=None,
        left_ns=None,
        right_ns=None,
        ratio=None,
        separated=False,
        left_series_id=item.series_id,
        right_series_id=item.series_id,
    )


def _outcome(pair: PairedRounds, among: int) -> PairedOutcome:
    verdict = classify(pair.base_ns, pair.head_ns, pair.device_kind, among, pair.reason, is_trial=pair.is_trial)
    return PairedOutcome(
        pair.operator,
        pair.case,
        pair.variant,
        pair.device_key,
        pair.series_id,
        pair.metric,
        pair.job_id,
        verdict.outcome,
        verdict.ratio,
        verdict.low,
        verdict.high,
        len(pair.base_ns),
        median(pair.base_ns) if pair.base_ns else None,
        median(pair.head_ns) if pair.head_ns else None,
    )
