"""Work that nobody has to ask for."""

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
