"""CI jobs that submit for a repository with the ID token of their code host."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Response
from fastapi.responses import RedirectResponse
from pydantic import ValidationError
from starlette.datastructures import FormData

from warpwatch.db.ci_identities import remove_ci_identity
from warpwatch.db.reads.ci_identities import list_ci_identities
from warpwatch.server.http.problems import Problem
from warpwatch.server.http.service import Before, Config, repository_or_404
from warpwatch.server.intake.ci_identities import GITHUB, CiIdentityRequest, trust_ci
from warpwatch.server.pages.forms import form_errors
from warpwatch.server.pages.render import Page, query
from warpwatch.server.pages.submissions import form_of

router = APIRouter()
BLANK = {"issuer": GITHUB, "subject": "", "audience": ""}


@router.get("/repositories/{name}/ci")
def show_ci_identities(page: Page, settings: Config, name: str, before: Before = None) -> Response:
    return _show(page, settings, name, before=before)


@router.post("/repositories/{name}/ci")
def trust(page: Page, settings: Config, name: str, form: Annotated[FormData, Depends(form_of)]) -> Response:
    """Lets CI jobs submit; shows the form again with a message per invalid field."""
    entered = {field: str(form.get(field, "")).strip() for field in BLANK}
    repository_id = repository_or_404(page.session, name).id
    try:
        body = CiIdentityRequest.model_validate(entered | {"audience": entered["audience"] or None})
        trust_ci(page.session, settings, repository_id, body)
    except (ValidationError, Problem) as error:
        return _show(page, settings, name, entered, form_errors(error))
    return RedirectResponse(query(f"/repositories/{name}/ci"), 303)


@router.post("/repositories/{name}/ci/{identity_id}/remove")
def remove(page: Page, name: str, identity_id: int) -> Response:
    remove_ci_identity(page.session, repository_or_404(page.session, name).id, identity_id)
    return RedirectResponse(query(f"/repositories/{name}/ci"), 303)


def _show(
    page: Page,
    settings: Config,
    name: str,
    entered: dict[str, Any] | None = None,
    errors: dict[str, str] | None = None,
    before: int | None = None,
) -> Response:
    trusting = repository_or_404(page.session, name)
    return page.page(
        "ci_identities.html",
        json=f"/repositories/{name}/ci",
        status=422 if errors else 200,
        trusting=trusting,
        rows=list_ci_identities(page.session, trusting.id, before),
        before=before,
        entered=BLANK | (entered or {}),
        errors=errors or {},
        server_url=settings.server_url,
    )
