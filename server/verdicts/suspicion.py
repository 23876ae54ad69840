"""Suspicions from an ended job: times that stand out at a new point, code that changed where times would not show a
change, and checks of what was right before and is broken now."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby, pairwise
from math import exp, expm1, log
from statistics import median, quantiles

from warpwatch.contract.measurement import DEVICE_TIMES
from warpwatch.contract.words import Cause, ChangeDirection, Signal, Status
from warpwatch.db.reads.judging import KnownChange
from warpwatch.db.reads.observed import BAD, CheckRow, ObservedReading
from warpwatch.db.regressions import SuspectedSeries
from warpwatch.server.verdicts.bar import SuspicionBar
from warpwatch.server.verdicts.cards import CardOffset
from warpwatch.server.verdicts.changes import AFTER, EDGE, LEVEL, Change, find_changes
from warpwatch.server.verdicts.creep import CreepRule, ReleaseLevel, find_creep, find_release_creep
from warpwatch.server.verdicts.known import KnownRegressions
from warpwatch.server.verdicts.noise import Noise, Reading, is_blind, learn
from warpwatch.server.verdicts.paired import severity
from warpwatch.server.verdicts.steps import NewSuspicion
from warpwatch.server.verdicts.thresholds import BUSY_LOAD, BUSY_READINGS, kind_of_time, thresholds_of

NEAR = 3
"""Readings from a new point within which it may have brought changes to light."""
NO_OFFSETS: Mapping[int, CardOffset] = {}
MAX_PAIRS = 6
"""Variants on cases of one suspicion; the most changed ones come first."""
LEAST_ALIKE, LEAST_COMMON = 8, 0.03
"""Series that must have moved alike, and log time by which, for what moved them to be said to be common to all."""
FEW_PAIRS = 3
"""The same, of series, where the bar is raised: a machine that moves many series is found out by any of them."""


@dataclass(frozen=True, slots=True)
class CommitPair:
    """Two commits that were built in one environment."""

    base_commit_id: int
    base_sha: str
    head_commit_id: int
    head_sha: str
    environment_id: int


@dataclass(frozen=True, slots=True)
class CodeDifference:
    """The variants whose code may differ between two commits: all, or those named.

    is_comparable: whether both commits can be measured in one environment, as they ask for the same interpreter. same:
    variants and cases whose calls launch the same at both, so that their times on the device are the same.
    """

    all: bool
    names: frozenset[str] = frozenset()
    is_comparable: bool = True
    same: frozenset[tuple[str, str]] = frozenset()

    def includes(self, variant: str, case: str, metric: str) -> bool:
        """Whether the code behind a series may differ."""
        is_same_work = metric in DEVICE_TIMES and (variant, case) in self.same
        return not is_same_work and (self.all or variant in self.names)


@dataclass(frozen=True, slots=True)
class CommitLevel:
    """Level of a series at one commit: the median of the series' readings at that commit."""

    commit_id: int
    sha: str
    ordinal: int
    median_ns: float


@dataclass(frozen=True, slots=True)
class SuspiciousSeries:
    """A series between two commits that may have changed: its variant and case, head over base, and what made it
    suspicious."""

    series: SuspectedSeries
    cell: tuple[str, str]
    base_sha: str
    head_sha: str
    ratio: float
    cause: Cause


@dataclass(frozen=True, slots=True)
class Candidate:
    """A series that may have changed between two commits, if its code did. ratio: head over base.

    is_elsewhere: whether the base was measured in another environment, so that the times do not compare.
    """

    series_id: int
    variant: str
    case: str
    metric: str
    pair: CommitPair
    cause: Cause
    ratio: float
    base_ordinal: int
    head_ordinal: int
    is_elsewhere: bool


