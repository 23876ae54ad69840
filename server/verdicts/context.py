"""Input of `next_step`: a regression, its series, its trials with their measurements, and its commits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property

from warpwatch.contract.words import Answer, ChangeDirection, Purpose, Verdict
from warpwatch.db.reads.judging import MemberRow, RegressionFacts, RegressionState, SiblingRegression, TrialState
from warpwatch.server.verdicts.steps import (
    AskTrial,
    DecideVerdict,
    Dismiss,
    Narrow,
    RecordAnswer,
    Step,
    TurnDirection,
)
from warpwatch.server.verdicts.thresholds import kind_of_time

CONFIRMING = (Purpose.CONFIRM, Purpose.RETRY)
_NEWEST = datetime.max.replace(tzinfo=UTC)
"""The time of an answer that is not written yet: later than all that are."""


@dataclass(frozen=True, slots=True)
class PathCommit:
    """A commit between the ends of a confirmed range.

    differs: whether the operator is made from other sources than at the commit before. is_measurable: whether the
    commit has the operator at all.
    """

    sha: str
    differs: bool
    is_measurable: bool


@dataclass(frozen=True, slots=True)
class CommitPath:
    """The commits of a confirmed range, both ends included, the oldest first. error: why git could not tell them."""

    commits: tuple[PathCommit, ...]
    error: str = ""


@dataclass(frozen=True)
class RegressionContext:
    """All that the next step with a regression depends on.

    ended_trial: id of the trial whose answer is to be recorded now. path: None until git was asked. merges: the merged
    branches of the commits (base, head) that git was asked for, each from its merge base on; none where the head is no
    merge. taken: the steps taken since the facts were read, oldest first.
    """

    facts: RegressionFacts
    ended_trial: int | None = None
    path: CommitPath | None = None
    merges: Mapping[tuple[str, str], tuple[CommitPath, ...]] = field(default_factory=dict)
    taken: tuple[Step, ...] = ()

    @property
    def regression(self) -> RegressionState:
        return self.facts.regression

    @property
    def members(self) -> list[MemberRow]:
        return self.facts.members

    @property
    def trials(self) -> list[TrialState]:
        return self.facts.trials

    @property
    def is_broken(self) -> bool:
        return self.regression.direction == ChangeDirection.BROKEN

    @property
    def opposite_direction(self) -> ChangeDirection:
        is_slower = self.regression.direction == ChangeDirection.SLOWER
        return ChangeDirection.FASTER if is_slower else ChangeDirection.SLOWER

    @cached_property
    def confirming(self) -> list[TrialState]:
        """The answered trials of the whole range, in the order of their answers."""
        answered = [
            (trial.answered_at, trial.id, trial)
            for trial in self.trials
            if trial.purpose in CONFIRMING and trial.answered_at and trial.base_sha != trial.head_sha
        ]
        return [trial for _, _, trial in sorted(answered, key=lambda item: item[:2])]

    @property
    def whole(self) -> TrialState | None:
        """The trial that confirmed the whole range."""
        return next((trial for trial in reversed(self.confirming) if trial.answer == Answer.CHANGED), None)

    def having(self, verdict: Verdict) -> list[MemberRow]:
        """Its series with this verdict."""
        return [member for member in self.members if member.verdict == verdict]

    def time_kind(self, member: MemberRow) -> str:
        """Kind of the time of a series, see thresholds.kind_of_time."""
        return kind_of_time(self.regression.device_kind, member.metric, member.protocol)

    def trial(self, trial_id: int) -> TrialState:
        return next(trial for trial in self.trials if trial.id == trial_id)

    def trials_of(self, base_sha: str, head_sha: str) -> list[TrialState]:
        """The trials of these two commits; of something broken, those that checked the second one."""
        return [
            trial
            for trial in self.trials
            if trial.head_sha == head_sha and (self.is_broken or trial.base_sha == base_sha)
        ]

    def sibling(self, base_sha: str, head_sha: str, direction: str) -> SiblingRegression | None:
        """The other regression of these commits in this direction."""
        key = (base_sha, head_sha, direction)
        return next(
            (item for item in self.facts.siblings if (item.base_sha, item.head_sha, item.direction) == key), None
        )

    def has_taken(self, *kinds: type[Step]) -> bool:
        """Whether a step of one of these kinds was taken since the facts were read."""
        return any(isinstance(step, kinds) for step in self.taken)


def after(context: RegressionContext, step: Step) -> RegressionContext:
    """The context once a step is taken, as far as later steps depend on it."""
    facts = context.facts
    regression = facts.regression
    match step:
        case TurnDirection():
            facts = replace(facts, regression=replace(regression, direction=step.direction))
        case RecordAnswer():
            members = [_decided(member, step) for member in (*facts.members, *step.joined)]
            trials = [
                replace(trial, answer=step.answer, message=step.message, answered_at=_NEWEST)
                if trial.id == step.trial_id
                else trial
                for trial in facts.trials
            ]
            facts = replace(facts, members=members, trials=trials)
            context = replace(context, ended_trial=None)
        case AskTrial():
            facts = replace(facts, trials=[*facts.trials, _asked(context, step)])
        case DecideVerdict():
            facts = replace(facts, regression=replace(regression, verdict=Verdict.CONFIRMED))
        case Dismiss():
            facts = replace(facts, regression=replace(regression, verdict=step.verdict))
        case Narrow():
            facts = replace(facts, regression=replace(regression, base_sha=step.base_sha, head_sha=step.head_sha))
        case _:
            pass
    return replace(context, facts=facts, taken=(*context.taken, step))


def _decided(member: MemberRow, step: RecordAnswer) -> MemberRow:
    for decision in step.decisions:
        if decision.series_id == member.series_id:
            return replace(member, verdict=decision.verdict, ratio=decision.ratio, low=decision.low, high=decision.high)
    return member


def _asked(context: RegressionContext, step: AskTrial) -> TrialState:
    """The trial as it stands before the database has given it an id."""
    return TrialState(
        id=0,
        regression_id=context.regression.id,
        job_id=0,
        kind=step.kind,
        job_state="queued",
        job_message="",
        purpose=step.purpose,
        base_commit_id=0,
        head_commit_id=0,
        base_sha=step.base_sha,
        head_sha=step.head_sha,
        answer=Answer.PENDING,
        ratio=None,
        low=None,
        high=None,
        message="",
        spec=step.spec,
        answered_at=None,
    )
