"""The link of a repository to its code host: its state, what was sent, and the form."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Response
from fastapi.responses import RedirectResponse
from pydantic import ValidationError
from starlette.datastructures import FormData

from warpwatch.contract.words import ForgeKind, ForgeState
from warpwatch.db.forge import remove_link
from warpwatch.db.reads.forge import list_messages, read_link
from warpwatch.server.api.forge import check_forge
from warpwatch.server.http.problems import Problem
from warpwatch.server.http.service import Before, Config, repository_or_404
from warpwatch.server.intake.forge import ForgeSettings, link_repository
from warpwatch.server.pages.forms import form_errors
from warpwatch.server.pages.render import Page, query
from warpwatch.server.pages.submissions import form_of

router = APIRouter()
FORGES = {ForgeKind.GITHUB: "GitHub", ForgeKind.GITLAB: "GitLab"}
TONES = {ForgeState.LINKED: "good", ForgeState.UNKNOWN: "warn"}
MEANINGS = {
    ForgeState.UNKNOWN: "was not tried out yet",
    ForgeState.LINKED: "works",
    ForgeState.MISSING: "leads to no project: install the app there, or correct the name",
    ForgeState.REFUSED: "is refused: the key or token is not valid, or lacks a permission",
    ForgeState.UNREACHABLE: "gets no answer",
}
_TEXTS = ("forge", "project", "api_url", "token")


@router.get("/repositories/{name}/forge")
def show_forge(page: Page, settings: Config, name: str, before: Before = None) -> Response:
    return _show(page, settings, name, before=before)


@router.post("/repositories/{name}/forge")
def save_forge(page: Page, settings: Config, name: str, form: Annotated[FormData, Depends(form_of)]) -> Response:
    """Links the repository; shows the form again with the input and a message per invalid field."""
    entered: dict[str, Any] = {field: str(form.get(field, "")).strip() for field in _TEXTS}
    entered["files_issues"] = "files_issues" in form
    try:
        body = ForgeSettings.model_validate({field: value for field, value in entered.items() if value != ""})
        link_repository(page.session, settings, repository_or_404(page.session, name), body)
    except (ValidationError, Problem) as error:
        return _show(page, settings, name, entered, form_errors(error))
    return RedirectResponse(query(f"/repositories/{name}/forge"), 303)


@router.post("/repositories/{name}/forge/check")
def check(page: Page, name: str) -> Response:
    check_forge(page.session, name)
    return RedirectResponse(query(f"/repositories/{name}/forge"), 303)


@router.post("/repositories/{name}/forge/remove")
def remove(page: Page, name: str) -> Response:
    remove_link(page.session, repository_or_404(page.session, name).id)
    return RedirectResponse(query(f"/repositories/{name}/forge"), 303)


def _show(
    page: Page,
    settings: Config,
    name: str,
    entered: dict[str, Any] | None = None,
    errors: dict[str, str] | None = None,
    before: int | None = None,
) -> Response:
    linked = repository_or_404(page.session, name)
    row = read_link(page.session, linked.id)
    stored: dict[str, Any] = {"forge": ForgeKind.GITHUB, "project": "", "api_url": "", "files_issues": False}
    if row is not None:
        stored = {field: getattr(row, field) or "" for field in stored}
    return page.page(
        "forge.html",
        json=f"/repositories/{name}/forge" if row is not None else f"/repositories/{name}/forge/messages",
        status=422 if errors else 200,
        linked=linked,
        row=row,
        messages=list_messages(page.session, linked.id, before, limit=20),
        before=before,
        forges=FORGES,
        tones=TONES,
        meanings=MEANINGS,
        is_app=settings.github_app_id is not None,
        entered=stored | {field: value for field, value in (entered or {}).items() if field != "token"},
        errors=errors or {},
    )
