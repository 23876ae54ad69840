"""The steps that a regression can take next: what `next_step` decides and the judge carries out.

Commits are named by their full ids. A step holds everything that is needed to carry it out.
"""

from __future__ import annotations

from dataclasses import dataclass

from warpwatch.contract.spec import JobSpec
from warpwatch.contract.words import Answer, Cause, ChangeDirection, MergeCause, Purpose, Verdict
from warpwatch.db.reads.judging import TrialState
from warpwatch.db.regressions import SeriesDecision, SuspectedSeries


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


@dataclass(frozen=True, slots=True)
class ReadMerge:
    """Asks git for the branches that a merge commit brought to its parent; nothing is written."""

    base_sha: str
    head_sha: str


@dataclass(frozen=True, slots=True)
class MergeFinding:
    """What of a merge commit changed an operator: the narrowest range of the merged branch, and how many commits it
    holds. Where the branch is not the cause, the range is the merge itself."""

    cause: MergeCause
    base_sha: str
    head_sha: str
    commits: int


@dataclass(frozen=True, slots=True)
class TurnDirection:
    """Changes slower into faster or back, because the trial measured the opposite of what was expected."""

    direction: ChangeDirection
    note: str


@dataclass(frozen=True, slots=True)
class RecordAnswer:
    """Writes the answer of a trial whose job has ended.

    decisions: verdicts of single series. opposite: (series id, ratio) of series that changed the other way.
    """

    trial_id: int
    answer: Answer
    message: str
    worst: SeriesDecision | None
    decisions: tuple[SeriesDecision, ...] = ()
    opposite: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class OpenOpposite:
    """Suspects the same commits of a change in the other direction."""

    suspicion: NewSuspicion


@dataclass(frozen=True, slots=True)
class AskTrial:
    """Asks for a job that measures two commits in turn (compare) or checks the second one (check).

    merge_sha: the merge commit whose merged branch holds the two; None for commits of the range itself.
    """

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


@dataclass(frozen=True, slots=True)
class DecideVerdict:
    """Confirms the change, with the numbers of the trial that confirmed it."""

    evidence: Evidence
    note: str


@dataclass(frozen=True, slots=True)
class Dismiss:
    """Ends a suspicion that no trial confirmed, as dismissed or unsure."""

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


@dataclass(frozen=True, slots=True)
class MergeInto:
    """Adds the confirmed series to another regression that has the range already, and closes this one as invalid.

    known_series: those that the other one has confirmed itself.
    """

    other_id: int
    known_series: frozenset[int]
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class OpenResidual:
    """Suspects the commits after the guilty one of the part of the change that it does not explain."""

    suspicion: NewSuspicion


@dataclass(frozen=True, slots=True)
class Settle:
    """Nothing is left to be measured. note: why, where the reason is not a verdict; empty otherwise."""

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
