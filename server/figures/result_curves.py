"""Draws the curves that a check stored with a result, such as the accuracy of every round of a training. SVG."""

from __future__ import annotations

from html import escape

from warpwatch.contract.measurement import Curves
from warpwatch.server.figures.formats import significant

WIDTH, HEIGHT = 620.0, 220.0
LEFT, RIGHT, TOP, BOTTOM = 48.0, 12.0, 28.0, 34.0
TICKS = 5
MOST_NAMED = 12
"""Places on the horizontal axis that are named; of more, every second, third and so on."""


def curves_svg(curves: Curves) -> str:
    """One line per name over places at equal distances, in the order in which they were recorded."""
    values = [value for line in curves.lines.values() for value in line]
    low, high = min(values), max(values)
    low, high = (low, high) if high > low else (low - 0.5, high + 0.5)
    step = (WIDTH - LEFT - RIGHT) / max(len(curves.at) - 1, 1)

    def place(index: int, value: float) -> tuple[float, float]:
        return LEFT + index * step, TOP + (high - value) / (high - low) * (HEIGHT - TOP - BOTTOM)

    parts = [_level(place(0, low + (high - low) * share)[1], low + (high - low) * share) for share in _shares()]
    every = -(-len(curves.at) // MOST_NAMED)
    for index in range(0, len(curves.at), every):
        x, _ = place(index, low)
        text = escape(significant(curves.at[index]))
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 14:.0f}" text-anchor="middle">{text}</text>')
    parts.append(f'<text x="{WIDTH - RIGHT:.0f}" y="{HEIGHT - 4:.0f}" text-anchor="end">{escape(curves.x)}</text>')
    legend = LEFT
    for number, (name, line) in enumerate(curves.lines.items()):
        places = [place(index, value) for index, value in enumerate(line)]
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>' for x, y in places)
        title = f"{name}: {', '.join(significant(value) for value in line[:MOST_NAMED])}"
        key = f'<circle cx="{legend + 5:.0f}" cy="11" r="4"/><text x="{legend + 13:.0f}" y="15">{escape(name)}</text>'
        parts.append(f'<g class="k{number % 6}"><title>{escape(title)}</title><path d="{path}"/>{dots}{key}</g>')
        legend += 26 + 6.4 * len(name)
    ends = ", ".join(f"{name} {significant(line[-1])}" for name, line in curves.lines.items())
    label = f"{curves.y} over {curves.x}; at the end {ends}"
    box = f'viewBox="0 0 {WIDTH:.0f} {HEIGHT:.0f}" role="img" aria-label="{escape(label)}"'
    return f'<svg class="curves" {box}>{"".join(parts)}</svg>'


def _shares() -> list[float]:
    return [index / (TICKS - 1) for index in range(TICKS)]


def _level(y: float, value: float) -> str:
    return (
        f'<path class="grid" d="M{LEFT:.0f} {y:.1f}H{WIDTH - RIGHT:.0f}"/>'
        f'<text x="{LEFT - 6:.0f}" y="{y + 4:.1f}" text-anchor="end">{significant(value)}</text>'
    )
