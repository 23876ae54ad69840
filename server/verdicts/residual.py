"""The part of a change that the guilty commit does not explain: a suspicion of its own, in the commits after it."""

from __future__ import annotations

from warpwatch.contract.words import Cause, ChangeDirection, Verdict
from warpwatch.db.reads.judging import MemberRow, TrialState
from warpwatch.db.regressions import SeriesDecision, SuspectedSeries
from warpwatch.server.verdicts.context import RegressionContext
from warpwatch.server.verdicts.steps import NewSuspicion
from warpwatch.server.verdicts.thresholds import thresholds_of
from warpwatch.server.verdicts.trials import evaluate_trial, severity


def find_residual(context: RegressionContext, head_sha: str, proof: TrialState) -> NewSuspicion | None:
    """The suspicion between the guilty commit and the end of the whole range; None where nothing is unexplained or the
    range was tried already.

    There is none before the guilty commit: every trial compared a commit with the good end, so it is the first.
    """
    whole = context.whole
    if whole is None or whole.head_sha == head_sha or (head_sha, whole.head_sha) in context.facts.tried:
        return None
    explained = {item.series_id: item for item in evaluate_trial(context, proof).decisions}
    members = {member.series_id: member for member in context.members}
    residuals = [
        _residual_of(members[item.series_id], item, explained.get(item.series_id), context.regression.device_kind)
        for item in evaluate_trial(context, whole).decisions
        if item.verdict == Verdict.CONFIRMED
    ]
    series = tuple(item for item in residuals if item is not None)
    if not series:
        return None
    ratio = max((item.ratio for item in series if item.ratio is not None), key=severity, default=None)
    direction, cause = ChangeDirection(context.regression.direction), Cause(context.regression.cause)
    return NewSuspicion(head_sha, whole.head_sha, direction, ratio, series, cause)


def _residual_of(
    member: MemberRow, whole: SeriesDecision, explained: SeriesDecision | None, device_kind: str
) -> SuspectedSeries | None:
    """The series, when surely more happened to it in the whole range than at the guilty commit."""
    is_shown = explained is not None and explained.verdict == Verdict.CONFIRMED
    if whole.ratio is None or whole.low is None or whole.high is None:
        if is_shown or explained is None:
            return None
        return SuspectedSeries(member.series_id, None, member.base_status, member.head_status)
    at_least = min(severity(whole.low), severity(whole.high))
    at_most = max(severity(explained.low), severity(explained.high)) if is_shown and explained else 1.0
    if at_least / at_most <= thresholds_of(device_kind).confirm_ratio:
        return None
    explained_ratio = explained.ratio if is_shown and explained and explained.ratio else 1.0
    return SuspectedSeries(member.series_id, whole.ratio / explained_ratio)
