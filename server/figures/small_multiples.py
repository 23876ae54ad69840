"""The histories of an operator side by side: a small picture per case, all on the same scale."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from math import log

from warpwatch.db.reads.overview import OverviewCell
from warpwatch.db.reads.trends import RecentPoint
from warpwatch.server.figures.formats import change, natural, variant_order
from warpwatch.server.figures.palette import variant_colour

WIDTH, HEIGHT, EDGE = 260, 84, 5
MOST_CASES = 24
"""Pictures of one page; all cases are in the table above them."""
LEAST_REACH, MOST_REACH = log(1.05), log(4)
"""The largest change that the height shows, at least and at most; a line beyond is cut off."""


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
    moved = [abs(level) for case in shown for series in cases[case].values() for level in _levels(series)]
    reach = min(max([LEAST_REACH, *moved]), MOST_REACH)
    return [CaseHistory(case, _svg(case, cases[case], places, reach)) for case in shown]


def _levels(series: Sequence[RecentPoint]) -> list[float]:
    """The logarithm of each point over the first one."""
    return [log(point.median_ns / series[0].median_ns) for point in series]


def _svg(case: str, variants: Mapping[str, Sequence[RecentPoint]], places: Mapping[int, int], reach: float) -> str:
    middle, scale = HEIGHT / 2, (HEIGHT / 2 - EDGE) / reach
    step = (WIDTH - 2 * EDGE) / max(len(places) - 1, 1)
    parts = [f'<path class="grid" d="M0 {middle:.0f}H{WIDTH}"/>']
    for name in sorted(variants, key=variant_order):
        path, environment = "", None
        for point, level in zip(variants[name], _levels(variants[name]), strict=True):
            y = middle - max(-reach, min(reach, level)) * scale
            # Levels of two environments are never joined.
            joint = "L" if point.environment_id == environment else "M"
            path += f"{joint}{EDGE + places[point.commit_id] * step:.0f} {y:.1f}"
            environment = point.environment_id
        parts.append(f'<path d="{path}" stroke="{variant_colour(name)}"/>')
    changes = ", ".join(
        f"{name} {change(series[-1].median_ns / series[0].median_ns)}" for name, series in sorted(variants.items())
    )
    label = escape(f"{case}: {changes} since the oldest point shown")
    return (
        f'<svg class="multiple" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">'
        f"<title>{escape(changes)}</title>{''.join(parts)}</svg>"
    )
