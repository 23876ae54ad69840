"""Health: devices without workers, workers without results, series that stopped; each with its remedy."""

from __future__ import annotations

from fastapi import APIRouter, Query, Request, Response

from warpwatch.server.explanation.alarms import AlarmKind
from warpwatch.server.http.service import alarms_of
from warpwatch.server.pages.render import Page, query

router = APIRouter()
KINDS = {
    "no_space": "no space",
    "stale_device": "no worker",
    "stale_worker": "no results",
    "paused_worker": "paused",
    "unfit": "unfit device",
    "shared_device": "shared device",
    "slower_card": "slower card",
    "missing": "missing data",
    "vanished": "removed from catalogue",
}
"""The name of each kind on the page, the most serious first."""


@router.get("/alarms")
def alarms(page: Page, request: Request, kind: AlarmKind | None = Query(None)) -> Response:
    """Every health problem of the service and of the repository."""
    if page.repository is None:
        return page.page("welcome.html")
    rows = alarms_of(request).list(page.session, page.repository.id)
    address = query("/alarms", repository=page.repository.name, kind=kind)
    counts = {name: sum(row.kind == name for row in rows) for name in KINDS}
    return page.page(
        "alarms.html",
        json=address,
        csv=f"/api/v1{address.replace('/alarms', '/alarms.csv', 1)}",
        rows=[row for row in rows if kind in (None, row.kind)],
        kind=kind,
        kinds=[(name, f"{label} ({counts[name]})") for name, label in KINDS.items() if counts[name] or name == kind],
        names=KINDS,
    )
