"""Suspicions from a new point: of times that stand out, and of code that changed where times would not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from math import expm1
from statistics import median

from warpwatch.contract.words import Cause
from warpwatch.db.reads.judging import JobOrigin
from warpwatch.db.reads.observed import ObservedReading, list_readings
from warpwatch.db.reads.query import Session
from warpwatch.db.regressions import EndedJob, open_suspicion
from warpwatch.server.history.mirror import Mirrors
from warpwatch.server.judge.answers import severity
from warpwatch.server.judge.asking import MAX_PAIRS
from warpwatch.server.judge.code import CodeComparison
from warpwatch.server.judge.confirmation import advance
from warpwatch.server.judge.known import KnownRegressions
from warpwatch.server.verdicts.changes import find_changes
from warpwatch.server.verdicts.noise import Noise, Reading, is_blind, learn
from warpwatch.server.verdicts.thresholds import thresholds_of

NEAR = 16
"""Readings from a new point within which it may have brought changes to light."""


@dataclass(frozen=True, slots=True)
class Suspicious:
    """A series between two commits: head over base, and what made it suspicious."""

    series_id: int
    base_commit_id: int
    head_commit_id: int
    ratio: float
    cause: Cause


@dataclass(frozen=True, slots=True)
class Level:
    """What a series reads at one commit: the median of its readings there."""

    commit_id: int
    sha: str
    ordinal: int
    median_ns: float


@dataclass
class SeriesWindow:
    """One series around a new point, on one line of history. The oldest commit comes first.

    rows: those of the new point's environment. elsewhere: earlier ones of others, whose times say nothing here.
    """

    rows: list[ObservedReading]
    elsewhere: list[ObservedReading]
    device_kind: str
    commit_id: int
    levels: list[Level] = field(init=False)

    def __post_init__(self) -> None:
        groups = (
            (key, list(rows)) for key, rows in groupby(self.rows, key=lambda row: (row.commit_id, row.sha, row.ordinal))
        )
        self.levels = [Level(*key, median(row.median_ns for row in rows)) for key, rows in groups]

    @property
    def first(self) -> ObservedReading:
        return self.rows[0]

    def noticed(self) -> dict[tuple[int, int], float]:
        """Ranges of commits in which the time changed, with head over base: change points near the new point.

        Where a series has too few readings before it for a level to change from, jumps between neighbours count
        instead.
        """
        readings = [_reading(row) for row in self.rows]
        here = [number for number, row in enumerate(self.rows) if row.commit_id == self.commit_id]
        found = {
            (self.rows[one.base].commit_id, self.rows[one.head].commit_id): one.ratio
            for one in find_changes(readings, self.device_kind)
            if here[0] - NEAR <= one.head <= here[-1] + NEAR
        }
        thresholds, least = thresholds_of(self.device_kind), self._least()
        for base, head in self.neighbours():
            ratio, before = head.median_ns / base.median_ns, sum(row.ordinal < head.ordinal for row in self.rows)
            is_jump = (
                severity(ratio) > 1 + least and abs(head.median_ns - base.median_ns) >= thresholds.suspicion.least_ns
            )
            if is_jump and before < thresholds.level_readings:
                found.setdefault((base.commit_id, head.commit_id), ratio)
        return {(base, head): ratio for (base, head), ratio in found.items() if base != head}

    def neighbours(self) -> Iterator[tuple[Level, Level]]:
        """The new point's commit with the nearest older one, and the nearest newer one with it."""
        for base, head in pairwise(self.levels):
            if self.commit_id in (base.commit_id, head.commit_id):
                yield base, head

    def before_environment(self) -> ObservedReading | None:
        """The last reading before the environment changed, if the new point is the first one since."""
        return self.elsewhere[-1] if self.elsewhere and self.levels[0].commit_id == self.commit_id else None

    def is_blind(self) -> bool:
        """Whether the times of this series may hide a change, by what is known without the new commit."""
        return is_blind(self._noise(), self.device_kind)

    def _least(self) -> float:
        return expm1(thresholds_of(self.device_kind).suspicion.threshold(self._noise().spread))

    def _noise(self) -> Noise:
        return learn([_reading(row) for row in self.rows if row.commit_id != self.commit_id], self.device_kind)


