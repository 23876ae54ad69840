"""Repositories: their list, settings, deletion and JSON."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Form, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import ValidationError
from starlette.convertors import Convertor, register_url_convertor
from starlette.datastructures import FormData

from warpwatch.db.deletion import mark_deleted
from warpwatch.db.reads.code import RepositoryRow
from warpwatch.server.http.git_threads import in_git_thread
from warpwatch.server.http.problems import Problem, documented
from warpwatch.server.http.service import Config, Db, database_of, repository_or_404, require_schema
from warpwatch.server.intake.repositories import NewRepository, RepositorySettings, change_settings, register
from warpwatch.server.web.forms import form_errors, form_of
from warpwatch.server.web.home import show_home
from warpwatch.server.web.render import PageScope, Scope, query
from warpwatch.server.web.tabs import RepositoryTab, repository_tab

router = APIRouter()
SECRETS = ("webhook_secret", "status_token")
"""Settings that are never shown: an empty field leaves them as they are, and a check box removes them."""
STATUS_EXAMPLE = "https://api.github.com/repos/acme/kernels/statuses/{sha}"


@router.post("/repositories/{name}/delete")
def delete(page: PageScope, name: str, typed: Annotated[str, Form(max_length=200)] = "") -> Response:
    page.moved(name)
    if typed.strip() != name:
        return show(page, errors={"typed": f"Type {name} to delete it."})
    mark_deleted(page.session, repository_or_404(page.session, name).id)
    return RedirectResponse("/", 303)


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
        return RedirectResponse(query("/runs/new", repository=body.name), 303)
    with database_of(request).session() as session:
        return show_home(Scope(request, session), entered=entered, errors=errors)


@router.post("/repositories/{name}")
@in_git_thread(lambda arguments: arguments["name"])
def change(request: Request, settings: Config, name: str, form: Annotated[FormData, Depends(form_of)]) -> Response:
    """Sets the watched branch, the definitions, the webhook secret, commit statuses, and whether anybody may read."""
    require_schema(request)
    fields = ("branch", "status_url", "definitions")
    values: dict[str, Any] = {field: str(form.get(field, "")).strip() or None for field in fields}
    for field in SECRETS:
        text = str(form.get(field, "")).strip()
        if text or f"remove_{field}" in form:
            values[field] = text or None
    values["is_public"] = "is_public" in form
    try:
        row = change_settings(database_of(request), settings, name, RepositorySettings.model_validate(values))
    except (ValidationError, Problem) as error:
        errors = form_errors(error)
    else:
        return RedirectResponse(repository_tab(row.name, RepositoryTab.GENERAL), 303)
    with database_of(request).session() as session:
        return show(Scope(request, session, name), values, errors)


def show(page: Scope, values: dict[str, Any] | None = None, errors: dict[str, str] | None = None) -> Response:
    """The settings of the repository, and the form that changes them. values: what was entered, where it is wrong."""
    assert page.repository is not None
    row = page.repository
    definitions = "@".join(part for part in (row.definitions_url, row.definitions_ref) if part)
    stored: dict[str, Any] = {"branch": row.branch, "status_url": row.status_url, "definitions": definitions}
    stored["is_public"] = row.is_public
    return page.page(
        "settings/general.html",
        json=f"/repositories/{row.name}",
        status=422 if errors else 200,
        values=stored | (values or {}),
        errors=errors or {},
        status_example=STATUS_EXAMPLE,
    )


class _WholeConvertor(Convertor[str]):
    """The rest of an address: results files of earlier versions named repositories with slashes and line ends."""

    regex = r"(?s:.+)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("whole", _WholeConvertor())
api = APIRouter(tags=["code"])


@api.get("/repositories/{name:whole}", responses=documented(404, 422))
def get_repository(session: Db, name: str) -> RepositoryRow:
    """One repository, and which of its secrets are set."""
    return repository_or_404(session, name)


@api.delete("/repositories/{name:whole}", status_code=204, responses=documented(404, 422))
def delete_repository(session: Db, name: str) -> None:
    """Delete a repository with all commits, results and traces.

    It disappears at once, and its name is free. Its rows and the server's mirror are deleted in the background.
    """
    mark_deleted(session, repository_or_404(session, name).id)


@api.patch("/repositories/{name}", responses=documented(404, 422))
@in_git_thread(lambda arguments: arguments["name"])
def change_repository(request: Request, settings: Config, name: str, body: RepositorySettings) -> RepositoryRow:
    """Set the watched branch, the definitions, the webhook secret, the URL and token for commit statuses, and whether
    anybody may read its results."""
    require_schema(request)
    return change_settings(database_of(request), settings, name, body)
