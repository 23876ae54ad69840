"""The devices that a submission runs on."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from warpwatch.db.reads.devices import DeviceRow, list_devices, list_workers
from warpwatch.db.reads.query import Session
from warpwatch.server.http.problems import FieldError

KINDS = ("cpu", "cuda")
PATIENCE = timedelta(days=1)


def choose_devices(session: Session, requested: str, lease_seconds: float) -> tuple[list[DeviceRow], list[FieldError]]:
    """The devices for `all`, `cpu`, `cuda` or the key of one device; and the errors.

    The first three take all with a living worker, or else those that had one within a day: a worker that is being
    started again finds its jobs.
    """
    devices = list_devices(session, lease_seconds)
    if requested not in ("all", *KINDS):
        chosen = [device for device in devices if device.key == requested]
        choices = ", ".join([*(device.key for device in devices), "all"])
        error = FieldError(
            field="device", message=f"there is no device {requested!r}", remedy=f"choose from: {choices}"
        )
        return chosen, [] if chosen else [error]
    chosen = [device for device in devices if device.workers and requested in ("all", device.kind)]
    if not chosen:
        recent = {
            worker.device_key for worker in list_workers(session) if worker.heartbeat_at > datetime.now(UTC) - PATIENCE
        }
        chosen = [device for device in devices if device.key in recent and requested in ("all", device.kind)]
    target = "any device" if requested == "all" else f"a {requested} device"
    remedy = f"start a worker with `warpwatch worker --device {'cuda:0' if requested == 'cuda' else 'cpu'}`"
    error = FieldError(field="device", message=f"no worker for {target} was online within a day", remedy=remedy)
    return chosen, [] if chosen else [error]
