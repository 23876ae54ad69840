"""The search for the commit behind a confirmed change: the trials to ask for, and the range that they prove.

A range is halved until its last two commits are compared. A commit that merged a branch is searched inside: the branch
from its newest common commit with the other side on, and a merge inside the branch in turn.
"""

from __future__ import annotations

from dataclasses import dataclass

from warpwatch.contract.commit_ids import short_sha
from warpwatch.contract.priorities import CONFIRM, CONFIRM_CODE
from warpwatch.contract.spec import JobSpec
from warpwatch.contract.words import Answer, Cause, ChangeDirection, JobKind, JobState, MergeCause, Purpose, Verdict
from warpwatch.db.reads.judging import MemberRow, TrialState
from warpwatch.server.verdicts.bisect import RangeAnswer, bounds, middle, suspects
from warpwatch.server.verdicts.context import CONFIRMING, CommitPath, RegressionContext
from warpwatch.server.verdicts.paired import severity
from warpwatch.server.verdicts.steps import AskTrial, MergeFinding, ReadMerge, RegressionStage
from warpwatch.server.verdicts.thresholds import stop_rule, thresholds_of


@dataclass(frozen=True, slots=True)
class CulpritRange:
    """The range to report once no trial would narrow it, and the trial that shows the change in it.

    shas: the commits that were searched, the good end first. unchanged: number of commits that have the sources of the
    commit before. skipped: commits that cannot be measured. is_unsure: whether trials inside the range were unsure.
    """

    base_sha: str
    head_sha: str
    proof: TrialState
    shas: list[str]
    unchanged: int
    skipped: list[str]
    is_unsure: bool

    @property
    def commits(self) -> int:
        """The number of commits that may be guilty."""
        return self.shas.index(self.head_sha) - self.shas.index(self.base_sha)

    def describe(self, direction: str) -> str:
        """A line for the activity of the regression: the result, and the commits that were not measured. A commit that
        made something faster is no culprit."""
        base, head = short_sha(self.base_sha), short_sha(self.head_sha)
        name = "Commit" if direction == ChangeDirection.FASTER else "Culprit"
        place = f"{name} {head}" if self.commits == 1 else f"Narrowed down to {base}..{head}, {self.commits} commits"
        parts = [f"{place}: {self.proof.message}" if self.proof.message else place]
        if self.unchanged:
            parts.append(f"{self.unchanged} of {len(self.shas) - 1} commits skipped (sources unchanged)")
        if self.skipped:
            parts.append(f"Not measurable: {', '.join(short_sha(sha) for sha in self.skipped)}")
        if self.is_unsure:
            parts.append("Trials in between were inconclusive")
        return ". ".join(parts)


