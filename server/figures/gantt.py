"""Draws when devices were busy: a Gantt chart of jobs per device, and a strip of the last day. SVG by the server."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from html import escape

from warpwatch.contract.commit_ids import short_sha
from warpwatch.contract.words import JobKind, RunState
from warpwatch.db.reads.devices import DeviceRow
from warpwatch.db.reads.occupancy import DeviceRun, QueuedJob
from warpwatch.server.intake.budget import CandidateJob, CostEstimates
from warpwatch.server.reports.formats import kind_name, plural, span

WIDTH, LEFT, ROW, AXIS = 1160.0, 190.0, 30, 22
PAST = timedelta(hours=6)
"""Ended jobs that the chart shows at most."""
FUTURE = timedelta(hours=12)
"""Waiting jobs beyond this are not drawn; their number is in the text of the chart."""
LONGEST_PAST = 1.0
"""How much longer the shown past may be than the estimated future, so that what waits stays readable."""
MOST_BLOCKS = 160
"""Blocks of one device; more would make the page heavy."""
STRIP_WIDTH, STRIP_HEIGHT = 288.0, 18
DAY = timedelta(days=1)
_STATES = {"yielded": "made room for another", "queued": "waiting"}
"""Shown instead of the stored state; any other is shown as it is."""
_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 180, 360)


@dataclass(frozen=True, slots=True)
class GanttBlock:
    """One job on a device. state: done, failed, cancelled, yielded, running or queued; the end of the last two is
    estimated."""

    job_id: int
    kind: str
    operator: str
    commit_sha: str
    state: str
    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class GanttRow:
    """A device with its blocks in order; end: when its last waiting job will have ended, None without one."""

    device: DeviceRow
    blocks: list[GanttBlock]
    end: datetime | None


def plan_rows(
    devices: Iterable[DeviceRow],
    runs: Iterable[DeviceRun],
    queued: Iterable[QueuedJob],
    estimates: CostEstimates,
    now: datetime,
) -> list[GanttRow]:
    """Devices with jobs. Jobs that wait for a worker follow one another, each as long as earlier jobs of its kind took;
    nothing can be said of jobs that no worker waits for."""
    rows = []
    runs, queued = list(runs), list(queued)
    for device in devices:
        blocks = [_ran(run, estimates, now) for run in runs if run.device_id == device.id]
        blocks.sort(key=lambda block: block.start)
        free = max([now, *(block.end for block in blocks if block.state == "running")])
        waiting = [job for job in queued if job.device_id == device.id and device.workers]
        for job in waiting:
            end = free + timedelta(seconds=estimates.of(_candidate(job)))
            blocks.append(GanttBlock(job.job_id, job.kind, job.operator, job.commit_sha, "queued", free, end))
            free = end
        if blocks:
            is_open = any(block.state in ("running", "queued") for block in blocks)
            rows.append(GanttRow(device, blocks, free if is_open and device.workers else None))
    return rows


def _candidate(job: DeviceRun | QueuedJob) -> CandidateJob:
    return CandidateJob(job.commit_sha, job.operator, job.device_id, JobKind(job.kind), job.suite or "")


def _ran(run: DeviceRun, estimates: CostEstimates, now: datetime) -> GanttBlock:
    state = "failed" if run.state == RunState.LOST else run.state
    estimated = run.started_at + timedelta(seconds=estimates.of(_candidate(run)))
    end = run.finished_at or max(estimated, now)
    return GanttBlock(run.job_id, run.kind, run.operator, run.commit_sha, state, run.started_at, end)


def gantt_svg(rows: Sequence[GanttRow], now: datetime) -> str | None:
    """The chart, as wide as the recent past and the estimated future; None when no device had work."""
    ends = [row.end for row in rows if row.end is not None]
    last = min(max([now, *ends]), now + FUTURE)
    starts = [block.start for row in rows for block in row.blocks if block.end >= now - PAST]
    if not starts:
        return None
    ahead = last - now
    least = now - max(ahead * LONGEST_PAST, timedelta(minutes=10))
    first = max(min(starts), least if ahead else now - PAST)
    last = max(last, first + timedelta(minutes=1))
    scale = (WIDTH - LEFT - 8) / (last - first).total_seconds()

    def x(when: datetime) -> float:
        return LEFT + (min(max(when, first), last) - first).total_seconds() * scale

    height = AXIS + ROW * len(rows)
    parts = [_ticks(first, last, now, scale, height)]
    for index, row in enumerate(rows):
        y = AXIS + index * ROW
        name = row.device.name if len(row.device.name) <= 28 else f"{row.device.name[:27]}…"
        parts.append(f'<text class="lane" x="0" y="{y + 18}">{escape(name)}</text>')
        shown = [block for block in row.blocks if block.end > first and block.start < last]
        parts += [_block(block, x(block.start), x(block.end), y) for block in shown[-MOST_BLOCKS:]]
    parts.append(f'<path class="now" d="M{x(now):.1f} {AXIS - 6}V{height}"/>')
    label = "; ".join(_description(row, now) for row in rows)
    box = f'viewBox="0 0 {WIDTH:.0f} {height}" role="group" aria-label="{escape(f"Jobs per device. {label}.")}"'
    return f'<svg class="gantt" {box}>{"".join(parts)}</svg>'


def _description(row: GanttRow, now: datetime) -> str:
    counts = [(state, sum(block.state == state for block in row.blocks)) for state in ("running", "queued", "failed")]
    text = ", ".join(f"{count} {state}" for state, count in counts if count) or "idle"
    left = f", about {span((row.end - now).total_seconds())} left" if row.end is not None else ""
    return f"{row.device.name}: {text}{left}"


def _ticks(first: datetime, last: datetime, now: datetime, scale: float, height: int) -> str:
    minutes = (last - first).total_seconds() / 60
    step = next((step for step in _STEPS if minutes / step <= 10), _STEPS[-1])
    parts = []
    count = int((first - now).total_seconds() // (step * 60)) + 1
    while (when := now + timedelta(minutes=count * step)) <= last:
        x = LEFT + (when - first).total_seconds() * scale
        offset = count * step
        length = f"{abs(offset) // 60}:{abs(offset) % 60:02} h" if abs(offset) >= 60 else span(abs(offset) * 60)
        name = "now" if not offset else f"{'+' if offset > 0 else '−'}{length}"
        parts.append(f'<path class="grid" d="M{x:.1f} {AXIS - 6}V{height}"/>')
        anchor = "end" if x > WIDTH - 40 else "middle"
        parts.append(f'<text x="{x:.1f}" y="11" text-anchor="{anchor}">{name}</text>')
        count += 1
    return "".join(parts)


def _block(block: GanttBlock, start: float, end: float, y: int) -> str:
    length = span((block.end - block.start).total_seconds())
    about = "about " if block.state in ("running", "queued") else ""
    title = (
        f"Job {block.job_id}, {_STATES.get(block.state, block.state)}: {kind_name(block.kind)} {block.operator} "
        f"at {short_sha(block.commit_sha)}"
    )
    width = max(end - start - 0.5, 1.0)
    place = f'x="{start:.1f}" y="{y + 4}" width="{width:.1f}" height="{ROW - 10}" rx="2"'
    rectangle = f"<rect {place}><title>{escape(title)}, {about}{length}</title></rect>"
    # The table below the chart has the same links for the keyboard.
    link = f'<a href="/jobs/{block.job_id}" tabindex="-1" aria-label="{escape(title)}">'
    return f'{link}<g class="{escape(block.kind)} {block.state}">{rectangle}</g></a>'


def busy_seconds(runs: Iterable[DeviceRun], device_id: int, now: datetime) -> float:
    """Seconds of the last day in which the device had a run."""
    total, end = 0.0, now - DAY
    for start, stop in _intervals(runs, device_id, now):
        total += max((stop - max(start, end)).total_seconds(), 0.0)
        end = max(end, stop)
    return total


def strip_svg(runs: Sequence[DeviceRun], device_id: int, now: datetime) -> str:
    """The last 24 hours of a device: dark where it was busy."""
    since, scale = now - DAY, STRIP_WIDTH / DAY.total_seconds()
    pieces: list[tuple[float, float]] = []
    for start, stop in _intervals(runs, device_id, now):
        begin, end = ((when - since).total_seconds() * scale for when in (start, stop))
        if pieces and begin - pieces[-1][1] < 0.5:
            pieces[-1] = (pieces[-1][0], max(end, pieces[-1][1]))
        else:
            pieces.append((begin, max(end, begin + 0.5)))
    bars = "".join(
        f'<rect x="{begin:.1f}" y="0" width="{end - begin:.1f}" height="{STRIP_HEIGHT}"/>' for begin, end in pieces
    )
    share = busy_seconds(runs, device_id, now) / DAY.total_seconds()
    label = f"Busy {share:.0%} of the last 24 hours, in {plural(len(pieces), 'stretch')}"
    box = f'viewBox="0 0 {STRIP_WIDTH:.0f} {STRIP_HEIGHT}" preserveAspectRatio="none" role="img" aria-label="{label}"'
    return f'<svg class="strip" {box}>{bars}</svg>'


def _intervals(runs: Iterable[DeviceRun], device_id: int, now: datetime) -> list[tuple[datetime, datetime]]:
    """(start, end) of the runs of the last day, in order."""
    since = now - DAY
    spans = [(max(run.started_at, since), run.finished_at or now) for run in runs if run.device_id == device_id]
    return sorted((start, end) for start, end in spans if end > since)
