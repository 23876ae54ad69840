"""Confirms changes by A/B comparisons that were made elsewhere and imported: nothing can be measured again here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from warpwatch.contract.words import Answer, ChangeDirection, Status, Verdict
from warpwatch.db.reads.judging import find_trace
from warpwatch.db.reads.observed import RoundsRow
from warpwatch.db.reads.query import Session
from warpwatch.db.regressions import (
    EndedJob,
    SeriesDecision,
    SuspectedSeries,
    attach_compare_job,
    decide,
    open_suspicion,
    settle,
)
from warpwatch.db.trials import answer, record
from warpwatch.server.verdicts.held import PairVerdict, classify_comparison
from warpwatch.server.verdicts.trials import severity


def confirm_imported(session: Session, job: EndedJob, device_kind: str, rounds: Sequence[RoundsRow]) -> None:
    """One confirmed change for each direction in which series of an imported comparison changed."""
    measured = [row for row in rounds if row.status == Status.OK]
    verdicts = {
        row.series_id: classify_comparison(
            row.base_ns, row.head_ns, device_kind, len(measured), job.spec.stop, row.reason
        )
        for row in measured
    }
    is_recorded = False
    for direction in (ChangeDirection.SLOWER, ChangeDirection.FASTER):
        changed = {number: verdict for number, verdict in verdicts.items() if verdict.outcome == direction}
        if changed:
            is_recorded = _confirm(session, job, direction, changed, is_recorded=is_recorded)


def _confirm(
    session: Session,
    job: EndedJob,
    direction: ChangeDirection,
    changed: Mapping[int, PairVerdict],
    *,
    is_recorded: bool,
) -> bool:
    """is_recorded: whether the job is the trial of another change already; of one job there is one trial."""
    assert job.base_commit_id is not None
    most = max(changed.values(), key=lambda verdict: severity(verdict.ratio))
    regression_id = open_suspicion(
        session,
        operator_id=job.operator_id,
        device_id=job.device_id,
        base_commit_id=job.base_commit_id,
        head_commit_id=job.commit_id,
        direction=direction,
        ratio=most.ratio,
        series=[SuspectedSeries(number, verdict.ratio) for number, verdict in changed.items()],
    )
    if regression_id is None:
        return is_recorded
    decisions = [
        SeriesDecision(number, Verdict.CONFIRMED, verdict.ratio, verdict.low, verdict.high)
        for number, verdict in changed.items()
    ]
    if not is_recorded:
        trial_id = record(session, regression_id, job.id, job.base_commit_id, job.commit_id)
        answer(session, trial_id, Answer.CHANGED, "", most.ratio, most.low, most.high)
    attach_compare_job(session, regression_id, job.id)
    confirmed = Verdict.CONFIRMED
    of_most = next(number for number, verdict in changed.items() if verdict is most)
    base_trace_id, head_trace_id = (
        find_trace(session, job.id, commit_id, of_most) for commit_id in (job.base_commit_id, job.commit_id)
    )
    decide(
        session,
        regression_id,
        confirmed,
        ratio=most.ratio,
        low=most.low,
        high=most.high,
        series=decisions,
        base_trace_id=base_trace_id,
        head_trace_id=head_trace_id,
    )
    settle(session, regression_id)
    return True
