"""What is true of a series at a commit: the one statement that pages, reports, badges, messages and the API render.

Slower, faster, broken and fixed are said of what a trial or a check decided, and of nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import log
from typing import TYPE_CHECKING

from warpwatch.contract.words import (
    NO_FAILURE,
    ChangeDirection,
    ChangePhase,
    Signal,
    StatementDirection,
    StatementKind,
    StatementSource,
    StepCause,
    Verdict,
)
from warpwatch.server.verdicts.noise import Noise, Reading, detectable, learn
from warpwatch.server.verdicts.paired import severity
from warpwatch.server.verdicts.thresholds import kind_of_time

if TYPE_CHECKING:
    from warpwatch.db.environment_changes import EnvironmentStep
    from warpwatch.db.reads.overview import OverviewCell
    from warpwatch.db.reads.standing import VerdictMark
    from warpwatch.db.reads.statements import PointReading, SeriesChangeFact, SeriesFacts
    from warpwatch.db.regressions import RegressionRow, RegressionSeriesRow

Place = tuple[int, int, int | None]
"""A series, an environment and a card."""
MANY_READINGS = 24
"""Readings from which on a series' noise is learned once for all of its commits."""
ENDED = (ChangePhase.FIXED, ChangePhase.REVERTED, ChangePhase.ACCEPTED, ChangePhase.INVALID)
"""Phases in which a change is over, or somebody said that it may be."""


@dataclass(frozen=True, slots=True)
class Statement:
    """What is known of a series at a commit, or of a change.

    direction: of what is confirmed or suspected. ratio, low, high: of the time over that at the commit before; what is
    left of a change that was partly undone. source: what says so. regression_id: the change; commit_sha is then where
    it began or ended, which may lie between the commit and the one before. value_ns: the time at the commit. status: of
    a check or bench that did not end well. can_confirm: whether a trial can still decide what is suspected. is_ended:
    whether a change is over. between: standard deviation of log time between runs of the series. detectable: the
    smallest change that the series can show, as a share of the time. signal: which of the two times of a call it is
    about; None where there is one alone. cause: of a step of the history, as far as it is known; None where there is
    no step.
    """

    kind: StatementKind
    direction: StatementDirection | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    source: StatementSource = StatementSource.NONE
    regression_id: int | None = None
    series_id: int | None = None
    commit_sha: str | None = None
    value_ns: float | None = None
    status: str | None = None
    can_confirm: bool = True
    is_ended: bool = False
    between: float | None = None
    detectable: float | None = None
    signal: Signal | None = None
    cause: StepCause | None = None


NO_DATA = Statement(StatementKind.NO_DATA)
NO_LAUNCH = Statement(StatementKind.NO_DATA, signal=Signal.LAUNCH)


def state_series(facts: SeriesFacts, learned: dict[Place, Noise] | None = None) -> Statement:
    """The statement about a series at a commit. learned: noise of long series, which statements about several commits
    share.

    What broke comes before what fails, which comes before what became slower or faster: a time of a wrong result says
    nothing. What a trial decided comes before what history shows.
    """
    at, before = facts.reading, facts.before
    ratio = at.median_ns / before.median_ns if at and before else None
    noise = _noise(facts, {} if learned is None else learned)
    time_kind = kind_of_time(facts.device_kind, facts.metric, facts.protocol)
    least = detectable(noise, time_kind, before.median_ns if before else None) if noise else None
    plain = Statement(
        StatementKind.NO_DATA,
        ratio=ratio,
        series_id=facts.series_id,
        commit_sha=facts.sha,
        value_ns=at.median_ns if at else None,
        status=facts.status,
        between=noise.between if noise else None,
        detectable=least,
        signal=_signal(facts.signal),
    )
    # What broke and was repaired since the time before is repaired.
    ended = {item.regression_id for item in facts.changes if item.is_end}
    changes = [item for item in facts.changes if item.is_end or item.regression_id not in ended]
    confirmed, suspected, dismissed = (
        sorted((item for item in changes if _verdict(item) == verdict), key=_rank)
        for verdict in (Verdict.CONFIRMED, Verdict.SUSPECTED, Verdict.DISMISSED)
    )
    if confirmed and confirmed[0].direction == ChangeDirection.BROKEN and not confirmed[0].is_end:
        return _of_change(plain, confirmed[0])
    if facts.status is not None and facts.status not in NO_FAILURE:
        return replace(plain, kind=StatementKind.FAILED, source=StatementSource.CHECK)
    if confirmed:
        return _of_change(plain, confirmed[0])
    if suspected:
        return _of_change(plain, suspected[0])
    if facts.is_same_code:
        return replace(plain, kind=StatementKind.SAME_CODE, source=StatementSource.CODE)
    if at is None:
        return plain
    if dismissed:
        by_trial = StatementSource.TRIAL
        return replace(plain, kind=StatementKind.NOT_TOLD_APART, source=by_trial, cause=StepCause.NOISE)
    if ratio is not None and least is not None and severity(ratio) > 1 + least:
        unknown = StepCause.UNKNOWN
        return replace(plain, kind=StatementKind.SHIFT, source=StatementSource.HISTORY, cause=unknown)
    return replace(plain, kind=StatementKind.NOT_TOLD_APART, source=StatementSource.HISTORY)


