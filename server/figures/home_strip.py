"""Draws the verdicts of a repository over the last days as a strip. SVG by the server."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from html import escape

from warpwatch.db.reads.home import STRIP_DAYS, HomeVerdict
from warpwatch.server.figures.sparklines import verdict_mark
from warpwatch.server.reports.formats import plural
from warpwatch.server.reports.wording import statement_words
from warpwatch.server.verdicts.statements import state_change

WIDTH, HEIGHT, EDGE = 224.0, 24.0, 6.0
APART = 10.0
"""Least distance of two marks: those of one day stand side by side, the newest at its place."""


def verdict_strip(verdicts: Sequence[HomeVerdict], now: datetime) -> str:
    """A mark for each verdict at the day of its commit: up for slower, down for faster, a cross for broken; grey where
    the change is over."""
    scale = (WIDTH - 2 * EDGE) / timedelta(days=STRIP_DAYS).total_seconds()
    words, marks, room = [], [], WIDTH + APART
    places = [WIDTH - EDGE - max((now - row.at).total_seconds(), 0.0) * scale for row in verdicts]
    for number in sorted(range(len(places)), key=lambda number: (places[number], number), reverse=True):
        places[number] = room = max(min(places[number], room - APART), EDGE)
    for row, x in zip(verdicts, places, strict=True):
        statement = state_change(row.regression_id, row.direction, row.phase, row.ratio, row.signal)
        words.append(f"{row.operator} {statement_words(statement)}")
        marks.append(verdict_mark(statement, x, HEIGHT / 2, words[-1]))
    label = f"{plural(len(verdicts), 'confirmed change')} in {STRIP_DAYS} days"
    label += f": {', '.join(words[-4:])}" if words else ""
    box = f'viewBox="0 0 {WIDTH:.0f} {HEIGHT:.0f}" role="img" aria-label="{escape(label)}"'
    lane = f'<path class="lane" d="M0 {HEIGHT / 2}H{WIDTH:.0f}"/>'
    return f'<svg class="verdict-strip" {box}>{lane}{"".join(marks)}</svg>'
