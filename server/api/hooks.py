"""Webhooks: pushes and change requests that GitHub or GitLab tell of become submissions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response

from warpwatch.db.reads.code import RepositoryRow, find_repository, read_webhook_secret
from warpwatch.db.reads.work import find_submission
from warpwatch.server.history.commits import MERGE_BASE, PARENT
from warpwatch.server.http.problems import Problem, documented
from warpwatch.server.http.service import Config, database_of, require_schema
from warpwatch.server.intake import hooks
from warpwatch.server.intake.hooks import ChangeRequest, HookError, Ignored, Push
from warpwatch.server.intake.submission_request import SubmissionRequest
from warpwatch.server.intake.submissions import submit

router = APIRouter(tags=["hooks"])
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"type": "object"}}},
        "description": "The event.",
    },
}


@dataclass(frozen=True, slots=True)
class HookAnswer:
    """What was made of an event. submission_id is None where nothing is to be measured; reason says why."""

    event: str
    submission_id: int | None
    url: str | None
    reason: str


async def raw_body(request: Request) -> bytes:
    """The body as it was signed."""
    return await request.body()


@router.post("/hooks/{repository}", status_code=201, responses=documented(403, 409, 413, 422, 502), openapi_extra=_BODY)
def receive(
    request: Request, response: Response, repository: str, settings: Config, body: Annotated[bytes, Depends(raw_body)]
) -> HookAnswer:
    """Take an event from GitHub (`X-Hub-Signature-256`) or GitLab (`X-Gitlab-Token`).

    Answers 201 when something was submitted, and 200 when there was nothing to do or it was submitted before.
    """
    require_schema(request)
    database = database_of(request)
    with database.session() as session:
        found, secret = find_repository(session, repository), read_webhook_secret(session, repository)
    # Who does not know the secret learns not even which repositories there are.
    if not hooks.is_genuine(secret, request.headers, body) or found is None:
        raise Problem(
            403, "the signature does not fit: set the same secret here (`warpwatch repository set`) and there"
        )
    try:
        wanted = hooks.understand(request.headers, body)
    except HookError as error:
        raise Problem(400, str(error)) from error
    if isinstance(wanted, Push) and (ignored := _ignored(wanted, found)):
        wanted = ignored
    if isinstance(wanted, Ignored):
        response.status_code = 200
        return HookAnswer(wanted.event, None, None, wanted.reason)
    event = "push" if isinstance(wanted, Push) else "change request"
    for asked in _requests(wanted, found):
        key = f"hook:{found.name}:{event}:{asked.commits}:{asked.base}:{asked.branch}"
        with database.session() as session:
            known = find_submission(session, key) is not None
        try:
            made = submit(database, settings, asked, "webhook", key)
        except Problem as problem:
            if asked.base is None or not problem.errors or any(error.field != "base" for error in problem.errors):
                raise
            continue
        response.status_code = 200 if known else 201
        reason = (
            "submitted before"
            if known
            else f"held against {asked.base}"
            if asked.base
            else "nothing to hold it against"
        )
        return HookAnswer(event, made, f"{str(request.base_url).rstrip('/')}/submissions/{made}", reason)
    raise Problem(422, "the commit cannot be held against anything: it has nothing in common with its target")


def _ignored(push: Push, repository: RepositoryRow) -> Ignored | None:
    """Only the watched branch is measured at every push; other branches are when someone wants to merge them."""
    watched = repository.branch or push.default_branch
    if watched is None or push.branch == watched:
        return None
    return Ignored("push", f"{push.branch} is not {watched}, the branch that is watched")


def _requests(wanted: Push | ChangeRequest, repository: RepositoryRow) -> list[SubmissionRequest]:
    """What to submit: the first one whose base is there.

    What a branch pointed to before may be gone after a forced push.
    """
    if isinstance(wanted, ChangeRequest):
        bases: list[tuple[str | None, str | None]] = [(MERGE_BASE, wanted.target)]
    else:
        bases = (
            [(wanted.before, None), (PARENT, None), (None, None)] if wanted.before else [(PARENT, None), (None, None)]
        )
    return [
        SubmissionRequest(
            repository=repository.name, commits=wanted.head, base=base, branch=branch, skip_unchanged=True
        )
        for base, branch in bases
    ]
