"""Muted series: a list of them, and the forms that mute and unmute."""

from __future__ import annotations

from datetime import date
from typing import Annotated

from fastapi import APIRouter, Form, Response
from fastapi.responses import RedirectResponse

from warpwatch.db.muted import list_muted, mute, unmute
from warpwatch.db.regressions import read_regression
from warpwatch.server.http.problems import not_found
from warpwatch.server.intake.triage import MAX_NAME, MAX_NOTE, until_error
from warpwatch.server.web.render import PageScope, Scope, query
from warpwatch.server.web.tabs import RepositoryTab, repository_tab

router = APIRouter()
Name = Annotated[str, Form(max_length=MAX_NAME)]


def show(page: Scope, before: int | None = None) -> Response:
    """The muted series of the repository."""
    assert page.repository is not None
    return page.page(
        "settings/muted.html",
        json=query("/muted", repository=page.repository.name, before=before),
        muted=list_muted(page.session, page.repository.id, before),
        before=before,
    )


@router.post("/regressions/{regression_id}/mute")
def mute_form(
    page: PageScope,
    regression_id: int,
    author: Name = "",
    until: Name = "",
    reason: Annotated[str, Form(max_length=MAX_NOTE)] = "",
) -> Response:
    """Mutes every series of a regression; sends back to its page, which names the field that cannot be used."""
    detail = read_regression(page.session, regression_id)
    if detail is None:
        raise not_found("regression", regression_id)
    field = "author" if not author.strip() else None
    try:
        day = date.fromisoformat(until)
        field = "until" if until_error(day) else field
    except ValueError:
        field = "until"
    if field is not None:
        return RedirectResponse(f"/regressions/{regression_id}?unmuted={field}#mute", 303)
    ids = [series.series_id for series in detail.series]
    mute(page.session, ids, until=day, author=author.strip(), reason=reason.strip())
    return RedirectResponse(f"/regressions/{regression_id}#mute", 303)


@router.post("/muted/{series_id}/end")
def unmute_form(page: PageScope, series_id: int) -> Response:
    """Lets a series raise suspicions again."""
    unmute(page.session, [series_id])
    name = page.repository.name if page.repository else ""
    return RedirectResponse(repository_tab(name, RepositoryTab.MUTED), 303)
