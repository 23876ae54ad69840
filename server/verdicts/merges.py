"""The search inside a branch that a merge commit brought: which of its commits caused a change, or the merge itself.

A branch is searched like the range itself, from its newest common commit with the other side on. Its own commit may be
a merge again, whose branch is searched in turn.
"""

from __future__ import annotations

from warpwatch.contract.words import Answer, MergeCause, Purpose, Verdict
from warpwatch.server.verdicts.asking import ask, ask_half, ask_proof, may_ask
from warpwatch.server.verdicts.context import CommitPath, RegressionContext
from warpwatch.server.verdicts.search import has_direct_proof, proof_of, proven_ends, search_of
from warpwatch.server.verdicts.steps import AskTrial, MergeFinding, ReadMerge


def search_merge(
    context: RegressionContext, base_sha: str, head_sha: str
) -> ReadMerge | AskTrial | MergeFinding | None:
    """What of a commit changed an operator, or what to ask for to learn it; None for a commit that merges nothing.

    base_sha: its parent, which does not show the change.
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
    """What was found of a merge commit, for the activity of its regression."""
    match finding.cause:
        case MergeCause.BRANCH if finding.commits == 1:
            return f"in the branch merged by {head_sha[:9]}, the change came with {finding.head_sha[:9]}"
        case MergeCause.BRANCH:
            ends = f"{finding.base_sha[:9]}..{finding.head_sha[:9]}"
            return (
                f"in the branch merged by {head_sha[:9]}, the change came with one of {finding.commits} commits, {ends}"
            )
        case MergeCause.MERGE:
            return f"neither side of the merge {head_sha[:9]} shows the change alone, so the merge itself caused it"
        case _:
            return f"the branch merged by {head_sha[:9]} could not be searched"


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
    search = search_of(context, branch)
    if search.middle is not None and may_ask(context.trials_of(search.ends[0], search.middle)):
        return ask_half(context, (search.ends[0], search.middle), merge_sha)
    if not has_direct_proof(context, search) and may_ask(context.trials_of(*search.ends)):
        return ask_proof(context, search.ends, merge_sha)
    base_sha, head_sha = proven_ends(context, search, proof_of(context, search))
    commits = search.shas.index(head_sha) - search.shas.index(base_sha)
    inner = search_merge(context, base_sha, head_sha) if commits == 1 else None
    if isinstance(inner, ReadMerge | AskTrial) or (inner is not None and inner.cause == MergeCause.BRANCH):
        return inner
    return MergeFinding(MergeCause.BRANCH, base_sha, head_sha, commits)


def _check_base(context: RegressionContext, base_sha: str, merge_sha: str) -> AskTrial | Answer | None:
    """What to ask for, or what follows, before a branch is blamed for a breakage; None where its merge base is right.

    A branch that left where the operator was broken already did not break it: the merge lost a fix of the other side.
    """
    whole = context.whole
    if whole is not None and whole.base_sha == base_sha:
        return None
    checks = context.trials_of(base_sha, base_sha)
    if not checks:
        return ask(context, Purpose.BISECT, (base_sha, base_sha), context.having(Verdict.CONFIRMED), None, merge_sha)
    if checks[-1].answer == Answer.CHANGED:
        return Answer.SAME
    return None if checks[-1].answer == Answer.SAME else Answer.UNSURE
