"""Counts results in the background, so that lists of commits and submissions are quick."""

from __future__ import annotations

from warpwatch.db import tallies
from warpwatch.db.database import Database
from warpwatch.server.threads.background import Background

POLL_SECONDS = 5.0
_PAST_ALL = 2**62


class TallyKeeper(Background):
    """A thread that counts the results of runs and commits that nobody has counted."""

    def __init__(self, database: Database) -> None:
        super().__init__("tallies", "counts of results", POLL_SECONDS)
        self._database = database

    def sweep(self) -> None:
        """Counts what can be counted, the newest first, in small transactions."""
        more = True
        while more and not self._stop.is_set():
            with self._database.session() as session:
                more = tallies.count_runs(session) > 0
        before: int | None = _PAST_ALL
        while before is not None and not self._stop.is_set():
            with self._database.session() as session:
                _, before = tallies.count_commits(session, before)
