"""The trial that a step asks for: of which series, by which kind of job, and how soon."""

from __future__ import annotations

from warpwatch.contract.priorities import CONFIRM, CONFIRM_CODE
from warpwatch.contract.spec import JobSpec
from warpwatch.contract.words import Answer, Cause, JobKind, JobState, Purpose, Verdict
from warpwatch.db.reads.judging import MemberRow, TrialState
from warpwatch.server.verdicts.context import CONFIRMING, RegressionContext
from warpwatch.server.verdicts.steps import AskTrial
from warpwatch.server.verdicts.thresholds import stop_rule, thresholds_of
from warpwatch.server.verdicts.trials import severity


def ask(
    context: RegressionContext,
    purpose: Purpose,
    ends: tuple[str, str],
    members: list[MemberRow],
    rounds: int | None = None,
    merge_sha: str | None = None,
) -> AskTrial:
    """The step that asks for a trial of these series at two commits (base, head).

    rounds: of a comparison; by default the usual number for the kind of device. merge_sha: see AskTrial.
    """
    by_code = context.regression.cause == Cause.CODE and purpose in CONFIRMING
    kind = context.regression.device_kind
    return AskTrial(
        purpose=purpose,
        kind=JobKind.CHECK if context.is_broken else JobKind.COMPARE,
        base_sha=ends[0],
        head_sha=ends[1],
        spec=check_spec(members) if context.is_broken else compare_spec(members, rounds, kind),
        priority=CONFIRM_CODE if by_code else CONFIRM,
        merge_sha=merge_sha,
    )


def ask_half(context: RegressionContext, ends: tuple[str, str], merge_sha: str | None = None) -> AskTrial:
    """The step that asks on which side of a commit a confirmed change lies: with few rounds where they show it, and
    with more at the second try."""
    confirmed, kind = context.having(Verdict.CONFIRMED), context.regression.device_kind
    thresholds = thresholds_of(kind)
    rounds = thresholds.few_rounds if is_plain(confirmed, kind) else thresholds.rounds
    is_second_try = bool(context.trials_of(*ends))
    return ask(context, Purpose.BISECT, ends, confirmed, thresholds.more_rounds if is_second_try else rounds, merge_sha)


def ask_proof(context: RegressionContext, ends: tuple[str, str], merge_sha: str | None = None) -> AskTrial:
    """The step that asks for the trial of the last two commits."""
    rounds = thresholds_of(context.regression.device_kind).more_rounds if context.trials_of(*ends) else None
    return ask(context, Purpose.PROVE, ends, context.having(Verdict.CONFIRMED), rounds, merge_sha)


def may_ask(before: list[TrialState]) -> bool:
    """Whether two commits may be tried after these trials of them: at first, and once more after an unsure answer.

    Not where the last job was cancelled or failed: a person may retry that job.
    """
    if not before:
        return True
    return len(before) < 2 and before[-1].answer == Answer.UNSURE and before[-1].job_state == JobState.DONE


def is_plain(members: list[MemberRow], device_kind: str) -> bool:
    """Whether every series changed by so much that few rounds show on which side of a commit the change lies."""
    least = thresholds_of(device_kind).plain_ratio
    return bool(members) and all(severity(member.ratio) >= least for member in members)


def compare_spec(members: list[MemberRow], rounds: int | None, device_kind: str) -> JobSpec:
    """The job specification of a comparison of these series, the most changed one first.

    A retry takes all of its rounds: the usual number of them was not enough to decide.
    """
    usual = thresholds_of(device_kind).rounds
    rounds = rounds or usual
    worst_first = sorted(members, key=lambda member: severity(member.ratio or member.suspected_ratio), reverse=True)
    pairs = [(member.variant, member.case) for member in worst_first]
    stop = stop_rule(device_kind, is_suspected=True) if rounds <= usual else None
    return JobSpec(pairs=pairs, rounds=rounds, stop=stop)


def check_spec(members: list[MemberRow]) -> JobSpec:
    """The job specification of a check of these series."""
    variants, cases = (sorted({getattr(member, name) for member in members}) for name in ("variant", "case"))
    return JobSpec(variants=variants, cases=cases)
