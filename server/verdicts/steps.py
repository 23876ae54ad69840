"""The steps that a regression can take next: `next_step` decides them and the judge carries them out.

Commits are named by their full ids. A step holds everything that is needed to carry it out, and the stage of the
regression that asks for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from warpwatch.contract.spec import JobSpec
from warpwatch.contract.words import Answer, Cause, ChangeDirection, MergeCause, Purpose, Verdict
from warpwatch.db.reads.judging import MemberRow, TrialState
from warpwatch.db.regressions import SeriesDecision, SuspectedSeries


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


@dataclass(frozen=True, slots=True)
class NewSuspicion:
    """A change to suspect between two commits of an operator on a device.

    ratio: head over base; None where something broke.
    """

    base_sha: str
    head_sha: str
    direction: ChangeDirection
    ratio: float | None
    series: tuple[SuspectedSeries, ...]
    cause: Cause

    def shares_series(self, other: NewSuspicion) -> bool:
        """Whether one change may be behind both."""
        series = {item.series_id for item in self.series}
        return self.direction == other.direction and not series.isdisjoint(item.series_id for item in other.series)


@dataclass(frozen=True, slots=True)
class Evidence:
    """The trial that shows a verdict, and the numbers to write with it.

    worst: the series that changed most, which the regression is listed with. decisions: of every series, where they are
    to be written too.
    """

    trial: TrialState
    worst: SeriesDecision | None
    decisions: tuple[SeriesDecision, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadPath:
    """Asks git for the commits between the ends of a confirmed range; nothing is written."""

    base_sha: str
    head_sha: str
    stage: RegressionStage = RegressionStage.UNREAD


@dataclass(frozen=True, slots=True)
class ReadMerge:
    """Asks git for the branches that a merge commit brought to its parent; nothing is written."""

    base_sha: str
    head_sha: str
    stage: RegressionStage = RegressionStage.MERGED


@dataclass(frozen=True, slots=True)
class MergeFinding:
    """Cause of an operator's change in a merge commit: the narrowest range of the merged branch, and the number of
    commits in the range. If the branch is not the cause, the range is the merge itself."""

    cause: MergeCause
    base_sha: str
    head_sha: str
    commits: int


@dataclass(frozen=True, slots=True)
class TurnDirection:
    """Changes slower into faster or back, because the trial measured the opposite of what was expected."""

    direction: ChangeDirection
    note: str
    stage: RegressionStage = RegressionStage.ANSWERED


@dataclass(frozen=True, slots=True)
class RecordAnswer:
    """Writes the answer of a trial whose job has ended.

    decisions: verdicts of single series. opposite: (series id, ratio) of series that changed the other way. joined:
    series that nothing had suspected and that changed, too; decisions has their verdicts.
    """

    trial_id: int
    answer: Answer
    message: str
    worst: SeriesDecision | None
    decisions: tuple[SeriesDecision, ...] = ()
    opposite: tuple[tuple[int, float], ...] = ()
    joined: tuple[MemberRow, ...] = ()
    stage: RegressionStage = RegressionStage.ANSWERED


@dataclass(frozen=True, slots=True)
class OpenOpposite:
    """Suspects the same commits of a change in the other direction."""

    suspicion: NewSuspicion
    stage: RegressionStage = RegressionStage.OPPOSED


@dataclass(frozen=True, slots=True)
class AskTrial:
    """Asks for a job that measures two commits in turn (compare) or checks the second one (check).

    merge_sha: the merge commit whose merged branch holds the two; None for commits of the range itself.
    """

    stage: RegressionStage
    purpose: Purpose
    kind: str
    base_sha: str
    head_sha: str
    spec: JobSpec
    priority: int
    merge_sha: str | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do until the job of a trial ends."""

    stage: RegressionStage = RegressionStage.WAITING


@dataclass(frozen=True, slots=True)
class DecideVerdict:
    """Confirms the change, with the numbers of the trial that confirmed it."""

    evidence: Evidence
    note: str
    stage: RegressionStage = RegressionStage.CONFIRMED


@dataclass(frozen=True, slots=True)
class Dismiss:
    """Ends a suspicion that no trial confirmed, as dismissed or unsure."""

    stage: RegressionStage
    verdict: Verdict
    evidence: Evidence
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Narrow:
    """Gives the regression the narrowest range that shows the change. evidence: None where the numbers stay. merge:
    where the range is one merge commit."""

    base_sha: str
    head_sha: str
    evidence: Evidence | None
    note: str
    merge: MergeFinding | None = None
    stage: RegressionStage = RegressionStage.LOCATED


@dataclass(frozen=True, slots=True)
class MergeInto:
    """Adds the confirmed series to another regression that has the range already, and closes this one as invalid.

    known_series: those that the other one has confirmed itself.
    """

    other_id: int
    known_series: frozenset[int]
    evidence: Evidence
    stage: RegressionStage = RegressionStage.LOCATED


@dataclass(frozen=True, slots=True)
class OpenResidual:
    """Suspects the commits after the guilty one of the part of the change that it does not explain, or that they
    undid."""

    suspicion: NewSuspicion
    stage: RegressionStage = RegressionStage.WRITTEN


@dataclass(frozen=True, slots=True)
class Settle:
    """Nothing is left to be measured. note: why, where the reason is not a verdict; empty otherwise."""

    stage: RegressionStage
    note: str = ""


Step = (
    ReadPath
    | ReadMerge
    | TurnDirection
    | RecordAnswer
    | OpenOpposite
    | AskTrial
    | Wait
    | DecideVerdict
    | Dismiss
    | Narrow
    | MergeInto
    | OpenResidual
    | Settle
)
LAST_STEPS = (Wait, Dismiss, Settle)
"""After one of these there is nothing more to do until another job ends."""
