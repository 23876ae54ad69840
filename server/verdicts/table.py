"""The next step with a regression, as a table: its state by the evidence, and the step that each state asks for.

docs/verdicts.md draws it. Everything is a pure function of the context: no SQL, no git, no clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum

from warpwatch.contract.words import Answer, Cause, Purpose, Verdict
from warpwatch.db.reads.judging import MemberRow
from warpwatch.db.regressions import SuspectedSeries
from warpwatch.server.verdicts.asking import ask, ask_half, ask_proof, may_ask
from warpwatch.server.verdicts.context import CONFIRMING, CommitPath, RegressionContext, after
from warpwatch.server.verdicts.merges import describe_merge, search_merge
from warpwatch.server.verdicts.residual import find_residual
from warpwatch.server.verdicts.search import (
    CommitSearch,
    has_direct_proof,
    proof_of,
    proven_ends,
    search_of,
    summarize,
)
from warpwatch.server.verdicts.steps import (
    LAST_STEPS,
    AskTrial,
    DecideVerdict,
    Dismiss,
    Evidence,
    MergeFinding,
    MergeInto,
    Narrow,
    NewSuspicion,
    OpenOpposite,
    OpenResidual,
    ReadMerge,
    ReadPath,
    RecordAnswer,
    Settle,
    Step,
    TurnDirection,
    Wait,
)
from warpwatch.server.verdicts.thresholds import thresholds_of
from warpwatch.server.verdicts.trials import combine, evaluate_trial, severity


class RegressionStage(StrEnum):
    """Where a regression stands, by the evidence. The first stage that applies counts, from top to bottom."""

    ANSWERED = "answered"
    """The job of a trial has ended and its answer is not recorded yet."""
    OPPOSED = "opposed"
    """The trial showed some series to change in the other direction."""
    WAITING = "waiting"
    """A trial has not answered yet."""
    UNTRIED = "untried"
    """A series was not tried yet."""
    UNSURE = "unsure"
    """No series is confirmed, one was measured and is unsure, and no longer trial was asked for."""
    UNCONFIRMED = "unconfirmed"
    """All series are decided and none is confirmed."""
    UNCHECKED_BASE = "unchecked base"
    """Something is broken at the head; the base was not checked in the same environment."""
    BROKEN_BASE = "broken base"
    """The base is broken in the same environment, too: the environment changed, not the code."""
    CONFIRMED = "confirmed"
    """A series is confirmed and the verdict is not written yet."""
    UNREAD = "unread"
    """The change is confirmed; the commits of its range are not read yet."""
    UNDIVIDED = "undivided"
    """The range cannot be bisected."""
    DIVISIBLE = "divisible"
    """The range has a commit in the middle that may be measured."""
    UNPROVEN = "unproven"
    """No trial compared the two commits that the bisection ended with."""
    MERGED = "merged"
    """The range is one commit, and git was not asked yet what it merged."""
    BRANCHED = "branched"
    """The range is a merge commit, and the branch that it merged may be measured."""
    LOCATED = "located"
    """The narrowest range is known and not written yet."""
    WRITTEN = "written"
    """The narrowest range is written."""


def next_step(context: RegressionContext) -> Step:
    """The one step to take now. Take it, and ask again with the context after it, until one of LAST_STEPS."""
    return _STEPS[stage_of(context)](context)


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


def stage_of(context: RegressionContext) -> RegressionStage:
    """Where the regression stands."""
    if context.ended_trial is not None:
        return RegressionStage.ANSWERED
    if _opposite(context) and not context.has_taken(OpenOpposite):
        return RegressionStage.OPPOSED
    if any(trial.answer == Answer.PENDING for trial in context.trials):
        return RegressionStage.WAITING
    if context.having(Verdict.SUSPECTED):
        return RegressionStage.UNTRIED
    if combine(member.verdict for member in context.members) == Verdict.CONFIRMED:
        return _stage_of_confirmed(context)
    # Measuring for longer does not help where nothing could be measured at all.
    is_retried = any(trial.purpose == Purpose.RETRY for trial in context.trials)
    if context.confirming and not is_retried and _measured_unsure(context):
        return RegressionStage.UNSURE
    return RegressionStage.UNCONFIRMED


def _stage_of_confirmed(context: RegressionContext) -> RegressionStage:
    whole = context.whole
    if whole is None:
        return RegressionStage.UNDIVIDED
    if context.is_broken and whole.id not in context.facts.right_at_base:
        checks = [trial for trial in context.trials if trial.base_sha == trial.head_sha == whole.base_sha]
        if not checks:
            return RegressionStage.UNCHECKED_BASE
        if checks[-1].answer == Answer.CHANGED:
            return RegressionStage.BROKEN_BASE
    if context.regression.verdict != Verdict.CONFIRMED:
        return RegressionStage.CONFIRMED
    if context.path is None:
        return RegressionStage.UNREAD
    if context.path.error:
        return RegressionStage.UNDIVIDED
    if context.has_taken(Narrow, MergeInto):
        return RegressionStage.WRITTEN
    search = _search(context)
    if search.middle is not None and may_ask(context.trials_of(search.ends[0], search.middle)):
        return RegressionStage.DIVISIBLE
    if not has_direct_proof(context, search) and may_ask(context.trials_of(*search.ends)):
        return RegressionStage.UNPROVEN
    merge = _merge(context)
    if isinstance(merge, ReadMerge):
        return RegressionStage.MERGED
    return RegressionStage.BRANCHED if isinstance(merge, AskTrial) else RegressionStage.LOCATED


# --- the steps, in the order of the stages --------------------------------------------------------------------


def _record_answer(context: RegressionContext) -> TurnDirection | RecordAnswer:
    assert context.ended_trial is not None
    trial = context.trial(context.ended_trial)
    result = evaluate_trial(context, trial)
    is_confirmed = any(item.verdict == Verdict.CONFIRMED for item in result.decisions)
    if result.opposite and not is_confirmed and not _has_opposite_sibling(context):
        # Where only code had changed nobody could say which way the time would go.
        note = f"{context.regression.direction} was expected, and the opposite was measured"
        return TurnDirection(context.opposite_direction, note)
    if trial.purpose not in CONFIRMING or trial.base_sha == trial.head_sha:
        return RecordAnswer(trial.id, result.answer, result.message, result.worst)
    return RecordAnswer(trial.id, result.answer, result.message, result.worst, result.decisions, result.opposite)


def _open_opposite(context: RegressionContext) -> OpenOpposite:
    opposite, regression = _opposite(context), context.regression
    (trial_id,) = (step.trial_id for step in context.taken if isinstance(step, RecordAnswer))
    trial = context.trial(trial_id)
    ratio = max((ratio for _, ratio in opposite), key=severity)
    series = tuple(SuspectedSeries(series_id, ratio) for series_id, ratio in opposite)
    direction, cause = context.opposite_direction, Cause(regression.cause)
    return OpenOpposite(NewSuspicion(trial.base_sha, trial.head_sha, direction, ratio, series, cause))


def _wait(_: RegressionContext) -> Wait:
    return Wait()


def _confirm(context: RegressionContext) -> AskTrial:
    regression = context.regression
    ends = (regression.base_sha, regression.head_sha)
    return ask(context, Purpose.CONFIRM, ends, context.having(Verdict.SUSPECTED))


def _retry(context: RegressionContext) -> AskTrial:
    last = context.confirming[-1]
    rounds = thresholds_of(context.regression.device_kind).more_rounds
    return ask(context, Purpose.RETRY, (last.base_sha, last.head_sha), _measured_unsure(context), rounds)


def _dismiss(context: RegressionContext) -> Dismiss | Settle:
    if not context.confirming:
        return Settle()
    verdict, trial = combine(member.verdict for member in context.members), context.confirming[-1]
    evidence = Evidence(trial, evaluate_trial(context, trial).worst)
    return Dismiss(verdict, evidence, (f"{verdict}: {trial.message}",))


def _check_base(context: RegressionContext) -> AskTrial:
    assert context.whole is not None
    base = context.whole.base_sha
    return ask(context, Purpose.CONFIRM, (base, base), context.having(Verdict.CONFIRMED))


def _blame_environment(context: RegressionContext) -> Dismiss:
    assert context.whole is not None
    trial = context.confirming[-1]
    evidence = Evidence(trial, evaluate_trial(context, trial).worst)
    note = f"{context.whole.base_sha[:9]} is broken too by now: the environment changed, not the code"
    return Dismiss(Verdict.DISMISSED, evidence, (note, f"{Verdict.DISMISSED}: {trial.message}"))


def _decide_verdict(context: RegressionContext) -> DecideVerdict:
    whole = context.whole
    assert whole is not None
    evidence = Evidence(whole, evaluate_trial(context, whole).worst)
    return DecideVerdict(evidence, f"{Verdict.CONFIRMED}: {whole.message}")


def _read_path(context: RegressionContext) -> ReadPath:
    assert context.whole is not None
    return ReadPath(context.whole.base_sha, context.whole.head_sha)


def _settle_undivided(context: RegressionContext) -> Settle:
    error = context.path.error if context.path is not None else ""
    return Settle(f"not bisected: {error}" if error else "")


def _bisect(context: RegressionContext) -> AskTrial:
    search = _search(context)
    assert search.middle is not None
    return ask_half(context, (search.ends[0], search.middle))


def _prove(context: RegressionContext) -> AskTrial:
    return ask_proof(context, _search(context).ends)


def _read_merge(context: RegressionContext) -> ReadMerge:
    merge = _merge(context)
    assert isinstance(merge, ReadMerge)
    return merge


def _search_branch(context: RegressionContext) -> AskTrial:
    merge = _merge(context)
    assert isinstance(merge, AskTrial)
    return merge


def _write_location(context: RegressionContext) -> MergeInto | Narrow:
    search, regression = _search(context), context.regression
    proof = proof_of(context, search)
    base, head = proven_ends(context, search, proof)
    result = evaluate_trial(context, proof)
    is_moved = (base, head) != (regression.base_sha, regression.head_sha)
    for sibling in context.facts.siblings if is_moved else ():
        if (sibling.base_sha, sibling.head_sha, sibling.direction) == (base, head, regression.direction):
            decisions = tuple(item for item in result.decisions if item.verdict == Verdict.CONFIRMED)
            evidence = Evidence(proof, result.worst if decisions else None, decisions)
            return MergeInto(sibling.id, frozenset(sibling.confirmed), evidence)
    is_news = result.worst is not None and (is_moved or proof != context.whole)
    evidence_or_none = Evidence(proof, result.worst, result.decisions) if is_news else None
    note = summarize(search, base, head, proof) if is_moved or len(search.shas) > 2 else ""
    merge = _merge(context)
    if not isinstance(merge, MergeFinding):
        return Narrow(base, head, evidence_or_none, note)
    notes = (note, describe_merge(head, merge))
    return Narrow(base, head, evidence_or_none, "; ".join(filter(None, notes)), merge)


def _open_residual(context: RegressionContext) -> OpenResidual | Settle:
    if context.has_taken(OpenResidual):
        return Settle()
    search = _search(context)
    proof = proof_of(context, search)
    _, head = proven_ends(context, search, proof)
    residual = find_residual(context, head, proof)
    return Settle() if residual is None else OpenResidual(residual)


def _measured_unsure(context: RegressionContext) -> list[MemberRow]:
    """The series that were measured and are unsure."""
    return [member for member in context.having(Verdict.UNSURE) if member.ratio is not None]


def _opposite(context: RegressionContext) -> tuple[tuple[int, float], ...]:
    """What the trial whose answer was just recorded showed to change in the other direction."""
    return next((step.opposite for step in context.taken if isinstance(step, RecordAnswer)), ())


def _has_opposite_sibling(context: RegressionContext) -> bool:
    """Whether the other direction has a regression of its own, of the same commits."""
    regression = context.regression
    opposite = (regression.base_sha, regression.head_sha, context.opposite_direction)
    return any((item.base_sha, item.head_sha, item.direction) == opposite for item in context.facts.siblings)


def _merge(context: RegressionContext) -> ReadMerge | AskTrial | MergeFinding | None:
    """What is known of the merge commit that the range ends with, or how to learn it; None where the range is wider,
    where its commit merges nothing, and where another regression has the range."""
    search, regression = _search(context), context.regression
    base, head = proven_ends(context, search, proof_of(context, search))
    if search.shas.index(head) - search.shas.index(base) != 1:
        return None
    if any(
        (item.base_sha, item.head_sha, item.direction) == (base, head, regression.direction)
        for item in context.facts.siblings
    ):
        return None
    return search_merge(context, base, head)


def _search(context: RegressionContext) -> CommitSearch:
    assert context.path is not None
    return search_of(context, context.path)


_STEPS: dict[RegressionStage, Callable[[RegressionContext], Step]] = {
    RegressionStage.ANSWERED: _record_answer,
    RegressionStage.OPPOSED: _open_opposite,
    RegressionStage.WAITING: _wait,
    RegressionStage.UNTRIED: _confirm,
    RegressionStage.UNSURE: _retry,
    RegressionStage.UNCONFIRMED: _dismiss,
    RegressionStage.UNCHECKED_BASE: _check_base,
    RegressionStage.BROKEN_BASE: _blame_environment,
    RegressionStage.CONFIRMED: _decide_verdict,
    RegressionStage.UNREAD: _read_path,
    RegressionStage.UNDIVIDED: _settle_undivided,
    RegressionStage.DIVISIBLE: _bisect,
    RegressionStage.UNPROVEN: _prove,
    RegressionStage.MERGED: _read_merge,
    RegressionStage.BRANCHED: _search_branch,
    RegressionStage.LOCATED: _write_location,
    RegressionStage.WRITTEN: _open_residual,
}
