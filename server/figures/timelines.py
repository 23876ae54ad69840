"""Draws timelines of traces as SVG of at most 20 KB, so that a trace page shows its trace at once.

Colours come from the page's style sheet (web/static/pictures.css). Long slices are rectangles with their name; the many
short ones of a row are one path.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from html import escape
from math import floor, log10

from warpwatch.server.explanation.alignment import Alignment, match_steps
from warpwatch.server.explanation.kernel_names import short_name
from warpwatch.server.explanation.timeline import Timeline, TimelineLane, TimelineSlice
from warpwatch.server.reports.formats import duration, share, significant, unit_of

WIDTH = 1160.0
LEFT = 120.0
"""Where the lanes begin; their names stand before it."""
ROW, DEVICE_ROW, AXIS, SPACE = 13, 22, 20, 8
NAMED_KERNELS, NAMED_OPERATORS = 60, 30
"""Slices on the device and on the host that are drawn with their names, the longest first."""
READABLE = 20
"""Width in pixels from which a slice on the host is drawn with its name."""
MOST_RUNS = 220
"""Pieces of all paths of one timeline; slices that lie nearer together than needed for that are drawn as one."""
MOST_GAPS = 12
COLOURS = 6
"""Colours for kernels, the most expensive name first; further names share the last one."""
DEVICE_KINDS = ("kernel", "copy")
WATERFALL_ROWS = 8


def timeline_svg(timeline: Timeline) -> str:
    """One call of one trace."""
    height = AXIS + _height(timeline)
    scale = (WIDTH - LEFT) / max(timeline.duration, 1.0)
    parts = [_axis(timeline.duration, scale, height), *_drawn(timeline, scale, AXIS, _colours([timeline]))]
    return _svg(parts, height, _description(timeline))


def pair_svg(a: Timeline, b: Timeline) -> str:
    """Two calls on one axis, both from their beginning, with matched kernels joined. The lanes of B stand in reverse
    order, so that the kernels of both are next to each other."""
    b = replace(b, lanes=b.lanes[::-1])
    longest = max(a.duration, b.duration, 1.0)
    scale = (WIDTH - LEFT) / longest
    colours = _colours([a, b])
    between = 3 * SPACE + 14
    top_b = AXIS + _height(a) + between
    height = top_b + _height(b)
    parts = [_axis(longest, scale, height)]
    parts += [*_drawn(a, scale, AXIS, colours), *_drawn(b, scale, top_b, colours)]
    parts += [_joined(a, b, scale, AXIS + _height(a), top_b)]
    for name, top in (("A", AXIS + _height(a) + 12), ("B", top_b - 4)):
        parts.append(f'<text class="side" x="4" y="{top:.0f}">{name}</text>')
    return _svg(parts, height, f"A: {_description(a)} B: {_description(b)}")


def waterfall_svg(alignment: Alignment) -> str:
    """From the time of A to the time of B: the largest contributions, one bar each, and the rest as one bar."""
    rows = [row for row in alignment.rows if row.difference_ns]
    shown, rest = rows[:WATERFALL_ROWS], rows[WATERFALL_ROWS:]
    steps = [(short_name(row.b_name or row.a_name or ""), row.difference_ns) for row in shown]
    if rest:
        steps.append((f"{len(rest)} more", sum(row.difference_ns for row in rest)))
    level, levels = alignment.a_ns, [alignment.a_ns]
    for _, difference in steps:
        level += difference
        levels.append(level)
    low, high = min(levels), max(levels)
    # The axis begins above zero where all bars would otherwise be the same length.
    floor = 0.0 if low < 0.5 * high else low - 0.25 * (high - low or high * 0.1)
    left, right = 300.0, 110.0
    scale = (WIDTH - left - right) / ((high - floor) or 1.0)
    bars = [("A", floor, alignment.a_ns, "total", duration(alignment.a_ns, 4))]
    for (name, difference), before in zip(steps, levels, strict=False):
        tone = "longer" if difference > 0 else "shorter"
        text = f"{'+' if difference > 0 else '−'}{duration(abs(difference))}"
        bars.append((name, before, before + difference, tone, text))
    bars.append(("B", floor, alignment.b_ns, "total", duration(alignment.b_ns, 4)))
    parts = []
    for index, (name, start, end, tone, text) in enumerate(bars):
        y, x = 4 + index * 24, left + (min(start, end) - floor) * scale
        width = max(abs(end - start) * scale, 1.0)
        parts.append(
            f'<text x="{left - 8:.0f}" y="{y + 13}" text-anchor="end">{_cut(name, 42)}</text>'
            f'<rect class="{tone}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="18"/>'
            f'<text class="amount" x="{x + width + 6:.1f}" y="{y + 13}">{text}</text>'
        )
        if floor and tone == "total":
            parts.append(f'<path class="cut" d="M{x + 10:.0f} {y - 2}l-5 22M{x + 16:.0f} {y - 2}l-5 22"/>')
    label = f"From {duration(alignment.a_ns, 4)} to {duration(alignment.b_ns, 4)} per call: " + ", ".join(
        f"{name} {'+' if difference > 0 else '−'}{duration(abs(difference))}" for name, difference in steps[:3]
    )
    return _svg(parts, 8 + 24 * len(bars), label, "waterfall")


# --- parts ----------------------------------------------------------------------------------------------------------


def _svg(parts: Iterable[str], height: float, label: str, kind: str = "timeline") -> str:
    head = f'<svg class="{kind}" viewBox="0 0 {WIDTH:.0f} {height:.0f}" role="img" aria-label="{escape(label)}">'
    hatch = (
        '<defs><pattern id="idle" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<path class="hatch" d="M0 0v6"/></pattern></defs>'
    )
    return head + (hatch if kind == "timeline" else "") + "".join(parts) + "</svg>"


def _description(timeline: Timeline) -> str:
    work = timeline.work
    device = [lane for lane in timeline.lanes if lane.is_device]
    named = "kernels and copies" if device else "operators"
    text = f"call {timeline.call + 1} of {timeline.calls}, {duration(timeline.duration)}, {len(work)} {named}"
    if not device:
        return f"{text}."
    idle = [
        f"GPU{f' {number}' if len(timeline.gaps) > 1 else ''} idle "
        f"{share(sum(length for _, length in gaps) / timeline.duration)} in {len(gaps)} notable gaps"
        for number, gaps in timeline.gaps.items()
    ]
    return f"{', '.join([text, *idle])}."


def _row(lane: TimelineLane) -> int:
    return DEVICE_ROW if lane.is_device else ROW


def _height(timeline: Timeline) -> int:
    return sum(lane.depth * _row(lane) + SPACE for lane in timeline.lanes)


def _colours(timelines: list[Timeline]) -> dict[str, int]:
    """Kernel name → number of its colour, the most expensive name first."""
    total: Counter[str] = Counter()
    for timeline in timelines:
        for piece in timeline.work:
            total[short_name(piece.name)] += round(piece.duration)
    return {name: min(rank, COLOURS - 1) for rank, (name, _) in enumerate(total.most_common())}


def _axis(length: float, scale: float, height: float) -> str:
    """Ticks at round times, at most eight."""
    size, unit = unit_of(length)
    power = 10.0 ** floor(log10(max(length, 1.0) / size / 8))
    step = next(base * power * size for base in (1, 2, 5, 10) if length / (base * power * size) <= 8 or base == 10)
    ticks = []
    for number in range(int(length / step) + 1):
        x = LEFT + number * step * scale
        anchor = "end" if x > WIDTH - 40 else "middle"
        text = f"{significant(number * step / size)} {unit}"
        ticks.append(f'<path class="grid" d="M{x:.1f} {AXIS - 4}V{height:.0f}"/>')
        ticks.append(f'<text x="{x:.1f}" y="11" text-anchor="{anchor}">{text}</text>')
    return "".join(ticks)


def _drawn(timeline: Timeline, scale: float, top: float, colours: dict[str, int]) -> list[str]:
    """All lanes, from `top` down."""
    every = (piece for lane in timeline.lanes for piece in lane.slices)
    longest = sorted(every, key=lambda piece: -piece.duration)
    on_device = [piece for piece in longest if piece.kind in DEVICE_KINDS]
    on_host = [piece for piece in longest if piece.kind not in DEVICE_KINDS and piece.duration * scale >= READABLE]
    named = {id(piece) for piece in on_device[:NAMED_KERNELS] + on_host[:NAMED_OPERATORS]}
    short = [[piece for piece in lane.slices if id(piece) not in named] for lane in timeline.lanes]
    apart = next((px for px in (1, 2, 4, 8, 16, 32, 64) if _runs(short, scale, px) <= MOST_RUNS), 128)
    parts, y = [], top
    for lane, small in zip(timeline.lanes, short, strict=True):
        row = _row(lane)
        parts.append(f'<text class="lane" x="4" y="{y + row - 4:.0f}">{_cut(lane.name, 18)}</text>')
        if lane.device is not None:
            for start, length in sorted(timeline.gaps[lane.device], key=lambda gap: -gap[1])[:MOST_GAPS]:
                place = f'x="{LEFT + start * scale:.1f}" y="{y:.0f}" width="{length * scale:.1f}" height="{row - 2}"'
                parts.append(f'<rect fill="url(#idle)" {place}><title>idle {duration(length)}</title></rect>')
        parts += _paths(small, scale, y, row, apart)
        for piece in lane.slices:
            if id(piece) in named:
                parts.append(_rectangle(piece, scale, y, row, colours))
        y += lane.depth * row + SPACE
    return parts


def _rectangle(piece: TimelineSlice, scale: float, top: float, row: int, colours: dict[str, int]) -> str:
    name = short_name(piece.name)
    x, y, width = LEFT + piece.start * scale, top + piece.depth * row, max(piece.duration * scale, 1.0)
    tone = f"k{colours.get(name, COLOURS - 1)}" if piece.kind in DEVICE_KINDS else piece.kind
    title = f"<title>{_cut(name, 70)}, {duration(piece.duration)}</title>"
    text = f'<text x="{x + 3:.1f}" y="{y + row - 5:.0f}">{_cut(name, int(width / 6.4))}</text>' if width >= 48 else ""
    place = f'x="{x:.1f}" y="{y:.0f}" width="{width:.1f}" height="{row - 2}"'
    return f'<g class="{tone}"><rect {place}>{title}</rect>{text}</g>'


def _merged(pieces: list[TimelineSlice], scale: float, apart: float) -> list[tuple[str, int, float, float]]:
    """(kind, depth, start, end) in pixels of slices of one kind and depth that lie nearer than `apart`."""
    runs: list[tuple[str, int, float, float]] = []
    for piece in sorted(pieces, key=lambda piece: (piece.kind, piece.depth, piece.start)):
        start = LEFT + piece.start * scale
        end = start + max(piece.duration * scale, 0.6)
        if runs and runs[-1][:2] == (piece.kind, piece.depth) and start - runs[-1][3] < apart:
            runs[-1] = (*runs[-1][:3], max(end, runs[-1][3]))
        else:
            runs.append((piece.kind, piece.depth, start, end))
    return runs


def _runs(lanes: list[list[TimelineSlice]], scale: float, apart: float) -> int:
    return sum(len(_merged(pieces, scale, apart)) for pieces in lanes)


def _paths(pieces: list[TimelineSlice], scale: float, top: float, row: int, apart: float) -> list[str]:
    paths: dict[str, list[str]] = {}
    for kind, depth, start, end in _merged(pieces, scale, apart):
        y = top + depth * row
        paths.setdefault(kind, []).append(f"M{start:.1f} {y:.0f}h{end - start:.1f}v{row - 2}h-{end - start:.1f}z")
    return [f'<path class="{kind} small" d="{"".join(runs)}"/>' for kind, runs in paths.items()]


def _joined(a: Timeline, b: Timeline, scale: float, bottom_a: float, top_b: float) -> str:
    """Lines between matched kernels: from the foot of A's lanes to the head of B's."""
    pairs = match_steps([piece.name for piece in a.work], [piece.name for piece in b.work])
    matched = [(a.work[left], b.work[right]) for left, right in pairs if left is not None and right is not None]
    matched.sort(key=lambda pair: -max(pair[0].duration, pair[1].duration))
    lines = []
    for left, right in matched[:NAMED_KERNELS]:
        from_x, to_x = (LEFT + (piece.start + piece.duration / 2) * scale for piece in (left, right))
        middle = (bottom_a + top_b) / 2
        lines.append(
            f"M{from_x:.0f} {bottom_a - SPACE:.0f}C{from_x:.0f} {middle:.0f} {to_x:.0f} {middle:.0f}"
            f" {to_x:.0f} {top_b:.0f}"
        )
    return f'<path class="joined" d="{"".join(lines)}"/>'


def _cut(text: str, most: int) -> str:
    """Text for an SVG, cut to a number of characters."""
    return escape(text if len(text) <= most else f"{text[: max(most - 1, 1)]}…")
