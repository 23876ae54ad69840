"""Draws small pictures without axes, as SVG: how an operator moved, where a series changed, and where it broke."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from html import escape

from warpwatch.contract.words import NO_FAILURE, StatementDirection
from warpwatch.server.reports.wording import statement_data, statement_tone, statement_words
from warpwatch.server.verdicts.statements import Statement, badness

WIDTH, HEIGHT, EDGE = 128.0, 24.0, 3.0
Place = tuple[int, float]
"""A column, and the level there."""


def trend_sparkline(
    pieces: Sequence[Sequence[Place]],
    columns: int,
    least_span: float,
    label: str,
    marks: Sequence[tuple[int, Statement]] = (),
) -> str:
    """Pieces of a line, which are not joined, and a dot at the newest place; empty without a place. least_span: the
    difference of levels that fills the height at least. marks: verdicts, of each column the worst is drawn."""
    levels = [level for piece in pieces for _, level in piece]
    if not levels:
        return ""
    at = _scale(levels, columns, least_span)
    path = "".join(f"M{'L'.join(_text(at(*place)) for place in piece)}" for piece in pieces)
    x, y = at(*pieces[-1][-1])
    heights = {column: at(column, level) for piece in pieces for column, level in piece}
    worst = dict(sorted(marks, key=lambda mark: badness(mark[1]), reverse=True))
    drawn = "".join(
        verdict_mark(statement, *heights[column]) for column, statement in worst.items() if column in heights
    )
    return _svg("trend", label, f'<path class="line" d="{path}"/><circle cx="{x:.0f}" cy="{y:.1f}" r="2.5"/>{drawn}')


_SHAPES = {
    StatementDirection.SLOWER: "M0-4.6L4.4 3.4H-4.4z",
    StatementDirection.FASTER: "M0 4.6L4.4-3.4H-4.4z",
    StatementDirection.BROKEN: "M-3.4-3.4L3.4 3.4M3.4-3.4L-3.4 3.4",
    StatementDirection.FIXED: "M-3.8.2L-1 3.2L4-3.4",
}


def verdict_mark(statement: Statement, x: float, y: float, title: str | None = None) -> str:
    """The mark of a change: a triangle up for slower and down for faster, a cross for broken; hollow while it is only
    suspected, grey once it is over. title: its tooltip, by default the statement in words."""
    head, rest = _mark_parts(statement, title)
    return f'{head} transform="translate({x:.1f} {y:.1f})"{rest}'


@lru_cache(maxsize=2048)
def _mark_parts(statement: Statement, title: str | None) -> tuple[str, str]:
    """The markup of a mark before and behind its place. A timeline draws hundreds, once for each width of the page."""
    data = "".join(f' {name}="{escape(value)}"' for name, value in statement_data(statement).items() if value)
    shape = _SHAPES[statement.direction or StatementDirection.SLOWER]
    words = f"<title>{escape(title or statement_words(statement))}</title>"
    return f'<g class="verdict statement {statement_tone(statement)}"{data}', f'>{words}<path d="{shape}"/></g>'


def change_sparkline(values: Sequence[float], changed_at: int, tone: str, label: str) -> str | None:
    """None for fewer than two values. changed_at: index of the first value after the change. tone: of its statement,
    the colour of the mark."""
    if len(values) < 2:
        return None
    at = _scale(values, len(values), 0.0)
    places = [at(index, value) for index, value in enumerate(values)]
    mark = ""
    if 0 < changed_at < len(values):
        (start, _), (x, y) = places[changed_at - 1 : changed_at + 1]
        mark = f'<rect x="{start:.1f}" y="0" width="{x - start:.1f}" height="{HEIGHT:.0f}"/>'
        mark += f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>'
    return _svg(tone, label, f'{mark}<path d="M{"L".join(map(_text, places))}"/>')


def status_strip(statuses: Sequence[str], failed_at: int, label: str) -> str:
    """What the checks around a breakage found: a square for a commit that passed, a cross for a commit that failed. A
    single cross where no check is known. failed_at: index of the first status after the breakage."""
    step = min((WIDTH - 2 * EDGE) / max(len(statuses), 1), 14.0)
    parts = []
    for index, status in enumerate(statuses or ["wrong"]):
        x, y = EDGE + (index + 0.5) * step, HEIGHT / 2
        if status in NO_FAILURE:
            parts.append(f'<rect class="pass" x="{x - 3:.1f}" y="{y - 3:.1f}" width="6" height="6" rx="1"/>')
        else:
            parts.append(f'<path d="M{x - 3.5:.1f} {y - 3.5:.1f}l7 7m0 -7l-7 7"/>')
    if 0 < failed_at < len(statuses):
        x = EDGE + failed_at * step
        parts.insert(0, f'<path class="since" d="M{x:.1f} 3V{HEIGHT - 3:.0f}"/>')
    return _svg("checks", label, "".join(parts))


def _scale(levels: Sequence[float], columns: int, least_span: float) -> Callable[[int, float], tuple[float, float]]:
    """Where a column and a level are drawn: the levels fill the height, from edge to edge."""
    middle, span = (max(levels) + min(levels)) / 2, max(max(levels) - min(levels), least_span) or 1.0
    step = (WIDTH - 2 * EDGE) / max(columns - 1, 1)

    def at(column: int, level: float) -> tuple[float, float]:
        return EDGE + column * step, HEIGHT / 2 - (level - middle) / span * (HEIGHT - 2 * EDGE)

    return at


def _text(place: tuple[float, float]) -> str:
    return f"{place[0]:.0f} {place[1]:.1f}"


def _svg(tone: str, label: str, parts: str) -> str:
    box = f'viewBox="0 0 {WIDTH:.0f} {HEIGHT:.0f}" role="img" aria-label="{escape(label)}"'
    return f'<svg class="sparkline {tone}" {box}>{parts}</svg>'
