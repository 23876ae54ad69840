"""An operator over one size of its cases: time, share of the roofline and speed-up, and where variants cross."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from html import escape
from itertools import groupby, pairwise
from math import exp, log, prod
from operator import itemgetter
from typing import Any

from warpwatch.db.reads.code import CaseRow
from warpwatch.server.figures.charts import Figure, plain_layout
from warpwatch.server.figures.palette import VariantStyle, variant_styles
from warpwatch.server.figures.speedups import TimedSeries, case_speedups, comparable, is_right
from warpwatch.server.reports.formats import duration, natural, significant, unit_of, variant_order

LOG_SPREAD = 8
"""From this ratio of the largest to the smallest size on the axis is logarithmic."""
TIE = 1.02
"""Times of separate runs whose ratio is below this do not tell which variant is faster: the one that was stays."""


class SizeQuantity(StrEnum):
    TIME = "time"
    SHARE = "share"
    SPEEDUP = "speedup"


TITLES = {SizeQuantity.SHARE: "share of the roofline, %", SizeQuantity.SPEEDUP: "speed-up over the baseline"}


@dataclass(frozen=True, slots=True)
class SizePoint:
    """One case. value: its size as a number, the product of a size with several parts; cells: by variant, timed."""

    value: float
    text: str
    case: str
    cells: dict[str, TimedSeries]

    @property
    def rivals(self) -> list[str]:
        """The variants whose times can be compared with one another."""
        return [cell.variant for cell in comparable(self.cells.values())]


@dataclass(frozen=True, slots=True)
class SizeGroup:
    """Cases that differ in one size only, the smallest first. name: what they have in common."""

    name: str
    points: list[SizePoint]

    @property
    def is_log(self) -> bool:
        low, high = self.points[0].value, self.points[-1].value
        return not self.has_parts and low > 0 and high / low >= LOG_SPREAD

    @property
    def has_parts(self) -> bool:
        """Whether sizes are several numbers, such as 32x32x32: nothing lies between two of them."""
        return any("x" in point.text for point in self.points)

    def places(self) -> list[float]:
        """Where each point lies on the axis; sizes of several parts stand side by side, in order of their product."""
        return [float(index) if self.has_parts else point.value for index, point in enumerate(self.points)]

    @property
    def variants(self) -> list[str]:
        return sorted({name for point in self.points for name in point.cells}, key=variant_order)


@dataclass(frozen=True, slots=True)
class Crossover:
    """From `value` on `winner` takes less time than `loser`, which was the fastest below."""

    value: float
    winner: str
    loser: str


def size_groups(cases: Sequence[CaseRow], cells: Sequence[TimedSeries]) -> dict[str, list[SizeGroup]]:
    """Groups of at least two timed cases, by the name of the size that varies; the group with most cases first."""
    timed: dict[str, dict[str, TimedSeries]] = defaultdict(dict)
    for cell in cells:
        if is_right(cell):
            timed[cell.case][cell.variant] = cell
    found: dict[str, dict[str, list[SizePoint]]] = defaultdict(lambda: defaultdict(list))
    for case in cases:
        if case.key not in timed:
            continue
        for name, size in case.sizes.items():
            if (value := _number(size)) is not None:
                found[name][_rest(case, name)].append(SizePoint(value, _text(size), case.key, timed[case.key]))
    result: dict[str, list[SizeGroup]] = {}
    for name, by_rest in found.items():
        groups = [
            SizeGroup(rest, sorted(points, key=lambda point: (point.value, natural(point.text))))
            for rest, points in by_rest.items()
            if len({point.value for point in points}) > 1
        ]
        if groups:
            result[name] = sorted(groups, key=lambda group: (-len(group.points), natural(group.name)))
    return result


def _number(size: Any) -> float | None:
    parts = size if isinstance(size, list) else [size]
    if not parts or not all(isinstance(part, int | float) and not isinstance(part, bool) for part in parts):
        return None
    return float(prod(parts))


def _text(size: Any) -> str:
    return "x".join(map(str, size)) if isinstance(size, list) else str(size)


def _rest(case: CaseRow, name: str) -> str:
    sizes = [f"{other}={_text(size)}" for other, size in case.sizes.items() if other != name]
    layout = [] if case.layout == "contiguous" else [case.layout]
    # Imported cases may have neither a precision nor a direction.
    return ",".join(part for part in (*sizes, case.precision, case.direction, *layout) if part)


def leaders(group: SizeGroup) -> list[str]:
    """The fastest variant at each point: the one before it, unless another is faster by more than TIE."""
    found: list[str] = []
    for point in group.points:
        rivals = point.rivals
        fastest = min(rivals, key=partial(time_of, point))
        stays = found and found[-1] in rivals
        is_tie = stays and time_of(point, found[-1]) <= TIE * time_of(point, fastest)
        found.append(found[-1] if is_tie else fastest)
    return found


def crossovers(group: SizeGroup) -> list[Crossover]:
    """Where the fastest variant changes, interpolated between the two cases around it; nowhere for sizes of several
    parts."""
    found: list[Crossover] = []
    if group.has_parts:
        return found
    for (left, loser), (right, winner) in pairwise(zip(group.points, leaders(group), strict=True)):
        if winner == loser or winner not in left.rivals or loser not in right.rivals:
            continue
        # At the left, the winner may be ahead already by less than counts.
        before = max(0.0, log(time_of(left, winner) / time_of(left, loser)))
        behind = log(time_of(right, winner) / time_of(right, loser))
        found.append(Crossover(between(left, right, before / (before - behind), group.is_log), winner, loser))
    return found


def between(left: SizePoint, right: SizePoint, share: float, is_log: bool) -> float:
    """The size at a share of the way from one case to the next."""
    if is_log:
        return exp(log(left.value) + share * (log(right.value) - log(left.value)))
    return left.value + share * (right.value - left.value)


def time_of(point: SizePoint, variant: str) -> float:
    return point.cells[variant].median_ns or 1.0


def fastest_summary(group: SizeGroup, size: str) -> str:
    """Which variant is the fastest from which size on, in words."""
    items = crossovers(group)
    if items:
        return ", ".join(f"{item.winner} beats {item.loser} from {size} {significant(item.value)}" for item in items)
    # Variants that were not timed at neighbouring sizes cross nowhere, nor do any over sizes of several parts.
    fastest = zip(leaders(group), (point.text for point in group.points), strict=True)
    runs = [(name, [text for _, text in run]) for name, run in groupby(fastest, key=itemgetter(0))]
    if len(runs) == 1:
        return f"{runs[0][0]} is the fastest at every size"
    ends = [(name, " to ".join(dict.fromkeys((at[0], at[-1])))) for name, at in runs]
    return "the fastest is " + ", ".join(f"{name} at {size} {at}" for name, at in ends)


def size_figure(
    group: SizeGroup, size: str, quantity: SizeQuantity, styles: Mapping[str, VariantStyle] | None = None
) -> Figure:
    """One line per variant over the size; dotted lines where the fastest variant changes. styles: of the operator's
    variants."""
    styles = styles or variant_styles(group.variants)
    scale, unit = unit_of(max(cell.median_ns or 0 for point in group.points for cell in point.cells.values()))
    traces = []
    for variant in sorted(group.variants, key=lambda name: styles[name].is_lit):
        style = styles[variant]
        places = {
            place: point for place, point in zip(group.places(), group.points, strict=True) if variant in point.cells
        }
        points = list(places.values())
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": escape(variant),
                "x": list(places),
                "y": [_height(point, variant, quantity, scale) for point in points],
                "legendrank": 1 if style.is_lit else 2,
                "line": {"color": style.colour, "width": 2 if style.is_lit else 1, "dash": style.dash},
                "marker": {"size": 7, "symbol": style.symbol},
                "meta": {"own": style.own},
                "customdata": [
                    [f"/history/{point.cells[variant].series_id}", escape(point.case), _facts(point, variant)]
                    for point in points
                ],
                "hovertemplate": "<b>%{fullData.name}</b> %{customdata[1]}<br>%{customdata[2]}<extra></extra>",
            }
        )
    layout = plain_layout()
    ticks = dict(zip(group.places(), (point.text for point in group.points), strict=True))
    layout["xaxis"] |= {
        "type": "log" if group.is_log else "linear",
        "title": {"text": escape(size)},
        "tickvals": list(ticks),
        "ticktext": [escape(text) for text in ticks.values()],
        "ticklabeloverflow": "allow",
    }
    layout["yaxis"] |= {
        "title": {"text": TITLES.get(quantity, f"median, {unit}")},
        "type": "log" if quantity != SizeQuantity.SHARE else "linear",
    }
    if quantity != SizeQuantity.SHARE:
        layout["yaxis"]["dtick"] = "D2"
    marks = [_mark(item, group, place) for place, item in enumerate(crossovers(group))]
    layout["shapes"], layout["annotations"] = [shape for shape, _ in marks], [note for _, note in marks]
    return {"data": traces, "layout": layout}


def _height(point: SizePoint, variant: str, quantity: SizeQuantity, scale: float) -> float | None:
    cell = point.cells[variant]
    if quantity == SizeQuantity.SHARE:
        return None if cell.roofline_share is None else cell.roofline_share * 100
    if quantity == SizeQuantity.SPEEDUP:
        return case_speedups(point.cells.values()).get(variant)
    return (cell.median_ns or 0.0) / scale


def _facts(point: SizePoint, variant: str) -> str:
    cell = point.cells[variant]
    parts = [duration(cell.median_ns)]
    if cell.roofline_share is not None:
        parts.append(f"{significant(cell.roofline_share * 100)} % of the roofline")
    return ", ".join(parts)


def _mark(item: Crossover, group: SizeGroup, place: int) -> tuple[Figure, Figure]:
    """The line and the label of a size. place: its number, by which labels of near sizes stand below one another. A
    label at the right half ends at its line: Plotly would make the axis longer for it."""
    scale = log if group.is_log else float
    low, high = scale(group.points[0].value), scale(group.points[-1].value)
    is_right = scale(item.value) > (low + high) / 2
    line: Mapping[str, Any] = {"width": 1, "dash": "dot", "color": "#8a9097"}
    ends = {"xref": "x", "yref": "paper", "x0": item.value, "x1": item.value, "y0": 0, "y1": 1}
    note = {
        # Plotly places annotations on a logarithmic axis by their logarithm, and shapes by their value.
        "x": log(item.value, 10) if group.is_log else item.value,
        "xref": "x",
        "y": 1,
        "yref": "paper",
        "yanchor": "top",
        "yshift": -14 * (place % 3),
        "xanchor": "right" if is_right else "left",
        "text": escape(f"{item.winner} from {significant(item.value)}"),
        "showarrow": False,
        "font": {"size": 11},
    }
    return {"type": "line", **ends, "line": line}, note
