"""Draws a series as a small line with a mark where it changed. SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT, MARGIN = 112.0, 26.0, 3.0


def sparkline_svg(values: Sequence[float], changed_at: int, tone: str, label: str) -> str | None:
    """None for fewer than two values. changed_at: index of the first value after the change. tone: good | bad | muted,
    the colour of the mark."""
    if len(values) < 2:
        return None
    low, high = min(values), max(values)
    across, up = (WIDTH - 2 * MARGIN) / (len(values) - 1), (HEIGHT - 2 * MARGIN) / ((high - low) or 1.0)
    places = [(MARGIN + index * across, HEIGHT - MARGIN - (value - low) * up) for index, value in enumerate(values)]
    line = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    mark = ""
    if 0 < changed_at < len(values):
        x, y = places[changed_at]
        start = places[changed_at - 1][0]
        mark = f'<rect x="{start:.1f}" y="0" width="{x - start:.1f}" height="{HEIGHT:.0f}"/>'
        mark += f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6"/>'
    box = f'viewBox="0 0 {WIDTH:.0f} {HEIGHT:.0f}" role="img" aria-label="{escape(label)}"'
    return f'<svg class="sparkline {tone}" {box}>{mark}<path d="M{line}"/></svg>'
