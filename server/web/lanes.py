"""Devices as lanes: what each ran, runs and will run, and when it is free."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from warpwatch.db.reads.devices import DeviceRow, list_devices
from warpwatch.db.reads.occupancy import list_device_runs, list_queued
from warpwatch.db.reads.query import Session
from warpwatch.db.schedules import read_costs
from warpwatch.db.trends import list_running, read_queue
from warpwatch.server.figures.gantt import PAST, GanttRow, gantt_svg, plan_rows
from warpwatch.server.http.service import settings_of
from warpwatch.server.intake.budget import CostEstimates
from warpwatch.server.web.render import Scope


@dataclass(frozen=True, slots=True)
class Lanes:
    """rows: devices with recent, running or waiting jobs. unserved: see unserved_devices."""

    now: datetime
    devices: list[DeviceRow]
    rows: list[GanttRow]
    unserved: dict[str, str]

    @property
    def picture(self) -> str | None:
        return gantt_svg(self.rows, self.now)

    @property
    def waiting(self) -> int:
        """Jobs that wait, of all devices."""
        return sum(device.queued for device in self.devices)

    @property
    def has_worker(self) -> bool:
        return any(device.workers for device in self.devices)

    @property
    def is_idle(self) -> bool:
        return not any(device.queued or device.running for device in self.devices)

    def free_at(self) -> dict[str, datetime]:
        """When each device that works is free, by its name."""
        return {row.device.name: row.end for row in self.rows if row.end is not None}

    def expected_end(self, job_ids: Iterable[int]) -> datetime | None:
        """When the last of these jobs is expected to have ended; None where one of them waits for a device without a
        worker, or lies too far back in its line."""
        ends = {block.job_id: block.end for row in self.rows if row.end is not None for block in row.blocks}
        jobs = list(job_ids)
        return max(ends[job] for job in jobs) if jobs and all(job in ends for job in jobs) else None


def read_lanes(session: Session, lease_seconds: float) -> Lanes:
    """The lanes of all devices, whatever repository their jobs are of."""
    now = datetime.now(UTC)
    devices = list_devices(session, lease_seconds)
    runs, queued = list_device_runs(session, now - PAST), list_queued(session)
    rows = plan_rows(devices, runs, queued, CostEstimates(read_costs(session)), now)
    return Lanes(now, devices, rows, unserved_devices(devices))


def unserved_devices(devices: Iterable[DeviceRow]) -> dict[str, str]:
    """Key → name of the devices without a living worker or a scheduler; jobs of these wait until a person starts a
    worker."""
    return {device.key: device.name for device in devices if not (device.workers or device.is_elastic)}


def progress_of(page: Scope, repository_id: int) -> dict[str, Any]:
    """Values of _progress.html: what is measured now, and when the devices that measure are free."""
    queue = read_queue(page.session, repository_id)
    is_open = queue.queued or queue.running
    lanes = read_lanes(page.session, settings_of(page.request).lease_seconds) if is_open else None
    running = list_running(page.session, repository_id)
    return {"queue": queue, "running": running, "free": lanes.free_at() if lanes is not None else {}}
