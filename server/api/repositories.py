"""Settings of a repository: watched branch, webhooks, commit statuses."""

from __future__ import annotations

from fastapi import APIRouter

from warpwatch.db.reads.code import RepositoryRow
from warpwatch.db.registry import set_repository
from warpwatch.server.http.problems import documented
from warpwatch.server.http.service import Db, repository_or_404
from warpwatch.server.intake.repositories import RepositorySettings

router = APIRouter(tags=["code"])


@router.get("/repositories/{name}", responses=documented(404, 422))
def get_repository(session: Db, name: str) -> RepositoryRow:
    """One repository, and which of its secrets are set."""
    return repository_or_404(session, name)


@router.patch("/repositories/{name}", responses=documented(404, 422))
def change_repository(session: Db, name: str, body: RepositorySettings) -> RepositoryRow:
    """Set the watched branch, the webhook secret, and the URL and token for commit statuses."""
    row = repository_or_404(session, name)
    set_repository(session, row.id, body.model_dump(exclude_unset=True))
    return repository_or_404(session, name)