@dataclass
class SeriesWindow:
    """One series around a new point, on one line of history. The oldest commit comes first.

    rows: readings of the new point's environment, by its card or one that agrees with it. elsewhere: earlier ones of
    other environments and cards, whose times do not compare. time_kind: see thresholds.kind_of_time. is_final: whether
    history has the last word, because no comparison can follow; then only shifts count that history alone may call a
    change. releases: what the series read at releases. drift: see CreepRule. is_busy: whether the new point was taken
    on a busy host alone; then only shifts count that history alone may call a change and that several readings show.
    Readings on a busy host are left out otherwise.
    """

    rows: list[ObservedReading]
    elsewhere: list[ObservedReading]
    time_kind: str
    commit_id: int
    is_final: bool = False
    releases: list[ReleaseLevel] = field(default_factory=list)
    drift: float = 0.0
    is_busy: bool = False
    levels: list[CommitLevel] = field(init=False)

    def __post_init__(self) -> None:
        groups = (
            (key, list(rows)) for key, rows in groupby(self.rows, key=lambda row: (row.commit_id, row.sha, row.ordinal))
        )
        self.levels = [CommitLevel(*key, median(row.median_ns for row in rows)) for key, rows in groups]

    @cached_property
    def changes(self) -> list[Change]:
        """Found when they are asked for: a window is copied with more facts before."""
        thresholds = thresholds_of(self.time_kind)
        rule = thresholds.alarm if self.is_final else thresholds.suspicion
        return find_changes([_reading(row) for row in self.rows], self.time_kind, rule)

    @property
    def first(self) -> ObservedReading:
        return self.rows[0]

    def noticed(self) -> dict[tuple[int, int], tuple[float, float]]:
        """Ranges of commits (ids) in which the time changed, with head over base and the score of a change: change
        points near the new point.

        Where a series has too few commits before it for a level to change from, jumps between neighbours count
        instead; on a busy host those that each of several readings of the new point shows.
        """
        if not self.is_busy:
            return self._noticed()
        ranges = {
            (self.rows[change.base].commit_id, self.rows[change.head].commit_id): (change.ratio, change.score)
            for change in self.changes
            if change.score >= 1 and self._is_shown(change)
        }
        here = [row for row in self.rows if row.commit_id == self.commit_id]
        for base, head, ratio in self._jumps():
            other, shift = (base, ratio) if head.commit_id == self.commit_id else (head, 1 / ratio)
            if _is_shown_by_all(here, other.median_ns, shift):
                ranges.setdefault((base.commit_id, head.commit_id), (ratio, 0.0))
        return ranges

    def wants_repeat(self) -> bool:
        """Whether a single reading on a busy host shows what would be compared if the host had been quiet."""
        is_single = sum(row.commit_id == self.commit_id for row in self.rows) == 1
        return self.is_busy and is_single and not self.is_final and bool(self._noticed())

    def _is_shown(self, change: Change) -> bool:
        """Whether the readings at and behind a change show it."""
        level = median(row.median_ns for row in self.rows[max(0, change.head - LEVEL) : change.head])
        return _is_shown_by_all(self.rows[change.head :], level, change.ratio)

    def _noticed(self) -> dict[tuple[int, int], tuple[float, float]]:
        """The same, as if the host had been quiet."""
        here = [number for number, row in enumerate(self.rows) if row.commit_id == self.commit_id]
        ranges = {
            (self.rows[change.base].commit_id, self.rows[change.head].commit_id): (change.ratio, change.score)
            for change in self.changes
            if here[0] - NEAR <= change.head <= here[-1] + NEAR
        }
        for base, head, ratio in self._jumps():
            ranges.setdefault((base.commit_id, head.commit_id), (ratio, 0.0))
        return ranges

    def _jumps(self) -> Iterator[tuple[CommitLevel, CommitLevel, float]]:
        """The new point and a neighbour that differ, with head over base, where too few commits are before them for a
        level to change from."""
        thresholds = thresholds_of(self.time_kind)
        least = expm1(thresholds.suspicion.threshold(self._noise().spread))
        for base, head in () if self.is_final else self.neighbours():
            ratio, before = head.median_ns / base.median_ns, sum(level.ordinal < head.ordinal for level in self.levels)
            is_large = abs(head.median_ns - base.median_ns) >= thresholds.suspicion.least_ns
            if severity(ratio) > 1 + least and is_large and before < thresholds.level_readings:
                yield base, head, ratio

    def has_lost(self, change: KnownChange) -> bool:
        """Whether a few later readings show that a suspected change was none, or another one."""
        before = sum(level.ordinal < change.head_ordinal for level in self.levels)
        behind = sum(level.ordinal > change.head_ordinal for level in self.levels)
        # One later reading may be disturbed itself.
        is_seen = before >= thresholds_of(self.time_kind).alarm.least_before and 1 < behind < AFTER
        return is_seen and not any(self._is_same(item, change) for item in self.changes)

    def _is_same(self, change: Change, known: KnownChange) -> bool:
        """Whether history shows a known change, in about its place and of about its size."""
        base, head = (self.rows[index].ordinal for index in (change.base, change.head))
        if direction_of(change.ratio) != known.direction or head <= known.base_ordinal or known.head_ordinal <= base:
            return False
        share = log(change.ratio) / log(known.ratio) if known.ratio and known.ratio != 1 else 1.0
        return (base, head) == (known.base_ordinal, known.head_ordinal) or 0.5 <= share <= 2

    def creep(self, asked: Sequence[tuple[int, int]]) -> tuple[CommitLevel, CommitLevel, float] | None:
        """The last commit of the best level, or a release, and the newest commit, with the ratio of the levels, where
        the series became slower without a change point.

        asked: ordinals between which trials compared the series. What lies before the end of a long one is decided:
        its commits made the series slower, or something else than the code did.
        """
        if self.is_final or self.is_busy or self.levels[-1].commit_id != self.commit_id:
            return None
        ordinals, rule = [level.ordinal for level in self.levels], thresholds_of(self.time_kind).alarm
        long = [last for first, last in asked if sum(first <= ordinal <= last for ordinal in ordinals) > LEVEL]
        plain = [self.rows[change.head].ordinal for change in self.changes if change.score >= 1]
        since = max([*long, *plain], default=0)
        levels = [level for level in self.levels if level.ordinal >= since]
        creep_rule, times = CreepRule(rule, self._noise().spread, self.drift), [level.median_ns for level in levels]
        result = find_creep(times, creep_rule)
        if result is not None:
            return levels[result[0]], levels[-1], result[1]
        held = find_release_creep([item for item in self.releases if item.ordinal >= since], times, creep_rule)
        if held is None:
            return None
        release, ratio = held
        base = CommitLevel(release.commit_id, release.sha, release.ordinal, median(release.times_ns))
        return base, levels[-1], ratio

    def before(self) -> CommitLevel | None:
        """Level of the series at the commit before the new point."""
        here = [level.commit_id for level in self.levels].index(self.commit_id)
        return self.levels[here - 1] if here else None

    def shift(self) -> float | None:
        """How far the log time of the new point lies off the level before it; None where there is no level yet."""
        here = [level.commit_id for level in self.levels].index(self.commit_id)
        heads = [self.rows[change.head].ordinal for change in self.changes]
        since = max((head for head in heads if head < self.levels[here].ordinal), default=0)
        before = [level.median_ns for level in self.levels[:here] if level.ordinal >= since][-LEVEL:]
        if len(before) < thresholds_of(self.time_kind).level_readings:
            return None
        return log(self.levels[here].median_ns / median(before))

    def neighbours(self) -> Iterator[tuple[CommitLevel, CommitLevel]]:
        """The new point's commit with the nearest older one, and the nearest newer one with it."""
        for base, head in pairwise(self.levels):
            if self.commit_id in (base.commit_id, head.commit_id):
                yield base, head

    def untried(
        self, base: CommitLevel, head: CommitLevel, cleared: Sequence[tuple[int, int]], *, is_plain: bool
    ) -> tuple[CommitLevel, CommitLevel] | None:
        """Where to look for a change that history puts between two commits; None where enough was compared.

        cleared: ordinals between which trials found no change. Commits in them are left out. If that is all of them and
        the shift stays, history has misplaced the change: it is looked for once more in a range that is wider by EDGE
        commits on both sides. is_plain: whether history alone calls it a change; a smaller shift is not looked for
        where a part of the range was compared.
        """
        first, last = self.levels.index(base), self.levels.index(head)
        ordinals = [level.ordinal for level in self.levels]
        places = [
            place
            for place in range(first, last)
            if not any(begin <= ordinals[place] and ordinals[place + 1] <= end for begin, end in cleared)
        ]
        if len(places) == last - first:
            return base, head
        if not is_plain:
            return None
        if places:
            return self.levels[places[0]], self.levels[places[-1] + 1]
        near = [(begin, end) for begin, end in cleared if begin < head.ordinal and base.ordinal < end]
        was_wider = len(near) > 1 and any(begin < base.ordinal and head.ordinal < end for begin, end in near)
        if self.is_final or was_wider or last + EDGE >= len(self.levels):
            return None
        return self.levels[max(0, first - EDGE)], self.levels[last + EDGE]

    def unseen_range(
        self, known: KnownRegressions, sought: Collection[tuple[int, int]]
    ) -> tuple[CommitLevel, CommitLevel] | None:
        """The widest range of commits around a new point of a busy host in which no trial looked, from a commit that a
        quiet host measured, if there is one; None where trials looked on both sides of the point.

        sought: ordinals between which trials are about to look.
        """
        here = [level.commit_id for level in self.levels].index(self.commit_id)
        quiet = {row.commit_id for row in self.rows if not _is_busy(row)}
        unseen = [
            not known.is_tried(self.first.series_id, base.ordinal, head.ordinal)
            and not any(first <= base.ordinal and head.ordinal <= last for first, last in sought)
            for base, head in pairwise(self.levels)
        ]
        first = last = here
        while first and unseen[first - 1] and self.levels[first].commit_id not in quiet:
            first -= 1
        while last < len(unseen) and unseen[last]:
            last += 1
        return (self.levels[first], self.levels[last]) if first < last else None

    def before_environment(self) -> ObservedReading | None:
        """The last reading before the environment changed, if the new point is the first one since."""
        return self.elsewhere[-1] if self.elsewhere and self.levels[0].commit_id == self.commit_id else None

    def is_blind(self) -> bool:
        """Whether the times of this series may hide a change, by what is known without the new commit."""
        return is_blind(self._noise(), self.time_kind)

    def candidate(
        self, base: CommitLevel | ObservedReading, head: CommitLevel, ratio: float, cause: Cause
    ) -> Candidate:
        """This series between two commits, in the environment of the new point."""
        pair = CommitPair(base.commit_id, base.sha, head.commit_id, head.sha, self.first.environment_id)
        is_elsewhere = isinstance(base, ObservedReading)
        first = self.first
        series = first.series_id, first.variant, first.case, first.metric
        return Candidate(*series, pair, cause, ratio, base.ordinal, head.ordinal, is_elsewhere)

    def _noise(self) -> Noise:
        return learn([_reading(row) for row in self.rows if row.commit_id != self.commit_id], self.time_kind)