def state_rounds(
    statement: Statement, outcome: str, ratio: float | None, low: float | None, high: float | None
) -> Statement:
    """The statement about two commits after an A/B comparison of them. outcome: server.verdicts.held.PairOutcome."""
    if statement.kind in (StatementKind.FAILED, StatementKind.SAME_CODE):
        return statement
    measured = replace(statement, ratio=ratio, low=low, high=high, source=StatementSource.TRIAL)
    if outcome in (ChangeDirection.SLOWER, ChangeDirection.FASTER):
        return replace(measured, kind=StatementKind.CONFIRMED, direction=StatementDirection(outcome))
    return replace(measured, kind=StatementKind.NOT_TOLD_APART, direction=None, regression_id=None)


def state_outcome(outcome: str) -> Statement:
    """The statement about two commits that an A/B comparison made, where a page writes its numbers beside it."""
    return state_rounds(Statement(StatementKind.NOT_TOLD_APART), outcome, None, None, None)


def state_regression(row: RegressionRow) -> Statement:
    """The statement about a change as a whole: its worst series, and what is left of it there."""
    ratio, low, high = (row.ratio, row.low, row.high) if row.left_ratio is None else (row.left_ratio, None, None)
    about = Statement(
        StatementKind.NOT_TOLD_APART,
        ratio=ratio,
        low=low,
        high=high,
        source=StatementSource.TRIAL,
        regression_id=row.id,
        commit_sha=row.head_sha,
        signal=_signal(row.signal),
    )
    if row.verdict in (Verdict.DISMISSED, Verdict.UNSURE):
        return about
    # What history alone suspects keeps its phase when later readings end it.
    phase = row.state if row.state in ENDED else row.phase
    return _stated(about, row.verdict, row.direction, phase, can_confirm=row.can_confirm)


def state_change(
    regression_id: int,
    direction: str,
    phase: str,
    ratio: float | None,
    signal: str | None = None,
    *,
    can_confirm: bool = False,
    series_id: int | None = None,
    commit_sha: str | None = None,
) -> Statement:
    """The statement about a change in one series, where a page has no more than these."""
    verdict = Verdict.SUSPECTED if phase in (ChangePhase.SUSPECTED, ChangePhase.UNPAIRED) else Verdict.CONFIRMED
    about = Statement(
        StatementKind.NOT_TOLD_APART,
        ratio=ratio,
        regression_id=regression_id,
        series_id=series_id,
        commit_sha=commit_sha,
        signal=_signal(signal),
    )
    if phase in (ChangePhase.DISMISSED, ChangePhase.UNSURE):
        return replace(about, source=StatementSource.TRIAL)
    return _stated(about, verdict, direction, phase, can_confirm=can_confirm)


def state_cell(cell: OverviewCell) -> Statement:
    """The statement about where a cell stands now: its open change, what fails, or what is suspected of it."""
    about = Statement(
        StatementKind.NOT_TOLD_APART if cell.median_ns is not None else StatementKind.NO_DATA,
        series_id=cell.series_id,
        commit_sha=cell.commit_sha,
        value_ns=cell.median_ns,
        signal=Signal.KERNEL if cell.launch_series_id is not None else None,
    )
    statuses = (cell.check_status, cell.bench_status)
    failing = next((status for status in statuses if status is not None and status not in NO_FAILURE), None)
    is_broken = cell.regression_direction == ChangeDirection.BROKEN
    if failing is not None and not is_broken:
        return replace(about, kind=StatementKind.FAILED, source=StatementSource.CHECK, status=failing)
    if cell.regression_id is not None and cell.regression_direction is not None:
        about = replace(
            about,
            ratio=cell.regression_ratio,
            regression_id=cell.regression_id,
            commit_sha=cell.regression_sha,
            status=failing,
        )
        return _stated(about, Verdict.CONFIRMED, cell.regression_direction, ChangePhase.CONFIRMED, can_confirm=False)
    if cell.suspected_id is not None and cell.suspected_direction is not None:
        about = replace(about, ratio=cell.suspected_ratio, regression_id=cell.suspected_id)
        can_confirm = bool(cell.suspected_can_confirm)
        return _stated(
            about, Verdict.SUSPECTED, cell.suspected_direction, ChangePhase.SUSPECTED, can_confirm=can_confirm
        )
    return about


