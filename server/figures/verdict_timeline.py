"""Draws the verdicts of a line of history over its commits, a lane per operator, and nothing that is noise. SVG."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

from warpwatch.contract.commit_ids import short_sha
from warpwatch.contract.words import Signal, StatementDirection
from warpwatch.db.reads.standing import VerdictMark
from warpwatch.server.figures.sparklines import verdict_mark
from warpwatch.server.reports.formats import change, natural, plural
from warpwatch.server.reports.wording import statement_words
from warpwatch.server.verdicts.statements import Statement, badness, state_mark

EDGE, AXIS = 16, 22


@dataclass(frozen=True, slots=True)
class TimelineSize:
    """Width of the picture, room for names left of the lanes, and height of a lane; without room for names each stands
    above its lane."""

    width: int
    names: int
    lane: int


WIDE, NARROW = TimelineSize(1160, 150, 30), TimelineSize(340, 0, 44)
Item = tuple[VerdictMark, Statement, str]
"""A verdict, its statement, and the start of its link."""
MOST_LANES = 16
"""Operators with a lane, those with the worst verdicts first."""
LABEL_ROOM, LAUNCH_ROOM = 58, 36
"""Distance to the next mark from which on a mark has room for its number, and for the name of a launch before that."""
BESIDE = 10.0
"""Distance of the marks of two changes at one commit, one below the other."""
LEAST_STEP = 7.0
"""Distance of two commits from which on each has a tick."""


def verdict_timeline(marks: Sequence[VerdictMark], ordinals: Sequence[int], query: str = "") -> str | None:
    """A picture across the page, and one for phones; None without a verdict. ordinals: of the commits of the line,
    oldest first. query: end of every link."""
    lanes: dict[str, list[Item]] = defaultdict(list)
    for mark in marks:
        if ordinals and mark.ordinal >= ordinals[0]:
            stated = state_mark(mark)
            lanes[mark.operator].append((mark, stated, _link(mark, stated, query)))
    if not lanes:
        return None
    chosen = sorted(lanes, key=lambda name: (min(badness(item) for _, item, _ in lanes[name]), natural(name)))[
        :MOST_LANES
    ]
    count = sum(len(lanes[name]) for name in chosen)
    worst = min((item for name in chosen for item in lanes[name]), key=lambda item: badness(item[1]))
    label = f"{plural(count, 'verdict')} over {plural(len(ordinals), 'commit')}; worst: {worst[0].operator} "
    label += statement_words(worst[1])
    shown = {name: lanes[name] for name in chosen}
    return _picture(shown, ordinals, WIDE, label) + _picture(shown, ordinals, NARROW, label)


def _link(mark: VerdictMark, statement: Statement, query: str) -> str:
    words = f"{mark.operator} {statement_words(statement)} at {short_sha(mark.head_sha)}, {plural(mark.series, 'case')}"
    return f'<a href="/regressions/{mark.regression_id}{escape(query)}" aria-label="{escape(words)}">'


def _picture(lanes: Mapping[str, Sequence[Item]], ordinals: Sequence[int], size: TimelineSize, label: str) -> str:
    step = (size.width - size.names - 2 * EDGE) / max(len(ordinals) - 1, 1)
    height = AXIS + size.lane * len(lanes)
    changed = {mark.ordinal for items in lanes.values() for mark, _, _ in items}
    parts = [_axis(ordinals, step, height, changed, size)]
    for index, (name, items) in enumerate(lanes.items()):
        centre = AXIS + size.lane * (index + 0.5) + (0 if size.names else size.lane / 6)
        parts.append(_lane(name, items, ordinals, step, centre, size))
    box = f'viewBox="0 0 {size.width} {height}" role="group" aria-label="{escape(label)}"'
    return f'<svg class="verdicts{"" if size.names else " narrow"}" {box}>{"".join(parts)}</svg>'


def _axis(ordinals: Sequence[int], step: float, height: float, changed: set[int], size: TimelineSize) -> str:
    """Ticks of the commits, those with a verdict as lines across all lanes."""
    parts = []
    for place, ordinal in enumerate(ordinals):
        x = size.names + EDGE + place * step
        if ordinal in changed:
            parts.append(f'<path class="grid" d="M{x:.1f} {AXIS - 4}V{height}"/>')
        elif step >= LEAST_STEP:
            parts.append(f'<path class="grid" d="M{x:.1f} {AXIS - 4}v4"/>')
    ends = ((size.names + EDGE, "start", "oldest"), (size.width - EDGE, "end", "newest commit"))
    return "".join(parts) + "".join(
        f'<text x="{x}" y="12" text-anchor="{anchor}">{text}</text>' for x, anchor, text in ends
    )


def _lane(
    name: str,
    items: Sequence[Item],
    ordinals: Sequence[int],
    step: float,
    y: float,
    size: TimelineSize,
) -> str:
    parts = [f'<path class="lane" d="M{size.names} {y:.1f}H{size.width}"/>']
    parts.append(f'<text class="name" x="0" y="{y + (4 if size.names else -size.lane / 3):.1f}">')
    parts.append(f"{escape(name if len(name) <= 22 else f'{name[:21]}…')}</text>")
    groups = [list(group) for _, group in groupby(items, key=lambda item: item[0].ordinal)]
    places = [size.names + EDGE + bisect_left(ordinals, group[0][0].ordinal) * step for group in groups]
    for group, x, following in zip(groups, places, [*places[1:], float(size.width)], strict=True):
        numbers, room = [], 0.0
        for index, (_, statement, link) in enumerate(sorted(group, key=lambda item: badness(item[1]))):
            parts.append(link)
            parts.append(verdict_mark(statement, x, y + (index - (len(group) - 1) / 2) * BESIDE))
            parts.append("</a>")
            if statement.direction not in (StatementDirection.BROKEN, None) and statement.ratio:
                is_launch = statement.signal == Signal.LAUNCH
                numbers.append(f"{Signal.LAUNCH} {change(statement.ratio)}" if is_launch else change(statement.ratio))
                room += LABEL_ROOM + (LAUNCH_ROOM if is_launch else 0)
        if numbers and following - x >= room:
            parts.append(f'<text class="amount" x="{x + 8:.1f}" y="{y + 4:.1f}">{", ".join(numbers)}</text>')
    return "".join(parts)
