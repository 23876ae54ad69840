"""Webhooks: turn pushes and change requests of GitHub and GitLab into submissions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response

from warpwatch.db.database import Database
from warpwatch.db.forge import attach_submission, queue_comment, read_link, record_change
from warpwatch.db.reads.code import RepositoryRow, find_repository, read_webhook_secret
from warpwatch.db.reads.work import find_submission
from warpwatch.server.history.commits import MERGE_BASE, PARENT
from warpwatch.server.http.git_threads import in_git_thread
from warpwatch.server.http.problems import Problem, documented
from warpwatch.server.http.service import Config, database_of, require_schema
from warpwatch.server.intake import hooks
from warpwatch.server.intake.commands import queue_command
from warpwatch.server.intake.hooks import ChangeRequest, CommentEvent, ForkRequest, HookError, Ignored, Push
from warpwatch.server.intake.submission_request import SubmissionRequest
from warpwatch.server.intake.submissions import submit
from warpwatch.server.reports.status import tell_waiting

api = APIRouter(tags=["hooks"])
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"type": "object"}}},
        "description": "The event.",
    },
}


@dataclass(frozen=True, slots=True)
class HookAnswer:
    """The result of an event. submission_id is None when the event starts no run; reason says why."""

    event: str
    submission_id: int | None
    url: str | None
    reason: str


async def raw_body(request: Request) -> bytes:
    """The raw body, as it was signed."""
    return await request.body()


@api.post("/hooks/{repository}", status_code=201, responses=documented(403, 409, 413, 422, 502), openapi_extra=_BODY)
@in_git_thread(lambda arguments: arguments["repository"])
def receive(
    request: Request, response: Response, repository: str, settings: Config, body: Annotated[bytes, Depends(raw_body)]
) -> HookAnswer:
    """Take an event from GitHub (`X-Hub-Signature-256`) or GitLab (`X-Gitlab-Token`).

    Returns 201 for a new submission, and 200 when there is nothing to do or the event was submitted before.
    """
    require_schema(request)
    database = database_of(request)
    with database.session() as session:
        row, secret = find_repository(session, repository), read_webhook_secret(session, repository)
    # Without the secret, a caller must not learn which repositories exist.
    if not hooks.is_genuine(secret, request.headers, body) or row is None:
        raise Problem(
            403,
            "the signature does not match: set the same secret on the code host and here (`warpwatch repository set`)",
        )
    try:
        message = hooks.understand(request.headers, body)
    except HookError as error:
        raise Problem(400, str(error)) from error
    if isinstance(message, Push) and (ignored := _ignored(message, row)):
        message = ignored
    if isinstance(message, CommentEvent):
        message = _take_command(database, row, message)
    if isinstance(message, ForkRequest):
        with database.session() as session:
            tell_waiting(session, settings.server_url, row, message.head)
        _attach(database, row, message, None)
        message = Ignored(message.event, "code from a fork waits for a member, who reviews it and lets it be measured")
    if isinstance(message, Ignored):
        response.status_code = 200
        return HookAnswer(message.event, None, None, message.reason)
    event = "push" if isinstance(message, Push) else "change request"
    for submission in _requests(message, row):
        key = f"hook:{row.name}:{event}:{submission.commits}:{submission.base}:{submission.branch}"
        with database.session() as session:
            is_repeated = find_submission(session, key) is not None
        try:
            new_id = submit(database, settings, submission, "webhook", key)
        except Problem as problem:
            if submission.base is None or not problem.errors or any(error.field != "base" for error in problem.errors):
                raise
            continue
        if isinstance(message, ChangeRequest):
            _attach(database, row, message, new_id)
        response.status_code = 200 if is_repeated else 201
        reason = (
            "submitted before"
            if is_repeated
            else f"compared with {submission.base}"
            if submission.base
            else "no baseline"
        )
        return HookAnswer(event, new_id, f"{settings.server_url}/runs/{new_id}", reason)
    raise Problem(422, "the commit has no baseline: it shares no history with its target branch")


def _take_command(database: Database, repository: RepositoryRow, event: CommentEvent) -> Ignored:
    """Queues a command; who gave it is asked from the forge, and the answer comes there."""
    with database.session() as session:
        if read_link(session, repository.id) is None:
            return Ignored(event.event, "commands need a forge: see `warpwatch forge set`")
    is_new = queue_command(database, repository.id, event)
    return Ignored(event.event, "the command is answered at its comment" if is_new else "this command was told before")


def _attach(
    database: Database, repository: RepositoryRow, event: ChangeRequest | ForkRequest, submission_id: int | None
) -> None:
    """Makes the comment of a pull request speak of its newest commit."""
    if event.number is None:
        return
    is_fork = isinstance(event, ForkRequest)
    with database.session() as session:
        if read_link(session, repository.id) is None:
            return
        change = record_change(session, repository.id, event.number, event.head, event.at, is_fork=is_fork)
        if submission_id is None or attach_submission(session, submission_id, change):
            queue_comment(session, repository.id, change)


def _ignored(push: Push, repository: RepositoryRow) -> Ignored | None:
    """Ignores pushes to other branches than the watched one; those are measured by change requests."""
    watched = repository.branch or push.default_branch
    if watched is None or push.branch == watched:
        return None
    return Ignored("push", f"{push.branch} is not the watched branch {watched}")


def _requests(event: Push | ChangeRequest, repository: RepositoryRow) -> list[SubmissionRequest]:
    """Candidate submissions; the first with an existing base is used: a force push may remove the previous head."""
    if isinstance(event, ChangeRequest):
        bases: list[tuple[str | None, str | None]] = [(MERGE_BASE, event.target)]
    else:
        bases = [(event.before, None), (PARENT, None), (None, None)] if event.before else [(PARENT, None), (None, None)]
    return [
        SubmissionRequest(repository=repository.name, commits=event.head, base=base, branch=branch)
        for base, branch in bases
    ]
