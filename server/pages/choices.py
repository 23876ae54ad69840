"""The switches that pages share: device, metric, suite."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Query

from warpwatch.contract.measurement import METRICS
from warpwatch.db.reads.devices import list_devices
from warpwatch.db.reads.history import list_series
from warpwatch.db.reads.query import Session
from warpwatch.db.reads.rows import DeviceRow, RepositoryRow
from warpwatch.server.http.problems import not_found

Text = Annotated[str | None, Query(max_length=500)]
Texts = Annotated[list[str], Query(max_length=50)]

METRIC_NAMES = {
    "graph": "graph (GPU, cold data)",
    "kernel": "kernel (GPU, device time only)",
    "cold": "cold caches",
    "hot": "hot caches",
    "call": "call, host included",
}


@dataclass(frozen=True, slots=True)
class Bench:
    """What is looked at: a device and one of its metrics, among those there are."""

    device: DeviceRow
    metric: str
    devices: list[DeviceRow]
    metrics: list[tuple[str, str]]


def choose_bench(
    session: Session, repository: RepositoryRow, device: str | None, metric: str | None, operator: str | None = None
) -> Bench | None:
    """The device and metric asked for, or one that the repository, or its operator, was measured on; None while there
    is no device."""
    devices = list_devices(session)
    if not devices:
        return None
    chosen = _device(session, repository, devices, device, operator)
    known = METRICS[chosen.kind]
    # Switching to a device without the metric shows the device's own first one rather than an error.
    return Bench(
        chosen, metric if metric in known else known[0], devices, [(name, METRIC_NAMES[name]) for name in known]
    )


def _device(
    session: Session, repository: RepositoryRow, devices: list[DeviceRow], key: str | None, operator: str | None
) -> DeviceRow:
    if key:
        found = next((row for row in devices if row.key == key), None)
        if found is None:
            raise not_found("device", key, "start a worker on it with `warpwatch worker`")
        return found
    # What people ask first is how the GPU does.
    ordered = sorted(devices, key=lambda row: row.kind != "cuda")
    measured = (
        row for row in ordered if list_series(session, repository.id, operator, device_key=row.key, limit=1).items
    )
    return next(measured, ordered[0])
