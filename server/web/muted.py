"""Muted series: a list of them, and the form that unmutes."""

from __future__ import annotations

from fastapi import APIRouter, Response
from fastapi.responses import RedirectResponse

from warpwatch.db.muted import list_muted, unmute
from warpwatch.server.web.render import PageScope, Scope, query
from warpwatch.server.web.tabs import RepositoryTab, repository_tab

router = APIRouter()


def show(page: Scope, before: int | None = None) -> Response:
    """The muted series of the repository."""
    assert page.repository is not None
    return page.page(
        "settings/muted.html",
        json=query("/muted", repository=page.repository.name, before=before),
        muted=list_muted(page.session, page.repository.id, before),
        before=before,
    )


@router.post("/muted/{series_id}/end")
def unmute_form(page: PageScope, series_id: int) -> Response:
    """Lets a series raise suspicions again."""
    unmute(page.session, [series_id])
    name = page.repository.name if page.repository else ""
    return RedirectResponse(repository_tab(name, RepositoryTab.MUTED), 303)
