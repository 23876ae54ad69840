"""Plotly figures as plain JSON. Colours of text and grid come from the page's theme, in web/static/charts.js.

The first custom value of every point is the address that a click opens. The custom values of a history's points are
made by that script as well: written out, those of 10,000 points are 3 MB.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from html import escape
from math import exp
from typing import Any
from urllib.parse import urlencode

from warpwatch.contract.commit_ids import short_sha
from warpwatch.contract.words import ChangeDirection
from warpwatch.db.reads.history import PointRow, SeriesHistory, StatusMark
from warpwatch.db.regressions import RegressionSeriesRow
from warpwatch.server.figures.history_layers import noise_bands, sample_strips
from warpwatch.server.figures.history_marks import HOVER, SAME, change_bands, side_points
from warpwatch.server.figures.history_view import CommitAxis, HeightScale, HistoryView, axis_of, card_lines, scale_of
from warpwatch.server.figures.noise_summary import LevelShift, NoiseSummary
from warpwatch.server.figures.palette import PALETTE, VariantStyle, faint, variant_styles
from warpwatch.server.reports.formats import (
    DURATION_UNITS,
    STATUS_NAMES,
    absolute,
    change,
    fact,
    headline,
    rounded,
    shape,
    share,
    unit_of,
)
from warpwatch.server.reports.wording import statement_words
from warpwatch.server.verdicts.statements import state_step

Figure = dict[str, Any]
DEFAULT_VIEW = HistoryView()

# The same shapes as the status marks in tables (web/templates/macros/ui.html).
SYMBOLS = {
    "ok": ("circle", "#2f9e6a"),
    "wrong": ("x", "#d2453a"),
    "crashed": ("diamond", "#d2453a"),
    "timed_out": ("hourglass", "#c08a1e"),
    "out_of_memory": ("square", "#c08a1e"),
    "build_failed": ("triangle-up", "#c08a1e"),
    "unreadable": ("hexagon", "#c08a1e"),
    "missing_dependency": ("triangle-down", "#c08a1e"),
    "unsupported": ("line-ew-open", "#8a9097"),
    "skipped": ("circle-open", "#8a9097"),
}

CardLines = Mapping[int | None, tuple[int | None, float]]
Styles = Mapping[str, VariantStyle]
_CARD_DASHES = ("solid", "dash", "dot", "dashdot")
"""Of the lines of several cards in one environment; of a single card, the line has the dash of its variant."""
LABEL_ROOM = 0.06
"""Share of the height that the labels of changes take above the lines; the script of the page makes room for more rows.
"""
STRIP_ROW, LOW_STRIP_ROW = 0.07, 0.12
"""Share of the height that a row of the strip of statuses takes, and in a low chart, where the names of two rows would
touch."""
MANY_POINTS = 600
"""From here on lines have no markers: each marker is an element that moves when the reader pans, a line is one."""


def history_figure(
    histories: Sequence[SeriesHistory],
    steps: Mapping[int, Sequence[LevelShift]] | None = None,
    view: HistoryView = DEFAULT_VIEW,
    noise: Mapping[int, Sequence[NoiseSummary]] | None = None,
    samples: Mapping[int, Sequence[float]] | None = None,
    styles: Styles | None = None,
    *,
    is_low: bool = False,
) -> Figure:
    """Medians with their 95 % intervals over the commits that were measured, one line per series, environment
    and card; cards that agree share one.

    Statuses other than ok are drawn in a strip below the lines. steps: level shifts per series id. noise: what may be
    indistinguishable, per series id. samples: of the points whose distribution is drawn, per point id. styles: of the
    operator's variants. is_low: the page gives the chart little height.
    """
    axis, scale = axis_of(histories, view), scale_of(histories, view)
    styles = styles or variant_styles(history.series.variant for history in histories)
    lit = [history for history in histories if styles[history.series.variant].is_lit]
    traces: list[Figure] = []
    if noise:
        traces += noise_bands(lit, noise, axis, scale, styles)
    has_markers = sum(len(history.points) for history in histories) < MANY_POINTS
    # The legend explains the marks below the lines; without the name of the line it would name those alone.
    is_named = len(histories) > 1 or any(history.marks for history in histories)
    # Grey lines lie below the coloured ones.
    for history in sorted(histories, key=lambda history: styles[history.series.variant].is_lit):
        style = styles[history.series.variant]
        traces += _lines(history, axis, scale, style, is_named=is_named, has_markers=has_markers)
    if samples:
        traces += sample_strips(lit, samples, axis, scale, styles)
    traces += _steps(lit, steps or {}, axis, scale)
    traces += side_points(histories, axis, scale)
    strip, rows = _status_strip(histories, axis)
    row_height = LOW_STRIP_ROW if is_low else STRIP_ROW
    return {"data": traces + strip, "layout": _history_layout(histories, axis, scale, view, rows, row_height)}


def _history_layout(
    histories: Sequence[SeriesHistory],
    axis: CommitAxis,
    scale: HeightScale,
    view: HistoryView,
    rows: Sequence[str],
    row_height: float,
) -> Figure:
    """rows: names of the rows of the strip below the lines. row_height: share of the height that each takes."""
    floor = row_height * len(rows) + 0.04 if rows else 0.0
    layout = plain_layout()
    layout["yaxis"] |= {
        "title": {"text": scale.title},
        "domain": [floor, 1 - LABEL_ROOM if any(history.changes for history in histories) else 1],
        "type": "log" if view.log_scale else "linear",
    }
    if view.log_scale:
        layout["yaxis"]["dtick"] = "D2"
    layout["xaxis"] |= axis.layout()
    borders, bands = _environment_borders(histories, axis), change_bands(histories, axis)
    layout["shapes"], layout["annotations"] = (one + other for one, other in zip(borders, bands, strict=True))
    # The script of the page writes the shown range into the address, as commits, and makes the tooltips.
    layout["meta"] = {
        "commits": _commits(histories, axis),
        "address": f"/commits/SHA?{_query_of(histories[0].series.repository)}" if histories else "",
        "units": DURATION_UNITS,
    }
    if rows:
        layout["yaxis2"] = {
            "domain": [0, floor - 0.04],
            "tickvals": list(range(len(rows))),
            "ticktext": [escape(row) for row in rows],
            "range": [-0.6, len(rows) - 0.4],
            "zeroline": False,
            "fixedrange": True,
            "automargin": True,
        }
        layout["xaxis"]["anchor"] = "y2"
    return layout


def rounds_figure(series: RegressionSeriesRow) -> Figure:
    """The rounds of an A/B comparison: base and head medians, joined in pairs."""
    size, unit = unit_of(max([*series.base_ns, *series.head_ns], default=1e3))
    rounds = list(range(1, len(series.base_ns) + 1))
    base, head = ([value / size for value in side] for side in (series.base_ns, series.head_ns))
    joined = [value for pair in zip(base, head, strict=True) for value in (*pair, None)]
    layout = plain_layout()
    layout["xaxis"] |= {"title": {"text": "round"}, "dtick": max(1, len(rounds) // 12), "zeroline": False}
    layout["yaxis"] |= {"title": {"text": f"median of the round, {unit}"}}
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "x": [number for number in rounds for _ in range(3)],
            "y": joined,
            "line": {"width": 1, "color": "rgba(130,138,146,0.6)"},
            "hoverinfo": "skip",
            "showlegend": False,
        },
        _side("base", rounds, base, unit, PALETTE[0], "circle"),
        _side("head", rounds, head, unit, PALETTE[1], "diamond"),
    ]
    return {"data": traces, "layout": layout}


# --- histories ------------------------------------------------------------------------------------------------


def _commits(histories: Sequence[SeriesHistory], axis: CommitAxis) -> list[list[Any]]:
    """Place, id, subject and byline of every commit of the axis; a commit without a point has no words."""
    words: dict[str, tuple[str, str]] = {}
    for history in histories:
        for point in history.points:
            if point.commit_sha not in words:
                byline = f"{escape(point.author)}, {absolute(point.authored_at)}"
                words[point.commit_sha] = escape(_shortened(point.subject)), byline
    return [[place, sha, *words.get(sha, ("", ""))] for sha, place in axis.places.items()]


def _lines(
    history: SeriesHistory,
    axis: CommitAxis,
    scale: HeightScale,
    style: VariantStyle,
    *,
    is_named: bool,
    has_markers: bool,
) -> list[Figure]:
    """Three traces per environment and card: both ends of the interval, without the places that they share with the
    median; and the median, whose `meta` says what tooltips show besides the commit.

    Cards that agree have one line: their points stand where the card of that line would have measured them.
    """
    traces: list[Figure] = []
    indexes = {sha: index for index, sha in enumerate(axis.places)}
    cards = card_lines(history)
    # Time that the card of the point's line would have taken, over the time that the point's own card took.
    factors = {card_id: exp(-offset) for card_id, (_, offset) in cards.items()}
    heads = list(dict.fromkeys(head for head, _ in cards.values()))
    named: set[int | None] = set()
    for environment, card in dict.fromkeys((row.environment_id, cards[row.card_id][0]) for row in history.points):
        points = [row for row in history.points if (row.environment_id, cards[row.card_id][0]) == (environment, card)]
        # Commits of one ordinal stand in the order of their ids.
        points.sort(key=lambda point: axis.places[point.commit_sha])
        shared = {
            "type": "scatter",
            "legendgroup": str(history.series.id),
            "line": {"color": style.colour, "width": 0},
        }
        drawn = [factors[point.card_id] for point in points]
        low = {
            **shared,
            "mode": "lines",
            "y": scale.line(history, points, [row.low_ns * factor for row, factor in zip(points, drawn, strict=True)]),
            "hoverinfo": "skip",
            "showlegend": False,
        }
        heights = scale.line(history, points, [row.high_ns * factor for row, factor in zip(points, drawn, strict=True)])
        high = {**low, "y": heights, "fill": "tonexty", "fillcolor": faint(style.colour, 0.18 if style.is_lit else 0.0)}
        remarks = [_remark(point) + _card_remark(history, cards, point) for point in points]
        kinds = list(dict.fromkeys(remarks))
        median = {
            **shared,
            "mode": "lines+markers" if has_markers else "lines",
            "x": [axis.places[point.commit_sha] for point in points],
            "y": scale.line(
                history, points, [row.median_ns * factor for row, factor in zip(points, drawn, strict=True)]
            ),
            "name": escape(history.series.variant) + _card_label(history, heads, card),
            "showlegend": (is_named or len(heads) > 1) and card not in named,
            "legendrank": 1 if style.is_lit else 2,
            "line": {
                "color": style.colour,
                "width": 2 if style.is_lit else 1,
                "dash": style.dash if len(heads) == 1 else _CARD_DASHES[heads.index(card) % len(_CARD_DASHES)],
            },
            "marker": {"size": 6 if style.is_lit else 4, "color": style.colour, "symbol": style.symbol},
            "meta": {
                "own": style.own,
                "commits": [indexes[point.commit_sha] for point in points],
                "times": [[rounded(ns) for ns in (point.median_ns, point.low_ns, point.high_ns)] for point in points],
                "remarks": kinds,
                "remark": [kinds.index(remark) for remark in remarks] if len(kinds) > 1 else [0] * len(points),
            },
            "hovertemplate": HOVER,
        }
        named.add(card)
        traces += [low, high, median]
    return traces


def _card_label(history: SeriesHistory, heads: Sequence[int | None], card_id: int | None) -> str:
    """Suffix of a line's name in the legend: the card, if the chart has lines of several cards."""
    return f", card {escape(history.cards.get(card_id or 0, '?'))}" if len(heads) > 1 else ""


