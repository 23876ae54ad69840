"""The chart of machine code over commits: registers, spills, shared memory, code size, compile time."""

from __future__ import annotations

from html import escape
from typing import Any
from urllib.parse import urlencode

from warpwatch.contract.commit_ids import short_sha
from warpwatch.db.reads.builds import CodeCommit, CodeHistory, CodeSeries, KernelCode
from warpwatch.server.explanation.kernel_names import short_name
from warpwatch.server.figures.charts import Figure, plain_layout
from warpwatch.server.figures.history_view import commit_axis
from warpwatch.server.figures.palette import PALETTE

QUANTITIES = {
    "registers": "registers per thread",
    "spill_bytes": "spilled bytes",
    "shared_bytes": "static shared memory, bytes",
    "code_bytes": "code size, bytes",
    "compile_seconds": "compile time, s",
}
MAX_LINES = 16
"""Kernels drawn at most: kernels that changed first, then the largest."""
_NAMED_LINES = 4
"""Lines that fit into a legend; with more lines, hovering shows the name."""
_HOVER = "<b>%{customdata[1]}</b> %{customdata[2]}<br>%{fullData.name}: <b>%{y}</b><extra></extra>"


def code_figure(history: CodeHistory, quantity: str, repository: str) -> tuple[Figure, int]:
    """(figure, number of kernels not drawn) for one quantity over the built commits, one line per kernel."""
    commits = history.commits
    if quantity == "compile_seconds":
        lines: list[tuple[str, list[float | None]]] = [("library", [commit.compile_seconds for commit in commits])]
        left_out = 0
    else:
        candidates = [series for series in history.kernels if any(_value(code, quantity) for code in series.values)]
        chosen = sorted(candidates, key=lambda series: _interest(series, quantity), reverse=True)[:MAX_LINES]
        lines = [(series.name, [_value(code, quantity) for code in series.values]) for series in chosen]
        left_out = len(candidates) - len(chosen)
    if len(commits) == 1:
        return _bars(lines, QUANTITIES[quantity]), left_out
    layout = plain_layout()
    layout["xaxis"] |= commit_axis({commit.sha: place for place, commit in enumerate(commits)})
    layout["yaxis"] |= {"title": {"text": QUANTITIES[quantity]}, "rangemode": "tozero"}
    layout["showlegend"] = len(lines) <= _NAMED_LINES
    traces = [_line(name, values, commits, repository, index) for index, (name, values) in enumerate(lines)]
    return {"data": traces, "layout": layout}, left_out


def _bars(lines: list[tuple[str, list[float | None]]], title: str) -> Figure:
    """One bar per kernel, the largest on top: a line needs two commits."""
    ordered = sorted(lines, key=lambda line: line[1][0] or 0.0)
    layout = plain_layout()
    layout["xaxis"] |= {"title": {"text": title}, "rangemode": "tozero"}
    layout["margin"] |= {"t": 12}
    # Every bar has its name.
    layout["yaxis"] |= {"dtick": 1, "tickfont": {"size": 10}}
    bar = {
        "type": "bar",
        "orientation": "h",
        "x": [values[0] for _, values in ordered],
        "y": [escape(short_name(name)) for name, _ in ordered],
        "marker": {"color": PALETTE[0]},
        "hovertemplate": "%{y}: <b>%{x}</b><extra></extra>",
    }
    return {"data": [bar] if lines else [], "layout": layout}


def _value(code: KernelCode | None, quantity: str) -> float | None:
    return None if code is None else float(getattr(code, quantity))


def _interest(series: CodeSeries, quantity: str) -> tuple[int, float]:
    values = [_value(code, quantity) for code in series.values]
    return len(set(values)), max(value for value in values if value is not None)


def _line(
    name: str, values: list[float | None], commits: list[CodeCommit], repository: str, index: int
) -> dict[str, Any]:
    colour = PALETTE[index % len(PALETTE)]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": escape(short_name(name)),
        "x": list(range(len(values))),
        "y": values,
        "line": {"color": colour, "width": 2, "shape": "hv", "dash": "solid" if index < len(PALETTE) else "dot"},
        "marker": {"size": 6, "color": colour},
        "customdata": [
            [
                f"/commits/{commit.sha}?{urlencode({'repository': repository})}",
                short_sha(commit.sha),
                escape(commit.subject[:70]),
            ]
            for commit in commits
        ],
        "hovertemplate": _HOVER,
    }
