"""Tells other systems how a commit fares, in the background: commit statuses as GitHub and GitLab take them."""

from __future__ import annotations

import json
import logging
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from warpwatch.db import callbacks
from warpwatch.db.callbacks import DueCallback
from warpwatch.db.database import Database
from warpwatch.db.errors import EngineError
from warpwatch.db.reads.query import Session
from warpwatch.db.reads.reports import count_pending, read_report_facts
from warpwatch.server.reports.build import build_report
from warpwatch.server.reports.model import FAILED
from warpwatch.server.reports.status import is_gitlab, status_body
from warpwatch.server.threads.background import Background
from warpwatch.server.threads.posting import LONGEST_PAUSE_SECONDS, PostAttempt, Poster
from warpwatch.settings import Settings

POLL_SECONDS = 1.0
FIRST_PAUSE_SECONDS = 5.0
"""Between two tries; each pause is twice as long as the one before, up to LONGEST_PAUSE_SECONDS."""
MAX_ATTEMPTS = 14
"""About five hours."""
PARALLEL = 8
"""Deliveries at once, at most one of each repository."""
_log = logging.getLogger(__name__)


class StatusNotifier(Background):
    """A thread that ends what was pending and starts the delivery of what is due, a few repositories at a time."""

    def __init__(self, settings: Settings, database: Database, *, first_pause: float = FIRST_PAUSE_SECONDS) -> None:
        super().__init__("teller", "commit statuses", POLL_SECONDS)
        self._settings = settings
        self._database = database
        self._first_pause = first_pause
        self._pool = ThreadPoolExecutor(PARALLEL, thread_name_prefix="status")
        self._deliveries: set[Future[None]] = set()
        self._pending: dict[int, int] = {}
        """What was still to come of each open submission at the last round."""
        self._poster = Poster(settings, self._stop)

    def stop(self) -> None:
        super().stop()
        self._pool.shutdown()

    def sweep(self) -> None:
        """One round: submissions that came to their end, then what is due, for as long as the pause between rounds.

        A delivery may outlast the round: the next one goes on without it.
        """
        with self._database.session() as session:
            for submission_id, url in callbacks.list_open(session):
                self._conclude(session, submission_id, url)
        ends_at = time.monotonic() + POLL_SECONDS
        while not self._stop.is_set() and time.monotonic() < ends_at:
            while len(self._deliveries) < PARALLEL and (due := self._claim()) is not None:
                self._deliveries.add(self._pool.submit(self._deliver, due))
            if not self._deliveries:
                return
            wait(self._deliveries, max(0.0, ends_at - time.monotonic()), FIRST_COMPLETED)
            self._deliveries = {delivery for delivery in self._deliveries if not delivery.done()}

    def _claim(self) -> DueCallback | None:
        with self._database.session() as session:
            return callbacks.claim_due(session)

    def _conclude(self, session: Session, submission_id: int, url: str) -> None:
        """Writes how a submission ended, in the transaction that saw it end; before, that it fails, once it does."""
        pending = count_pending(session, submission_id)
        if pending and self._pending.get(submission_id) == pending:
            # No job has ended since the last round, and a report is read from many rows.
            return
        self._pending[submission_id] = pending
        facts = read_report_facts(session, submission_id)
        if facts is None:
            return
        report = build_report(facts, self._settings.server_url)
        if not report.pending:
            del self._pending[submission_id]
        elif report.exit_code != FAILED:
            return
        conclusion = report.conclusion if not report.pending else "failure"
        body = status_body(url, conclusion, report.summary, self._settings.server_url, submission_id)
        callbacks.tell(session, submission_id, url, body, is_final=not report.pending)

    def _deliver(self, due: DueCallback) -> None:
        """Sends one status, with no transaction open, and stores how it went."""
        try:
            attempt = self._poster.post(due.url, json.dumps(due.body).encode(), _headers(due))
            if not self._stop.is_set():
                self._record(due, attempt)
        except EngineError as error:
            _log.warning("the result of a status is not stored, so it is sent again: %s", error)
        except Exception:  # noqa: BLE001 - the pool would swallow what nobody thought of.
            _log.exception("the status %d for %s is tried again after an unknown error", due.id, due.url)

    def _record(self, due: DueCallback, attempt: PostAttempt) -> None:
        with self._database.session() as session:
            if attempt.trouble is None:
                callbacks.record_sent(session, due.id)
                return
            is_final = attempt.is_final or due.attempts + 1 >= MAX_ATTEMPTS
            pause = min(self._first_pause * 2**due.attempts, LONGEST_PAUSE_SECONDS)
            callbacks.record_failure(
                session, due.id, attempt.trouble, None if is_final else max(pause, attempt.pause_seconds)
            )
        suffix = "; given up" if is_final else ""
        _log.warning("the status %d for %s was not taken: %s%s", due.id, due.url, attempt.trouble, suffix)


def _headers(due: DueCallback) -> dict[str, str]:
    if due.token is None:
        return {}
    if is_gitlab(due.url):
        return {"PRIVATE-TOKEN": due.token}
    return {"Authorization": f"Bearer {due.token}", "Accept": "application/vnd.github+json"}
