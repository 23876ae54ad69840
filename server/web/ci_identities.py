"""CI jobs that are trusted with one repository: their list, its JSON and the form that adds another."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Response
from fastapi.responses import RedirectResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from starlette.datastructures import FormData

from warpwatch.db.ci_identities import (
    CiIdentityRow,
    NewCiIdentity,
    add_ci_identity,
    list_ci_identities,
    remove_ci_identity,
)
from warpwatch.db.reads.query import Page, Session
from warpwatch.destinations import DestinationError, is_trustworthy
from warpwatch.server.http.problems import FieldError, Problem, documented
from warpwatch.server.http.service import Before, Config, Db, Limit, repository_or_404
from warpwatch.server.web.forms import form_errors, form_of
from warpwatch.server.web.render import PageScope, Scope
from warpwatch.server.web.tabs import RepositoryTab, repository_tab
from warpwatch.settings import Settings

GITHUB = "https://token.actions.githubusercontent.com"
"""Who signs the ID tokens of GitHub Actions; a GitLab server signs its own."""


class CiIdentityRequest(BaseModel):
    """CI jobs that may submit for a repository without a stored secret. audience: by default the address of this
    server."""

    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True)
    issuer: str = Field(default=GITHUB, max_length=400, description="Who signs the tokens, such as a GitLab server.")
    subject: str = Field(
        min_length=1,
        max_length=400,
        description="Whom the token must name; `*` stands for anything. GitHub: `repo:OWNER/NAME:*`, GitLab: "
        "`project_path:GROUP/PROJECT:*`.",
        examples=["repo:acme/kernels:*"],
    )
    audience: str | None = Field(default=None, min_length=1, max_length=400)

    @field_validator("issuer")
    @classmethod
    def check_issuer(cls, issuer: str) -> str:
        if not is_trustworthy(issuer):
            raise ValueError("it is not reached by https; enter an address such as https://gitlab.example")
        return issuer.rstrip("/")

    @field_validator("subject")
    @classmethod
    def check_subject(cls, subject: str) -> str:
        fixed, wildcard, _ = subject.partition("*")
        if wildcard and ("/" not in fixed or fixed[-1] not in ":/"):
            raise ValueError("jobs of others could match it; name the project in front of *, as in repo:OWNER/NAME:*")
        return subject


def trust_ci(session: Session, settings: Settings, repository_id: int, body: CiIdentityRequest) -> int:
    """The id of the identity; Problem for an issuer that this server may not connect to."""
    try:
        settings.destinations.check_literal(body.issuer)
    except DestinationError as error:
        raise Problem(422, "not added", [FieldError(field="issuer", message=str(error))]) from None
    new = NewCiIdentity(body.issuer, body.audience or settings.server_url, body.subject)
    return add_ci_identity(session, repository_id, new)


router = APIRouter()
BLANK = {"issuer": GITHUB, "subject": "", "audience": ""}


@router.post("/repositories/{name}/ci")
def trust(page: PageScope, settings: Config, name: str, form: Annotated[FormData, Depends(form_of)]) -> Response:
    """Lets CI jobs submit; shows the form again with a message per invalid field."""
    entered = {field: str(form.get(field, "")).strip() for field in BLANK}
    page.moved(name)
    repository_id = repository_or_404(page.session, name).id
    try:
        body = CiIdentityRequest.model_validate(entered | {"audience": entered["audience"] or None})
        trust_ci(page.session, settings, repository_id, body)
    except (ValidationError, Problem) as error:
        return show(page, settings, entered, form_errors(error))
    return RedirectResponse(repository_tab(name, RepositoryTab.CI), 303)


@router.post("/repositories/{name}/ci/{identity_id}/remove")
def remove(page: PageScope, name: str, identity_id: int) -> Response:
    remove_ci_identity(page.session, repository_or_404(page.session, name).id, identity_id)
    return RedirectResponse(repository_tab(name, RepositoryTab.CI), 303)


def show(
    page: Scope,
    settings: Settings,
    entered: dict[str, Any] | None = None,
    errors: dict[str, str] | None = None,
    before: int | None = None,
) -> Response:
    """The CI jobs that the repository trusts, and the form."""
    assert page.repository is not None
    return page.page(
        "settings/ci.html",
        json=f"/repositories/{page.repository.name}/ci",
        status=422 if errors else 200,
        rows=list_ci_identities(page.session, page.repository.id, before),
        before=before,
        entered=BLANK | (entered or {}),
        errors=errors or {},
        server_url=settings.server_url,
    )


api = APIRouter(tags=["access"])


@api.get("/repositories/{name}/ci", responses=documented(404, 422))
def get_ci_identities(session: Db, name: str, before: Before = None, limit: Limit = 50) -> Page[CiIdentityRow]:
    """CI jobs that may submit for a repository without a stored secret, newest first."""
    return list_ci_identities(session, repository_or_404(session, name).id, before, limit)


@api.post("/repositories/{name}/ci", status_code=201, responses=documented(404, 422))
def post_ci_identity(session: Db, settings: Config, name: str, body: CiIdentityRequest) -> CiIdentityRow:
    """Let CI jobs submit for a repository, and read their submissions, by the ID token of their code host. Adding the
    same again changes nothing."""
    repository_id = repository_or_404(session, name).id
    new_id = trust_ci(session, settings, repository_id, body)
    return next(row for row in list_ci_identities(session, repository_id, new_id + 1, 1).items if row.id == new_id)


@api.delete("/repositories/{name}/ci/{identity_id}", status_code=204, responses=documented(404, 422))
def delete_ci_identity(session: Db, name: str, identity_id: int) -> None:
    """Revoke a CI identity, from the next request on."""
    remove_ci_identity(session, repository_or_404(session, name).id, identity_id)
