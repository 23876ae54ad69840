"""What measures: devices, workers, environments, and the health of the service."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """workers: how many are alive now. queued, running: jobs waiting for it and under way on it."""

    id: int
    key: str
    kind: str
    name: str
    workers: int
    queued: int
    running: int
    environments: int


@dataclass(frozen=True, slots=True)
class WorkerRow:
    id: int
    name: str
    device_key: str
    version: str
    started_at: datetime
    heartbeat_at: datetime
    state: str
    """alive | silent | stopped."""
    job_id: int | None
    trouble: str = ""
    """Why its device was not fit to be measured on when it last tried; empty when it was."""


@dataclass(frozen=True, slots=True)
class EnvironmentView:
    id: int
    key: str
    device_key: str
    facts: dict[str, Any]
    peaks: dict[str, float] | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class HealthRow:
    """queued, running: jobs. workers: how many are alive."""

    queued: int
    running: int
    workers: int
    repositories: int
    database_bytes: int


@dataclass(frozen=True, slots=True)
class JobStatusRow:
    """What a page follows while a job runs. run_id is its newest attempt's, None before the first."""

    job_id: int
    state: str
    attempt: int
    message: str
    progress: dict[str, Any] | None
    position: int | None
    run_id: int | None
