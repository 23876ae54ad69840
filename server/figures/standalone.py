"""A chart as one HTML file that draws without a server and without network, and the check of charts by Plotly's schema.

Pages draw with the small bundle of plotly.js in web/static/vendor; the file holds the whole of plotly.js, 5 MB, which
the Python package plotly brings. Plotly is imported where it is used: that takes half a second.
"""

from __future__ import annotations

import json
import re
from typing import Any

from warpwatch.contract.commit_ids import short_sha

# Without the buttons that upload a chart to a cloud service, as on the pages.
CONFIG = {
    "responsive": True,
    "displaylogo": False,
    "showSendToCloud": False,
    "modeBarButtons": [["toImage", "resetScale2d"]],
}


def standalone_html(figure: str, server_url: str) -> str:
    """The HTML file of a figure. figure: its JSON, as the page has it. server_url: what links in its labels lead to."""
    import plotly.io

    content: dict[str, Any] = json.loads(figure)
    if "commits" in content["layout"].get("meta", {}):
        _expand_history(content)
    for label in content["layout"].get("annotations", []):
        label["text"] = re.sub(r'href="/(?!/)', f'href="{server_url}/', label["text"])
    # The figure is ours: its schema is checked in tests, and by WARPWATCH_CHECK_FIGURES.
    return str(plotly.io.to_html(content, config=CONFIG, include_plotlyjs=True, validate=False))


def check_figure(figure: str) -> None:
    """ValueError names an attribute that Plotly does not know, or a value that it does not take."""
    import plotly.graph_objects

    plotly.graph_objects.Figure(json.loads(figure))


def _expand_history(figure: dict[str, Any]) -> None:
    """Adds the tooltips and the places of the intervals, which a history leaves to the page to be short."""
    data, meta = figure["data"], figure["layout"]["meta"]

    def duration(nanoseconds: float) -> str:
        size, unit = next((item for item in meta["units"] if nanoseconds >= item[0] * 0.9995), meta["units"][-1])
        return f"{nanoseconds / size:#.4g}".rstrip(".") + f"\u2009{unit}"

    for index, trace in enumerate(data):
        own = trace.get("meta") or {}
        if "commits" not in own:
            continue
        data[index - 2]["x"] = data[index - 1]["x"] = trace["x"]
        trace["customdata"] = []
        for place, times, remark in zip(own["commits"], own["times"], own["remark"], strict=True):
            _, sha, subject, byline = meta["commits"][place]
            median, low, high = (duration(time) for time in times)
            interval = f"{trace['name']}, {low} to {high}{own['remarks'][remark]}"
            trace["customdata"].append(["", short_sha(sha), subject, byline, median, interval])
