"""The link of a repository to its code host, and what was sent there."""

from __future__ import annotations

from fastapi import APIRouter

from warpwatch.db.forge import remove_link, try_again
from warpwatch.db.reads.forge import ForgeLinkRow, ForgeMessageRow, list_check_runs, list_messages, read_link
from warpwatch.db.reads.query import Page
from warpwatch.db.reads.work import read_submission
from warpwatch.server.http.problems import documented, not_found
from warpwatch.server.http.service import Before, Config, Db, Limit, repository_or_404
from warpwatch.server.intake.forge import ForgeSettings, link_repository

router = APIRouter(tags=["forge"])


@router.get("/repositories/{name}/forge", responses=documented(404, 422))
def get_forge(session: Db, name: str) -> ForgeLinkRow:
    """The link of a repository to its project on GitHub or GitLab, and whether it works. Secrets are never returned."""
    row = read_link(session, repository_or_404(session, name).id)
    if row is None:
        raise not_found("link of", name, "link it with `warpwatch forge set`")
    return row


@router.put("/repositories/{name}/forge", responses=documented(404, 422))
def set_forge(session: Db, settings: Config, name: str, body: ForgeSettings) -> ForgeLinkRow:
    """Link a repository. Its pull requests then get a check run and one comment each; the link is tried out at once."""
    link_repository(session, settings, repository_or_404(session, name), body)
    return get_forge(session, name)


@router.delete("/repositories/{name}/forge", status_code=204, responses=documented(404, 422))
def delete_forge(session: Db, name: str) -> None:
    """Send nothing there any more. What was sent stays there."""
    remove_link(session, repository_or_404(session, name).id)


@router.post("/repositories/{name}/forge/check", status_code=202, responses=documented(404, 422))
def check_forge(session: Db, name: str) -> ForgeLinkRow:
    """Try the link out within seconds, and send again what was given up within a day."""
    get_forge(session, name)
    try_again(session, repository_or_404(session, name).id)
    return get_forge(session, name)


@router.get("/repositories/{name}/forge/messages", responses=documented(404, 422))
def get_forge_messages(session: Db, name: str, before: Before = None, limit: Limit = 50) -> Page[ForgeMessageRow]:
    """What the forge was sent or asked, newest first, with what went wrong."""
    return list_messages(session, repository_or_404(session, name).id, before, limit)


@router.get("/submissions/{submission_id}/check-runs", responses=documented(404, 422))
def get_check_runs(session: Db, submission_id: int) -> Page[ForgeMessageRow]:
    """What the forge was told of this submission, oldest first."""
    if read_submission(session, submission_id) is None:
        raise not_found("submission", submission_id)
    return Page(list_check_runs(session, submission_id), None)
