"""Deletes in the background what repositories that were deleted have left, patches that nobody uses any more, and what
is older than its repository keeps it."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path

from warpwatch.contract.words import RetentionKind
from warpwatch.db import deletion, keeping
from warpwatch.db.database import Database
from warpwatch.db.deletion import DeletedRepository
from warpwatch.db.patches import delete_expired
from warpwatch.db.reads.keeping import RetentionRule, list_due_rules, read_url
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
        self._follow_orders()
        self._delete_patches()
        self._keep_rules()

    def _follow_orders(self) -> None:
        """Deletes submissions and branches that somebody deleted."""
        with self._database.session() as session:
            orders = deletion.list_orders(session)
        for order in orders:
            while self._is_going_on():
                with self._database.session() as session:
                    if not deletion.follow_order(session, order):
                        break

    def _keep_rules(self) -> None:
        """Applies the rules of retention that are due; of several servers one applies each."""
        with self._database.session() as session:
            due = list_due_rules(session)
        for rule in due:
            with self._database.session() as session:
                is_ours = keeping.claim_rule(session, rule)
                url = read_url(session, rule.repository_id)
            if is_ours and rule.kind == RetentionKind.MIRROR:
                self._remove_unused_mirror(rule, url)
            elif is_ours:
                self._apply(rule)

    def _apply(self, rule: RetentionRule) -> None:
        seen: int | None = rule.seen_id
        while seen is not None and self._is_going_on():
            with self._database.session() as session:
                seen = keeping.delete_aged(session, replace(rule, seen_id=seen))

    def _remove_unused_mirror(self, rule: RetentionRule, url: str | None) -> None:
        """Removes the mirror of this server where nothing fetched it for as long; it is cloned again when needed."""
        path = mirror_path(url, self._settings.home) if url is not None else None
        if path is None or not path.exists():
            return
        used_at = max(file.stat().st_mtime for file in (path, path / "FETCH_HEAD") if file.exists())
        if time.time() - used_at < rule.days * 86_400:
            return
        freed = sum(file.lstat().st_size for file in path.rglob("*"))
        self._set_aside(path)
        with self._database.session() as session:
            keeping.note_deleted(session, rule, rule.seen_id, 1, freed)

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
            self._set_aside(path)

    @staticmethod
    def _set_aside(path: Path) -> None:
        """Removes a mirror, under another name first: a fetch that begins meanwhile finds none instead of a half."""
        doomed = path.with_suffix(".deleted")
        shutil.rmtree(doomed, ignore_errors=True)
        path.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)
