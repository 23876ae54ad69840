"""Settings of a repository: watched branch, webhooks, commit statuses."""

from __future__ import annotations

from fastapi import APIRouter

from warpwatch.db.deletion import mark_deleted
from warpwatch.db.reads.code import RepositoryRow
from warpwatch.db.registry import set_repository
from warpwatch.server.http.problems import documented
from warpwatch.server.http.service import Config, Db, repository_or_404
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
def change_repository(session: Db, settings: Config, name: str, body: RepositorySettings) -> RepositoryRow:
    """Set the watched branch, the webhook secret, and the URL and token for commit statuses."""
    check_status_url(settings, body.status_url)
    row = repository_or_404(session, name)
    set_repository(session, row.id, body.model_dump(exclude_unset=True))
    return repository_or_404(session, name)
