"""The commit graph as lanes, one row of the list at a time, with the watched branch on the left. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from warpwatch.db.reads.code import CommitRow
from warpwatch.db.reads.lines import BranchRow

WIDTH, MARGIN = 14, 9
"""Distance of two lanes, and of the first one from the edge, in pixels."""
MOST_LANES = 8
"""Branches beyond these share the last lane."""


@dataclass(frozen=True, slots=True)
class LaneLine:
    """A line within one row. x in pixels; y in per cent of the row's height."""

    x1: int
    y1: int
    x2: int
    y2: int
    lane: int


@dataclass(slots=True)
class LaneRow:
    """The graph beside one commit. branch: whose newest commit of the list it is, where that is not the watched one."""

    x: int = MARGIN
    lane: int = 0
    lines: list[LaneLine] = field(default_factory=list)
    branch: BranchRow | None = None


@dataclass(slots=True)
class _Lane:
    """A branch as rows of the list: from `first` (its newest commit, or the merge) to `last` (where it left)."""

    branch: BranchRow
    own: list[int]
    first: int
    last: int
    is_merged: bool
    is_forked: bool
    number: int = 0


def draw_lanes(rows: Sequence[CommitRow], branches: Sequence[BranchRow]) -> list[LaneRow]:
    """One row of the graph per commit, newest first."""
    graph = [LaneRow() for _ in rows]
    watched = next((branch.name for branch in branches if branch.is_watched), None)
    trunk = [index for index, row in enumerate(rows) if watched is None or watched in row.branches]
    for index in trunk:
        _line(graph[index], 0, 0 if index != trunk[0] else 50, 100 if index != trunk[-1] else 50)
    if trunk:
        for index in range(trunk[0], trunk[-1]):
            if index not in trunk:
                _line(graph[index], 0, 0, 100)
    for lane in _numbered(_lanes(rows, branches, trunk)):
        _draw(graph, lane)
    return graph


def _lanes(rows: Sequence[CommitRow], branches: Sequence[BranchRow], trunk: Sequence[int]) -> list[_Lane]:
    lanes = []
    for branch in branches:
        # A commit that several branches hold is drawn once, on the lane of the first.
        own = [index for index, row in enumerate(rows) if row.branches[:1] == [branch.name] and index not in trunk]
        if branch.is_watched or not own:
            continue
        fork = next(
            (index for index in trunk if index > own[-1] and (rows[index].place or 0) <= (branch.fork_at or 0)), None
        )
        merge = next((index for index in trunk if rows[index].sha == branch.merged_sha and index < own[0]), None)
        first = own[0] if merge is None else merge
        last = len(rows) - 1 if fork is None else fork
        lanes.append(_Lane(branch, own, first, last, merge is not None, fork is not None))
    return lanes


def _numbered(lanes: list[_Lane]) -> list[_Lane]:
    """Each on the leftmost lane that is free between its first and its last row."""
    placed: list[_Lane] = []
    for lane in sorted(lanes, key=lambda item: (item.first, item.last)):
        taken = {other.number for other in placed if other.first <= lane.last and lane.first <= other.last}
        free = (number for number in range(1, MOST_LANES + 1) if number not in taken)
        lane.number = next(free, MOST_LANES)
        placed.append(lane)
    return placed


def _draw(graph: list[LaneRow], lane: _Lane) -> None:
    number = lane.number
    for index in range(lane.first, lane.last + 1):
        row = graph[index]
        if index == lane.first and lane.is_merged:
            row.lines.append(LaneLine(MARGIN, 50, _x(number), 100, number))
        elif index == lane.last and lane.is_forked:
            row.lines.append(LaneLine(_x(number), 0, MARGIN, 50, number))
        else:
            _line(row, number, 50 if index == lane.first else 0, 100)
    for index in lane.own:
        graph[index].lane, graph[index].x = number, _x(number)
    graph[lane.own[0]].branch = lane.branch


def _line(row: LaneRow, lane: int, top: int, bottom: int) -> None:
    if top != bottom:
        row.lines.append(LaneLine(_x(lane), top, _x(lane), bottom, lane))


def _x(lane: int) -> int:
    return MARGIN + lane * WIDTH


def width_of(graph: Sequence[LaneRow]) -> int:
    """Width of the whole graph in pixels."""
    return max((max(line.x1, line.x2) for row in graph for line in row.lines), default=MARGIN) + MARGIN
