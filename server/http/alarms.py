"""How many alarms there are, for the navigation of every page."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

from warpwatch.db.reads.query import Session
from warpwatch.server.explanation.alarms import AlarmRow, list_alarms

KEPT_SECONDS = 30.0
"""How old a count may be: pages come often, and what is wrong stays wrong for longer than that."""


class Alarms:
    """The alarms of the service and of one repository at a time; their number is kept for a while."""

    def __init__(self, lease_seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._lease = lease_seconds
        self._clock = clock
        self._counts: dict[int | None, tuple[float, int]] = {}

    def list(self, session: Session, repository_id: int | None) -> list[AlarmRow]:
        """Every alarm as it is now."""
        alarms = list_alarms(session, datetime.now(UTC), self._lease, repository_id)
        self._counts[repository_id] = self._clock(), len(alarms)
        return alarms

    def count(self, session: Session, repository_id: int | None) -> int:
        """Their number, at most KEPT_SECONDS old."""
        at, count = self._counts.get(repository_id, (-KEPT_SECONDS, 0))
        if self._clock() - at < KEPT_SECONDS:
            return count
        return len(self.list(session, repository_id))
