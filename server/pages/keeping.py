"""How long a repository keeps its data, and what the next round deletes."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Response
from fastapi.responses import RedirectResponse
from pydantic import ValidationError
from starlette.datastructures import FormData

from warpwatch.contract.words import RetentionKind
from warpwatch.server.http.service import repository_or_404
from warpwatch.server.intake.retention import RetentionSettings, change_retention, list_retention
from warpwatch.server.pages.forms import form_errors
from warpwatch.server.pages.render import Page, query
from warpwatch.server.pages.submissions import form_of

router = APIRouter()
_HINTS = {
    RetentionKind.SAMPLES: "Every single timing. Medians, intervals and noise stay.",
    RetentionKind.TRACES: "Chrome traces of profiles. Those that a regression shows stay.",
    RetentionKind.LOGS: "Logs of runs. Statuses and messages stay.",
    RetentionKind.BUILDS: "Logs of compilers. Registers, spills and fingerprints of machine code stay.",
    RetentionKind.MIRROR: "The server's clone, when nothing fetched it for so long; it is cloned again when needed.",
}


@router.get("/repositories/{name}/retention")
def show_retention(page: Page, name: str) -> Response:
    return _show(page, name)


@router.post("/repositories/{name}/retention")
def set_retention(page: Page, name: str, form: Annotated[FormData, Depends(form_of)]) -> Response:
    """Saves the days, or shows what they would delete; an empty field keeps that kind for good."""
    entered = {kind: str(form.get(kind, "")).strip() for kind in RetentionKind}
    try:
        body = RetentionSettings.model_validate({kind: text or None for kind, text in entered.items()})
    except ValidationError as error:
        return _show(page, name, entered, form_errors(error))
    if "preview" in form:
        return _show(page, name, entered)
    change_retention(page.session, repository_or_404(page.session, name).id, body)
    return RedirectResponse(query(f"/repositories/{name}/retention"), 303)


def _show(
    page: Page, name: str, entered: dict[RetentionKind, str] | None = None, errors: dict[str, str] | None = None
) -> Response:
    kept = repository_or_404(page.session, name)
    days: dict[RetentionKind, Any] = {}
    if entered is not None and not errors:
        days = {kind: int(text) if text else None for kind, text in entered.items()}
    rows = list_retention(page.session, kept.id, days)
    return page.page(
        "retention.html",
        json=f"/repositories/{name}/retention",
        status=422 if errors else 200,
        kept=kept,
        rows=rows,
        entered=entered or {row.kind: row.days or "" for row in rows},
        hints=_HINTS,
        is_preview=bool(entered) and not errors,
        errors=errors or {},
    )