def _is_busy(row: ObservedReading) -> bool:
    """Whether a reading was taken on a busy host."""
    return row.load is not None and row.load > BUSY_LOAD


def _is_shown_by_all(readings: Sequence[ObservedReading], level_ns: float, ratio: float) -> bool:
    """Whether there are several readings, and each shows at least half of a shift by this ratio off the level."""
    shares = [log(row.median_ns / level_ns) / log(ratio) for row in readings]
    return len(shares) >= BUSY_READINGS and min(shares) >= 0.5


def windows_of(
    rows: Sequence[ObservedReading],
    line: set[str],
    commit_id: int,
    environment_id: int,
    device_kind: str,
    common: Mapping[tuple[int, int | None], float],
    card_id: int | None = None,
    offsets: Mapping[int, CardOffset] = NO_OFFSETS,
) -> list[SeriesWindow]:
    """The series around a new point of this commit, environment and card.

    line: ids of the commits on its line of history. common: by commit and card, log time by which all unchanged series
    lay off their levels, which is taken off. offsets: of the card over others. Those of cards that agree with it are
    taken off as well; the readings of all others do not compare. Both are about times of the device: nothing is taken
    off those of its host. Readings on a busy host count only where the new point has no other, or few are before it.
    """
    agreed = {other: log(offset.ratio) for other, offset in offsets.items() if offset.is_agreed}
    windows = []
    for _, group in groupby((row for row in rows if row.sha in line), key=lambda row: row.series_id):
        here: list[ObservedReading] = []
        elsewhere: list[ObservedReading] = []
        readings = list(group)
        time_kind = kind_of_time(device_kind, readings[0].metric, readings[0].protocol)
        is_host = time_kind == Signal.LAUNCH
        for row in readings:
            offset = 0.0 if None in (row.card_id, card_id) or row.card_id == card_id else agreed.get(row.card_id or 0)
            if row.environment_id != environment_id or offset is None:
                elsewhere.append(row)
            elif is_host:
                here.append(row)
            else:
                here.append(_without(row, common.get((row.commit_id, row.card_id), 0.0) - offset))
        quiet = [row for row in here if not _is_busy(row)]
        is_busy = not any(row.commit_id == commit_id for row in quiet)
        # Where hardly any reading before is of a quiet host, the others are better than none: a comparison decides.
        before = {row.commit_id for row in quiet} - {commit_id}
        has_level = len(before) >= thresholds_of(time_kind).suspicion.least_before
        shown = quiet if has_level and not is_busy else here
        earlier = [row for row in elsewhere if row.ordinal < shown[0].ordinal]
        windows.append(SeriesWindow(shown, earlier, time_kind, commit_id, is_busy=is_busy))
    return windows


