"""Watches: what people are told of."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response
from fastapi.responses import RedirectResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.datastructures import FormData

from warpwatch.db.reads.code import RepositoryRow, find_operator, list_cases, list_operators
from warpwatch.db.reads.query import Page, Session
from warpwatch.db.watches import WatchRow, list_watches, read_watch, unwatch, watch
from warpwatch.server.http.problems import FieldError, Problem, documented, not_found
from warpwatch.server.http.service import Before, Db, Limit, repository_or_404
from warpwatch.server.intake.triage import MAX_NAME
from warpwatch.server.web.choices import Text
from warpwatch.server.web.code import RepositoryName
from warpwatch.server.web.forms import form_errors, form_of
from warpwatch.server.web.render import PageScope, Scope, query
from warpwatch.server.web.saved_views import own_path
from warpwatch.server.web.schedules import named_repository
from warpwatch.server.web.tabs import RepositoryTab, repository_tab

REFUSED = "not watched: some fields are not valid"


class WatchRequest(BaseModel):
    """An operator, or one case of it, and who watches it."""

    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True)
    repository: str = Field(min_length=1, max_length=100)
    person: str = Field(min_length=1, max_length=MAX_NAME, examples=["ann"])
    operator: str = Field(min_length=1, max_length=200)
    case: str | None = Field(default=None, max_length=500, description="Key of a case. Default: all cases.")


def create_watch(session: Session, repository: RepositoryRow, body: WatchRequest) -> int:
    """The id of the watch, also where the person watches this already. Problem for an unknown operator or case."""
    operator = find_operator(session, repository.id, body.operator)
    if operator is None:
        raise _refusal("operator", f"{repository.name} has no operator {body.operator!r}")
    cases = {case.key: case.id for case in list_cases(session, operator.id)}
    if body.case and body.case not in cases:
        raise _refusal("case", f"operator {operator.name} has no case {body.case!r}")
    return watch(session, body.person, operator.id, cases[body.case] if body.case else None)


def _refusal(field: str, message: str) -> Problem:
    error = FieldError(field=field, message=message, remedy="check the spelling, or open it from the overview")
    return Problem(422, REFUSED, [error])


router = APIRouter()
Form = Annotated[FormData, Depends(form_of)]
BLANK = {"person": "", "operator": "", "case": ""}


@router.post("/watches")
def start(page: PageScope, form: Form) -> Response:
    """Stores a watch and returns to the page of its form; shows the list with a message per invalid field."""
    entered = {name: str(value) for name, value in form.items() if name != "path" and value}
    page.repository = repository_or_404(page.session, entered.get("repository", ""))
    try:
        create_watch(page.session, page.repository, WatchRequest.model_validate(entered))
    except (ValidationError, Problem) as error:
        return show(page, entered, form_errors(error))
    return _back(form, page.repository.name)


@router.post("/watches/{watch_id}/remove")
def stop(page: PageScope, watch_id: int, form: Form) -> Response:
    row = read_watch(page.session, watch_id)
    if row is None:
        raise not_found("watch", watch_id)
    unwatch(page.session, watch_id)
    return _back(form, row.repository)


def _back(form: FormData, repository: str) -> Response:
    """To the page that the form stood on."""
    path = own_path(str(form.get("path") or ""), repository)
    return RedirectResponse(path or repository_tab(repository, RepositoryTab.WATCHES), 303)


def show(
    page: Scope,
    entered: dict[str, Any] | None = None,
    errors: dict[str, str] | None = None,
    person: str | None = None,
    before: int | None = None,
) -> Response:
    """The watches in the repository, newest first, and the form."""
    assert page.repository is not None
    return page.page(
        "settings/watches.html",
        json=query("/watches", repository=page.repository.name, person=person, before=before),
        status=422 if errors else 200,
        watches=list_watches(page.session, page.repository.id, person, before=before),
        person=person,
        before=before,
        entered=BLANK | (entered or {}),
        errors=errors or {},
        operators=[(row.name, row.name) for row in list_operators(page.session, page.repository.id)],
    )


api = APIRouter(tags=["code"])
WatcherText = Annotated[str | None, Query(max_length=200)]


@api.get("/watches", responses=documented(404, 422))
def get_watches(
    session: Db,
    repository: RepositoryName,
    person: Text = None,
    operator: Text = None,
    before: Before = None,
    limit: Limit = 50,
) -> Page[WatchRow]:
    """List the watches in a repository, newest first."""
    return list_watches(session, repository_or_404(session, repository).id, person, operator, before, limit)


@api.post("/watches", status_code=201, responses=documented(422))
def post_watch(session: Db, body: WatchRequest) -> WatchRow:
    """Watch an operator or one of its cases; `watcher` narrows overview and regressions to what a person watches."""
    watch_id = create_watch(session, named_repository(session, body.repository), body)
    row = read_watch(session, watch_id)
    assert row is not None
    return row


@api.delete("/watches/{watch_id}", status_code=204, responses=documented(404, 422))
def delete_watch(session: Db, watch_id: int) -> None:
    """Stop watching."""
    unwatch(session, watch_id)