def suspect_changes(session: Session, mirrors: Mirrors, job: EndedJob, origin: JobOrigin) -> None:
    """Opens a suspicion, and has it confirmed, for every range of commits in which a bench job's new points show a
    change."""
    rows = list_readings(session, job.id)
    own = next((row for row in rows if row.commit_id == job.commit_id), None)
    if own is None:
        return
    mirror = mirrors.of(origin.repository_url)
    line = mirror.line(own.sha, {(row.ordinal, row.sha) for row in rows}, own.ordinal)
    on_line = [row for row in rows if row.sha in line]
    known = KnownRegressions(session, job.operator_id, job.device_id, min(row.ordinal for row in on_line))
    code = CodeComparison(session, mirror, origin.operator, job.operator_id)
    found: list[Suspicious] = []
    for _, group in groupby(on_line, key=lambda row: row.series_id):
        read = list(group)
        here, elsewhere = (
            [row for row in read if (row.environment_id == own.environment_id) is same] for same in (True, False)
        )
        found += _suspicions(SeriesWindow(here, elsewhere, origin.device_kind, job.commit_id), known, code)
    for (base_id, head_id, direction), series in _by_range(found).items():
        _open(session, mirrors, job, (base_id, head_id, direction), series)


def _suspicions(sight: SeriesWindow, known: KnownRegressions, code: CodeComparison) -> Iterator[Suspicious]:
    """All that is new about one series."""
    first, at = sight.first, {level.commit_id: level for level in sight.levels}
    noticed = sight.noticed()
    for (base_id, head_id), ratio in noticed.items():
        base, head = at[base_id], at[head_id]
        if known.is_told(first.series_id, _direction(ratio), base.ordinal, head.ordinal):
            continue
        if code.changed((base_id, base.sha), (head_id, head.sha), first.environment_id).holds(first.variant):
            inside = known.found_inside(first.series_id, _direction(ratio), base.ordinal, head.ordinal)
            yield Suspicious(first.series_id, *(inside or (base_id, head_id)), ratio, Cause.HISTORY)
    for before, after, ratio in _unseen(sight, code):
        if (before.commit_id, after.commit_id) in noticed or known.is_tried(
            first.series_id, before.ordinal, after.ordinal
        ):
            continue
        if code.changed((before.commit_id, before.sha), (after.commit_id, after.sha), first.environment_id).holds(
            first.variant
        ):
            yield Suspicious(first.series_id, before.commit_id, after.commit_id, ratio, Cause.CODE)


def _unseen(sight: SeriesWindow, code: CodeComparison) -> Iterator[tuple[Level | ObservedReading, Level, float]]:
    """Neighbouring commits between which a change would not show in the times, with head over base, 1 where they do not
    compare."""
    if sight.is_blind():
        for base, head in sight.neighbours():
            yield base, head, head.median_ns / base.median_ns
    before = sight.before_environment()
    if before is not None and code.can_compare(before.sha, sight.levels[0].sha):
        yield before, sight.levels[0], 1.0


def _by_range(found: list[Suspicious]) -> dict[tuple[int, int, str], list[Suspicious]]:
    """What is suspicious by (base, head, direction), the most changed series first.

    Series that are suspicious by code alone went neither way for certain: they are tried along with what stands out
    between the same commits, and where nothing does, all in one trial.
    """
    ranges: dict[tuple[int, int, str], list[Suspicious]] = defaultdict(list)
    stood_out = [one for one in found if one.cause == Cause.HISTORY]
    for one in stood_out:
        ranges[one.base_commit_id, one.head_commit_id, _direction(one.ratio)].append(one)
    by_code = sorted(
        (one for one in found if one.cause == Cause.CODE), key=lambda one: severity(one.ratio), reverse=True
    )
    for one in by_code:
        taken = [key for key in ranges if key[:2] == (one.base_commit_id, one.head_commit_id)]
        ranges[taken[0] if taken else (one.base_commit_id, one.head_commit_id, _direction(one.ratio))].append(one)
    return {key: sorted(series, key=_rank)[:MAX_PAIRS] for key, series in ranges.items()}


def _rank(one: Suspicious) -> tuple[bool, float]:
    return one.cause == Cause.CODE, -severity(one.ratio)


def _open(
    session: Session, mirrors: Mirrors, job: EndedJob, where: tuple[int, int, str], series: list[Suspicious]
) -> None:
    found = open_suspicion(
        session,
        operator_id=job.operator_id,
        device_id=job.device_id,
        base_commit_id=where[0],
        head_commit_id=where[1],
        direction=where[2],
        ratio=series[0].ratio,
        series=[(one.series_id, one.ratio) for one in series],
        cause=series[0].cause,
    )
    if found is not None:
        advance(session, mirrors, found)


def _direction(ratio: float) -> str:
    return "slower" if ratio >= 1 else "faster"


def _reading(row: ObservedReading) -> Reading:
    return Reading(row.ordinal, row.commit_id, row.environment_id, row.median_ns, row.low_ns, row.high_ns)
