"""Code hosts: the link of a repository with GitHub or GitLab, its page and JSON."""

from __future__ import annotations

import re
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Depends, Response
from fastapi.responses import RedirectResponse
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from starlette.datastructures import FormData

from warpwatch.contract.words import ForgeKind, ForgeState
from warpwatch.db.forge import (
    ForgeLinkRow,
    ForgeMessageRow,
    NewForgeLink,
    list_check_runs,
    list_messages,
    read_access,
    read_link,
    remove_link,
    set_link,
    try_again,
)
from warpwatch.db.reads.code import RepositoryRow
from warpwatch.db.reads.query import Page, Session
from warpwatch.db.reads.work import read_submission
from warpwatch.destinations import DestinationError
from warpwatch.server.http.problems import FieldError, Problem, documented, not_found
from warpwatch.server.http.service import Before, Config, Db, Limit, repository_or_404
from warpwatch.server.web.forms import form_errors, form_of
from warpwatch.server.web.render import PageScope, Scope
from warpwatch.server.web.tabs import RepositoryTab, repository_tab
from warpwatch.settings import Settings

_PART = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9_.-]{1,200}")
_API_END = "/api/v4"


def _printable(text: str | None) -> str | None:
    if text is not None and (not text.isascii() or not text.isprintable() or " " in text):
        raise ValueError("contains blanks or non-ASCII characters")
    return text


class ForgeSettings(BaseModel):
    """A repository's project on GitHub, where the server is an app, or on a GitLab, with a token of the project."""

    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True)
    forge: ForgeKind
    project: str = Field(min_length=3, max_length=500, examples=["acme/kernels"])
    api_url: str | None = Field(
        default=None, max_length=500, description="Of GitLab.", examples=["https://gitlab.example/api/v4"]
    )
    token: Annotated[str | None, AfterValidator(_printable)] = Field(
        default=None,
        min_length=1,
        max_length=1000,
        description="Of the GitLab project, with the scope `api`. Without one the token stays as it is. The server "
        "never returns it.",
    )
    files_issues: bool = Field(
        default=False, description="File an issue for every regression that is confirmed on the watched branch."
    )


def link_repository(session: Session, settings: Settings, repository: RepositoryRow, body: ForgeSettings) -> None:
    """Stores the link; Problem names every field at fault."""
    parts = body.project.split("/")
    errors = []
    is_github = body.forge is ForgeKind.GITHUB
    if not all(map(_PART.fullmatch, parts)) or len(parts) < 2 or (is_github and len(parts) > 2):
        errors.append(_error("project", "is no project", "write it as OWNER/NAME"))
    token = body.token
    if is_github:
        errors += _github_errors(settings, body)
    else:
        errors += _address_errors(settings, body.api_url)
        access = read_access(session, repository.id)
        # A token goes to nobody but those it was given for.
        if token is None and access is not None and access.api_url == body.api_url:
            token = access.token
        if token is None:
            errors.append(_error("token", "is needed for this address", "create one in the project, scope `api`"))
    if errors:
        raise Problem(422, "not linked: some fields are not valid", errors)
    set_link(session, repository.id, NewForgeLink(body.forge, body.project, body.api_url, token, body.files_issues))


def _github_errors(settings: Settings, body: ForgeSettings) -> list[FieldError]:
    errors = []
    if settings.github_app_id is None or settings.github_app_key is None:
        remedy = "set WARPWATCH_GITHUB_APP_ID and WARPWATCH_GITHUB_APP_KEY and restart it"
        errors.append(_error("forge", "needs the server to be a GitHub App", remedy))
    for field in ("api_url", "token"):
        if getattr(body, field) is not None:
            remedy = "leave it empty; the app's key opens the project, at WARPWATCH_GITHUB_API"
            errors.append(_error(field, "is of GitLab alone", remedy))
    return errors


def _address_errors(settings: Settings, url: str | None) -> list[FieldError]:
    remedy = f"write it as https://gitlab.example{_API_END}"
    try:
        parts = urlsplit(url or "")
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.path.endswith(_API_END)
        if not is_address or "@" in parts.netloc or parts.query or parts.fragment:
            return [_error("api_url", "is no address of GitLab's API", remedy)]
        settings.destinations.check_literal(url or "")
    except DestinationError as error:
        return [_error("api_url", str(error), "use the address of your GitLab")]
    except ValueError:
        return [_error("api_url", "is no address", remedy)]
    return []


def _error(field: str, message: str, remedy: str) -> FieldError:
    return FieldError(field=field, message=message, remedy=remedy)


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


