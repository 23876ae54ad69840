"""Badges for a README."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from warpwatch.db.reads.badges import read_badge_counts
from warpwatch.server.figures.badges import badge
from warpwatch.server.http.problems import documented
from warpwatch.server.http.service import Branch, Db, line_or_404, operator_or_404, repository_or_404

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
    repository: str,
    branch: Branch = None,
    operator: Annotated[str | None, Query(max_length=200, description="Default: all.")] = None,
) -> Response:
    """Passing and failing checks at the newest commits of a branch, and open slow-downs, as an SVG image."""
    row = repository_or_404(session, repository)
    name = operator_or_404(session, row, operator).name if operator else None
    counts = read_badge_counts(session, row.id, line_or_404(session, row, branch), name)
    picture = badge((name or row.name)[:_MAX_LABEL], counts)
    tag = f'"{hashlib.sha256(picture.encode()).hexdigest()[:20]}"'
    headers = {"Cache-Control": f"max-age={KEPT_SECONDS}", "ETag": tag}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(picture, headers=headers, media_type="image/svg+xml")
