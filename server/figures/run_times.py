"""Draws where the time of runs went: one run as a stacked bar, a device as seconds per result. SVG by the server."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from math import log
from statistics import median

from warpwatch.contract.activities import Activity, RunTimes
from warpwatch.contract.words import JobKind
from warpwatch.db.reads.occupancy import TimedRun
from warpwatch.server.figures.gantt import DAY
from warpwatch.server.reports.formats import kind_name, plural, seconds, share

BAR_WIDTH, BAR_HEIGHT = 1160.0, 26
CHART_HEIGHT, CHART_LEFT = 84.0, 12.0
"""Pixels; and per cent of the width, so that texts have one size at every width."""
MOST_DOTS = 400
REST = "rest"
ACTIVITY_NAMES = {activity: str(activity).replace("_", "-") for activity in Activity}


@dataclass(frozen=True, slots=True)
class TimeShare:
    """A part of a run's time. name: of an activity, or the rest."""

    name: str
    seconds: float
    share: float


def shares_of(times: RunTimes, rest_seconds: float) -> list[TimeShare]:
    """Every activity that took time, in the order in which a run does them, and the rest."""
    parts = [(ACTIVITY_NAMES[activity], spent) for activity, spent in times.by_activity().items() if spent > 0]
    parts += [(REST, rest_seconds)] if rest_seconds > 0 else []
    whole = sum(spent for _, spent in parts)
    return [TimeShare(name, spent, spent / whole) for name, spent in parts]


def times_svg(shares: Sequence[TimeShare]) -> str:
    """The shares as one stacked bar; a table beside it has the same numbers."""
    x, parts = 0.0, []
    for part in shares:
        width = part.share * BAR_WIDTH
        title = f"{part.name}: {seconds(part.seconds)}, {share(part.share)}"
        place = f'x="{x:.1f}" y="0" width="{width:.1f}" height="{BAR_HEIGHT}"'
        parts.append(f'<rect class="{escape(part.name)}" {place}><title>{escape(title)}</title></rect>')
        x += width
    largest = sorted(shares, key=lambda part: -part.seconds)[:3]
    label = "Where the time went: " + ", ".join(f"{part.name} {share(part.share)}" for part in largest)
    box = f'viewBox="0 0 {BAR_WIDTH:.0f} {BAR_HEIGHT}" preserveAspectRatio="none" role="img"'
    return f'<svg class="times" {box} aria-label="{escape(label)}">{"".join(parts)}</svg>'


@dataclass(frozen=True, slots=True)
class DeviceTimes:
    """Recent use of a device's time by the runs of the device.

    measuring_share: time of timed calls and their warm-up, over the time of all runs; None without any runs. by_kind:
    the number of runs and the median seconds per result of each kind of job. chart: seconds per result over the day.
    """

    measuring_share: float | None
    by_kind: list[tuple[JobKind, int, float]]
    chart: str | None


def device_times(runs: Iterable[TimedRun], device_id: int, now: datetime) -> DeviceTimes:
    own = [run for run in runs if run.device_id == device_id]
    whole = sum(run.seconds for run in own)
    per_result: dict[JobKind, list[tuple[datetime, float]]] = defaultdict(list)
    for run in own:
        if run.results and run.seconds > 0:
            per_result[JobKind(run.kind)].append((run.finished_at, run.seconds / run.results))
    medians = [
        (kind, len(per_result[kind]), median(value for _, value in per_result[kind]))
        for kind in JobKind
        if kind in per_result
    ]
    measuring = sum(run.times.measuring for run in own) / whole if whole > 0 else None
    return DeviceTimes(measuring, medians, _per_result_svg(per_result, medians, now))


def _per_result_svg(
    per_result: dict[JobKind, list[tuple[datetime, float]]], medians: list[tuple[JobKind, int, float]], now: datetime
) -> str | None:
    """A dot per run over the last 24 hours, on a logarithmic scale; None without any."""
    values = [value for points in per_result.values() for _, value in points]
    if not values:
        return None
    low, high = min(values) / 1.3, max(values) * 1.3

    def y(value: float) -> float:
        return CHART_HEIGHT - 4 - (CHART_HEIGHT - 8) * log(value / low) / log(high / low)

    parts = [
        f'<text x="0" y="{y(value) + 4:.1f}">{escape(seconds(value))}</text>'
        for value in dict.fromkeys([min(values), max(values)])
    ]
    for kind, points in per_result.items():
        dots = "".join(
            f'<circle cx="{CHART_LEFT + (99 - CHART_LEFT) * (1 - (now - when) / DAY):.2f}%" '
            f'cy="{y(value):.1f}" r="2.2"/>'
            for when, value in points[:MOST_DOTS]
        )
        parts.append(f'<g class="{escape(kind)}">{dots}</g>')
    text = "; ".join(f"{kind_name(kind)} {seconds(value)} in {plural(count, 'run')}" for kind, count, value in medians)
    box = f'height="{CHART_HEIGHT:.0f}" role="img"'
    label = escape(f"Seconds per result in the last 24 hours, medians: {text}")
    return f'<svg class="per-result" {box} aria-label="{label}">{"".join(parts)}</svg>'
