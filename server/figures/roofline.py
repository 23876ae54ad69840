"""The roofline of a device with the variants of an operator on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import log10

from warpwatch.server.figures.charts import Figure, plain_layout
from warpwatch.server.figures.palette import VariantStyle, variant_styles
from warpwatch.server.reports.formats import duration, quantity, variant_order

_HOVER = "<b>%{fullData.name}</b> %{customdata[1]}<br>%{y:.3s}FLOP/s, %{customdata[2]}<extra></extra>"
LEAST_ARROW = 0.03
"""Changes below this are noise and draw no arrow."""
CLOSE_CEILINGS, LABEL_SHARE = 2.0, 0.13
"""Ceilings within this factor would have labels on one another; share of the width that a label takes."""
SYMBOLS = {"fwd": "circle", "bwd": "diamond", "step": "square", "fwd_train": "triangle-up"}
"""Marker by direction of the case; any other case is a circle."""


@dataclass(frozen=True, slots=True)
class RooflinePoint:
    """One variant on one case: FLOP, bytes, median time, and the address that a click opens.

    before_ns: the median at the commit that the arrow starts from; None draws no arrow.
    """

    variant: str
    case: str
    flops: int
    bytes: int
    median_ns: float
    href: str
    direction: str = ""
    before_ns: float | None = None


def roofline_figure(
    points: Sequence[RooflinePoint], peaks: dict[str, float], styles: Mapping[str, VariantStyle] | None = None
) -> Figure:
    """FLOP/s over FLOP per byte, below the ceilings measured on the device. Arrows start at earlier times. styles: of
    the operator's variants."""
    styles = styles or variant_styles(point.variant for point in points)
    usable = [point for point in points if point.flops and point.bytes]
    intensities = [point.flops / point.bytes for point in usable]
    low, high = (min(intensities) / 4, max(intensities) * 4) if intensities else (0.1, 10.0)
    copy = peaks.get("copy")
    ceilings = {name: peak for name, peak in peaks.items() if name != "copy"} if copy else {}
    traces = [_ceiling(name, peak, copy, low, high) for name, peak in ceilings.items() if copy]
    variants = sorted({point.variant for point in usable}, key=variant_order)
    traces += [
        _marks(
            variant,
            styles[variant],
            sorted((point for point in usable if point.variant == variant), key=lambda point: point.direction != "fwd"),
        )
        for variant in variants
    ]
    layout = plain_layout()
    layout["xaxis"] |= {"type": "log", "title": {"text": "FLOP per byte"}, "dtick": 1 if high / low > 300 else "D2"}
    layout["yaxis"] |= {"type": "log", "title": {"text": "FLOP/s"}, "exponentformat": "SI extended", "dtick": 1}
    layout["annotations"] = _arrows(usable, styles)
    if copy and ceilings:
        layout["annotations"] += _labels(ceilings, copy, low, high)
        layout["xaxis"]["range"] = [log10(low), log10(high)]
    return {"data": traces, "layout": layout}


def _marks(variant: str, style: VariantStyle, points: Sequence[RooflinePoint]) -> Figure:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": escape(variant),
        "marker": {
            "size": 9,
            "color": style.colour,
            "symbol": [SYMBOLS.get(point.direction, "circle") + style.filling for point in points],
        },
        "meta": {"own": style.own},
        "x": [point.flops / point.bytes for point in points],
        "y": [point.flops / point.median_ns * 1e9 for point in points],
        "customdata": [[point.href, escape(point.case), _times(point)] for point in points],
        "hovertemplate": _HOVER,
    }


def _times(point: RooflinePoint) -> str:
    return duration(point.median_ns) + (f", before {duration(point.before_ns)}" if point.before_ns else "")


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


def _labels(ceilings: dict[str, float], copy: float, low: float, high: float) -> list[Figure]:
    """The name and rate of each ceiling at its right end, and of the copy bandwidth on the slope.

    A ceiling that no shown intensity reaches ends on the slope; its label says its rate all the same.
    """
    reached = sorted((peak, name) for name, peak in ceilings.items() if peak <= copy * high)
    labels = []
    place = 0
    for index, (peak, name) in enumerate(reached):
        # Of ceilings that lie close together the lowest has its label below it; the others stand beside each other.
        is_close = index > 0 and peak < reached[index - 1][0] * CLOSE_CEILINGS
        has_close = index + 1 < len(reached) and reached[index + 1][0] < peak * CLOSE_CEILINGS
        place = place + 1 if is_close else 0
        labels.append(
            {
                "x": log10(high) - max(place - 1, 0) * LABEL_SHARE * (log10(high) - log10(low)),
                "y": log10(peak),
                "text": f"{escape(name)} {quantity(peak, 'FLOP/s')}",
                "xanchor": "right",
                "yanchor": "top" if has_close and not is_close else "bottom",
            }
        )
    slope_end = min(high, max(ceilings.values()) / copy)
    # On a short slope the label would lie on the axis; the text beside the chart names the bandwidth as well.
    if log10(slope_end / low) > 2 * LABEL_SHARE * log10(high / low):
        x = (log10(low) * 2 + log10(slope_end)) / 3
        labels.append(
            {
                "x": x,
                "y": log10(copy) + x,
                "text": f"copy {quantity(copy, 'B/s')}",
                "xanchor": "right",
                "yanchor": "bottom",
            }
        )
    return [{**label, "name": "ceiling", "showarrow": False, "font": {"size": 11}} for label in labels]


def _arrows(points: Sequence[RooflinePoint], styles: Mapping[str, VariantStyle]) -> list[Figure]:
    """An arrow from the earlier to the newest rate of each point, where they differ by more than 3 %."""
    return [
        {
            "x": log10(point.flops / point.bytes),
            "y": log10(point.flops / point.median_ns * 1e9),
            "ax": log10(point.flops / point.bytes),
            "ay": log10(point.flops / point.before_ns * 1e9),
            "xref": "x",
            "yref": "y",
            "axref": "x",
            "ayref": "y",
            "text": "",
            "showarrow": True,
            "arrowhead": 2,
            "arrowsize": 1.2,
            "arrowwidth": 1.5,
            "arrowcolor": styles[point.variant].colour,
        }
        for point in points
        if point.before_ns and abs(point.before_ns / point.median_ns - 1) > LEAST_ARROW
    ]
