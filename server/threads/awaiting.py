"""Imports files of results that came before their commit, once the mirror has it."""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime, timedelta
from itertools import groupby

from warpwatch import git
from warpwatch.contract.words import AwaitedState
from warpwatch.db.awaited_files import AwaitedFile, end_waiting, list_waiting
from warpwatch.db.database import Database
from warpwatch.server.intake.foreign_results import import_awaited
from warpwatch.server.threads.background import Background
from warpwatch.settings import Settings

LOOK_SECONDS = 10.0
MOST_PAUSE = 3600.0
"""Seconds between two fetches of one repository, at most; at first, and for a file that waits for long."""
KEPT = timedelta(days=30)
_log = logging.getLogger(__name__)


class AwaitedFileThread(Background):
    """A thread that fetches the repositories of waiting files, ever more rarely while their commits do not come."""

    def __init__(self, settings: Settings, database: Database) -> None:
        super().__init__("awaited imports", "files of results", LOOK_SECONDS)
        self._settings = settings
        self._database = database
        self._fetch_at: dict[int, float] = {}

    def sweep(self) -> None:
        with self._database.session() as session:
            waiting = list_waiting(session)
        for repository_id, rows in groupby(waiting, key=lambda row: row.repository_id):
            if self._stop.is_set():
                return
            files = list(rows)
            newest = datetime.now(UTC) - max(file.created_at for file in files)
            if time.monotonic() >= self._fetch_at.get(repository_id, 0.0) or newest.total_seconds() < LOOK_SECONDS:
                self._import(files)
                pause = min(MOST_PAUSE, max(LOOK_SECONDS, newest.total_seconds() / 10))
                self._fetch_at[repository_id] = time.monotonic() + pause

    def _import(self, files: list[AwaitedFile]) -> None:
        """Imports those files of one repository whose commits are there."""
        settings = self._settings
        try:
            mirror = git.update_mirror(
                files[0].repository_url, settings.home, settings.destinations, git.REQUEST_SECONDS
            )
        except git.GitError as error:
            _log.warning("files of results wait for commits of %s: %s", files[0].repository, error)
            return
        for file in files:
            try:
                git.resolve(mirror, file.commit_sha)
            except git.UnknownRefError:
                if datetime.now(UTC) - file.created_at > KEPT:
                    late = f"the repository did not get the commit within {KEPT.days} days"
                    with self._database.session() as session:
                        end_waiting(session, file.id, AwaitedState.REFUSED, late)
                continue
            import_awaited(self._database, settings, file)
