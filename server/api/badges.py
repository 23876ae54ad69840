"""Badges for a README."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from warpwatch import git
from warpwatch.db.reads.badges import read_badge_counts
from warpwatch.db.reads.code import RepositoryRow
from warpwatch.server.figures.badges import badge
from warpwatch.server.http.problems import documented, not_found
from warpwatch.server.http.service import Config, Db, operator_or_404, repository_or_404
from warpwatch.settings import Settings

router = APIRouter(tags=["reports"])
KEPT_SECONDS = 120
_SVG: dict[int | str, dict[str, Any]] = {
    200: {"description": "An SVG image.", "content": {"image/svg+xml": {"schema": {"type": "string"}}}},
    304: {"description": "Not modified."},
}
_MAX_LABEL = 60


@router.get("/badges/{repository}.svg", responses=documented(404, 422) | _SVG, response_class=Response)
def get_badge(
    request: Request,
    session: Db,
    settings: Config,
    repository: str,
    branch: Annotated[str | None, Query(max_length=200, description="Default: the watched branch.")] = None,
    operator: Annotated[str | None, Query(max_length=200, description="Default: all.")] = None,
) -> Response:
    """Passing and failing checks at the newest commits of a branch, and open slow-downs, as an SVG image."""
    row = repository_or_404(session, repository)
    name = operator_or_404(session, row, operator).name if operator else None
    counts = read_badge_counts(session, row.id, _branch_commits(settings, row, branch), name)
    picture = badge((name or row.name)[:_MAX_LABEL], counts)
    tag = f'"{hashlib.sha256(picture.encode()).hexdigest()[:20]}"'
    headers = {"Cache-Control": f"max-age={KEPT_SECONDS}", "ETag": tag}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(picture, headers=headers, media_type="image/svg+xml")


def _branch_commits(settings: Settings, repository: RepositoryRow, branch: str | None) -> list[str] | None:
    """Ids of the newest commits of the branch; None for all commits, if the repository was not fetched and no branch is
    given."""
    mirror = git.mirror_path(repository.url, settings.home)
    if not mirror.is_dir():
        if branch:
            raise not_found("branch", branch, "the repository was not fetched yet")
        return None
    try:
        return git.last_commits(mirror, branch or repository.branch or "HEAD", git.MAX_RANGE)
    except git.UnknownRefError as error:
        raise not_found("branch", branch or repository.branch or "HEAD", str(error)) from error
