"""What the commit that was found does not explain is a suspicion of its own, in the commits after it."""

from __future__ import annotations

from warpwatch.contract.words import Verdict
from warpwatch.db.reads import judging
from warpwatch.db.reads.judging import MemberRow, TrialState
from warpwatch.db.reads.query import Session
from warpwatch.db.regressions import SeriesDecision, SuspectedSeries, open_suspicion
from warpwatch.server.judge.answers import TrialResult, evaluate_trial, severity
from warpwatch.server.judge.dossier import RegressionContext
from warpwatch.server.verdicts.thresholds import thresholds_of


def suspect_residual(
    session: Session, dossier: RegressionContext, head_sha: str, head_id: int, said: TrialResult
) -> int | None:
    """Suspects the commits between the guilty one and the end of the whole range of what it does not explain; the new
    suspicion's id.

    Nothing before it: every trial held a commit against the good end, so the one that was found is the first.
    """
    whole, state = dossier.whole, dossier.regression
    if whole is None or whole.head_sha == head_sha or _was_opened(session, dossier, head_id, whole):
        return None
    before = {
        one.series_id: one
        for one in evaluate_trial(session, dossier, whole).decisions
        if one.verdict == Verdict.CONFIRMED
    }
    explained = {one.series_id: one for one in said.decisions}
    members = {one.series_id: one for one in dossier.members}
    left = [
        found
        for number, one in before.items()
        if (found := _left(members[number], one, explained.get(number), state.device_kind)) is not None
    ]
    if not left:
        return None
    ratios = [one.ratio for one in left if one.ratio is not None]
    return open_suspicion(
        session,
        operator_id=state.operator_id,
        device_id=state.device_id,
        base_commit_id=head_id,
        head_commit_id=whole.head_commit_id,
        direction=state.direction,
        ratio=max(ratios, key=severity, default=None),
        series=left,
        cause=state.cause,
    )


def _was_opened(session: Session, dossier: RegressionContext, head_id: int, whole: TrialState) -> bool:
    """Whether what is left over was put to a trial already, when the same end was reached before."""
    state = dossier.regression
    return judging.was_tried(session, state.operator_id, state.device_id, head_id, whole.head_commit_id)


def _left(
    member: MemberRow, whole: SeriesDecision, found: SeriesDecision | None, device_kind: str
) -> SuspectedSeries | None:
    """The series, when surely more happened to it in the whole range than at the commit that was found."""
    is_shown = found is not None and found.verdict == Verdict.CONFIRMED
    if whole.ratio is None or whole.low is None or whole.high is None:
        return (
            None
            if is_shown or found is None
            else SuspectedSeries(member.series_id, None, member.base_status, member.head_status)
        )
    at_least = min(severity(whole.low), severity(whole.high))
    at_most = max(severity(found.low), severity(found.high)) if is_shown and found else 1.0
    if at_least / at_most <= thresholds_of(device_kind).confirm_ratio:
        return None
    return SuspectedSeries(member.series_id, whole.ratio / (found.ratio if is_shown and found and found.ratio else 1.0))
