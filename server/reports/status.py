"""Commit statuses as GitHub and GitLab take them."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from warpwatch.db import callbacks
from warpwatch.db.callbacks import PENDING
from warpwatch.db.reads.code import RepositoryRow
from warpwatch.db.reads.query import Session

CONTEXT = "warpwatch"
_MAX_DESCRIPTION = 140
_GITLAB_STATES = {"failure": "failed", "error": "failed"}


def tell_pending(session: Session, server_url: str, repository: RepositoryRow, submission_id: int, sha: str) -> None:
    """Queues the status that a commit is being measured, if the repository has a status URL."""
    if repository.status_url is not None:
        url = repository.status_url.replace("{sha}", sha)
        body = status_body(url, PENDING, "is being measured", server_url, submission_id)
        callbacks.tell(session, submission_id, url, body, is_final=False)


def status_body(url: str, state: str, description: str, server_url: str, submission_id: int) -> dict[str, Any]:
    """A commit status. state: pending | success | failure | error, or what GitLab calls it."""
    short = description if len(description) <= _MAX_DESCRIPTION else f"{description[: _MAX_DESCRIPTION - 1]}…"
    target = f"{server_url}/submissions/{submission_id}"
    if is_gitlab(url):
        return {"state": _GITLAB_STATES.get(state, state), "name": CONTEXT, "target_url": target, "description": short}
    return {"state": state, "context": CONTEXT, "target_url": target, "description": short}


def is_gitlab(url: str) -> bool:
    return "/api/v4/projects/" in urlsplit(url).path