def find_candidates(
    windows: Sequence[SeriesWindow], known: KnownRegressions, *, is_complete: bool = True
) -> list[Candidate]:
    """All changes of the series that nothing known explains, and that are large enough where comparisons showed no
    change again and again. windows: of all series of the operator. is_complete: whether the submission has measured
    all of its commits."""
    least = bar_of(windows, known).score
    candidates = [candidate for window in windows for candidate in _candidates_of(window, known, least)]
    if is_complete and known.has_budget(sum(len(window.rows) for window in windows)):
        candidates += [item for window in windows for item in _busy_candidates_of(window, known, candidates)]
    return candidates


def bar_of(windows: Sequence[SeriesWindow], known: KnownRegressions) -> SuspicionBar:
    """How large a shift of these series of an operator must be to be compared."""
    return known.bar(sum(len(window.rows) for window in windows))


def find_suspicions(
    candidates: Sequence[Candidate],
    known: KnownRegressions,
    code: Mapping[CommitPair, CodeDifference],
    *,
    is_raised: bool = False,
) -> list[NewSuspicion]:
    """One suspicion for every range of commits and direction in which a new point shows a change.

    code: for the pairs of all candidates. The same code has no changes, whatever its times are. is_raised: whether the
    bar is raised, see bar_of.
    """
    series: list[SuspiciousSeries] = []
    for item in candidates:
        difference = code[item.pair]
        is_comparable = difference.is_comparable or not item.is_elsewhere
        if not is_comparable or not difference.includes(item.variant, item.case, item.metric):
            continue
        ends = item.pair.base_sha, item.pair.head_sha
        if item.cause == Cause.HISTORY:
            ordinals = item.base_ordinal, item.head_ordinal
            change = known.located_inside(item.series_id, direction_of(item.ratio), *ordinals)
            ends = (change.base_sha, change.head_sha) if change is not None else ends
        suspected = SuspectedSeries(item.series_id, item.ratio)
        series.append(SuspiciousSeries(suspected, (item.variant, item.case), *ends, item.ratio, item.cause))
    return [
        NewSuspicion(base, head, direction, items[0].ratio, tuple(item.series for item in items), items[0].cause)
        for (base, head, direction), items in _by_range(series, FEW_PAIRS if is_raised else MAX_PAIRS).items()
    ]


