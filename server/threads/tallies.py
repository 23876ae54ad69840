"""Counts and compares results in the background, so that the overview and lists are quick."""

from __future__ import annotations

from warpwatch.db import tallies, trends
from warpwatch.db.database import Database
from warpwatch.db.reads.lines import ALL_COMMITS, read_line
from warpwatch.db.reads.trends import list_kept, list_trend_commits
from warpwatch.db.trends import TrendScope
from warpwatch.server.threads.background import Background

POLL_SECONDS = 5.0
_PAST_ALL = 2**62


class TallyKeeper(Background):
    """A thread that counts the results of runs and commits that nobody has counted, and keeps trends of operators."""

    def __init__(self, database: Database) -> None:
        super().__init__("tallies", "counts of results", POLL_SECONDS)
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
                _, before = tallies.count_commits(session, before)
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
