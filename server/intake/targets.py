"""Which devices a submission means."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from warpwatch.db.reads.devices import DeviceRow, list_devices, list_workers
from warpwatch.db.reads.query import Session
from warpwatch.server.http.problems import FieldError

KINDS = ("cpu", "cuda")
PATIENCE = timedelta(days=1)


def choose_devices(
    session: Session, wanted: str, lease_seconds: float, *, patient: bool = False
) -> tuple[list[DeviceRow], list[FieldError]]:
    """Devices for `all`, `cpu`, `cuda` (every one with a living worker) or one device's key; or what is wrong.

    patient: where no worker lives, those that had one within a day; nobody is there to try again once it is back.
    """
    devices = list_devices(session, lease_seconds)
    if wanted not in ("all", *KINDS):
        found = [device for device in devices if device.key == wanted]
        known = ", ".join([*(device.key for device in devices), "all"])
        error = FieldError(field="device", message=f"there is no device {wanted!r}", remedy=f"use one of: {known}")
        return found, [] if found else [error]
    found = [device for device in devices if device.workers and wanted in ("all", device.kind)]
    if patient and not found:
        gone = {
            worker.device_key for worker in list_workers(session) if worker.heartbeat_at > datetime.now(UTC) - PATIENCE
        }
        found = [device for device in devices if device.key in gone and wanted in ("all", device.kind)]
    what = "any device" if wanted == "all" else f"a {wanted} device"
    remedy = f"start one with `warpwatch worker --device {'cuda:0' if wanted == 'cuda' else 'cpu'}`"
    return found, [] if found else [FieldError(field="device", message=f"no worker for {what} is alive", remedy=remedy)]
