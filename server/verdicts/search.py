"""What the trials of a confirmed change say about the commits of its range."""

from __future__ import annotations

from dataclasses import dataclass

from warpwatch.contract.words import Answer, Purpose
from warpwatch.db.reads.judging import TrialState
from warpwatch.server.verdicts.bisect import RangeAnswer, bounds, middle, suspects
from warpwatch.server.verdicts.context import CommitPath, RegressionContext


@dataclass(frozen=True, slots=True)
class CommitSearch:
    """The commits of a confirmed range, the good end first, and what is known of them by their places.

    suspects: commits that may be guilty. skipped: commits that cannot be measured. unchanged: number of commits that
    have the sources of the commit before.
    """

    shas: list[str]
    suspects: list[int]
    skipped: set[int]
    unchanged: int

    @property
    def ends(self) -> tuple[str, str]:
        """The narrowest range that is known to hold the change."""
        base, head = bounds(self.suspects)
        return self.shas[base], self.shas[head]

    @property
    def middle(self) -> str | None:
        """The commit to measure next; None when there is none."""
        place = middle(self.suspects, self.skipped)
        return None if place is None else self.shas[place]


def search_of(context: RegressionContext, path: CommitPath) -> CommitSearch:
    """What is known of the commits of a confirmed range."""
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
    return CommitSearch(shas, suspects(differs, answers), skipped, differs[1:].count(False))


def proof_of(context: RegressionContext, search: CommitSearch) -> TrialState:
    """The trial that shows the change in the narrowest range."""
    changed = [trial for trial in context.trials if trial.answer == Answer.CHANGED and trial.base_sha != trial.head_sha]
    direct = [trial for trial in context.trials_of(*search.ends) if trial in changed]
    if direct:
        return direct[-1]
    place = {sha: number for number, sha in enumerate(search.shas)}
    inside = [trial for trial in changed if trial.base_sha in place and trial.head_sha in place]
    return min(inside, key=lambda trial: place[trial.head_sha] - place[trial.base_sha])


def has_direct_proof(context: RegressionContext, search: CommitSearch) -> bool:
    """Whether a trial of exactly the narrowest range shows the change."""
    trials = context.trials_of(*search.ends)
    return any(trial.answer == Answer.CHANGED and trial.base_sha != trial.head_sha for trial in trials)


def proven_ends(context: RegressionContext, search: CommitSearch, proof: TrialState) -> tuple[str, str]:
    """The range to report: the narrowest one, or that of the proof where a trial refuted the narrowest one."""
    is_refuted = any(trial.answer == Answer.SAME for trial in context.trials_of(*search.ends))
    return (proof.base_sha, proof.head_sha) if is_refuted else search.ends


def summarize(search: CommitSearch, base: str, head: str, proof: TrialState) -> str:
    """What the bisection found, and what it did not have to look at or could not."""
    between = search.shas.index(head) - search.shas.index(base) - 1
    result = f"found: {head[:9]}" if between == 0 else f"narrowed down to {base[:9]}..{head[:9]}, {between + 1} commits"
    parts = [result, proof.message]
    if search.unchanged:
        parts.append(
            f"{search.unchanged} of {len(search.shas) - 1} commits left the sources of the operator as they were"
        )
    if search.skipped:
        skipped = ", ".join(search.shas[place][:9] for place in sorted(search.skipped))
        parts.append(f"skipped, as they cannot be measured: {skipped}")
    if search.middle is not None:
        parts.append("what was measured in between was unsure")
    return "; ".join(part for part in parts if part)
