"""Saved views: links with a name."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from fastapi import APIRouter, Depends, Response
from fastapi.responses import RedirectResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.datastructures import FormData

from warpwatch.db.reads.code import RepositoryRow
from warpwatch.db.reads.query import Page, Session
from warpwatch.db.saved_views import SavedView, list_saved_views, read_saved_view, remove_view, save_view
from warpwatch.server.http.problems import FieldError, Problem, documented, not_found
from warpwatch.server.http.service import Before, Db, Limit, repository_or_404
from warpwatch.server.web.code import RepositoryName
from warpwatch.server.web.forms import form_errors, form_of
from warpwatch.server.web.render import PageScope, Scope, query
from warpwatch.server.web.schedules import named_repository
from warpwatch.server.web.tabs import RepositoryTab, repository_tab

REFUSED = "not saved: some fields are not valid"
PAGES = ("/compare", "/kernels", "/regressions", "/commits", "/runs/traces")
"""Pages that show what their address says."""
_OLD_PAGES = ("/history", "/devices/compare", "/operators", "/traces")
"""Old addresses of such pages, which clients may still send; they lead to those of today."""


class ViewRequest(BaseModel):
    """A link with a name."""

    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True)
    repository: str = Field(min_length=1, max_length=100)
    name: str = Field(min_length=1, max_length=100)
    path: str = Field(
        min_length=1, max_length=2000, description="Path and query of a page, such as /kernels/kron?tab=commits."
    )


def create_view(session: Session, repository: RepositoryRow, body: ViewRequest) -> int:
    """The id of the new view. Problem for a link to elsewhere and for a name that is taken."""
    path = own_path(body.path, repository.name)
    if path is None:
        raise _refusal("path", "it is no page that can be saved", f"use a path that begins with {', '.join(PAGES)}")
    view_id = save_view(session, repository.id, body.name, path)
    if view_id is None:
        raise _refusal(
            "name", f"{repository.name} has a view {body.name!r}", "choose another name, or delete that view"
        )
    return view_id


def own_path(text: str, repository: str) -> str | None:
    """The link with its repository; None for anything but such a page or a page below it."""
    try:
        parts = urlsplit(text)
    except ValueError:
        return None
    is_own = not parts.scheme and not parts.netloc and text.startswith("/") and text.isprintable()
    if not is_own or "\\" in text or ".." in parts.path:
        return None
    if not any(parts.path == page or parts.path.startswith(f"{page}/") for page in (*PAGES, *_OLD_PAGES)):
        return None
    filters = [(name, value) for name, value in parse_qsl(parts.query) if name != "repository"]
    return f"{parts.path}?{urlencode([('repository', repository), *filters])}"


def _refusal(field: str, message: str, remedy: str) -> Problem:
    return Problem(422, REFUSED, [FieldError(field=field, message=message, remedy=remedy)])


router = APIRouter()


@router.post("/views")
def save(page: PageScope, form: Annotated[FormData, Depends(form_of)]) -> Response:
    """Saves a view and returns to it; shows the list with a message per invalid field."""
    entered = {name: str(value) for name, value in form.items()}
    page.repository = repository_or_404(page.session, entered.get("repository", ""))
    try:
        view_id = create_view(page.session, page.repository, ViewRequest.model_validate(entered))
    except (ValidationError, Problem) as error:
        return show(page, entered, form_errors(error))
    view = read_saved_view(page.session, view_id)
    assert view is not None
    return RedirectResponse(view.path, 303)


@router.post("/views/{view_id}/remove")
def remove(page: PageScope, view_id: int) -> Response:
    view = read_saved_view(page.session, view_id)
    if view is None:
        raise not_found("saved view", view_id)
    remove_view(page.session, view_id)
    return RedirectResponse(repository_tab(view.repository, RepositoryTab.VIEWS), 303)


def show(
    page: Scope,
    entered: dict[str, Any] | None = None,
    errors: dict[str, str] | None = None,
    before: int | None = None,
) -> Response:
    """Every saved view of the repository, newest first, and the form."""
    assert page.repository is not None
    return page.page(
        "settings/views.html",
        json=query("/views", repository=page.repository.name, before=before),
        status=422 if errors else 200,
        views=list_saved_views(page.session, page.repository.id, before),
        before=before,
        entered={"name": "", "path": ""} | (entered or {}),
        errors=errors or {},
    )


api = APIRouter(tags=["code"])


@api.get("/views", responses=documented(404, 422))
def get_views(session: Db, repository: RepositoryName, before: Before = None, limit: Limit = 50) -> Page[SavedView]:
    """Saved views of a repository, newest first."""
    return list_saved_views(session, repository_or_404(session, repository).id, before, limit)


@api.post("/views", status_code=201, responses=documented(422))
def post_view(session: Db, body: ViewRequest) -> SavedView:
    """Save a link to a page under a name; the overview lists it."""
    view_id = create_view(session, named_repository(session, body.repository), body)
    view = read_saved_view(session, view_id)
    assert view is not None
    return view


@api.delete("/views/{view_id}", status_code=204, responses=documented(404, 422))
def delete_view(session: Db, view_id: int) -> None:
    """Delete a saved view."""
    remove_view(session, view_id)
