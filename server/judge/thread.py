"""The background thread that judges ended jobs, one after another."""

from __future__ import annotations

import logging

from warpwatch import telemetry
from warpwatch.db.database import Database
from warpwatch.db.errors import EngineError
from warpwatch.db.reads.judging import read_origin
from warpwatch.db.reads.lines import read_followed
from warpwatch.db.regressions import mark_judged, unjudged_jobs
from warpwatch.logs import JOB_ID
from warpwatch.server.history.branches import follow_branches
from warpwatch.server.history.mirror import Mirrors
from warpwatch.server.history.sources import SourceCache
from warpwatch.server.judge import interpreter
from warpwatch.server.judge.closing import adopt_merged, close_changes
from warpwatch.server.threads.background import Background
from warpwatch.settings import Settings

POLL_SECONDS = 1.0
_log = logging.getLogger(__name__)


class Judge(Background):
    """A thread that judges ended jobs."""

    def __init__(self, settings: Settings, database: Database, cache: SourceCache | None = None) -> None:
        super().__init__("judge", "verdicts", POLL_SECONDS)
        self._settings = settings
        self._database = database
        self._cache = cache or SourceCache()

    def sweep(self) -> None:
        """One round: merged changes are looked for, and every ended job is judged."""
        mirrors = Mirrors(self._settings, self._cache)
        adopt_merged(self._database, mirrors)
        while not self._stop.is_set() and self._judge_next(mirrors):
            pass

    def _judge_next(self, mirrors: Mirrors) -> bool:
        """Judge one ended job; False when there is none."""
        with self._database.session() as session:
            jobs = unjudged_jobs(session, limit=1)
        for job in jobs:
            JOB_ID.set(job.id)
            try:
                with self._database.session() as session:
                    repository_id = read_origin(session, job.id).repository_id
                # Verdicts are about branches, and a trial may store commits that no branch had before.
                follow_branches(self._database, self._settings, repository_id)
                stored = self._stored_commits(repository_id)
                with telemetry.span("judge", job.trace_parent, job_id=job.id):
                    interpreter.judge_job(self._database, mirrors, job, self._settings.trial_share)
                if self._stored_commits(repository_id) != stored:
                    follow_branches(self._database, self._settings, repository_id)
                close_changes(self._database, mirrors, job.operator_id, job.device_id)
            except EngineError:
                raise
            except Exception:  # noqa: BLE001
                # One result that cannot be judged must not keep all others waiting.
                _log.exception("job %d cannot be judged", job.id)
                with self._database.session() as session:
                    mark_judged(session, job.id)
            finally:
                JOB_ID.set(None)
        return bool(jobs)

    def _stored_commits(self, repository_id: int) -> list[int]:
        """How many commits of a repository are stored, and the newest's id."""
        with self._database.session() as session:
            followed = read_followed(session, repository_id)
        return followed.commits if followed is not None else []