def find_unpaired(
    windows: Sequence[SeriesWindow], known: KnownRegressions
) -> tuple[list[Candidate], list[KnownChange]]:
    """What history alone suspects where nothing can be compared, and the suspicions of this kind that are withdrawn.

    A suspicion may come of a single reading, which other work on its host disturbed. It is withdrawn if a few later
    readings of all its series show it neither by the rule for suspicions nor by the rule for alarms, which opened it:
    so none comes and goes. What AFTER readings show is a change of level and stays.
    """
    last_words = [replace(window, is_final=True) for window in windows]
    by_series: dict[int, list[SeriesWindow]] = defaultdict(list)
    for window in (*windows, *last_words):
        by_series[window.first.series_id].append(window)
    withdrawn = [
        change
        for change in known.unpaired()
        if not change.asked
        and by_series.keys() >= set(change.series)
        and all(window.has_lost(change) for number in change.series for window in by_series[number])
    ]
    return find_candidates(last_words, known.without(withdrawn)), withdrawn


def find_common_shift(windows: Sequence[SeriesWindow], suspicion: NewSuspicion) -> float | None:
    """The ratio by which the series moved at the head of a suspicion if nearly all of them moved alike, as a machine or
    a library that all share makes them; None where they did not, or are few."""
    shifts = []
    for window in windows:
        times = [level.median_ns for level in window.levels]
        at = next((index for index, level in enumerate(window.levels) if level.sha == suspicion.head_sha), 0)
        if at >= thresholds_of(window.time_kind).alarm.least_before:
            shifts.append(log(median(times[at : at + AFTER]) / median(times[max(0, at - LEVEL) : at])))
    if len(shifts) < LEAST_ALIKE:
        return None
    low, middle, high = quantiles(shifts, n=4)
    same = sum(shift * middle > 0 for shift in shifts)
    is_alike = same >= 0.8 * len(shifts) and high - low < abs(middle) / 2 and abs(middle) >= LEAST_COMMON
    return exp(middle) if is_alike and direction_of(exp(middle)) == suspicion.direction else None


