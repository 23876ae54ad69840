"""Plotly figures as plain JSON. Colours of text and grid come from the page's theme, in web/static/charts.js.

The first custom value of every point is the address that a click opens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any
from urllib.parse import urlencode
from zlib import crc32

from warpwatch.db.reads.history import PointRow, SeriesHistory, StatusMark
from warpwatch.db.reads.regressions import RegressionSeriesRow
from warpwatch.server.figures.formats import (
    STATUS_NAMES,
    absolute,
    change,
    duration,
    fact,
    headline,
    shape,
    share,
    short,
    unit_of,
    variant_order,
)
from warpwatch.server.figures.history_marks import FASTER, SLOWER, change_bands, side_points
from warpwatch.server.figures.noise_summary import LevelShift

Figure = dict[str, Any]

# Readable on light and dark, and told apart by most kinds of colour blindness.
PALETTE = ("#4878d0", "#d98324", "#2f9e82", "#b05cc6", "#c8505a", "#7d8c2f", "#8c6d5a", "#2f9dc0")

# The same shapes as the status marks in tables (web/templates/macros/ui.html).
SYMBOLS = {
    "ok": ("circle", "#2f9e6a"),
    "wrong": ("x", "#d2453a"),
    "crashed": ("diamond", "#d2453a"),
    "timed_out": ("hourglass", "#c08a1e"),
    "out_of_memory": ("square", "#c08a1e"),
    "build_failed": ("triangle-up", "#c08a1e"),
    "unsupported": ("line-ew-open", "#8a9097"),
    "skipped": ("circle-open", "#8a9097"),
}

_HOVER = (
    "<b>%{customdata[1]}</b> %{customdata[2]}<br>%{customdata[3]}<br>"
    "<b>%{customdata[4]}</b> %{customdata[5]}<extra></extra>"
)
_ROOFLINE_HOVER = "<b>%{fullData.name}</b> %{customdata[1]}<br>%{y:.3s}FLOP/s, %{customdata[2]}<extra></extra>"
_MAX_TICKS = 8


def history_figure(
    histories: Sequence[SeriesHistory],
    steps: Mapping[int, Sequence[LevelShift]] | None = None,
    *,
    log_scale: bool = False,
) -> Figure:
    """Medians with their 95 % intervals over the commits that were measured, one line per series and environment.

    Commits are equidistant, in the order of history. Statuses other than ok are drawn in a strip below the lines.
    steps: level shifts per series id.
    """
    commits = _positions(histories)
    size, unit = unit_of(max((point.median_ns for history in histories for point in history.points), default=1e3))
    traces: list[Figure] = []
    for history in histories:
        traces += _lines(history, commits, size, variant_colour(history.series.variant), several=len(histories) > 1)
    traces += _steps(histories, steps or {}, commits, size)
    ordinals = _ordinals(histories)
    traces += side_points(histories, commits, ordinals, size)
    strip, rows = _status_strip(histories, commits)
    floor = 0.07 * len(rows) + 0.04 if rows else 0.0
    layout = plain_layout()
    layout["yaxis"] |= {
        "title": {"text": f"median, {unit}"},
        "domain": [floor, 1],
        "type": "log" if log_scale else "linear",
    }
    layout["xaxis"] |= commit_axis(commits)
    borders, bands = _environment_borders(histories, commits), change_bands(histories, commits, ordinals)
    layout["shapes"], layout["annotations"] = (one + other for one, other in zip(borders, bands, strict=True))
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
    return {"data": traces + strip, "layout": layout}


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


@dataclass(frozen=True, slots=True)
class RooflinePoint:
    """One variant on one case: FLOP, bytes, median time, and the address that a click opens."""

    variant: str
    case: str
    flops: int
    bytes: int
    median_ns: float
    href: str


def roofline_figure(points: Sequence[RooflinePoint], peaks: dict[str, float]) -> Figure:
    """FLOP/s over FLOP per byte, below the ceilings measured on the device."""
    usable = [point for point in points if point.flops and point.bytes]
    intensities = [point.flops / point.bytes for point in usable]
    low, high = (min(intensities) / 4, max(intensities) * 4) if intensities else (0.1, 10.0)
    traces = [
        _ceiling(name, peak, peaks["copy"], low, high)
        for name, peak in peaks.items()
        if name != "copy" and "copy" in peaks
    ]
    for variant in sorted({point.variant for point in usable}, key=variant_order):
        marks = [point for point in usable if point.variant == variant]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": escape(variant),
                "marker": {"size": 8, "color": variant_colour(variant)},
                "x": [point.flops / point.bytes for point in marks],
                "y": [point.flops / point.median_ns * 1e9 for point in marks],
                "customdata": [[point.href, escape(point.case), duration(point.median_ns)] for point in marks],
                "hovertemplate": _ROOFLINE_HOVER,
            }
        )
    layout = plain_layout()
    layout["xaxis"] |= {"type": "log", "title": {"text": "FLOP per byte"}, "dtick": 1}
    layout["yaxis"] |= {"type": "log", "title": {"text": "FLOP/s"}, "exponentformat": "SI extended", "dtick": 1}
    return {"data": traces, "layout": layout}


# --- histories ------------------------------------------------------------------------------------------------


def _ordinals(histories: Sequence[SeriesHistory]) -> dict[str, int]:
    """The ordinal of every commit with a point or a mark."""
    ordinals = {point.commit_sha: point.ordinal for history in histories for point in history.points}
    return ordinals | {mark.commit_sha: mark.ordinal for history in histories for mark in history.marks}


def _positions(histories: Sequence[SeriesHistory]) -> dict[str, int]:
    """Every commit with a point or a mark → its place on the axis."""
    ordinals = _ordinals(histories)
    return {sha: place for place, sha in enumerate(sorted(ordinals, key=lambda sha: (ordinals[sha], sha)))}


def _lines(history: SeriesHistory, commits: dict[str, int], size: float, colour: str, *, several: bool) -> list[Figure]:
    traces: list[Figure] = []
    for number, environment in enumerate(dict.fromkeys(point.environment_id for point in history.points)):
        points = [point for point in history.points if point.environment_id == environment]
        places = [commits[point.commit_sha] for point in points]
        shared = {
            "type": "scatter",
            "x": places,
            "legendgroup": str(history.series.id),
            "line": {"color": colour, "width": 0},
        }
        low = {
            **shared,
            "mode": "lines",
            "y": [point.low_ns / size for point in points],
            "hoverinfo": "skip",
            "showlegend": False,
        }
        high = {**low, "y": [point.high_ns / size for point in points], "fill": "tonexty", "fillcolor": _faint(colour)}
        median = {
            **shared,
            "mode": "lines+markers",
            "y": [point.median_ns / size for point in points],
            "name": escape(history.series.variant),
            "showlegend": several and number == 0,
            "line": {"color": colour, "width": 2},
            "marker": {"size": 6, "color": colour},
            "customdata": [_hover(history, point) for point in points],
            "hovertemplate": _HOVER,
        }
        traces += [low, high, median]
    return traces


def _hover(history: SeriesHistory, point: PointRow) -> list[str]:
    interval = f"{escape(history.series.variant)}, {duration(point.low_ns, 4)} to {duration(point.high_ns, 4)}"
    if point.roofline_share is not None:
        interval += f"<br>{share(point.roofline_share)} of {_ceiling_name(point.bound)}"
    interval += "".join(f"<br>{escape(remark)}" for remark in shape(point.distribution))
    return [
        _commit_address(history, point.commit_sha),
        short(point.commit_sha),
        escape(_shortened(point.subject)),
        f"{escape(point.author)}, {absolute(point.authored_at)}",
        duration(point.median_ns, 4),
        interval,
    ]


def _ceiling_name(bound: str | None) -> str:
    """The ceiling that a share of the roofline refers to; bound: copy, or a precision."""
    if bound is None:
        return "the roofline"
    return "peak bandwidth" if bound == "copy" else f"peak {escape(bound)}"


def _steps(
    histories: Sequence[SeriesHistory], steps: Mapping[int, Sequence[LevelShift]], commits: dict[str, int], size: float
) -> list[Figure]:
    """A labelled triangle on the first point after every level shift that is shown; one trace per direction."""
    traces: list[Figure] = []
    for name, symbol, colour, place in (
        ("slower", "triangle-up", SLOWER, "top center"),
        ("faster", "triangle-down", FASTER, "bottom center"),
    ):
        shifts = [
            (history, point, step)
            for history in histories
            for step in steps.get(history.series.id, ())
            for point in history.points
            if point.commit_sha == step.head_sha and (step.ratio > 1) == (name == "slower")
        ]
        if shifts:
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers+text",
                    "name": f"level shift, {name}",
                    "cliponaxis": False,
                    "hovertemplate": _HOVER,
                    "x": [commits[point.commit_sha] for _, point, _ in shifts],
                    "y": [point.median_ns / size for _, point, _ in shifts],
                    "text": [change(step.ratio) for _, _, step in shifts],
                    "textposition": place,
                    "textfont": {"color": colour, "size": 12},
                    "marker": {"symbol": symbol, "size": 11, "color": colour},
                    "customdata": [_step_hover(history, point, step) for history, point, step in shifts],
                }
            )
    return traces


def _step_hover(history: SeriesHistory, point: PointRow, step: LevelShift) -> list[str]:
    return [
        _commit_address(history, point.commit_sha),
        short(point.commit_sha),
        escape(_shortened(point.subject)),
        f"{escape(history.series.variant)}, level shift since {short(step.base_sha)}",
        change(step.ratio),
        "in history, not a verdict",
    ]


def _status_strip(histories: Sequence[SeriesHistory], commits: dict[str, int]) -> tuple[list[Figure], list[str]]:
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
                    "hovertemplate": _HOVER,
                    "x": [commits[mark.commit_sha] for _, mark in shown],
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
        short(mark.commit_sha),
        f"{escape(history.series.variant)}, {mark.kind}",
        escape(_shortened(headline(mark.message))),
        STATUS_NAMES[mark.status],
        "",
    ]


def _environment_borders(
    histories: Sequence[SeriesHistory], commits: dict[str, int]
) -> tuple[list[Figure], list[Figure]]:
    """A dotted line between adjacent points of one series that come from different environments."""
    borders: dict[float, str] = {}
    for history in histories:
        for before, after in zip(history.points, history.points[1:], strict=False):
            if before.environment_id != after.environment_id:
                borders[(commits[before.commit_sha] + commits[after.commit_sha]) / 2] = _what_changed(
                    history, before, after
                )
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
            "x": x,
            "xref": "x",
            "y": 1,
            "yref": "paper",
            "yanchor": "bottom",
            "text": escape(text),
            "showarrow": False,
            "font": {"size": 11},
            "xanchor": "left" if x < len(commits) / 2 else "right",
        }
        for x, text in borders.items()
    ]
    return shapes, notes


def _what_changed(history: SeriesHistory, before: PointRow, after: PointRow) -> str:
    """The first two facts in which the new environment differs."""
    old, new = (history.environments.get(point.environment_id, {}) for point in (before, after))
    changed = [f"{name} {fact(value)}" for name, value in new.items() if fact(old.get(name)) != fact(value)]
    return _shortened(", ".join(changed[:2]), 48) or f"environment {after.environment_id}"


def commit_axis(commits: dict[str, int]) -> Figure:
    """An axis with one place per commit; at most eight commits are labelled."""
    places = {place: sha for sha, place in commits.items()}
    step = max(1, -(-len(places) // _MAX_TICKS))
    ticks = [place for place in places if (len(places) - 1 - place) % step == 0]
    texts = [f'<span style="font-family:monospace">{short(places[place])}</span>' for place in ticks]
    return {
        "tickvals": ticks,
        "ticktext": texts,
        "range": [-0.6, len(places) - 0.4],
        "showgrid": False,
        "zeroline": False,
    }


def _commit_address(history: SeriesHistory, sha: str) -> str:
    return f"/commits/{sha}?{urlencode({'repository': history.series.repository})}"


# --- parts ----------------------------------------------------------------------------------------------------


def variant_colour(name: str) -> str:
    """The colour of a variant, the same in every chart and for every selection: v1, v2, … in the palette's order, any
    other name by its checksum."""
    number = re.fullmatch(r"v(\d+)", name)
    return PALETTE[(int(number[1]) - 1 if number else crc32(name.encode())) % len(PALETTE)]


def plain_layout() -> Figure:
    """The layout shared by all figures."""
    return {
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "margin": {"l": 60, "r": 18, "t": 28, "b": 40},
        "hovermode": "closest",
        "legend": {"orientation": "h", "x": 0, "y": 1.07, "yanchor": "bottom"},
        "xaxis": {"automargin": True},
        "yaxis": {"automargin": True, "zeroline": False},
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


def _ceiling(name: str, peak: float, copy: float, low: float, high: float) -> Figure:
    ridge = peak / copy
    places = sorted({low, min(max(ridge, low), high), high})
    return {
        "type": "scatter",
        "mode": "lines",
        "name": f"{escape(name)} ceiling",
        "x": places,
        "y": [min(peak, copy * x) for x in places],
        "line": {"width": 1.5, "dash": "dash", "color": "#8a9097"},
        "hovertemplate": f"{escape(name)} ceiling: %{{y:.3s}}FLOP/s<extra></extra>",
        "showlegend": False,
    }


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.18)"


def _shortened(text: str, longest: int = 70) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"
