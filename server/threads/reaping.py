"""Gives back the jobs of workers that died."""

from __future__ import annotations

import logging

from warpwatch.db.database import Database
from warpwatch.db.reaper import Reaper
from warpwatch.server.threads.background import Background
from warpwatch.settings import Settings

POLL_SECONDS = 1.0
_log = logging.getLogger(__name__)


class ReaperThread(Background):
    """A thread of its own: a reaper that waits for other work has seen no heartbeat stand still."""

    def __init__(self, settings: Settings, database: Database) -> None:
        # The reaper trusts what it sees only when it looks several times per lease.
        super().__init__("reaper", "lost jobs", min(POLL_SECONDS, settings.lease_seconds / 5))
        self._database = database
        self._reaper = Reaper(settings.lease_seconds)

    def sweep(self) -> None:
        with self._database.session() as session:
            for job_id in self._reaper.sweep(session):
                _log.warning("the worker of job %d was silent; the job was taken from it", job_id)
