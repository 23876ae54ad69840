"""Saved views: links with a name."""

from __future__ import annotations

from fastapi import APIRouter

from warpwatch.db.reads.query import Page
from warpwatch.db.reads.saved_views import SavedView, list_saved_views, read_saved_view
from warpwatch.db.saved_views import remove_view
from warpwatch.server.api.code import RepositoryName
from warpwatch.server.api.schedules import named_repository
from warpwatch.server.http.problems import documented
from warpwatch.server.http.service import Before, Db, Limit, repository_or_404
from warpwatch.server.intake.saved_views import ViewRequest, create_view

router = APIRouter(tags=["code"])


@router.get("/views", responses=documented(404, 422))
def get_views(session: Db, repository: RepositoryName, before: Before = None, limit: Limit = 50) -> Page[SavedView]:
    """Saved views of a repository, newest first."""
    return list_saved_views(session, repository_or_404(session, repository).id, before, limit)


@router.post("/views", status_code=201, responses=documented(422))
def post_view(session: Db, body: ViewRequest) -> SavedView:
    """Save a link to a page under a name; the overview lists it."""
    view_id = create_view(session, named_repository(session, body.repository), body)
    view = read_saved_view(session, view_id)
    assert view is not None
    return view


@router.delete("/views/{view_id}", status_code=204, responses=documented(404, 422))
def delete_view(session: Db, view_id: int) -> None:
    """Delete a saved view."""
    remove_view(session, view_id)