def state_launch(cell: OverviewCell) -> Statement:
    """The statement about where the launch of a cell stands now: its open change, or what is suspected of it."""
    if cell.launch_series_id is None:
        return NO_LAUNCH
    verdict, direction = cell.launch_verdict, cell.launch_direction
    about = Statement(
        StatementKind.NOT_TOLD_APART,
        ratio=cell.launch_ratio,
        regression_id=cell.launch_regression_id,
        series_id=cell.launch_series_id,
        commit_sha=cell.launch_sha,
        signal=Signal.LAUNCH,
    )
    if verdict is None or direction is None:
        return about
    phase = ChangePhase.CONFIRMED if verdict == Verdict.CONFIRMED else ChangePhase.SUSPECTED
    return _stated(about, verdict, direction, phase, can_confirm=bool(cell.launch_can_confirm))


def state_member(row: RegressionSeriesRow) -> Statement:
    """The statement about one series of a change: what its trial decided, and what is left of it."""
    about = Statement(
        StatementKind.NOT_TOLD_APART,
        ratio=row.ratio if row.left_ratio is None else row.left_ratio,
        low=row.low if row.left_ratio is None else None,
        high=row.high if row.left_ratio is None else None,
        source=StatementSource.TRIAL,
        series_id=row.series_id,
        status=row.head_status,
        signal=_signal(row.signal),
    )
    if row.verdict in (Verdict.DISMISSED, Verdict.UNSURE):
        return about
    direction = ChangeDirection.BROKEN if row.head_status is not None else ChangeDirection.SLOWER
    if row.verdict == Verdict.SUSPECTED:
        about = replace(about, ratio=row.suspected_ratio)
    phase = ChangePhase.FIXED if row.fixed_by_sha else ChangePhase.CONFIRMED
    return _stated(about, row.verdict, direction, phase, can_confirm=True)


def state_step(step: EnvironmentStep) -> Statement:
    """The statement about the step of a series at a commit that was measured in two environments."""
    is_noise = step.cause == StepCause.NOISE
    about = Statement(
        StatementKind.NOT_TOLD_APART if is_noise else StatementKind.SHIFT,
        ratio=step.ratio,
        low=step.low,
        high=step.high,
        source=StatementSource.TRIAL if step.is_decided else StatementSource.HISTORY,
        series_id=step.series_id,
        commit_sha=step.commit_sha,
        cause=step.cause,
    )
    if not step.is_decided or step.cause not in (StepCause.CODE, StepCause.TOOLCHAIN, StepCause.BOTH):
        return about
    direction = StatementDirection.SLOWER if step.ratio > 1 else StatementDirection.FASTER
    return replace(about, kind=StatementKind.CONFIRMED, direction=direction)


@lru_cache(maxsize=2048)
def state_mark(mark: VerdictMark) -> Statement:
    """The statement about a change as a timeline draws it; kept, as every page with a timeline has hundreds of them."""
    change = mark.regression_id, mark.direction, mark.phase, mark.ratio, mark.signal
    return state_change(*change, can_confirm=mark.can_confirm, commit_sha=mark.head_sha)


def _of_change(plain: Statement, change: SeriesChangeFact) -> Statement:
    about = replace(
        plain,
        ratio=change.ratio if not change.is_end else None,
        low=change.low if not change.is_end else None,
        high=change.high if not change.is_end else None,
        regression_id=change.regression_id,
        commit_sha=change.sha,
        status=change.head_status or plain.status,
    )
    if change.is_end:
        fixed = StatementDirection.FIXED
        return replace(about, kind=StatementKind.CONFIRMED, direction=fixed, source=StatementSource.CHECK, status=None)
    return _stated(about, _verdict(change), change.direction, change.phase, can_confirm=change.can_confirm)


