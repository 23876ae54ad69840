"""Regressions without a database: trials are answered by what really happened, and steps change rows in memory."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from warpwatch.contract.rounds import ROUNDS
from warpwatch.contract.words import Answer, Cause, ChangeDirection, Reason, Status, Verdict
from warpwatch.db.reads.judging import (
    MemberRow,
    RegressionFacts,
    RegressionState,
    SiblingRegression,
    TrialState,
)
from warpwatch.db.reads.observed import CheckRow, RoundsRow
from warpwatch.db.regressions import SuspectedSeries
from warpwatch.server.verdicts.context import CommitPath, PathCommit, RegressionContext, after
from warpwatch.server.verdicts.steps import (
    LAST_STEPS,
    AskTrial,
    DecideVerdict,
    Dismiss,
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
)
from warpwatch.server.verdicts.table import next_step

BASE_NS = 100_000.0
START = datetime(2026, 1, 1, tzinfo=UTC)
MOST_TRIALS, MOST_STEPS = 80, 12
BRANCH = 1000
Edge = tuple[str, str, str]


def sha(number: int) -> str:
    """The id of the commit at this place in history."""
    return f"{number:040x}"


@dataclass
class SimulatedDevice:
    """What really happened at commits 0, 1, 2 …, by series.

    times: factors of time from a commit on. broken: first broken commit and status. unbuildable: commits at which no
    series can be measured. noise: deviation of one round's ratio. noisy: (base, head) pairs whose rounds scatter so
    widely that they are unsure. unchanged: commits with the sources of the commit before. endings: states of jobs that
    do not run, by their number. base_failures: numbers of jobs whose base cannot be measured. merges: by the number of
    a merge commit, its merged branches as numbers of commits, the merge base first. Commits of branches have numbers
    from BRANCH on, and what happens from one of those on happens to no other.
    """

    commits: int
    times: Mapping[int, Mapping[int, float]] = field(default_factory=dict)
    broken: Mapping[int, tuple[int, Status]] = field(default_factory=dict)
    unbuildable: frozenset[int] = frozenset()
    noise: float = 0.003
    noisy: frozenset[tuple[int, int]] = frozenset()
    unchanged: frozenset[int] = frozenset()
    endings: Mapping[int, str] = field(default_factory=dict)
    base_failures: frozenset[int] = frozenset()
    path_error: str = ""
    is_base_right: bool = True
    kind: str = "cuda"
    merges: Mapping[int, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    broken_branch: Mapping[int, tuple[int, Status]] = field(default_factory=dict)


@dataclass
class SimulatedJudge:
    """Keeps regressions in memory and does what their steps say. edges: (stage, step, next stage) that occurred."""

    device: SimulatedDevice
    facts: dict[int, RegressionFacts] = field(default_factory=dict)
    invalid: set[int] = field(default_factory=set)
    found_in_merges: dict[int, tuple[str, int, int]] = field(default_factory=dict)
    """By regression: what of its merge commit is the cause, and the range of the merged branch."""
    queue: list[tuple[int, int]] = field(default_factory=list)
    asked: Counter[str] = field(default_factory=Counter)
    edges: set[Edge] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    chance: random.Random = field(default_factory=lambda: random.Random(7))
    trials: int = 0

    def suspect(self, base: int, head: int, series: Mapping[int, float | None], cause: Cause = Cause.HISTORY) -> int:
        """Opens a suspicion of these series with their ratios in history; the regression's id."""
        worst = max(series.values(), key=lambda ratio: abs((ratio or 1) - 1))
        direction = "broken" if worst is None else "slower" if worst >= 1 else "faster"
        statuses = (Status.OK, Status.WRONG) if worst is None else (None, None)
        members = tuple(SuspectedSeries(number, ratio, *statuses) for number, ratio in series.items())
        suspicion = NewSuspicion(sha(base), sha(head), ChangeDirection(direction), worst, members, cause)
        return self._open(suspicion)

    def work(self) -> None:
        """Answers trials until none is asked for any more."""
        while self.queue:
            assert self.trials <= MOST_TRIALS, f"there is no end to the trials: {self.asked}"
            regression_id, trial_id = self.queue.pop(0)
            self.answer(regression_id, trial_id)

    def answer(self, regression_id: int, trial_id: int, ending: str | None = None) -> None:
        """Ends the job of a trial, measured by what really happened, and judges it."""
        facts = self.facts[regression_id]
        trial = next(item for item in facts.trials if item.id == trial_id)
        state = ending or self.device.endings.get(trial_id, "done")
        rounds, checks = dict(facts.rounds), dict(facts.checks)
        if state == "done" and trial.kind == "compare":
            rounds[trial.job_id] = self._rounds(facts, trial)
        elif state == "done":
            checks[trial.job_id] = self._checks(facts, trial)
        trials = [replace(item, job_state=state) if item.id == trial_id else item for item in facts.trials]
        self.facts[regression_id] = replace(facts, trials=trials, rounds=rounds, checks=checks)
        self._judge(regression_id, trial_id)

    def located(self) -> set[tuple[str, int, int]]:
        """(direction, base, head) of what is confirmed and settled."""
        confirmed = [
            facts.regression
            for number, facts in self.facts.items()
            if facts.regression.verdict == Verdict.CONFIRMED and number not in self.invalid
        ]
        assert all(item.settled_at for item in confirmed)
        return {(str(item.direction), int(item.base_sha, 16), int(item.head_sha, 16)) for item in confirmed}

    def verdicts(self) -> list[str]:
        return [str(facts.regression.verdict) for facts in self.facts.values()]

    def context(self, regression_id: int, ended_trial: int | None = None) -> RegressionContext:
        facts = self.facts[regression_id]
        others = [(number, item) for number, item in self.facts.items() if number != regression_id]
        siblings = [
            SiblingRegression(
                number,
                item.regression.direction,
                item.regression.base_sha,
                item.regression.head_sha,
                [member.series_id for member in item.members if member.verdict == Verdict.CONFIRMED],
            )
            for number, item in others
        ]
        tried = frozenset(
            (trial.base_sha, trial.head_sha)
            for item in self.facts.values()
            for trial in item.trials
            if trial.purpose == "confirm"
        )
        right = frozenset(trial.id for trial in facts.trials) if self.device.is_base_right else frozenset()
        facts = replace(facts, siblings=siblings, tried=tried, right_at_base=right)
        return RegressionContext(facts, ended_trial)

    def _open(self, suspicion: NewSuspicion) -> int:
        key = suspicion.base_sha, suspicion.head_sha, suspicion.direction
        for number, facts in self.facts.items():
            state = facts.regression
            if (state.base_sha, state.head_sha, state.direction) == key:
                known = {member.series_id for member in facts.members}
                news = [member_of(item) for item in suspicion.series if item.series_id not in known]
                if news:
                    self.facts[number] = replace(facts, members=[*facts.members, *news])
                    self._judge(number, None)
                return number
        number = len(self.facts) + 1
        state = RegressionState(
            id=number,
            repository_id=1,
            repository_url="",
            operator_id=1,
            operator="square",
            device_id=1,
            device_kind=self.device.kind,
            direction=suspicion.direction,
            cause=suspicion.cause,
            verdict=Verdict.SUSPECTED,
            base_commit_id=0,
            head_commit_id=0,
            base_sha=suspicion.base_sha,
            head_sha=suspicion.head_sha,
            ratio=suspicion.ratio,
            settled_at=None,
        )
        members = [member_of(item) for item in suspicion.series]
        self.facts[number] = RegressionFacts(state, members, [], {}, {}, frozenset(), [], frozenset())
        self._judge(number, None)
        return number

    def _judge(self, regression_id: int, trial_id: int | None) -> None:
        context = self.context(regression_id, trial_id)
        for _ in range(MOST_STEPS):
            step = next_step(context)
            if isinstance(step, ReadPath):
                context = replace(context, path=self._path(step))
            elif isinstance(step, ReadMerge):
                merges = {**context.merges, (step.base_sha, step.head_sha): self._branches(step)}
                context = replace(context, merges=merges)
            else:
                self._take(regression_id, step)
                context = after(context, step)
            is_last = isinstance(step, LAST_STEPS)
            self.edges.add((step.stage, type(step).__name__, "[*]" if is_last else next_step(context).stage))
            if is_last:
                return
        raise AssertionError(f"there is no end to the steps: {context.taken}")

    def _take(self, regression_id: int, step: Step) -> None:
        facts = self.facts[regression_id]
        state = facts.regression
        self.notes += [step.note] if isinstance(step, TurnDirection | DecideVerdict | Narrow | Settle) else []
        match step:
            case TurnDirection():
                state = replace(state, direction=step.direction)
            case RecordAnswer():
                facts = after(RegressionContext(facts), step).facts
                now = START + timedelta(seconds=sum(self.asked.values()), microseconds=step.trial_id)
                trials = [replace(item, answered_at=now) if item.id == step.trial_id else item for item in facts.trials]
                facts = replace(facts, trials=trials)
            case AskTrial():
                facts = self._ask(facts, step)
                state = replace(state, settled_at=None)
            case DecideVerdict():
                state = replace(state, verdict=Verdict.CONFIRMED)
            case Dismiss():
                state = replace(state, verdict=step.verdict, settled_at=START)
                self.notes += step.notes
            case Narrow():
                if step.merge is not None:
                    merge = step.merge
                    ends = int(merge.base_sha, 16), int(merge.head_sha, 16)
                    self.found_in_merges[regression_id] = (str(merge.cause), *ends)
                state = replace(state, base_sha=step.base_sha, head_sha=step.head_sha)
            case Settle():
                state = replace(state, settled_at=START)
            case OpenOpposite() | OpenResidual():
                self._open(step.suspicion)
            case MergeInto():
                self.invalid.add(regression_id)
                other = self.facts[step.other_id]
                known = {member.series_id for member in other.members}
                news = [member for member in facts.members if member.series_id not in known]
                merged = replace(other.regression, verdict=Verdict.CONFIRMED, settled_at=START)
                self.facts[step.other_id] = replace(other, regression=merged, members=[*other.members, *news])
            case _:
                pass
        self.facts[regression_id] = replace(facts, regression=state)

    def _ask(self, facts: RegressionFacts, step: AskTrial) -> RegressionFacts:
        self.trials += 1
        self.asked[step.purpose] += 1
        asked = after(RegressionContext(facts), step).facts.trials[-1]
        self.queue.append((facts.regression.id, self.trials))
        return replace(facts, trials=[*facts.trials, replace(asked, id=self.trials, job_id=self.trials)])

    def _path(self, step: ReadPath) -> CommitPath:
        if self.device.path_error:
            return CommitPath((), self.device.path_error)
        places = range(int(step.base_sha, 16), int(step.head_sha, 16) + 1)
        return CommitPath(
            tuple(PathCommit(sha(n), n != places[0] and n not in self.device.unchanged, True) for n in places)
        )

    def _branches(self, step: ReadMerge) -> tuple[CommitPath, ...]:
        return tuple(
            CommitPath(
                tuple(
                    PathCommit(sha(number), place > 0 and number not in self.device.unchanged, True)
                    for place, number in enumerate(branch)
                ),
                "" if branch else "no commit in common",
            )
            for branch in self.device.merges.get(int(step.head_sha, 16), ())
        )

    def _rounds(self, facts: RegressionFacts, trial: TrialState) -> dict[int, RoundsRow]:
        base, head = int(trial.base_sha, 16), int(trial.head_sha, 16)
        rows = {}
        for member in facts.members:
            if (member.variant, member.case) not in (trial.spec.pairs or []):
                continue
            number = member.series_id
            if trial.id in self.device.base_failures:
                rows[number] = RoundsRow(number, Status.CRASHED, "it crashed", Reason.BASE_FAILED, [], [])
            elif {base, head} & self.device.unbuildable:
                rows[number] = RoundsRow(number, Status.BUILD_FAILED, "it does not build", None, [], [])
            else:
                count = trial.spec.rounds or ROUNDS
                ratio = self._time(number, head) / self._time(number, base)
                ratios = [ratio * max(0.1, self.chance.gauss(1, self.device.noise)) for _ in range(count)]
                if (base, head) in self.device.noisy:
                    ratios = [ratio * (1.6 if index % 2 else 0.6) for index in range(count)]
                heads = [BASE_NS * item for item in ratios]
                rows[number] = RoundsRow(number, Status.OK, "", None, [BASE_NS] * count, heads)
        return rows

    def _time(self, series: int, commit: int) -> float:
        time = BASE_NS
        for since, factor in self.device.times.get(series, {}).items():
            time *= factor if commit >= since and (commit >= BRANCH) == (since >= BRANCH) else 1.0
        return time

    def _checks(self, facts: RegressionFacts, trial: TrialState) -> list[CheckRow]:
        head = int(trial.head_sha, 16)
        rows = []
        for member in facts.members:
            kept = self.device.broken_branch if head >= BRANCH else self.device.broken
            since, broken = kept.get(member.series_id, (10**9, Status.OK))
            status = broken if head >= since else Status.OK
            status = Status.BUILD_FAILED if head in self.device.unbuildable else status
            cell = member.variant_id, member.case_id, member.variant, member.case
            rows.append(CheckRow(*cell, 0, trial.head_sha, head, status))
        return rows


def member_of(item: SuspectedSeries) -> MemberRow:
    """A series as it is when it was suspected."""
    return MemberRow(
        series_id=item.series_id,
        variant_id=item.series_id,
        case_id=1,
        variant=f"v{item.series_id}",
        case="n=1",
        suspected_ratio=item.ratio,
        base_status=item.base_status,
        head_status=item.head_status,
        verdict=Verdict.SUSPECTED,
        ratio=None,
        low=None,
        high=None,
    )


def answers(judge: SimulatedJudge, regression_id: int) -> list[tuple[str, str]]:
    """(purpose, answer) of the trials of a regression, in their order."""
    trials = judge.facts[regression_id].trials
    assert all(trial.answer != Answer.PENDING for trial in trials)
    return [(str(trial.purpose), str(trial.answer)) for trial in trials]