@router.post("/repositories/{name}/forge")
def save_forge(page: PageScope, settings: Config, name: str, form: Annotated[FormData, Depends(form_of)]) -> Response:
    """Links the repository; shows the form again with the input and a message per invalid field."""
    entered: dict[str, Any] = {field: str(form.get(field, "")).strip() for field in _TEXTS}
    entered["files_issues"] = "files_issues" in form
    page.moved(name)
    try:
        body = ForgeSettings.model_validate({field: value for field, value in entered.items() if value != ""})
        link_repository(page.session, settings, repository_or_404(page.session, name), body)
    except (ValidationError, Problem) as error:
        return show(page, settings, entered, form_errors(error))
    return RedirectResponse(repository_tab(name, RepositoryTab.CODE_HOST), 303)


@router.post("/repositories/{name}/forge/check")
def check(page: PageScope, name: str) -> Response:
    check_forge(page.session, name)
    return RedirectResponse(repository_tab(name, RepositoryTab.CODE_HOST), 303)


@router.post("/repositories/{name}/forge/remove")
def remove(page: PageScope, name: str) -> Response:
    remove_link(page.session, repository_or_404(page.session, name).id)
    return RedirectResponse(repository_tab(name, RepositoryTab.CODE_HOST), 303)


def show(
    page: Scope,
    settings: Settings,
    entered: dict[str, Any] | None = None,
    errors: dict[str, str] | None = None,
    before: int | None = None,
) -> Response:
    """The link of the repository, its messages, and the form."""
    assert page.repository is not None
    linked, name = page.repository, page.repository.name
    row = read_link(page.session, linked.id)
    stored: dict[str, Any] = {"forge": ForgeKind.GITHUB, "project": "", "api_url": "", "files_issues": False}
    if row is not None:
        stored = {field: getattr(row, field) or "" for field in stored}
    return page.page(
        "settings/code_host.html",
        json=f"/repositories/{name}/forge" if row is not None else f"/repositories/{name}/forge/messages",
        status=422 if errors else 200,
        row=row,
        messages=list_messages(page.session, linked.id, before, limit=20),
        before=before,
        forges=FORGES,
        tones=TONES,
        meanings=MEANINGS,
        api_example=f"https://gitlab.example{_API_END}",
        is_app=settings.github_app_id is not None,
        entered=stored | {field: value for field, value in (entered or {}).items() if field != "token"},
        errors=errors or {},
    )


api = APIRouter(tags=["forge"])


@api.get("/repositories/{name}/forge", responses=documented(404, 422))
def get_forge(session: Db, name: str) -> ForgeLinkRow:
    """The link of a repository to its project on GitHub or GitLab, and whether it works. Secrets are never returned."""
    row = read_link(session, repository_or_404(session, name).id)
    if row is None:
        raise not_found("link of", name, "link it with `warpwatch forge set`")
    return row


@api.put("/repositories/{name}/forge", responses=documented(404, 422))
def set_forge(session: Db, settings: Config, name: str, body: ForgeSettings) -> ForgeLinkRow:
    """Link a repository. Its pull requests then get a check run and one comment each; the link is tried out at once."""
    link_repository(session, settings, repository_or_404(session, name), body)
    return get_forge(session, name)


@api.delete("/repositories/{name}/forge", status_code=204, responses=documented(404, 422))
def delete_forge(session: Db, name: str) -> None:
    """Remove the link to the code host. Checks and comments that were sent stay there."""
    remove_link(session, repository_or_404(session, name).id)


@api.post("/repositories/{name}/forge/check", status_code=202, responses=documented(404, 422))
def check_forge(session: Db, name: str) -> ForgeLinkRow:
    """Try the link out within seconds, and send again what was given up within a day."""
    get_forge(session, name)
    try_again(session, repository_or_404(session, name).id)
    return get_forge(session, name)


@api.get("/repositories/{name}/forge/messages", responses=documented(404, 422))
def get_forge_messages(session: Db, name: str, before: Before = None, limit: Limit = 50) -> Page[ForgeMessageRow]:
    """List the messages and requests to the forge, newest first, with their errors."""
    return list_messages(session, repository_or_404(session, name).id, before, limit)


@api.get("/submissions/{submission_id}/check-runs", responses=documented(404, 422))
def get_check_runs(session: Db, submission_id: int) -> Page[ForgeMessageRow]:
    """List the messages to the forge about this submission, oldest first."""
    if read_submission(session, submission_id) is None:
        raise not_found("submission", submission_id)
    return Page(list_check_runs(session, submission_id), None)