def _card_remark(history: SeriesHistory, cards: CardLines, point: PointRow) -> str:
    """The card of a point, where a history has several, and what was taken off its time for the chart."""
    name = history.cards.get(point.card_id or 0)
    if name is None or len(history.cards) < 2:
        return ""
    offset = cards[point.card_id][1]
    return f"<br>card {escape(name)}" + (f", drawn {change(exp(-offset))}" if offset else "")


def _remark(point: PointRow) -> str:
    """Text of a point's tooltip below the interval; few points have a text of their own."""
    remark = (
        "" if point.roofline_share is None else f"<br>{share(point.roofline_share)} of {_ceiling_name(point.bound)}"
    )
    return remark + "".join(f"<br>{escape(text)}" for text in shape(point.distribution))


def _ceiling_name(bound: str | None) -> str:
    """The ceiling that a share of the roofline refers to; bound: copy, or a precision."""
    if bound is None:
        return "the roofline"
    return "peak bandwidth" if bound == "copy" else f"peak {escape(bound)}"


def _steps(
    histories: Sequence[SeriesHistory],
    steps: Mapping[int, Sequence[LevelShift]],
    axis: CommitAxis,
    scale: HeightScale,
) -> list[Figure]:
    """A pale mark on the first point after every level shift that no trial has decided; one trace for those at which
    code changed, one for those at which none did."""
    shifts = [
        (history, point, step)
        for history in histories
        for step in steps.get(history.series.id, ())
        for point in {point.commit_sha: point for point in history.points}.values()
        if point.commit_sha == step.head_sha and not _is_decided(history, step)
    ]
    traces: list[Figure] = []
    for name, symbol, is_same in (("shift", "diamond-open", False), ("shift, same code", "circle-open", True)):
        shown = [item for item in shifts if (item[2].is_code_changed is False) == is_same]
        if shown:
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": name,
                    "cliponaxis": False,
                    "hovertemplate": HOVER,
                    "x": [axis.places[point.commit_sha] for _, point, _ in shown],
                    "y": [scale.of(history, point) for history, point, _ in shown],
                    "marker": {"symbol": symbol, "size": 13, "color": SAME, "line": {"width": 1.5}},
                    "customdata": [_step_hover(history, point, step) for history, point, step in shown],
                }
            )
    return traces


