"""Charts of the results of one job: curves over sizes, and break-even points."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import ceil

from warpwatch.contract.measurement import Curves
from warpwatch.db.reads.work import ResultView
from warpwatch.server.reports.formats import duration, plural, significant

_SETUP = "setup"


def break_even(results: Sequence[ResultView]) -> dict[int, str]:
    """A sentence per result with a set-up time, by result id; the rival is the fastest other variant of its case."""
    return {
        row.id: _sentence(row, setup, results)
        for row in results
        if row.median_ns and (setup := setup_of(row)) is not None
    }


def setup_of(row: ResultView) -> float | None:
    """Set-up time in nanoseconds; None for a variant without set-up."""
    return next((metric.median_ns for metric in row.measured if metric.metric == _SETUP), None)


def calls_to_pay(setup_ns: float, call_ns: float, rival_ns: float) -> int | None:
    """The least n with setup_ns + n · call_ns < n · rival_ns; None if there is none."""
    if call_ns >= rival_ns:
        return None
    return max(1, ceil(setup_ns / (rival_ns - call_ns)))


def _sentence(row: ResultView, setup_ns: float, results: Sequence[ResultView]) -> str:
    rivals = [
        r for r in results if r.case == row.case and r.variant != row.variant and r.status == "ok" and r.median_ns
    ]
    prefix = f"Set-up takes {duration(setup_ns)}"
    if not rivals or row.median_ns is None:
        return f"{prefix}; there is no other variant to compare with."
    rival = min(rivals, key=lambda r: r.median_ns or 0.0)
    calls = calls_to_pay(setup_ns - (setup_of(rival) or 0.0), row.median_ns, rival.median_ns or 0.0)
    if calls is None:
        return f"{prefix} and never pays off: {rival.variant} is as fast per call."
    return f"{prefix} and pays off after {plural(calls, 'call')} compared with {rival.variant}."


def curves_sentence(curves: Curves) -> str:
    """Where the lines end, the highest first."""
    ends = sorted(((line[-1], name) for name, line in curves.lines.items()), reverse=True)
    return f"At {_place_text(curves.at[-1])} {curves.x}: " + ", ".join(
        f"{name} {significant(end)}" for end, name in ends
    )


def _place_text(place: float) -> str:
    """A whole number, such as a count, with all its digits."""
    return f"{place:.0f}" if place.is_integer() and abs(place) < 1e6 else significant(place)


WIDE, NARROW = 620.0, 340.0
"""Widths of the picture, and of the one on a phone; the style sheet shows one."""
PLOT, LEFT, RIGHT, BOTTOM = 158.0, 48.0, 12.0, 38.0
LEGEND_ROW, LETTER = 18.0, 6.4
TICKS = 5
MOST_NAMED = 12
"""Places on the horizontal axis that are named; of more, every second, third and so on."""


def curves_svg(curves: Curves) -> str:
    """One line per name over places at equal distances, in the order in which they were recorded."""
    ends = ", ".join(f"{name} {significant(line[-1])}" for name, line in curves.lines.items())
    label = f"{curves.y} over {curves.x}; at the end {ends}"
    return "".join(_picture(curves, width, label) for width in (WIDE, NARROW))


def _picture(curves: Curves, width: float, label: str) -> str:
    values = [value for line in curves.lines.values() for value in line]
    low, high = min(values), max(values)
    low, high = (low, high) if high > low else (low - 0.5, high + 0.5)
    step = (width - LEFT - RIGHT) / max(len(curves.at) - 1, 1)
    keys = _keys(list(curves.lines), width)
    top = max(y for _, y in keys) + LEGEND_ROW
    height = top + PLOT + BOTTOM

    def place(index: int, value: float) -> tuple[float, float]:
        return LEFT + index * step, top + (high - value) / (high - low) * PLOT

    levels = [low + (high - low) * index / (TICKS - 1) for index in range(TICKS)]
    parts = [_level(place(0, value)[1], value, width) for value in levels]
    texts = [_place_text(place) for place in curves.at]
    room = (max(map(len, texts)) + 2) * LETTER
    every = max(-(-len(texts) // MOST_NAMED), -int(-room // step) if step else 1)
    for index in range(0, len(texts), every):
        x, _ = place(index, low)
        parts.append(f'<text x="{x:.1f}" y="{top + PLOT + 18:.0f}" text-anchor="middle">{escape(texts[index])}</text>')
    parts.append(f'<text x="{width - RIGHT:.0f}" y="{height - 4:.0f}" text-anchor="end">{escape(curves.x)}</text>')
    for number, ((name, line), (x, y)) in enumerate(zip(curves.lines.items(), keys, strict=True)):
        places = [place(index, value) for index, value in enumerate(line)]
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>' for x, y in places)
        title = f"{name}: {', '.join(significant(value) for value in line[:MOST_NAMED])}"
        key = f'<circle cx="{x + 5:.0f}" cy="{y:.0f}" r="4"/>'
        key += f'<text x="{x + 13:.0f}" y="{y + 4:.0f}">{escape(name)}</text>'
        parts.append(f'<g class="k{number % 6}"><title>{escape(title)}</title><path d="{path}"/>{dots}{key}</g>')
    box = f'viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(label)}"'
    return f'<svg class="curves{" narrow" if width == NARROW else ""}" {box}>{"".join(parts)}</svg>'


def _keys(names: Sequence[str], width: float) -> list[tuple[float, float]]:
    """Where the names of the lines stand: beside one another, in as many rows as they need."""
    places: list[tuple[float, float]] = []
    x, y = LEFT, 11.0
    for name in names:
        room = 26 + LETTER * len(name)
        if x > LEFT and x + room > width:
            x, y = LEFT, y + LEGEND_ROW
        places.append((x, y))
        x += room
    return places


def _level(y: float, value: float, width: float) -> str:
    return (
        f'<path class="grid" d="M{LEFT:.0f} {y:.1f}H{width - RIGHT:.0f}"/>'
        f'<text x="{LEFT - 6:.0f}" y="{y + 4:.1f}" text-anchor="end">{significant(value)}</text>'
    )