def _candidates_of(window: SeriesWindow, known: KnownRegressions, least: float) -> Iterator[Candidate]:
    """least: the score of a change that is compared."""
    first, levels = window.first, {level.commit_id: level for level in window.levels}
    noticed = window.noticed()
    cleared = known.cleared(first.series_id)
    for (base_id, head_id), (ratio, score) in noticed.items():
        # A jump has no score: too few commits are before it, so that it can be compared a few times at most.
        if 0 < score < least and not window.is_final:
            continue
        ends = levels[base_id], levels[head_id]
        if window.is_final and known.is_unpaired(first.series_id, direction_of(ratio), *(end.ordinal for end in ends)):
            continue
        untried = window.untried(*ends, cleared, is_plain=score >= 1)
        if untried is None:
            continue
        base, head = untried
        if not known.is_known(first.series_id, direction_of(ratio), base.ordinal, head.ordinal):
            yield window.candidate(base, head, ratio, Cause.HISTORY)
    creep = window.creep(known.asked(first.series_id))
    if creep is not None and not known.is_known(
        first.series_id, ChangeDirection.SLOWER, creep[0].ordinal, creep[1].ordinal
    ):
        yield window.candidate(*creep, Cause.HISTORY)
    for before, after, ratio in () if window.is_final or window.is_busy else _unseen(window):
        is_noticed = (before.commit_id, after.commit_id) in noticed
        if not is_noticed and not known.is_tried(first.series_id, before.ordinal, after.ordinal):
            yield window.candidate(before, after, ratio, Cause.CODE)


def _busy_candidates_of(
    window: SeriesWindow, known: KnownRegressions, noticed: Sequence[Candidate]
) -> Iterator[Candidate]:
    """Changed code around a new point of a busy host: both ends of the range that no trial looked in. noticed: what
    history makes suspicious."""
    if window.is_final or not window.is_busy or not window.is_blind():
        return
    series_id = window.first.series_id
    unseen = window.unseen_range(
        known, [(item.base_ordinal, item.head_ordinal) for item in noticed if item.series_id == series_id]
    )
    if unseen is not None:
        base, head = unseen
        yield window.candidate(base, head, head.median_ns / base.median_ns, Cause.CODE)


def _unseen(window: SeriesWindow) -> Iterator[tuple[CommitLevel | ObservedReading, CommitLevel, float]]:
    """Neighbouring commits between which a change would not show in the times, with head over base; 1 where times do
    not compare."""
    if window.is_blind():
        for base, head in window.neighbours():
            yield base, head, head.median_ns / base.median_ns
    before = window.before_environment()
    if before is not None:
        yield before, window.levels[0], 1.0


