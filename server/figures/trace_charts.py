"""Charts of a trace's summary."""

from __future__ import annotations

from typing import Any

from warpwatch.server.figures.charts import Figure, plain_layout
from warpwatch.server.figures.palette import PALETTE
from warpwatch.server.reports.formats import unit_of

_BYTES = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))


def memory_figure(memory: dict[str, Any]) -> Figure:
    """Allocated bytes over the recorded calls, as steps."""
    points = memory["points"]
    size, unit = unit_of(max(points[-1][0], 1.0))
    scale, bytes_unit = next((entry for entry in _BYTES if memory["peak_bytes"] >= entry[0]), _BYTES[-1])
    layout = plain_layout()
    layout["xaxis"] |= {"title": {"text": f"since the first recorded call began, {unit}"}, "zeroline": False}
    layout["yaxis"] |= {"title": {"text": f"allocated, {bytes_unit}"}, "rangemode": "tozero"}
    line = {
        "type": "scatter",
        "mode": "lines",
        "x": [when / size for when, _ in points],
        "y": [total / scale for _, total in points],
        "line": {"shape": "hv", "width": 2, "color": PALETTE[0]},
        "fill": "tozeroy",
        "fillcolor": "rgba(72,120,208,0.15)",
        "showlegend": False,
        "hovertemplate": f"%{{y:.4g}} {bytes_unit} at %{{x:.4g}} {unit}<extra></extra>",
    }
    return {"data": [line], "layout": layout}