def _is_decided(history: SeriesHistory, step: LevelShift) -> bool:
    """Whether a confirmed change in the same direction lies there: its band has the ratio that counts."""
    return any(
        item.base_ordinal < step.head_ordinal
        and step.base_ordinal < item.head_ordinal
        and (item.direction == ChangeDirection.FASTER) == (step.ratio < 1)
        for item in history.changes
    )


def _step_hover(history: SeriesHistory, point: PointRow, step: LevelShift) -> list[str]:
    return [
        _commit_address(history, point.commit_sha),
        short_sha(point.commit_sha),
        escape(_shortened(point.subject)),
        f"{escape(history.series.variant)}, shift in {short_sha(step.base_sha)}..{short_sha(step.head_sha)}",
        change(step.ratio),
        "same code at both ends: noise or the machine"
        if step.is_code_changed is False
        else "in history, not a verdict",
    ]


def _status_strip(histories: Sequence[SeriesHistory], axis: CommitAxis) -> tuple[list[Figure], list[str]]:
    """One trace per status, so that the legend explains the symbols; and the row names of the strip."""
    marks = [(history, mark) for history in histories for mark in history.marks]
    name = _row_of if len(histories) > 1 else lambda history, mark: mark.kind
    order = [history.series.variant for history in reversed(histories)] if len(histories) > 1 else ["bench", "check"]
    rows = [row for row in order if any(name(history, mark) == row for history, mark in marks)]
    traces: list[Figure] = []
    for status, (symbol, colour) in SYMBOLS.items():
        shown = [(history, mark) for history, mark in marks if mark.status == status]
        if shown:
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": STATUS_NAMES[status],
                    "yaxis": "y2",
                    "legendgroup": status,
                    "hovertemplate": HOVER,
                    "x": [axis.places[mark.commit_sha] for _, mark in shown],
                    "y": [rows.index(name(history, mark)) for history, mark in shown],
                    "marker": {"symbol": symbol, "color": colour, "size": 9, "line": {"color": colour, "width": 1.5}},
                    "customdata": [_mark_hover(history, mark) for history, mark in shown],
                }
            )
    return traces, rows


