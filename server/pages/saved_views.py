"""Saved views: their list, and the form that saves one from the page that it shows."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Response
from fastapi.responses import RedirectResponse
from pydantic import ValidationError
from starlette.datastructures import FormData

from warpwatch.db.reads.saved_views import list_saved_views, read_saved_view
from warpwatch.db.saved_views import remove_view
from warpwatch.server.http.problems import Problem, not_found
from warpwatch.server.http.service import Before, repository_or_404
from warpwatch.server.intake.saved_views import ViewRequest, create_view
from warpwatch.server.pages.forms import form_errors
from warpwatch.server.pages.render import Page, query
from warpwatch.server.pages.submissions import form_of

router = APIRouter()


@router.get("/views")
def views(page: Page, before: Before = None) -> Response:
    """Every saved view of the repository, newest first."""
    return _show(page, {"name": "", "path": ""}, {}, before)


@router.post("/views")
def save(page: Page, form: Annotated[FormData, Depends(form_of)]) -> Response:
    """Saves a view and returns to it; shows the list with a message per invalid field."""
    entered = {name: str(value) for name, value in form.items()}
    page.repository = repository_or_404(page.session, entered.get("repository", ""))
    try:
        view_id = create_view(page.session, page.repository, ViewRequest.model_validate(entered))
    except (ValidationError, Problem) as error:
        return _show(page, {"name": "", "path": ""} | entered, form_errors(error))
    view = read_saved_view(page.session, view_id)
    assert view is not None
    return RedirectResponse(view.path, 303)


@router.post("/views/{view_id}/remove")
def remove(page: Page, view_id: int) -> Response:
    view = read_saved_view(page.session, view_id)
    if view is None:
        raise not_found("saved view", view_id)
    remove_view(page.session, view_id)
    return RedirectResponse(query("/views", repository=view.repository), 303)


def _show(page: Page, entered: dict[str, Any], errors: dict[str, str], before: int | None = None) -> Response:
    if page.repository is None:
        return page.page("welcome.html")
    return page.page(
        "views.html",
        json=query("/views", repository=page.repository.name, before=before),
        status=422 if errors else 200,
        views=list_saved_views(page.session, page.repository.id, before),
        before=before,
        entered=entered,
        errors=errors,
    )
