"""Tells other systems how a commit fares, in the background: commit statuses as GitHub and GitLab take them."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import httpx

from warpwatch import __version__
from warpwatch.db import callbacks
from warpwatch.db.callbacks import PENDING, DueCallback
from warpwatch.db.database import Database
from warpwatch.db.reads.code import RepositoryRow
from warpwatch.db.reads.query import Session
from warpwatch.db.reads.reports import count_pending, read_report_facts
from warpwatch.server.reports.build import build_report
from warpwatch.server.threads.background import Background
from warpwatch.settings import Settings

POLL_SECONDS = 1.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 5.0, 3600.0
"""Between two tries; each pause is twice as long as the one before."""
MAX_ATTEMPTS = 14
"""About five hours."""
TIMEOUT = httpx.Timeout(10, connect=5)
CONTEXT = "warpwatch"
_MAX_DESCRIPTION = 140
_GITLAB_STATES = {"failure": "failed", "error": "failed"}
_log = logging.getLogger(__name__)


def tell_pending(session: Session, server_url: str, repository: RepositoryRow, submission_id: int, sha: str) -> None:
    """Says that a commit is being measured, where the repository wants to be told."""
    if repository.status_url is not None:
        url = repository.status_url.replace("{sha}", sha)
        callbacks.tell(
            session, submission_id, url, status_body(url, PENDING, "is being measured", server_url, submission_id)
        )


def status_body(url: str, state: str, description: str, server_url: str, submission_id: int) -> dict[str, Any]:
    """A commit status. state: pending | success | failure | error, or what GitLab calls it."""
    said = description if len(description) <= _MAX_DESCRIPTION else f"{description[: _MAX_DESCRIPTION - 1]}…"
    target = f"{server_url}/submissions/{submission_id}"
    if _is_gitlab(url):
        return {"state": _GITLAB_STATES.get(state, state), "name": CONTEXT, "target_url": target, "description": said}
    return {"state": state, "context": CONTEXT, "target_url": target, "description": said}


class StatusNotifier(Background):
    """A thread that ends what was pending and sends what is due."""

    def __init__(self, settings: Settings, database: Database, *, first_pause: float = FIRST_PAUSE_SECONDS) -> None:
        super().__init__("teller", "commit statuses", POLL_SECONDS)
        self._settings = settings
        self._database = database
        self._first_pause = first_pause
        self._client = httpx.Client(timeout=TIMEOUT, headers={"User-Agent": f"warpwatch/{__version__}"})

    def stop(self) -> None:
        super().stop()
        self._client.close()

    def sweep(self) -> None:
        """One round: submissions that came to their end, then everything that is due."""
        with self._database.session() as session:
            for submission_id, url in callbacks.list_open(session):
                self._conclude(session, submission_id, url)
        while not self._stop.is_set() and self._send_next():
            pass

    def _conclude(self, session: Session, submission_id: int, url: str) -> None:
        """Writes how a submission ended, in the transaction that saw it end."""
        if count_pending(session, submission_id):
            return
        facts = read_report_facts(session, submission_id)
        if facts is not None:
            report = build_report(facts, self._settings.server_url)
            body = status_body(url, report.conclusion, report.summary, self._settings.server_url, submission_id)
            callbacks.tell(session, submission_id, url, body)

    def _send_next(self) -> bool:
        """Send one status in a transaction of its own; False when none is due."""
        with self._database.session() as session:
            due = callbacks.claim_due(session)
            if due is None:
                return False
            trouble, is_final, wanted_pause = self._send(due)
            if trouble is None:
                callbacks.record_sent(session, due.id)
                return True
            is_final = is_final or due.attempts + 1 >= MAX_ATTEMPTS
            pause = min(self._first_pause * 2**due.attempts, LONGEST_PAUSE_SECONDS)
            callbacks.record_failure(session, due.id, trouble, None if is_final else max(pause, wanted_pause))
        _log.warning(
            "the status of submission %d was not taken: %s%s",
            due.submission_id,
            trouble,
            "; given up" if is_final else "",
        )
        return True

    def _send(self, due: DueCallback) -> tuple[str | None, bool, float]:
        """What went wrong, if anything; whether trying again is in vain; and how many seconds the other side wants to
        be left alone."""
        try:
            # Only the head of the answer is read, and no redirect is followed: the token is for this address alone.
            with self._client.stream("POST", due.url, json=due.body, headers=_headers(due)) as answer:
                code, wanted = answer.status_code, answer.headers.get("retry-after", "")
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            return (
                f"{type(error).__name__}: no answer from {urlsplit(due.url).netloc}",
                isinstance(error, httpx.InvalidURL),
                0.0,
            )
        if 200 <= code < 300:
            return None, True, 0.0
        pause = 0.0
        with suppress(ValueError):
            pause = min(max(float(wanted), 0.0), LONGEST_PAUSE_SECONDS)
        return f"it was answered with {code}", 300 <= code < 500 and code not in (408, 429), pause


def _headers(due: DueCallback) -> dict[str, str]:
    if due.token is None:
        return {}
    if _is_gitlab(due.url):
        return {"PRIVATE-TOKEN": due.token}
    return {"Authorization": f"Bearer {due.token}", "Accept": "application/vnd.github+json"}


def _is_gitlab(url: str) -> bool:
    return "/api/v4/projects/" in urlsplit(url).path