def _row_of(history: SeriesHistory, _mark: StatusMark) -> str:
    return history.series.variant


def _mark_hover(history: SeriesHistory, mark: StatusMark) -> list[str]:
    return [
        _commit_address(history, mark.commit_sha),
        short_sha(mark.commit_sha),
        f"{escape(history.series.variant)}, {mark.kind}",
        escape(_shortened(headline(mark.message))),
        STATUS_NAMES[mark.status],
        "",
    ]


def _environment_borders(histories: Sequence[SeriesHistory], axis: CommitAxis) -> tuple[list[Figure], list[Figure]]:
    """A dotted line between adjacent points of one series that come from different environments."""
    borders: dict[float, str] = {}
    for history in histories:
        for before, after in zip(history.points, history.points[1:], strict=False):
            if before.environment_id != after.environment_id:
                x = (axis.places[before.commit_sha] + axis.places[after.commit_sha]) / 2
                borders[x] = _what_changed(history, before, after)
    shapes = [
        {
            "type": "line",
            "xref": "x",
            "yref": "paper",
            "x0": x,
            "x1": x,
            "y0": 0,
            "y1": 1,
            "line": {"width": 1, "dash": "dot", "color": "#8a9097"},
        }
        for x in borders
    ]
    notes = [
        {
            "name": "environment",
            "x": x,
            "xref": "x",
            "y": 1,
            "yref": "paper",
            "yanchor": "bottom",
            "text": escape(text),
            "showarrow": False,
            "font": {"size": 11},
        }
        for x, text in borders.items()
    ]
    return shapes, notes


