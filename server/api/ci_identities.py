"""CI jobs that submit with the ID token of their code host."""

from __future__ import annotations

from fastapi import APIRouter

from warpwatch.db.ci_identities import remove_ci_identity
from warpwatch.db.reads.ci_identities import CiIdentityRow, list_ci_identities
from warpwatch.db.reads.query import Page
from warpwatch.server.http.problems import documented
from warpwatch.server.http.service import Before, Config, Db, Limit, repository_or_404
from warpwatch.server.intake.ci_identities import CiIdentityRequest, trust_ci

router = APIRouter(tags=["access"])


@router.get("/repositories/{name}/ci", responses=documented(404, 422))
def get_ci_identities(session: Db, name: str, before: Before = None, limit: Limit = 50) -> Page[CiIdentityRow]:
    """CI jobs that may submit for a repository without a stored secret, newest first."""
    return list_ci_identities(session, repository_or_404(session, name).id, before, limit)


@router.post("/repositories/{name}/ci", status_code=201, responses=documented(404, 422))
def post_ci_identity(session: Db, settings: Config, name: str, body: CiIdentityRequest) -> CiIdentityRow:
    """Let CI jobs submit for a repository, and read their submissions, by the ID token of their code host. Adding the
    same again changes nothing."""
    repository_id = repository_or_404(session, name).id
    new_id = trust_ci(session, settings, repository_id, body)
    return next(row for row in list_ci_identities(session, repository_id, new_id + 1, 1).items if row.id == new_id)


@router.delete("/repositories/{name}/ci/{identity_id}", status_code=204, responses=documented(404, 422))
def delete_ci_identity(session: Db, name: str, identity_id: int) -> None:
    """Trust these CI jobs no longer, from the next request on."""
    remove_ci_identity(session, repository_or_404(session, name).id, identity_id)
