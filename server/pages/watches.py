"""What people watch: their list, and the forms of the pages of operators and histories."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Response
from fastapi.responses import RedirectResponse
from pydantic import ValidationError
from starlette.datastructures import FormData

from warpwatch.db.reads.watches import list_watches, read_watch
from warpwatch.db.watches import unwatch
from warpwatch.server.http.problems import Problem, not_found
from warpwatch.server.http.service import Before, repository_or_404
from warpwatch.server.intake.saved_views import own_path
from warpwatch.server.intake.watches import WatchRequest, create_watch
from warpwatch.server.pages.choices import Text
from warpwatch.server.pages.forms import form_errors
from warpwatch.server.pages.render import Page, query
from warpwatch.server.pages.submissions import form_of

router = APIRouter()
Form = Annotated[FormData, Depends(form_of)]
BLANK = {"person": "", "operator": "", "case": ""}


@router.get("/watches")
def watches(page: Page, person: Text = None, before: Before = None) -> Response:
    """What is watched in the repository, newest first."""
    return _show(page, BLANK, {}, person, before)


@router.post("/watches")
def start(page: Page, form: Form) -> Response:
    """Stores a watch and returns to the page of its form; shows the list with a message per invalid field."""
    entered = {name: str(value) for name, value in form.items() if name != "path" and value}
    page.repository = repository_or_404(page.session, entered.get("repository", ""))
    try:
        create_watch(page.session, page.repository, WatchRequest.model_validate(entered))
    except (ValidationError, Problem) as error:
        return _show(page, BLANK | entered, form_errors(error))
    return _back(form, page.repository.name)


@router.post("/watches/{watch_id}/remove")
def stop(page: Page, watch_id: int, form: Form) -> Response:
    row = read_watch(page.session, watch_id)
    if row is None:
        raise not_found("watch", watch_id)
    unwatch(page.session, watch_id)
    return _back(form, row.repository)


def _back(form: FormData, repository: str) -> Response:
    """To the page that the form stood on."""
    path = own_path(str(form.get("path") or ""), repository)
    return RedirectResponse(path or query("/watches", repository=repository), 303)


def _show(
    page: Page, entered: dict[str, Any], errors: dict[str, str], person: str | None = None, before: int | None = None
) -> Response:
    if page.repository is None:
        return page.page("welcome.html")
    return page.page(
        "watches.html",
        json=query("/watches", repository=page.repository.name, person=person, before=before),
        status=422 if errors else 200,
        watches=list_watches(page.session, page.repository.id, person, before=before),
        person=person,
        before=before,
        entered=entered,
        errors=errors,
    )
