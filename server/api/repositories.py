"""Settings of a repository: watched branch, webhooks, commit statuses."""

from __future__ import annotations

from fastapi import APIRouter, Request

from warpwatch.db.deletion import mark_deleted
from warpwatch.db.reads.code import RepositoryRow
from warpwatch.db.registry import set_repository
from warpwatch.server.history.branches import follow_branches, has_branch
from warpwatch.server.http.problems import FieldError, Problem, documented
from warpwatch.server.http.service import Config, Db, database_of, repository_or_404, require_schema
from warpwatch.server.intake.repositories import RepositorySettings, check_status_url

router = APIRouter(tags=["code"])


@router.get("/repositories/{name}", responses=documented(404, 422))
def get_repository(session: Db, name: str) -> RepositoryRow:
    """One repository, and which of its secrets are set."""
    return repository_or_404(session, name)


@router.delete("/repositories/{name}", status_code=204, responses=documented(404, 422))
def delete_repository(session: Db, name: str) -> None:
    """Delete a repository with all commits, results and traces.

    It disappears at once, and its name is free. Its rows and the server's mirror are deleted in the background.
    """
    mark_deleted(session, repository_or_404(session, name).id)


@router.patch("/repositories/{name}", responses=documented(404, 422))
def change_repository(request: Request, settings: Config, name: str, body: RepositorySettings) -> RepositoryRow:
    """Set the watched branch, the webhook secret, and the URL and token for commit statuses."""
    require_schema(request)
    check_status_url(settings, body.status_url)
    database = database_of(request)
    with database.session() as session:
        row = repository_or_404(session, name)
    if body.branch is not None and not has_branch(settings, row.url, body.branch):
        remedy = "push it and submit one of its commits first, or check the spelling"
        error = FieldError(field="branch", message=f"{name} has no branch {body.branch!r}", remedy=remedy)
        raise Problem(422, "not changed: some fields are not valid", [error])
    with database.session() as session:
        set_repository(session, row.id, body.model_dump(exclude_unset=True))
    follow_branches(database, settings, row.id)
    with database.session() as session:
        return repository_or_404(session, name)
