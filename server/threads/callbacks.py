"""Tells other systems how a commit fares, in the background: commit statuses as GitHub and GitLab take them."""

from __future__ import annotations

import json

from warpwatch.db import callbacks
from warpwatch.db.callbacks import DueCallback
from warpwatch.db.database import Database
from warpwatch.db.reads.query import Session
from warpwatch.server.reports.open_reports import OpenReports
from warpwatch.server.reports.status import is_gitlab, status_body
from warpwatch.server.threads.notifier import FIRST_PAUSE_SECONDS, Notifier
from warpwatch.server.threads.posting import PostAttempt
from warpwatch.settings import Settings

POLL_SECONDS = 1.0
PARALLEL = 8
"""Deliveries at once, at most one of each repository."""


class StatusNotifier(Notifier[DueCallback]):
    """A thread that ends what was pending and starts the delivery of what is due, a few repositories at a time."""

    def __init__(self, settings: Settings, database: Database, *, first_pause: float = FIRST_PAUSE_SECONDS) -> None:
        super().__init__(
            "teller",
            "commit statuses",
            "callbacks",
            settings,
            database,
            poll_seconds=POLL_SECONDS,
            parallel=PARALLEL,
            first_pause=first_pause,
        )
        self._reports = OpenReports(settings.server_url)

    def sweep(self) -> None:
        """One round: submissions that came to their end, then what is due."""
        with self._database.session() as session:
            for submission_id, url in callbacks.list_open(session):
                self._conclude(session, submission_id, url)
        self.send_due()

    def claim(self, session: Session) -> DueCallback | None:
        return callbacks.claim_due(session)

    def send(self, due: DueCallback) -> PostAttempt:
        return self._poster.post(due.url, json.dumps(due.body).encode(), _headers(due))

    def describe(self, due: DueCallback) -> str:
        return f"the status {due.id} for {due.url}"

    def _conclude(self, session: Session, submission_id: int, url: str) -> None:
        """Writes how a submission ended, in the transaction that saw it end; before, that it fails, once it does."""
        report = self._reports.read_news(session, submission_id)
        if report is None:
            return
        conclusion = report.conclusion if not report.pending else "failure"
        body = status_body(url, conclusion, report.summary, self._settings.server_url, submission_id)
        callbacks.tell(session, submission_id, url, body, is_final=not report.pending)


def _headers(due: DueCallback) -> dict[str, str]:
    if due.token is None:
        return {}
    if is_gitlab(due.url):
        return {"PRIVATE-TOKEN": due.token}
    return {"Authorization": f"Bearer {due.token}", "Accept": "application/vnd.github+json"}
