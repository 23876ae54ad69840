"""The next step with a regression, as a table: its stage by the evidence, and the step that each stage asks for.

docs/verdicts.md draws the table. Everything is a pure function of the context: no SQL, no git, no clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from warpwatch.contract.commit_ids import short_sha
from warpwatch.contract.words import Answer, Cause, ChangeDirection, Purpose, Verdict
from warpwatch.db.reads.judging import MemberRow, TrialState
from warpwatch.db.regressions import SeriesDecision, SuspectedSeries
from warpwatch.server.verdicts.context import CONFIRMING, CommitPath, RegressionContext, after
from warpwatch.server.verdicts.paired import severity
from warpwatch.server.verdicts.search import CulpritRange, ask, describe_merge, narrow_down, search_merge
from warpwatch.server.verdicts.steps import (
    LAST_STEPS,
    AskTrial,
    DecideVerdict,
    Dismiss,
    Evidence,
    MergeInto,
    Narrow,
    NewSuspicion,
    OpenOpposite,
    OpenResidual,
    ReadMerge,
    ReadPath,
    RecordAnswer,
    RegressionStage,
    Settle,
    Step,
    TurnDirection,
    Wait,
)
from warpwatch.server.verdicts.thresholds import thresholds_of
from warpwatch.server.verdicts.trials import combine, evaluate_trial


def plan_steps(
    context: RegressionContext,
    read_path: Callable[[ReadPath], CommitPath],
    read_merge: Callable[[ReadMerge], tuple[CommitPath, ...]],
) -> list[Step]:
    """The steps to take now, in their order; the last one is one of LAST_STEPS. read_path, read_merge: ask git, where
    needed."""
    steps: list[Step] = []
    while not steps or not isinstance(steps[-1], LAST_STEPS):
        step = next_step(context)
        if isinstance(step, ReadPath):
            context = replace(context, path=read_path(step))
            continue
        if isinstance(step, ReadMerge):
            context = replace(context, merges={**context.merges, (step.base_sha, step.head_sha): read_merge(step)})
            continue
        context = after(context, step)
        steps.append(step)
    return steps


def next_step(context: RegressionContext) -> Step:
    """The one step to take now. Take it, and ask again with the context after it, until one of LAST_STEPS."""
    if context.ended_trial is not None:
        return _record_answer(context, context.trial(context.ended_trial))
    recorded = next((step for step in context.taken if isinstance(step, RecordAnswer)), None)
    if recorded is not None and recorded.opposite and not context.has_taken(OpenOpposite):
        return _open_opposite(context, recorded)
    if any(trial.answer == Answer.PENDING for trial in context.trials):
        return Wait()
    regression, untried = context.regression, context.having(Verdict.SUSPECTED)
    if untried:
        ends = (regression.base_sha, regression.head_sha)
        return ask(context, RegressionStage.UNTRIED, Purpose.CONFIRM, ends, untried)
    verdict = combine(member.verdict for member in context.members)
    if verdict == Verdict.CONFIRMED:
        return _step_of_confirmed(context)
    if not context.confirming:
        return Settle(RegressionStage.UNCONFIRMED)
    trial = context.confirming[-1]
    # Measuring for longer does not help where nothing could be measured at all.
    unsure = [member for member in context.having(Verdict.UNSURE) if member.ratio is not None]
    if unsure and not any(trial.purpose == Purpose.RETRY for trial in context.trials):
        rounds, ends = thresholds_of(regression.device_kind).more_rounds, (trial.base_sha, trial.head_sha)
        return ask(context, RegressionStage.UNSURE, Purpose.RETRY, ends, unsure, rounds)
    evidence = Evidence(trial, evaluate_trial(context, trial).worst)
    return Dismiss(RegressionStage.UNCONFIRMED, verdict, evidence, (f"{verdict}: {trial.message}",))


def _record_answer(context: RegressionContext, trial: TrialState) -> TurnDirection | RecordAnswer:
    """The answer of the trial whose job has ended; first the other direction, where all that changed went that way."""
    regression, direction = context.regression, context.opposite_direction
    sibling = context.sibling(regression.base_sha, regression.head_sha, direction)
    result = evaluate_trial(context, trial)
    is_confirmed = any(item.verdict == Verdict.CONFIRMED for item in result.decisions)
    own = {member.series_id for member in context.members}
    if own.intersection(dict(result.opposite)) and not is_confirmed and sibling is None:
        # Where only code had changed nobody could say which way the time would go.
        return TurnDirection(direction, f"{regression.direction} was expected, and the opposite was measured")
    if trial.purpose not in CONFIRMING or trial.base_sha == trial.head_sha:
        return RecordAnswer(trial.id, result.answer, result.message, result.worst)
    verdicts = result.decisions, result.opposite, result.joined
    return RecordAnswer(trial.id, result.answer, result.message, result.worst, *verdicts)


def _open_opposite(context: RegressionContext, recorded: RecordAnswer) -> OpenOpposite:
    """A suspicion of the series that the trial showed to change in the other direction."""
    trial, cause = context.trial(recorded.trial_id), Cause(context.regression.cause)
    ratio = max((ratio for _, ratio in recorded.opposite), key=severity)
    series = tuple(SuspectedSeries(series_id, ratio) for series_id, ratio in recorded.opposite)
    return OpenOpposite(NewSuspicion(trial.base_sha, trial.head_sha, context.opposite_direction, ratio, series, cause))


def _step_of_confirmed(context: RegressionContext) -> Step:
    """The step with a regression of which a series is confirmed."""
    whole = context.whole
    if whole is None:
        return Settle(RegressionStage.UNDIVIDED)
    if context.is_broken and whole.id not in context.facts.right_at_base:
        checks = [trial for trial in context.trials if trial.base_sha == trial.head_sha == whole.base_sha]
        if not checks:
            ends, members = (whole.base_sha, whole.base_sha), context.having(Verdict.CONFIRMED)
            return ask(context, RegressionStage.UNCHECKED_BASE, Purpose.CONFIRM, ends, members)
        if checks[-1].answer == Answer.CHANGED:
            trial = context.confirming[-1]
            evidence = Evidence(trial, evaluate_trial(context, trial).worst)
            note = f"{short_sha(whole.base_sha)} is broken too by now: the environment changed, not the code"
            notes = (note, f"{Verdict.DISMISSED}: {trial.message}")
            return Dismiss(RegressionStage.BROKEN_BASE, Verdict.DISMISSED, evidence, notes)
    if context.regression.verdict != Verdict.CONFIRMED:
        evidence = Evidence(whole, evaluate_trial(context, whole).worst)
        return DecideVerdict(evidence, f"{Verdict.CONFIRMED}: {whole.message}")
    if context.path is None:
        return ReadPath(whole.base_sha, whole.head_sha)
    if context.path.error:
        return Settle(RegressionStage.UNDIVIDED, f"not bisected: {context.path.error}")
    narrowed = narrow_down(context, context.path)
    if isinstance(narrowed, AskTrial):
        return narrowed
    if not context.has_taken(Narrow, MergeInto):
        return _locate(context, whole, narrowed)
    residual = None if context.has_taken(OpenResidual) else _find_residual(context, whole, narrowed)
    return Settle(RegressionStage.WRITTEN) if residual is None else OpenResidual(residual)


def _locate(
    context: RegressionContext, whole: TrialState, proven: CulpritRange
) -> ReadMerge | AskTrial | MergeInto | Narrow:
    """Writes the narrowest range, after the search inside the merge that it may be."""
    regression, base, head = context.regression, proven.base_sha, proven.head_sha
    is_moved = (base, head) != (regression.base_sha, regression.head_sha)
    sibling = context.sibling(base, head, regression.direction)
    result = evaluate_trial(context, proven.proof)
    if sibling is not None and is_moved:
        decisions = tuple(item for item in result.decisions if item.verdict == Verdict.CONFIRMED)
        evidence = Evidence(proven.proof, result.worst if decisions else None, decisions)
        return MergeInto(sibling.id, frozenset(sibling.confirmed), evidence)
    merge = search_merge(context, base, head) if proven.commits == 1 and sibling is None else None
    if isinstance(merge, ReadMerge | AskTrial):
        return merge
    is_news = result.worst is not None and (is_moved or proven.proof != whole)
    notes = [proven.describe(regression.direction)] if is_moved or len(proven.shas) > 2 else []
    if merge is not None:
        notes.append(describe_merge(head, merge))
    evidence_or_none = Evidence(proven.proof, result.worst, result.decisions) if is_news else None
    return Narrow(base, head, evidence_or_none, "; ".join(notes), merge)


def _find_residual(context: RegressionContext, whole: TrialState, proven: CulpritRange) -> NewSuspicion | None:
    """The suspicion between the guilty commit and the end of the whole range: of more of the change, or of commits that
    undid a part of it. None where the guilty commit explains all or the range was tried already.

    There is none before the guilty commit: every trial compared a commit with the good end, so it is the first.
    """
    head_sha = proven.head_sha
    if whole.head_sha == head_sha or (head_sha, whole.head_sha) in context.facts.tried:
        return None
    explained = {item.series_id: item for item in evaluate_trial(context, proven.proof).decisions}
    members = {member.series_id: member for member in context.members}
    more: list[SuspectedSeries] = []
    undone: list[SuspectedSeries] = []
    for item in evaluate_trial(context, whole).decisions:
        member, at_culprit = members[item.series_id], explained.get(item.series_id)
        time_kind = context.time_kind(member)
        residual = _residual_of(member, item, at_culprit, time_kind) if item.verdict == Verdict.CONFIRMED else None
        more += [residual] if residual is not None else []
        undone += [SuspectedSeries(item.series_id, ratio)] if (ratio := _undone(item, at_culprit, time_kind)) else []
    series = tuple(more or undone)
    if not series:
        return None
    ratio = max((item.ratio for item in series if item.ratio is not None), key=severity, default=None)
    direction = ChangeDirection(context.regression.direction) if more else context.opposite_direction
    return NewSuspicion(head_sha, whole.head_sha, direction, ratio, series, Cause(context.regression.cause))


def _undone(whole: SeriesDecision, explained: SeriesDecision | None, time_kind: str) -> float | None:
    """The ratio of what later commits did to the series, when surely less is left in the whole range than the guilty
    commit had changed."""
    if explained is None or explained.verdict != Verdict.CONFIRMED or not explained.ratio or not whole.ratio:
        return None
    if not (explained.low and explained.high and whole.low and whole.high):
        return None
    undone = explained.low / whole.high if explained.ratio > 1 else whole.low / explained.high
    return whole.ratio / explained.ratio if undone > thresholds_of(time_kind).confirm_ratio else None


def _residual_of(
    member: MemberRow, whole: SeriesDecision, explained: SeriesDecision | None, time_kind: str
) -> SuspectedSeries | None:
    """The series, when surely more happened to it in the whole range than at the guilty commit."""
    is_shown = explained is not None and explained.verdict == Verdict.CONFIRMED
    if whole.ratio is None or whole.low is None or whole.high is None:
        if is_shown or explained is None:
            return None
        return SuspectedSeries(member.series_id, None, member.base_status, member.head_status)
    at_least = min(severity(whole.low), severity(whole.high))
    at_most = max(severity(explained.low), severity(explained.high)) if is_shown and explained else 1.0
    if at_least / at_most <= thresholds_of(time_kind).confirm_ratio:
        return None
    explained_ratio = explained.ratio if is_shown and explained and explained.ratio else 1.0
    return SuspectedSeries(member.series_id, whole.ratio / explained_ratio)
