"""Work that nobody has to ask for, and what should worry people."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """kind: suite | rerun | backfill.

    cron: when, in UTC. request: operators, suite, device and what else a submission says.
    """

    id: int
    repository: str
    name: str
    kind: str
    cron: str
    request: dict[str, Any]
    budget_minutes: int
    spent_minutes: float
    """Device minutes that its jobs took in the last 24 hours."""
    is_enabled: bool
    last_at: datetime | None
    next_at: datetime | None
    message: str
    """What its last turn did, or why it did nothing."""
    submission_id: int | None
    """The newest submission it made."""
    created_at: datetime


@dataclass(frozen=True, slots=True)
class AlarmRow:
    """Something that keeps numbers from coming and that nobody asked to be so.

    kind: stale_device | stale_worker | unfit | missing | vanished.

    What it is not about is empty: a device has no operator. since: when it began, as far as is known.
    """

    kind: str
    repository: str
    operator: str
    variant: str
    cases: list[str]
    device_key: str
    commit_sha: str
    job_id: int | None
    since: datetime
    message: str
    remedy: str


def alarm(kind: str, since: datetime, message: str, remedy: str, **about: Any) -> AlarmRow:
    """An alarm; what it is not about is left out."""
    nothing: dict[str, Any] = {
        "repository": "",
        "operator": "",
        "variant": "",
        "cases": [],
        "device_key": "",
        "commit_sha": "",
        "job_id": None,
    }
    return AlarmRow(kind=kind, since=since, message=message, remedy=remedy, **(nothing | about))
