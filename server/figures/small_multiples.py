"""The histories of an operator side by side: a small picture per case, all on the same scale."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from math import log

from warpwatch.db.reads.overview import OverviewCell
from warpwatch.db.trends import RecentPoint
from warpwatch.server.figures.formats import change, natural, variant_order
from warpwatch.server.figures.palette import variant_colour

WIDTH, HEIGHT, EDGE = 260, 84, 5
MOST_CASES = 24
"""Pictures of one page; all cases are in the table above them."""
LEAST_SPAN, MOST_REACH = 2 * log(1.05), log(4)
"""The least change that the height spans, and the largest that it shows; a line beyond is cut off."""


@dataclass(frozen=True, slots=True)
class CaseHistory:
    """One case. svg: a line per variant, its time relative to its first point."""

    case: str
    svg: str


def small_multiples(cells: Sequence[OverviewCell], points: Sequence[RecentPoint]) -> list[CaseHistory]:
    """A picture of every case with a series of at least two points. points: ordered by series and history."""
    by_series = {id_: list(group) for id_, group in groupby(points, key=lambda point: point.series_id)}
    commits = sorted({(point.ordinal, point.commit_id) for point in points})
    places = {commit: place for place, (_, commit) in enumerate(commits)}
    cases: dict[str, dict[str, list[RecentPoint]]] = defaultdict(dict)
    for cell in cells:
        series = by_series.get(cell.series_id or 0, [])
        if len(series) > 1:
            cases[cell.case][cell.variant] = series
    shown = sorted(cases, key=natural)[:MOST_CASES]
    moved = [level for case in shown for series in cases[case].values() for level in _levels(series)]
    low, high = max(min([0.0, *moved]), -MOST_REACH), min(max([0.0, *moved]), MOST_REACH)
    missing = max(LEAST_SPAN - (high - low), 0.0) / 2
    return [CaseHistory(case, _svg(case, cases[case], places, low - missing, high + missing)) for case in shown]


def _levels(series: Sequence[RecentPoint]) -> list[float]:
    """The logarithm of each point over the first one."""
    return [log(point.median_ns / series[0].median_ns) for point in series]


def _svg(
    case: str, variants: Mapping[str, Sequence[RecentPoint]], places: Mapping[int, int], low: float, high: float
) -> str:
    """low, high: the logarithms at the foot and the head of the picture."""
    scale = (HEIGHT - 2 * EDGE) / (high - low)
    middle = EDGE + high * scale
    step = (WIDTH - 2 * EDGE) / max(len(places) - 1, 1)
    parts = [f'<path class="grid" d="M0 {middle:.0f}H{WIDTH}"/>']
    for name in sorted(variants, key=variant_order):
        path, before = "", None
        for point, level in zip(variants[name], _levels(variants[name]), strict=True):
            y = middle - max(low, min(high, level)) * scale
            # Levels of two environments or cards are never joined.
            here = point.environment_id, point.card_id
            joint = "L" if here == before else "M"
            path += f"{joint}{EDGE + places[point.commit_id] * step:.0f} {y:.1f}"
            before = here
        parts.append(f'<path d="{path}" stroke="{variant_colour(name)}"/>')
    changes = ", ".join(
        f"{name} {change(series[-1].median_ns / series[0].median_ns)}" for name, series in sorted(variants.items())
    )
    label = escape(f"{case}: {changes} since the oldest point shown")
    return (
        f'<svg class="multiple" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">'
        f"<title>{escape(changes)}</title>{''.join(parts)}</svg>"
    )
