"""How a history is drawn: what its axes show, and where a commit and a time stand on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from warpwatch.contract.commit_ids import short_sha
from warpwatch.db.reads.history import PointRow, SeriesHistory
from warpwatch.server.reports.formats import rounded, unit_of
from warpwatch.server.verdicts.cards import join_cards, offsets_of

Figure = dict[str, Any]
MAX_TICKS = 14
"""Commits that are labelled; the script of the page leaves out those that find no room."""
SHORTEST_PREFIX = 4
_PAD, _DATE_PAD = 0.6, 0.02
"""Room at both ends of the axis: in places of commits, or as a share of the shown time."""


class VerticalAxis(StrEnum):
    """Height of a point: the point's time, that time over the time of the first point, or the share of the roofline."""

    TIME = "time"
    FIRST = "first"
    ROOFLINE = "roofline"


class HorizontalAxis(StrEnum):
    COMMIT = "commit"
    DATE = "date"


@dataclass(frozen=True, slots=True)
class HistoryView:
    """first, last: the ends of the shown range as ids of commits, or beginnings of them; None for no end."""

    y: VerticalAxis = VerticalAxis.TIME
    x: HorizontalAxis = HorizontalAxis.COMMIT
    log_scale: bool = False
    first: str | None = None
    last: str | None = None


@dataclass(frozen=True, slots=True)
class CommitAxis:
    """places: where each commit with a point or a mark stands, in the order of history: 0, 1, …, or milliseconds since
    1970. ordinals: of the same commits."""

    places: Mapping[str, float]
    ordinals: Mapping[str, int]
    is_date: bool = False
    first: float | None = None
    last: float | None = None

    @property
    def ends(self) -> tuple[float, float]:
        """Just before the first and just behind the last commit."""
        if not self.places:
            return -_PAD, _PAD
        low, high = min(self.places.values()), max(self.places.values())
        pad = (high - low or 86_400_000.0) * _DATE_PAD if self.is_date else _PAD
        return low - pad, high + pad

    def layout(self) -> Figure:
        """The axis, with at most MAX_TICKS commits labelled, and the shown range."""
        low, high = self.ends
        pad = (high - low) * _DATE_PAD if self.is_date else _PAD
        shown = [low if self.first is None else self.first - pad, high if self.last is None else self.last + pad]
        if self.is_date:
            return {"type": "date", "range": shown, "showgrid": False, "zeroline": False}
        return commit_axis(self.places) | {"range": shown}


def commit_axis(places: Mapping[str, float]) -> Figure:
    """An axis with one place per commit; at most MAX_TICKS commits are labelled."""
    commits = {place: sha for sha, place in places.items()}
    step = max(1, -(-len(commits) // MAX_TICKS))
    ticks = [place for place in commits if (len(commits) - 1 - place) % step == 0]
    texts = [f'<span style="font-family:monospace">{short_sha(commits[place])}</span>' for place in ticks]
    return {
        "tickvals": ticks,
        "ticktext": texts,
        "range": [-_PAD, len(commits) - 1 + _PAD],
        "showgrid": False,
        "zeroline": False,
    }


def axis_of(histories: Sequence[SeriesHistory], view: HistoryView) -> CommitAxis:
    """The axis of the histories' commits."""
    authored: dict[str, datetime] = {}
    for history in histories:
        authored |= {point.commit_sha: point.authored_at for point in history.points}
        authored |= {mark.commit_sha: mark.authored_at for mark in history.marks if mark.authored_at}
    return make_axis(ordinals_of(histories), authored, view)


def make_axis(ordinals: Mapping[str, int], authored: Mapping[str, datetime], view: HistoryView) -> CommitAxis:
    """The axis of these commits; a bound of the view that names none of them is no bound. authored: when each was made,
    as far as it is known."""
    shas = sorted(ordinals, key=lambda sha: (ordinals[sha], sha))
    is_date = view.x == HorizontalAxis.DATE
    places: dict[str, float] = {sha: place for place, sha in enumerate(shas)}
    if is_date:
        places = _dates(authored, shas)
    first, last = find_commit(view.first, shas), find_commit(view.last, shas)
    return CommitAxis(
        places, ordinals, is_date, None if first is None else places[first], None if last is None else places[last]
    )


def ordinals_of(histories: Iterable[SeriesHistory]) -> dict[str, int]:
    """The ordinal of every commit with a point or a mark."""
    ordinals: dict[str, int] = {}
    for history in histories:
        ordinals |= {point.commit_sha: point.ordinal for point in history.points}
        ordinals |= {mark.commit_sha: mark.ordinal for mark in history.marks}
    return ordinals


def find_commit(prefix: str | None, shas: Iterable[str]) -> str | None:
    """The commit whose id begins so; None where none does."""
    if prefix is None or len(prefix) < SHORTEST_PREFIX:
        return None
    return next((sha for sha in shas if sha.startswith(prefix.lower())), None)


def _dates(authored: Mapping[str, datetime], shas: Sequence[str]) -> dict[str, float]:
    """Milliseconds since 1970 at which each commit was made. One without a date stands at the commit before it."""
    dates: dict[str, float] = {}
    last = min((when.timestamp() * 1000 for when in authored.values()), default=0.0)
    for sha in shas:
        last = dates[sha] = authored[sha].timestamp() * 1000 if sha in authored else last
    return dates


def card_lines(history: SeriesHistory) -> dict[int | None, tuple[int | None, float]]:
    """For every card of a history the one whose line its points belong to, and its offset; see join_cards."""
    return join_cards([point.card_id for point in reversed(history.points)], offsets_of(history.agreed))


@dataclass(frozen=True, slots=True)
class HeightScale:
    """How a time becomes a height. firsts: the median of the first point, by series."""

    kind: VerticalAxis
    size: float
    title: str
    firsts: Mapping[int, float] = field(default_factory=dict)

    def height(self, series_id: int, ns: float, floor_ns: float | None = None) -> float | None:
        """None where there is none. floor_ns: the time that the roofline allows."""
        if self.kind == VerticalAxis.ROOFLINE:
            return None if floor_ns is None else rounded(floor_ns / ns * 100)
        if self.kind == VerticalAxis.FIRST:
            return rounded(ns / self.firsts[series_id]) if series_id in self.firsts else None
        return rounded(ns / self.size)

    def of(self, history: SeriesHistory, point: PointRow, ns: float | None = None) -> float | None:
        """The height of a time of the point, by default of its median."""
        return self.height(history.series.id, point.median_ns if ns is None else ns, floor_of(point))

    def line(self, history: SeriesHistory, points: Sequence[PointRow], times: Sequence[float]) -> list[float | None]:
        """The heights of one time of each point."""
        if self.kind == VerticalAxis.TIME:
            return [rounded(ns / self.size) for ns in times]
        return [self.of(history, point, ns) for point, ns in zip(points, times, strict=True)]


def floor_of(point: PointRow) -> float | None:
    """The time that the roofline allows for the point's case."""
    return None if point.roofline_share is None else point.roofline_share * point.median_ns


def scale_of(histories: Sequence[SeriesHistory], view: HistoryView) -> HeightScale:
    size, unit = unit_of(max((point.median_ns for history in histories for point in history.points), default=1e3))
    titles = {
        VerticalAxis.TIME: f"median, {unit}",
        VerticalAxis.FIRST: "median, relative to the first point",
        VerticalAxis.ROOFLINE: "share of the roofline, %",
    }
    firsts = {history.series.id: history.points[0].median_ns for history in histories if history.points}
    return HeightScale(view.y, size, titles[view.y], firsts)
