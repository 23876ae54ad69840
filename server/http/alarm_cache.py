"""Cache of the alarms about blocked measurements, for the navigation of every page and for metrics."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

from warpwatch.db.reads.query import Session
from warpwatch.server.explanation.alarms import AlarmRow, list_alarms
from warpwatch.server.intake.space import find_shortages
from warpwatch.settings import Settings

KEPT_SECONDS = 30.0
"""How old a list may be: pages come often, and what is wrong stays wrong for longer than that."""


class Alarms:
    """The alarms of the service and of one repository at a time, kept for a while."""

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._kept: dict[int | None, tuple[float, list[AlarmRow]]] = {}

    def recent(self, session: Session, repository_id: int | None = None) -> list[AlarmRow]:
        """Every alarm as it was at most KEPT_SECONDS ago; without a repository, of all of them."""
        at, alarms = self._kept.get(repository_id, (-KEPT_SECONDS, []))
        return alarms if self._clock() - at < KEPT_SECONDS else self.list(session, repository_id)

    def list(self, session: Session, repository_id: int | None) -> list[AlarmRow]:
        """Every alarm as it is now."""
        now = datetime.now(UTC)
        alarms = [
            AlarmRow("no_space", now, short.message, short.remedy) for short in find_shortages(session, self._settings)
        ]
        alarms += list_alarms(session, now, self._settings.lease_seconds, repository_id)
        self._kept[repository_id] = self._clock(), alarms
        return alarms

    def count(self, session: Session, repository_id: int | None) -> int:
        """Their number, at most KEPT_SECONDS old."""
        return len(self.recent(session, repository_id))
