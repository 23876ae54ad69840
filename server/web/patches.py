"""Patches: uncommitted changes that are measured and enter no history."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request

from warpwatch.db.patches import PatchJobOutcome, read_outcome
from warpwatch.patches import MAX_BYTES
from warpwatch.server.http.brief import briefly, documented_brief
from warpwatch.server.http.git_threads import in_git_thread
from warpwatch.server.http.problems import documented, not_found
from warpwatch.server.http.service import Config, Db, database_of, require_schema
from warpwatch.server.intake.patch_requests import StoredPatch, take_patch
from warpwatch.server.intake.submissions import repository_of
from warpwatch.server.web.brief import brief_patch

api = APIRouter(tags=["submissions"])
_BODY: dict[str, Any] = {
    "requestBody": {
        "description": f"The output of `git diff --binary BASE`, up to {MAX_BYTES:,} bytes.",
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


async def _body(request: Request) -> bytes:
    return await request.body()


@api.post("/patches", status_code=201, responses=documented(413, 422, 502) | documented_brief(201), openapi_extra=_BODY)
@briefly(brief_patch)
@in_git_thread(lambda arguments: arguments["repository"])
def create_patch(
    request: Request,
    settings: Config,
    data: Annotated[bytes, Depends(_body)],
    repository: Annotated[str, Query(max_length=200, description="Name of a repository.")],
    base: Annotated[str, Query(min_length=1, max_length=200, description="The commit that the changes are based on.")],
) -> StoredPatch:
    """Store uncommitted changes, to be submitted by the commit id that is returned, with kinds check and compare.

    The same changes are stored once. They are deleted with what they measured, WARPWATCH_PATCH_DAYS after their last
    use, and enter no history, overview, badge, alarm or suspicion.
    """
    require_schema(request)
    database = database_of(request)
    with database.session() as session:
        row = repository_of(session, repository)
    return take_patch(database, settings, row, base, data)


@api.get("/jobs/{job_id}/outcome", responses=documented(404, 422))
def get_outcome(session: Db, job_id: int) -> PatchJobOutcome:
    """Return the outcome of a patch job; null until the job ends. Other jobs have their results at /jobs/{job_id}."""
    outcome = read_outcome(session, job_id)
    if outcome is None:
        raise not_found("job", job_id, f"job {job_id} is unknown, or measures no patch")
    return outcome
