"""Devices, their workers, environments and measured ceilings."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from fastapi import APIRouter, Response

from warpwatch.db.reads.devices import list_devices, list_environments, list_workers
from warpwatch.db.reads.occupancy import list_device_runs, list_timed_runs
from warpwatch.server.figures.gantt import DAY, busy_seconds, strip_svg
from warpwatch.server.figures.run_times import device_times
from warpwatch.server.http.service import Config
from warpwatch.server.pages.render import Page

router = APIRouter()


@router.get("/devices")
def devices(page: Page, settings: Config) -> Response:
    """Every device with its workers, environments and measured ceilings."""
    rows = list_devices(page.session, settings.lease_seconds)
    recently = datetime.now(UTC) - timedelta(days=1)
    workers = [
        row
        for row in list_workers(page.session, settings.lease_seconds)
        if row.state != "stopped" or row.heartbeat_at > recently
    ]
    environments = {device.id: list_environments(page.session, device.id, limit=10) for device in rows}
    now = datetime.now(UTC)
    runs = list_device_runs(page.session, now - DAY, limit=5000)
    timed = list_timed_runs(page.session, now - DAY)
    peaks = [environment.peaks for found in environments.values() for environment in found[:1] if environment.peaks]
    return page.page(
        "devices.html",
        json="/devices",
        devices=rows,
        workers=workers,
        environments=environments,
        strips={device.id: strip_svg(runs, device.id, now) for device in rows},
        times={device.id: device_times(timed, device.id, now) for device in rows},
        busy={device.id: busy_seconds(runs, device.id, now) / DAY.total_seconds() for device in rows},
        highest={
            name: max(peak.get(name, 0.0) for peak in peaks) for name in {name for peak in peaks for name in peak}
        },
    )
