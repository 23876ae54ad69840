"""Parts of a history's chart that are about branches and verdicts: confirmed changes, and points of other branches."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from html import escape
from itertools import accumulate
from typing import Any

from warpwatch.contract.commit_ids import short_sha
from warpwatch.contract.words import ChangeDirection, ChangePhase
from warpwatch.db.reads.history import SeriesChange, SeriesHistory, SidePoint
from warpwatch.server.figures.history_view import CommitAxis, HeightScale
from warpwatch.server.reports.formats import absolute, change, duration

Figure = dict[str, Any]
SLOWER, FASTER, SAME = "#d2453a", "#2f9e6a", "#8a8f98"
ENDED = (ChangePhase.FIXED, ChangePhase.REVERTED)
HOVER = (
    "<b>%{customdata[1]}</b> %{customdata[2]}<br>%{customdata[3]}<br>"
    "<b>%{customdata[4]}</b> %{customdata[5]}<extra></extra>"
)
"""The first custom value is the address that a click opens."""
NOTHING = "\N{ZERO WIDTH SPACE}"
MOST_BANDS = 60
"""Bands are drawn again with every frame while the reader pans; the list below the chart has all changes."""
_STEP, _REACH = 0.22, 0.88
"""Distance of two points of one branch on the axis, and how far from its fork a branch may reach."""


def change_bands(histories: Sequence[SeriesHistory], axis: CommitAxis) -> tuple[list[Figure], list[Figure]]:
    """A band from base to head of the worst changes, open ones first, and its label, which leads to the regression.
    Changes that no trial has decided are grey."""
    before, behind = axis.ends
    worst: dict[int, SeriesChange] = {}
    for history in histories:
        for item in history.changes:
            known = worst.get(item.regression_id)
            if known is None or _severity(item) > _severity(known):
                worst[item.regression_id] = item
    shapes: list[Figure] = []
    labels: list[Figure] = []
    places = sorted((at, axis.places[sha]) for sha, at in axis.ordinals.items())
    ordinals = [at for at, _ in places]
    starts = list(accumulate((place for _, place in places), max))
    ends = list(accumulate((place for _, place in reversed(places)), min))[::-1]
    # The script of the page leaves out labels that find no room, the last ones first.
    ranked = sorted(worst.values(), key=lambda item: (item.phase in ENDED, -_severity(item), -item.head_ordinal))
    for item in ranked[:MOST_BANDS]:
        base, head = bisect_right(ordinals, item.base_ordinal) - 1, bisect_left(ordinals, item.head_ordinal)
        start = starts[base] if base >= 0 else before
        end = ends[head] if head < len(ends) else behind
        colour = FASTER if item.direction == ChangeDirection.FASTER else SLOWER
        if item.phase == ChangePhase.UNPAIRED:
            colour = SAME
        is_ended = item.phase in ENDED
        address = f"/regressions/{item.regression_id}"
        shapes.append(
            {
                "type": "rect",
                "xref": "x",
                "yref": "y domain",
                "x0": start,
                "x1": end,
                "y0": 0,
                "y1": 1,
                "layer": "below",
                "fillcolor": colour,
                "opacity": 0.07 if is_ended else 0.16,
                "line": {"width": 0},
            }
        )
        labels.append(
            {
                "name": "change",
                "x": (start + end) / 2,
                "xref": "x",
                "y": 1,
                "yref": "paper",
                "yanchor": "top",
                # The chart library wraps a label that is a link and nothing else in a second link, without a name.
                "text": f'<a href="{address}" style="color:{colour}">{escape(label_of(item))}</a>{NOTHING}',
                "showarrow": False,
                "font": {"size": 12, "color": colour},
            }
        )
    return shapes, labels


def label_of(item: SeriesChange) -> str:
    """+21.7 % #7, or suspected +8.0 % #4; the list below the chart says what became of it."""
    suspected = "suspected " if item.phase == ChangePhase.UNPAIRED else ""
    return f"{suspected}{change(item.ratio) or item.direction} #{item.regression_id}"


def _severity(item: SeriesChange) -> float:
    return max(item.ratio, 1 / item.ratio) if item.ratio else float("inf")


def side_points(histories: Sequence[SeriesHistory], axis: CommitAxis, scale: HeightScale) -> list[Figure]:
    """Hollow points of other branches, which a dotted line joins with the commit at which each left the line. On an
    axis of commits they stand right of that commit. They have no share of the roofline."""
    traces: list[Figure] = []
    for history in histories:
        by_branch: dict[str, list[SidePoint]] = {}
        for point in history.side:
            by_branch.setdefault(point.branch, []).append(point)
        medians = {point.commit_sha: point.median_ns for point in history.points}
        for branch, points in by_branch.items():
            fork_at = points[0].fork_ordinal or points[0].ordinal - 1
            known = [sha for sha, at in axis.ordinals.items() if at <= fork_at]
            fork = max(known, key=axis.ordinals.__getitem__, default=None)
            start = axis.places[fork] if fork is not None else axis.ends[0]
            step = min(_STEP, _REACH / len(points))
            places = [start + step * (index + 1) for index in range(len(points))]
            if axis.is_date:
                places = [point.authored_at.timestamp() * 1000 for point in points]
            heights = [scale.height(history.series.id, point.median_ns) for point in points]
            joined = [scale.height(history.series.id, medians[fork])] if fork in medians else []
            traces.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers",
                    "name": escape(f"{history.series.variant} on {branch}"),
                    "x": [start, *places] if joined else places,
                    "y": [*joined, *heights],
                    "line": {"width": 1, "dash": "dot", "color": "#8a9097"},
                    "marker": {
                        "size": [0] * len(joined) + [8] * len(points),
                        "symbol": "circle-open",
                        "color": "#8a9097",
                        "line": {"width": 1.5},
                    },
                    "customdata": [[""] * 6] * len(joined) + [_hover(history, point) for point in points],
                    "hovertemplate": HOVER,
                    "showlegend": False,
                }
            )
    return traces


def _hover(history: SeriesHistory, point: SidePoint) -> list[str]:
    return [
        f"/commits/{point.commit_sha}",
        f"{escape(point.branch)} {short_sha(point.commit_sha)}",
        escape(point.subject[:70]),
        f"{escape(point.author)}, {absolute(point.authored_at)}",
        duration(point.median_ns, 4),
        f"{escape(history.series.variant)}, not on {escape(history.branch or 'this branch')}",
    ]
