"""Deletes what repositories that were deleted have left, and patches that nobody uses any more, in the background."""

from __future__ import annotations

import shutil

from warpwatch.db import deletion
from warpwatch.db.database import Database
from warpwatch.db.deletion import DeletedRepository
from warpwatch.db.patches import delete_expired
from warpwatch.git import mirror_path
from warpwatch.server.threads.background import Background
from warpwatch.settings import Settings

POLL_SECONDS = 2.0
PAUSE_SECONDS = 0.02
"""Between two batches, so that measurements come first."""


class RepositoryCleaner(Background):
    """A thread that deletes rows and mirrors of deleted repositories. After a restart it goes on where it was."""

    def __init__(self, settings: Settings, database: Database) -> None:
        super().__init__("cleaner", "deletions of repositories", POLL_SECONDS)
        self._settings = settings
        self._database = database

    def sweep(self) -> None:
        """Deletes everything of all marked repositories, unless it is stopped."""
        with self._database.session() as session:
            marked = deletion.list_deleted(session)
        for repository in marked:
            self._clean(repository)
        self._delete_patches()

    def _delete_patches(self) -> None:
        while self._is_going_on():
            with self._database.session() as session:
                if not delete_expired(session, self._settings.patch_days * 86_400):
                    break

    def _clean(self, repository: DeletedRepository) -> None:
        while self._is_going_on():
            with self._database.session() as session:
                if not deletion.cancel_some(session, repository.id):
                    break
        self._remove_mirror(repository.url)
        while self._is_going_on():
            with self._database.session() as session:
                if not deletion.delete_some(session, repository.id):
                    break

    def _is_going_on(self) -> bool:
        return not self._stop.wait(PAUSE_SECONDS)

    def _remove_mirror(self, url: str) -> None:
        with self._database.session() as session:
            is_used = deletion.is_url_used(session, url)
        path = mirror_path(url, self._settings.home)
        if not is_used and path.exists():
            # Under another name first: a fetch that begins meanwhile finds no mirror instead of half of one.
            doomed = path.with_suffix(".deleted")
            shutil.rmtree(doomed, ignore_errors=True)
            path.rename(doomed)
            shutil.rmtree(doomed, ignore_errors=True)
