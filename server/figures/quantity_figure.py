"""The chart of what variants took or got beside their time: memory or energy of a call, error over what is tolerated,
bits that differ, compile time and size of their library, waiting times of a new process, or how they stand against the
best other variant."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import Any
from urllib.parse import urlencode

from warpwatch.contract.commit_ids import short_sha
from warpwatch.db.reads.quantities import Quantity, QuantityRow
from warpwatch.server.figures.charts import plain_layout
from warpwatch.server.figures.history_marks import HOVER
from warpwatch.server.figures.history_view import Figure, HistoryView, make_axis
from warpwatch.server.figures.palette import VariantStyle, variant_styles
from warpwatch.server.reports.formats import absolute, energy_unit, joules, plural, rounded, seconds, share, size

TITLES = {
    Quantity.MEMORY: "memory of a call",
    Quantity.KEPT: "memory kept between forward and backward",
    Quantity.CODE: "machine code of the library",
    Quantity.ERROR: "largest error, % of what is tolerated",
    Quantity.DIFFERING: "elements that differ between two calls",
    Quantity.ROWS: "% of rows that depend on their neighbours",
    Quantity.COMPILE: "compile time of the library",
    Quantity.LOAD: "time to load",
    Quantity.FIRST_CALL: "first call in a new process",
    Quantity.ENERGY: "energy of a call",
    Quantity.BEST: "% of the best other variant's speed",
}
BYTES = (Quantity.MEMORY, Quantity.KEPT, Quantity.CODE)
SECONDS = (Quantity.COMPILE, Quantity.LOAD, Quantity.FIRST_CALL)
_EVEN = {"width": 1, "dash": "dash", "color": "#8a9097"}
"""The line at which a variant is as fast as the best other one."""
_BYTE_UNITS = ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B"))


def quantity_figure(
    rows: Mapping[str, Sequence[QuantityRow]],
    quantity: Quantity,
    view: HistoryView,
    repository: str,
    styles: Mapping[str, VariantStyle] | None = None,
) -> Figure:
    """One line per variant over the commits at which its quantity is known, with a gap between two environments.

    rows: by variant, oldest first. styles: of the operator's variants.
    """
    own = variant_styles(rows)
    styles = {name: (styles or {}).get(name, own[name]) for name in rows}
    known = [row for own in rows.values() for row in own]
    axis = make_axis(
        {row.commit_sha: row.ordinal for row in known}, {row.commit_sha: row.authored_at for row in known}, view
    )
    query = urlencode({"repository": repository})
    factor, title = _scale(quantity, max((row.value for row in known), default=0.0))
    layout = plain_layout()
    layout["yaxis"] |= {"title": {"text": title}, "type": "log" if view.log_scale else "linear"}
    if not view.log_scale:
        layout["yaxis"]["rangemode"] = "tozero"
    layout["xaxis"] |= axis.layout()
    if quantity is Quantity.BEST:
        layout["shapes"] = [{"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 100, "y1": 100, "line": _EVEN}]
    # The script of the page writes the shown range into the address, as commits.
    layout["meta"] = {"commits": [[place, sha, "", ""] for sha, place in axis.places.items()]}
    return {
        "data": [
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": escape(variant),
                "showlegend": len(rows) > 1,
                "x": [axis.places[row.commit_sha] if row else None for row in points],
                "y": [rounded(row.value * factor) if row else None for row in points],
                "line": {
                    "color": styles[variant].colour,
                    "width": 2 if styles[variant].is_lit else 1,
                    "shape": "hv",
                    "dash": styles[variant].dash,
                },
                "marker": {"size": 6, "color": styles[variant].colour, "symbol": styles[variant].symbol},
                "meta": {"own": styles[variant].own},
                "customdata": [_hover(row, variant, quantity, query) if row else None for row in points],
                "hovertemplate": HOVER,
            }
            for variant, own in rows.items()
            if (points := _with_gaps(own))
        ],
        "layout": layout,
    }


def _with_gaps(rows: Sequence[QuantityRow]) -> list[QuantityRow | None]:
    """The rows with None before each that was taken in another environment than the one before."""
    points: list[QuantityRow | None] = list(rows[:1])
    for before, row in pairwise(rows):
        points += [row] if row.environment_id == before.environment_id else [None, row]
    return points


def quantity_label(rows: Mapping[str, Sequence[QuantityRow]], quantity: Quantity) -> str:
    """The key numbers of the chart in words."""
    parts = [
        f"{variant} {write_quantity(own[-1].value, quantity)} at the newest of {plural(len(own), 'commit')}, "
        f"{write_quantity(own[0].value, quantity)} at the oldest"
        for variant, own in rows.items()
        if own
    ]
    return f"{TITLES[quantity].capitalize()} over commits: {'; '.join(parts)}"


def write_quantity(value: float, quantity: Quantity) -> str:
    writers: dict[Quantity, Callable[[float], str]] = {
        **dict.fromkeys(BYTES, size),
        **dict.fromkeys(SECONDS, seconds),
        Quantity.DIFFERING: lambda count: plural(int(count), "element"),
        Quantity.ENERGY: joules,
    }
    return writers[quantity](value) if quantity in writers else share(value, 1)


def _scale(quantity: Quantity, most: float) -> tuple[float, str]:
    """(what a value is multiplied by, title of the axis)."""
    if quantity in (Quantity.ERROR, Quantity.ROWS, Quantity.BEST):
        return 100.0, TITLES[quantity]
    if quantity is Quantity.DIFFERING:
        return 1.0, TITLES[quantity]
    if quantity in SECONDS:
        return 1.0, f"{TITLES[quantity]}, s"
    if quantity is Quantity.ENERGY:
        size_in_joules, unit = energy_unit(most)
        return 1 / size_in_joules, f"{TITLES[quantity]}, {unit}"
    bytes_, unit = next((item for item in _BYTE_UNITS if most >= item[0]), _BYTE_UNITS[-1])
    return 1 / bytes_, f"{TITLES[quantity]}, {unit}"


def _hover(row: QuantityRow, variant: str, quantity: Quantity, query: str) -> list[Any]:
    return [
        f"/commits/{row.commit_sha}?{query}",
        short_sha(row.commit_sha),
        escape(row.subject),
        f"{escape(row.author)}, {absolute(row.authored_at)}",
        write_quantity(row.value, quantity),
        escape(variant),
    ]
