"""Threads that keep the database in order: lost jobs, tallies, and what is to be deleted."""

from __future__ import annotations

import logging
import shutil
import time
from dataclasses import replace
from pathlib import Path

from warpwatch.contract.words import RetentionKind
from warpwatch.db import deletion, keeping, tallies, trends
from warpwatch.db.database import Database
from warpwatch.db.deletion import DeletedRepository
from warpwatch.db.keeping import RetentionRule, list_due_rules, read_url
from warpwatch.db.leases import Reaper
from warpwatch.db.patches import delete_expired
from warpwatch.db.reads.lines import ALL_COMMITS, read_line
from warpwatch.db.trends import TrendScope, list_kept, list_trend_commits
from warpwatch.git import mirror_path
from warpwatch.server.threads.background import Background
from warpwatch.settings import Settings

REAPING_SECONDS = 1.0
_log = logging.getLogger(__name__)


class ReaperThread(Background):
    """A thread of its own: a reaper that waits for other work has seen no heartbeat stand still."""

    def __init__(self, settings: Settings, database: Database) -> None:
        # The reaper trusts what it sees only when it looks several times per lease.
        super().__init__("reaper", "lost jobs", min(REAPING_SECONDS, settings.lease_seconds / 5))
        self._database = database
        self._reaper = Reaper(settings.lease_seconds)

    def sweep(self) -> None:
        with self._database.session() as session:
            for job_id in self._reaper.sweep(session):
                _log.warning("the worker of job %d was silent; the job was taken from it", job_id)


TALLY_SECONDS = 5.0
_PAST_ALL = 2**62


class TallyKeeper(Background):
    """A thread that counts the results of runs and commits that nobody has counted, and keeps trends of operators."""

    def __init__(self, database: Database) -> None:
        super().__init__("tallies", "counts of results", TALLY_SECONDS)
        self._database = database
        self._newest_run: int | None = None

    def sweep(self) -> None:
        """Counts what can be counted, the newest first, in small transactions."""
        more = True
        while more and not self._stop.is_set():
            with self._database.session() as session:
                more = tallies.count_runs(session) > 0
        before: int | None = _PAST_ALL
        while before is not None and not self._stop.is_set():
            with self._database.session() as session:
                before = tallies.count_commits(session, before)
        self._keep_trends()

    def _keep_trends(self) -> None:
        """Compares every operator whose trend nobody keeps, when a run has ended since the last time."""
        with self._database.session() as session:
            newest_run = trends.find_newest_run(session)
            if newest_run == self._newest_run:
                return
            scopes = trends.list_trend_scopes(session)
        are_kept = [self._keep_scope(scope) for scope in scopes if not self._stop.is_set()]
        if all(are_kept):
            self._newest_run = newest_run

    def _keep_scope(self, scope: TrendScope) -> bool:
        """Whether the trends of all operators of the scope are kept now."""
        with self._database.session() as session:
            line = read_line(session, scope.repository_id) or ALL_COMMITS
            of_device = (scope.device_id, scope.metric)
            commits = [row.id for row in list_trend_commits(session, scope.repository_id, *of_device, line)]
            kept = list_kept(session, scope.repository_id, *of_device, commits)
        are_kept = True
        for operator in kept:
            if operator.cells is None:
                # A transaction each, because it keeps results of the operator waiting.
                with self._database.session() as session:
                    are_kept &= trends.keep_trend(session, operator.id, *of_device, commits)
        return are_kept


CLEANING_SECONDS = 2.0
PAUSE_SECONDS = 0.02
"""Between two batches, so that measurements come first."""


class RepositoryCleaner(Background):
    """A thread that deletes rows and mirrors of deleted repositories. After a restart it goes on where it was."""

    def __init__(self, settings: Settings, database: Database) -> None:
        super().__init__("cleaner", "deletions of repositories", CLEANING_SECONDS)
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
