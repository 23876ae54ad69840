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

    The first three take all that have a living worker or are elastic, or else those that had a worker within a day: one
    that is being started again finds its jobs.
    """
    devices = list_devices(session, lease_seconds)
    if requested not in ("all", *KINDS):
        chosen = [device for device in devices if device.key == requested]
        choices = ", ".join([*(device.key for device in devices), "all"])
        error = FieldError(
            field="device",
            message=f"there is no device {requested!r}",
            remedy=f"choose from: {choices}; or `warpwatch device add`",
        )
        return chosen, [] if chosen else [error]
    chosen = [
        device for device in devices if (device.workers or device.is_elastic) and requested in ("all", device.kind)
    ]
    if not chosen:
        recent = {
            worker.device_key for worker in list_workers(session) if worker.heartbeat_at > datetime.now(UTC) - PATIENCE
        }
        chosen = [device for device in devices if device.key in recent and requested in ("all", device.kind)]
    target = "any device" if requested == "all" else f"a {requested} device"
    start = f"warpwatch worker --device {'cuda:0' if requested == 'cuda' else 'cpu'}"
    remedy = f"start a worker with `{start}`, or let a scheduler do it: `warpwatch device add KEY --elastic`"
    error = FieldError(field="device", message=f"no worker for {target} was online within a day", remedy=remedy)
    return chosen, [] if chosen else [error]
