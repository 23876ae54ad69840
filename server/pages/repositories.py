"""Repositories: register one, and set its watched branch, webhook and commit statuses."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import ValidationError
from starlette.datastructures import FormData

from warpwatch.server.http.git_threads import in_git_thread
from warpwatch.server.http.problems import Problem
from warpwatch.server.http.service import Config, database_of, require_schema
from warpwatch.server.intake.repositories import NewRepository, RepositorySettings, change_settings, register
from warpwatch.server.pages.forms import form_errors
from warpwatch.server.pages.render import Page, Scope, query
from warpwatch.server.pages.submissions import form_of

router = APIRouter()
SECRETS = ("webhook_secret", "status_token")
"""Settings that are never shown: an empty field leaves them as they are, and a check box removes them."""


URL_EXAMPLE = "https://github.com/acme/kernels.git"
DEFINITIONS_EXAMPLE = "https://github.com/acme/definitions.git@main"
STATUS_EXAMPLE = "https://api.github.com/repos/acme/kernels/statuses/{sha}"


@router.get("/repositories")
def repositories(page: Page) -> Response:
    """Every repository with its settings, and a form to register one."""
    return _show(page)


@router.post("/repositories")
@in_git_thread(lambda arguments: arguments["form"].get("url"))
def add(request: Request, settings: Config, form: Annotated[FormData, Depends(form_of)]) -> Response:
    """Registers a repository; shows the form again with the input and a message per invalid field."""
    require_schema(request)
    entered = {name: str(value).strip() for name, value in form.items()}
    try:
        body = NewRepository.model_validate({name: value for name, value in entered.items() if value})
        register(database_of(request), settings, body)
    except (ValidationError, Problem) as error:
        errors = form_errors(error)
    else:
        return RedirectResponse(query("/submissions/new", repository=body.name), 303)
    with database_of(request).session() as session:
        return _show(Scope(request, session), entered=entered, errors=errors)


@router.post("/repositories/{name}")
@in_git_thread(lambda arguments: arguments["name"])
def change(request: Request, settings: Config, name: str, form: Annotated[FormData, Depends(form_of)]) -> Response:
    """Sets the watched branch, the definitions, the webhook secret, and the address and token for commit statuses."""
    require_schema(request)
    fields = ("branch", "status_url", "definitions")
    values: dict[str, Any] = {field: str(form.get(field, "")).strip() or None for field in fields}
    for field in SECRETS:
        text = str(form.get(field, "")).strip()
        if text or f"remove_{field}" in form:
            values[field] = text or None
    try:
        row = change_settings(database_of(request), settings, name, RepositorySettings.model_validate(values))
    except (ValidationError, Problem) as error:
        errors = form_errors(error)
    else:
        return RedirectResponse(query("/repositories") + f"#repository-{row.id}", 303)
    with database_of(request).session() as session:
        return _show(Scope(request, session), changed=name, values=values, errors=errors)


def _show(
    page: Scope,
    entered: dict[str, Any] | None = None,
    errors: dict[str, str] | None = None,
    changed: str | None = None,
    values: dict[str, Any] | None = None,
) -> Response:
    return page.page(
        "repositories.html",
        json="/repositories",
        status=422 if errors else 200,
        rows=page.repositories,
        entered={"name": "", "url": "", "definitions": ""} | (entered or {}),
        errors=errors or {},
        changed=changed,
        values=values or {},
        url_example=URL_EXAMPLE,
        status_example=STATUS_EXAMPLE,
        definitions_example=DEFINITIONS_EXAMPLE,
    )