def _by_range(
    series: list[SuspiciousSeries], most: int
) -> dict[tuple[str, str, ChangeDirection], list[SuspiciousSeries]]:
    """Groups suspicious series by (base, head, direction), the most changed series first; of those that history
    suspects, at most so many.

    Series that are suspicious by code alone have no certain direction: they share a trial with the other suspicious
    series between the same commits, and if there are none, all share one trial.
    """
    ranges: dict[tuple[str, str, ChangeDirection], list[SuspiciousSeries]] = defaultdict(list)
    for item in series:
        if item.cause == Cause.HISTORY:
            ranges[item.base_sha, item.head_sha, direction_of(item.ratio)].append(item)
    for items in ranges.values():
        items[:] = sorted(items, key=lambda item: -severity(item.ratio))[:most]
    by_code = [item for item in series if item.cause == Cause.CODE]
    for item in sorted(by_code, key=lambda item: severity(item.ratio), reverse=True):
        same_commits = [key for key in ranges if key[:2] == (item.base_sha, item.head_sha)]
        key = same_commits[0] if same_commits else (item.base_sha, item.head_sha, direction_of(item.ratio))
        ranges[key].append(item)
    return {
        key: _of_first_cells(sorted(items, key=lambda item: (item.cause == Cause.CODE, -severity(item.ratio))))
        for key, items in ranges.items()
    }


def _of_first_cells(items: Sequence[SuspiciousSeries]) -> list[SuspiciousSeries]:
    """The series of the first MAX_PAIRS cells: a trial measures both times of a cell at once."""
    cells = list(dict.fromkeys(item.cell for item in items))[:MAX_PAIRS]
    return [item for item in items if item.cell in cells]


def direction_of(ratio: float) -> ChangeDirection:
    """The direction of a change of time by its ratio, head over base."""
    return ChangeDirection.SLOWER if ratio >= 1 else ChangeDirection.FASTER


def _without(row: ObservedReading, shift: float) -> ObservedReading:
    """A reading as it would be without a shift of log time."""
    median_ns, low_ns, high_ns = (exp(-shift) * ns for ns in (row.median_ns, row.low_ns, row.high_ns))
    return replace(row, median_ns=median_ns, low_ns=low_ns, high_ns=high_ns)


def _reading(row: ObservedReading) -> Reading:
    return Reading(row.ordinal, row.commit_id, row.environment_id, row.median_ns, row.low_ns, row.high_ns)


# --- suspicions from a check ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Breakage:
    """One variant on one case: right at the base, broken at the head, both neighbours in what was checked."""

    base: CheckRow
    head: CheckRow


def find_breakages(rows: Sequence[CheckRow], line: set[str], commit_id: int) -> list[Breakage]:
    """Where something broke beside the commit that was checked.

    rows: by variant and case, oldest commit first. line: ids of the commits on the line of history of that commit.
    """
    breakages = []
    on_line = (row for row in rows if row.sha in line)
    for _, group in groupby(on_line, key=lambda row: (row.variant_id, row.case_id)):
        newest = [next(rows_of_commit) for _, rows_of_commit in groupby(group, key=lambda row: row.commit_id)]
        breakages += [
            Breakage(base, head)
            for base, head in pairwise(newest)
            if commit_id in (base.commit_id, head.commit_id) and base.status == Status.OK and head.status in BAD
        ]
    return breakages


def suspect_breakages(
    breakages: Sequence[Breakage], series: Mapping[tuple[int, int], int], known: KnownRegressions
) -> list[NewSuspicion]:
    """One suspicion for every range of commits in which something broke that nothing known explains.

    series: ids by (variant id, case id).
    """
    by_range: dict[tuple[str, str], list[SuspectedSeries]] = defaultdict(list)
    for item in breakages:
        series_id = series[item.base.variant_id, item.base.case_id]
        if not known.is_broken(series_id, item.base.ordinal, item.head.ordinal):
            suspected = SuspectedSeries(series_id, None, item.base.status, item.head.status)
            by_range[item.base.sha, item.head.sha].append(suspected)
    return [
        NewSuspicion(base, head, ChangeDirection.BROKEN, None, tuple(items), Cause.STATUS)
        for (base, head), items in by_range.items()
    ]