def _signal(name: str | None) -> Signal | None:
    return None if name is None else Signal(name)


def _verdict(change: SeriesChangeFact) -> str:
    """The verdict on a series: nothing is confirmed of it before the whole change is."""
    if change.phase in (ChangePhase.SUSPECTED, ChangePhase.UNPAIRED):
        return Verdict.DISMISSED if change.verdict == Verdict.DISMISSED else Verdict.SUSPECTED
    return change.phase if change.phase in (ChangePhase.DISMISSED, ChangePhase.UNSURE) else change.verdict


def _stated(about: Statement, verdict: str, direction: str, phase: str, *, can_confirm: bool) -> Statement:
    """A change that is confirmed or suspected. Slower or faster comes from the ratio, never from the suspicion."""
    is_broken = direction == ChangeDirection.BROKEN
    if not is_broken and about.ratio is not None:
        direction = ChangeDirection.SLOWER if about.ratio > 1 else ChangeDirection.FASTER
    if verdict != Verdict.CONFIRMED:
        kind, source = StatementKind.SUSPECTED, StatementSource.CHECK if is_broken else StatementSource.HISTORY
    else:
        kind, source = StatementKind.CONFIRMED, StatementSource.CHECK if is_broken else StatementSource.TRIAL
    return replace(
        about,
        cause=StepCause.CODE if kind == StatementKind.CONFIRMED else StepCause.UNKNOWN,
        kind=kind,
        direction=StatementDirection(direction),
        source=source,
        can_confirm=can_confirm or kind == StatementKind.CONFIRMED,
        is_ended=phase in ENDED,
    )


def _rank(change: SeriesChangeFact) -> tuple[bool, bool, bool, float, int]:
    """Sort key: what broke, what became slower, what became faster, what ended; of each the largest first."""
    is_broken, is_slower = (change.direction == item for item in (ChangeDirection.BROKEN, ChangeDirection.SLOWER))
    return change.is_end, not is_broken, not is_slower, -severity(change.ratio or 1.0), change.regression_id


def _noise(facts: SeriesFacts, learned: dict[Place, Noise]) -> Noise | None:
    """The noise of the series in the environment of its reading, by what is known without that commit; None without a
    reading. Of many readings those of one commit teach next to nothing, and all of them are learned from once."""
    at = facts.reading
    if at is None:
        return None
    time_kind = kind_of_time(facts.device_kind, facts.metric, facts.protocol)
    if len(facts.readings) < MANY_READINGS:
        others = [_noted(row) for row in facts.readings if row.commit_id != at.commit_id]
        return learn(others, time_kind)
    place = (facts.series_id, *at.place)
    if place not in learned:
        learned[place] = learn([_noted(row) for row in facts.readings], time_kind)
    return learned[place]


def _noted(row: PointReading) -> Reading:
    return Reading(row.ordinal, row.commit_id, row.environment_id, row.median_ns, row.low_ns, row.high_ns)


def worst_statement(statements: Sequence[Statement]) -> Statement | None:
    """Of several statements the one that a summary shows."""
    return min(statements, key=badness, default=None)


def badness(statement: Statement) -> tuple[float, float]:
    """Sort key, the worst first: what broke, what fails, what became slower, what is suspected, what became faster,
    what ended, shifts, changes that are over; of each the largest."""
    place = float(_PLACES.index((statement.kind, statement.direction)))
    if statement.is_ended:
        place = _PLACES.index((StatementKind.SHIFT, None)) + 0.5
    return place, -abs(log(statement.ratio)) if statement.ratio else 0.0


_PLACES: tuple[tuple[StatementKind, StatementDirection | None], ...] = (
    (StatementKind.CONFIRMED, StatementDirection.BROKEN),
    (StatementKind.FAILED, None),
    (StatementKind.CONFIRMED, StatementDirection.SLOWER),
    (StatementKind.SUSPECTED, StatementDirection.BROKEN),
    (StatementKind.SUSPECTED, StatementDirection.SLOWER),
    (StatementKind.CONFIRMED, StatementDirection.FASTER),
    (StatementKind.CONFIRMED, StatementDirection.FIXED),
    (StatementKind.SUSPECTED, StatementDirection.FASTER),
    (StatementKind.SHIFT, None),
    (StatementKind.NOT_TOLD_APART, None),
    (StatementKind.SAME_CODE, None),
    (StatementKind.NO_DATA, None),
)
