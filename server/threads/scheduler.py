"""Takes the turns of schedules in the background, each as soon as it is due."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

from warpwatch.db.database import Database
from warpwatch.db.errors import EngineError
from warpwatch.db.schedules import end_turn, list_due, lock_turn, read_schedule
from warpwatch.server.history.sources import SourceCache
from warpwatch.server.intake.cron import next_after
from warpwatch.server.intake.scheduled_run import run_schedule
from warpwatch.server.threads.background import Background
from warpwatch.settings import Settings

POLL_SECONDS = 2.0
_log = logging.getLogger(__name__)


class Scheduler(Background):
    """A thread beside the judge's: fetching a repository may take minutes, and verdicts must not wait for it."""

    def __init__(self, settings: Settings, database: Database, cache: SourceCache | None = None) -> None:
        super().__init__("scheduler", "schedules", POLL_SECONDS)
        self._settings = settings
        self._database = database
        self._cache = cache or SourceCache()

    def sweep(self, now: datetime | None = None) -> int:
        """Takes every turn that is due, the longest waiting first; how many this server took."""
        now = now or datetime.now(UTC)
        with self._database.session() as session:
            due = list_due(session, now)
        return sum(self._take(schedule_id, now) for schedule_id in due if not self._stop.is_set())

    def _take(self, schedule_id: int, now: datetime) -> bool:
        try:
            return run_schedule(self._database, self._settings, schedule_id, now, cache=self._cache)
        except EngineError:
            raise
        except Exception:  # noqa: BLE001
            # One schedule that cannot be planned must neither keep the others waiting nor be tried again every moment.
            _log.exception("the turn of schedule %d failed", schedule_id)
            return self._give_up(schedule_id, now)

    def _give_up(self, schedule_id: int, now: datetime) -> bool:
        with self._database.session() as session:
            schedule = read_schedule(session, schedule_id, now)
            if schedule is None or not lock_turn(session, schedule_id, schedule.last_at, schedule.next_at):
                return False
            message = "nothing was done: the server met an error that it does not know; its log says more"
            end_turn(session, schedule_id, now, next_after(schedule.cron, now), message)
        return True