def _what_changed(history: SeriesHistory, before: PointRow, after: PointRow) -> str:
    """The first two facts in which the new environment differs, and by how much the series stepped there."""
    old, new = (history.environments.get(point.environment_id, {}) for point in (before, after))
    changed = [f"{name} {fact(value)}" for name, value in new.items() if fact(old.get(name)) != fact(value)]
    text = _shortened(", ".join(changed[:2]), 48) or f"environment {after.environment_id}"
    ends = before.environment_id, after.environment_id
    steps = [item for item in history.steps if (item.base_environment_id, item.head_environment_id) == ends]
    return text + "".join(f": {statement_words(state_step(step))}" for step in steps[-1:])


def _commit_address(history: SeriesHistory, sha: str) -> str:
    return f"/commits/{sha}?{_query_of(history.series.repository)}"


@lru_cache(100)
def _query_of(repository: str) -> str:
    """Made once, because a history has thousands of points."""
    return urlencode({"repository": repository})


# --- parts ----------------------------------------------------------------------------------------------------


def plain_layout() -> Figure:
    """The layout shared by all figures."""
    return {
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "margin": {"l": 60, "r": 18, "t": 28, "b": 40},
        "hovermode": "closest",
        "legend": {"orientation": "h", "x": 0, "y": 1.07, "yanchor": "bottom"},
        # A logarithmic axis writes 50, and not 5, between 10 and 100.
        "xaxis": {"automargin": True, "minorloglabels": "complete"},
        "yaxis": {"automargin": True, "zeroline": False, "minorloglabels": "complete"},
    }


def _side(name: str, rounds: list[int], values: list[float], unit: str, colour: str, symbol: str) -> Figure:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": rounds,
        "y": values,
        "marker": {"size": 8, "color": colour, "symbol": symbol},
        "hovertemplate": f"{name}, round %{{x}}: %{{y:.4g}} {unit}<extra></extra>",
    }


def _shortened(text: str, longest: int = 70) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"