def ask(
    context: RegressionContext,
    stage: RegressionStage,
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
    if context.is_broken:
        variants, cases = (sorted({getattr(member, name) for member in members}) for name in ("variant", "case"))
        kind, spec = JobKind.CHECK, JobSpec(variants=variants, cases=cases)
    else:
        usual = thresholds_of(context.regression.device_kind).rounds
        rounds = rounds or usual
        worst_first = sorted(members, key=lambda member: severity(member.ratio or member.suspected_ratio), reverse=True)
        pairs = list(dict.fromkeys((member.variant, member.case) for member in worst_first))
        # A retry takes all of its rounds: the usual number of them was not enough to decide.
        stop = stop_rule(context.regression.device_kind, is_suspected=True) if rounds <= usual else None
        kind, spec = JobKind.COMPARE, JobSpec(pairs=pairs, rounds=rounds, stop=stop)
    return AskTrial(stage, purpose, kind, *ends, spec, CONFIRM_CODE if by_code else CONFIRM, merge_sha)


def narrow_down(context: RegressionContext, path: CommitPath, merge_sha: str | None = None) -> AskTrial | CulpritRange:
    """The next trial inside a range that shows the change; the proven range where no trial would narrow it.

    merge_sha: of the merge commit that brought the path; None for the range of the regression itself.
    """
    shas = [commit.sha for commit in path.commits]
    differs = [commit.differs for commit in path.commits]
    place = {sha: number for number, sha in enumerate(shas)}
    inside = [
        trial
        for trial in context.trials
        if trial.base_sha in place and trial.head_sha in place and trial.base_sha != trial.head_sha
    ]
    # Imports made at run time are not seen: where the only suspect turned out not to be guilty, all commits are.
    is_misled = any(trial.purpose == Purpose.PROVE and trial.answer == Answer.SAME for trial in inside)
    if is_misled or not any(differs):
        differs = [False] + [True] * (len(shas) - 1)
    answers = [
        RangeAnswer(place[trial.base_sha], place[trial.head_sha], trial.answer == Answer.CHANGED)
        for trial in inside
        if trial.answer in (Answer.CHANGED, Answer.SAME)
    ]
    skipped = {place[trial.head_sha] for trial in inside if trial.answer == Answer.SKIPPED}
    skipped |= {number for number, commit in enumerate(path.commits) if not commit.is_measurable}
    places = suspects(differs, answers)
    base_sha, head_sha = (shas[end] for end in bounds(places))
    half = middle(places, skipped)
    if half is not None and may_ask(context.trials_of(base_sha, shas[half])):
        return ask_half(context, (base_sha, shas[half]), merge_sha)
    last = context.trials_of(base_sha, head_sha)
    direct = [trial for trial in last if trial.answer == Answer.CHANGED and trial.base_sha != trial.head_sha]
    if not direct and may_ask(last):
        stage = RegressionStage.UNPROVEN if merge_sha is None else RegressionStage.BRANCHED
        rounds = thresholds_of(context.regression.device_kind).more_rounds if last else None
        confirmed = context.having(Verdict.CONFIRMED)
        return ask(context, stage, Purpose.PROVE, (base_sha, head_sha), confirmed, rounds, merge_sha)
    if direct:
        proof = direct[-1]
    else:
        changed = [trial for trial in inside if trial.answer == Answer.CHANGED]
        proof = min(changed, key=lambda trial: place[trial.head_sha] - place[trial.base_sha])
    if any(trial.answer == Answer.SAME for trial in last):
        base_sha, head_sha = proof.base_sha, proof.head_sha
    unmeasured = [shas[number] for number in sorted(skipped)]
    return CulpritRange(base_sha, head_sha, proof, shas, differs[1:].count(False), unmeasured, half is not None)


def ask_half(context: RegressionContext, ends: tuple[str, str], merge_sha: str | None) -> AskTrial:
    """The step that asks on which side of a commit a confirmed change lies: with few rounds where they show it, and
    with more at the second try."""
    confirmed, thresholds = context.having(Verdict.CONFIRMED), thresholds_of(context.regression.device_kind)
    # Where every series changed by much, few rounds show the side.
    is_plain = bool(confirmed) and all(
        severity(member.ratio) >= thresholds_of(context.time_kind(member)).plain_ratio for member in confirmed
    )
    rounds = thresholds.few_rounds if is_plain else thresholds.rounds
    if context.trials_of(*ends):
        rounds = thresholds.more_rounds
    stage = RegressionStage.DIVISIBLE if merge_sha is None else RegressionStage.BRANCHED
    return ask(context, stage, Purpose.BISECT, ends, confirmed, rounds, merge_sha)


def may_ask(before: list[TrialState]) -> bool:
    """Whether two commits may be tried after these trials of them: at first, and once more after an unsure answer.

    Not where the last job was cancelled or failed: a person may retry that job.
    """
    if not before:
        return True
    return len(before) < 2 and before[-1].answer == Answer.UNSURE and before[-1].job_state == JobState.DONE


# --- inside a merged branch -----------------------------------------------------------------------------------


def search_merge(
    context: RegressionContext, base_sha: str, head_sha: str
) -> ReadMerge | AskTrial | MergeFinding | None:
    """Part of a commit that changed an operator, or the next step of the search; None for a commit that merges nothing.

    base_sha: the commit's parent, which does not show the change.
    """
    branches = context.merges.get((base_sha, head_sha))
    if branches is None:
        return ReadMerge(base_sha, head_sha)
    if not branches:
        return None
    known = context.facts.merged_change
    if known is not None and context.regression.head_sha == head_sha:
        return MergeFinding(MergeCause.BRANCH, known.base_sha, known.head_sha, known.commits)
    answers = []
    for branch in branches:
        result = _search_branch(context, branch, head_sha)
        if not isinstance(result, Answer):
            return result
        answers.append(result)
    is_innocent = all(answer == Answer.SAME for answer in answers)
    return MergeFinding(MergeCause.MERGE if is_innocent else MergeCause.UNKNOWN, base_sha, head_sha, 1)


def describe_merge(head_sha: str, finding: MergeFinding) -> str:
    """A line for the activity of a regression: the part of a merge commit that caused the change."""
    match finding.cause:
        case MergeCause.BRANCH if finding.commits == 1:
            return f"in the branch merged by {short_sha(head_sha)}, the change came with {short_sha(finding.head_sha)}"
        case MergeCause.BRANCH:
            ends = f"{short_sha(finding.base_sha)}..{short_sha(finding.head_sha)}"
            came = f"the change came with one of {finding.commits} commits, {ends}"
            return f"in the branch merged by {short_sha(head_sha)}, {came}"
        case MergeCause.MERGE:
            return (
                f"neither side of the merge {short_sha(head_sha)} shows the change alone, so the merge itself caused it"
            )
        case _:
            return f"the branch merged by {short_sha(head_sha)} could not be searched"


def _search_branch(
    context: RegressionContext, branch: CommitPath, merge_sha: str
) -> ReadMerge | AskTrial | MergeFinding | Answer:
    """The finding in one merged branch, or what to ask for. SAME: it does not hold the change. UNSURE: nobody knows."""
    if branch.error:
        return Answer.UNSURE
    if len(branch.commits) < 2:
        return Answer.SAME
    ends = (branch.commits[0].sha, branch.commits[-1].sha)
    trials = context.trials_of(*ends)
    if all(trial.answer != Answer.CHANGED for trial in trials):
        if may_ask(trials):
            return ask_half(context, ends, merge_sha)
        return Answer.SAME if trials[-1].answer == Answer.SAME else Answer.UNSURE
    if context.is_broken:
        base = _check_base(context, ends[0], merge_sha)
        if base is not None:
            return base
    narrowed = narrow_down(context, branch, merge_sha)
    if isinstance(narrowed, AskTrial):
        return narrowed
    base_sha, head_sha = narrowed.base_sha, narrowed.head_sha
    inner = search_merge(context, base_sha, head_sha) if narrowed.commits == 1 else None
    if isinstance(inner, ReadMerge | AskTrial) or (inner is not None and inner.cause == MergeCause.BRANCH):
        return inner
    return MergeFinding(MergeCause.BRANCH, base_sha, head_sha, narrowed.commits)


def _check_base(context: RegressionContext, base_sha: str, merge_sha: str) -> AskTrial | Answer | None:
    """Next trial or answer before a branch is blamed for a breakage; None if the operator works at the merge base.

    A branch that left where the operator was broken already did not break the operator: the merge lost a fix of the
    other side.
    """
    whole = context.whole
    if whole is not None and whole.base_sha == base_sha:
        return None
    checks = context.trials_of(base_sha, base_sha)
    if not checks:
        stage, members = RegressionStage.BRANCHED, context.having(Verdict.CONFIRMED)
        return ask(context, stage, Purpose.BISECT, (base_sha, base_sha), members, None, merge_sha)
    if checks[-1].answer == Answer.CHANGED:
        return Answer.SAME
    return None if checks[-1].answer == Answer.SAME else Answer.UNSURE
