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
        text = escape(_place_text(curves.at[index]))
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
