"""Commit statuses as GitHub and GitLab take them."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode, urlsplit

from warpwatch.db import callbacks
from warpwatch.db.callbacks import PENDING
from warpwatch.db.reads.code import RepositoryRow
from warpwatch.db.reads.query import Session
from warpwatch.server.history.commits import MERGE_BASE

CONTEXT = "warpwatch"
_MAX_DESCRIPTION = 140
_GITLAB_STATES = {"failure": "failed", "error": "failed"}


def tell_pending(session: Session, server_url: str, repository: RepositoryRow, submission_id: int, sha: str) -> None:
    """Queues the status that a commit is being measured, if the repository has a status URL."""
    if repository.status_url is not None:
        url = repository.status_url.replace("{sha}", sha)
        body = status_body(url, PENDING, "is being measured", server_url, submission_id)
        callbacks.tell(session, submission_id, url, body, is_final=False)


def tell_waiting(session: Session, server_url: str, repository: RepositoryRow, sha: str) -> None:
    """Queues the status that a fork's commit waits for a member; it leads to the form that submits this commit."""
    if repository.status_url is not None:
        url = repository.status_url.replace("{sha}", sha)
        fields = {"repository": repository.name, "commits": sha, "base": MERGE_BASE}
        target = f"{server_url}/runs/new?{urlencode(fields)}"
        body = _body(url, PENDING, "waits for a member to review and submit it", target)
        callbacks.tell_before_submission(session, repository.id, url, body)


def status_body(url: str, state: str, description: str, server_url: str, submission_id: int) -> dict[str, Any]:
    """The commit status of a submission. state: pending | success | failure | error, or what GitLab calls it."""
    return _body(url, state, description, f"{server_url}/runs/{submission_id}")


def _body(url: str, state: str, description: str, target: str) -> dict[str, Any]:
    short = description if len(description) <= _MAX_DESCRIPTION else f"{description[: _MAX_DESCRIPTION - 1]}…"
    if is_gitlab(url):
        return {"state": _GITLAB_STATES.get(state, state), "name": CONTEXT, "target_url": target, "description": short}
    return {"state": state, "context": CONTEXT, "target_url": target, "description": short}


def is_gitlab(url: str) -> bool:
    return "/api/v4/projects/" in urlsplit(url).path
