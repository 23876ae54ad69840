"""The selectors that pages share: device, metric, suite."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Query

from warpwatch.contract.measurement import METRICS
from warpwatch.db.reads.code import RepositoryRow
from warpwatch.db.reads.devices import DeviceRow, list_devices
from warpwatch.db.reads.history import list_series
from warpwatch.db.reads.query import Session
from warpwatch.server.http.problems import not_found

Text = Annotated[str | None, Query(max_length=500)]
Texts = Annotated[list[str], Query(max_length=50)]

METRIC_NAMES = {
    "graph": "graph (GPU, cold data)",
    "kernel": "kernel (GPU, device time only)",
    "cold": "cold caches",
    "hot": "hot caches",
    "call": "call, host included",
    "launch": "launch (host time of a call)",
}


@dataclass(frozen=True, slots=True)
class Bench:
    """The chosen device and metric, and all devices and metrics to choose from."""

    device: DeviceRow
    metric: str
    devices: list[DeviceRow]
    metrics: list[tuple[str, str]]


def choose_bench(
    session: Session, repository: RepositoryRow, device: str | None, metric: str | None, operator: str | None = None
) -> Bench | None:
    """The requested device and metric, else a device that the repository or its operator was measured on; None when
    there is no device."""
    devices = list_devices(session)
    if not devices:
        return None
    chosen = _device(session, repository, devices, device, operator)
    metrics = METRICS[chosen.kind]
    # A device without the requested metric shows its first metric instead of an error.
    return Bench(
        chosen, metric if metric in metrics else metrics[0], devices, [(name, METRIC_NAMES[name]) for name in metrics]
    )


def _device(
    session: Session, repository: RepositoryRow, devices: list[DeviceRow], key: str | None, operator: str | None
) -> DeviceRow:
    if key:
        device = next((row for row in devices if row.key == key), None)
        if device is None:
            raise not_found("device", key, "start a worker on it with `warpwatch worker`")
        return device
    # GPUs come first, because most people look for GPU results; before the first result, what a worker serves does.
    ordered = sorted(devices, key=lambda row: row.kind != "cuda")
    measured = (
        row for row in ordered if list_series(session, repository.id, operator, device_key=row.key, limit=1).items
    )
    return next(measured, next((row for row in ordered if row.workers), ordered[0]))
