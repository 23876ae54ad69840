"""Health: devices without workers, workers without results, series that stopped; each with its remedy."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from warpwatch.db.reads.query import Page
from warpwatch.server.explanation.alarms import AlarmKind, AlarmRow
from warpwatch.server.figures.tables import CSV_ANSWER, csv_response
from warpwatch.server.http.brief import briefly, documented_brief
from warpwatch.server.http.problems import documented
from warpwatch.server.http.service import Db, alarms_of, repository_or_404
from warpwatch.server.web.brief import brief_alarms
from warpwatch.server.web.render import Scope, query

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


def show(page: Scope, request: Request, kind: AlarmKind | None = None) -> Response:
    """Every health problem of the service and of all repositories."""
    rows = alarms_of(request).list(page.session, None)
    address = query("/alarms", kind=kind)
    counts = {name: sum(row.kind == name for row in rows) for name in KINDS}
    return page.page(
        "settings/health.html",
        json=address,
        csv=f"/api/v1{address.replace('/alarms', '/alarms.csv', 1)}",
        rows=[row for row in rows if kind in (None, row.kind)],
        kind=kind,
        kinds=[(name, f"{label} ({counts[name]})") for name, label in KINDS.items() if counts[name] or name == kind],
        names=KINDS,
    )


api = APIRouter(tags=["alarms"])


@api.get("/alarms", responses=documented(404, 422) | documented_brief())
@briefly(brief_alarms)
def get_alarms(
    request: Request, session: Db, repository: str | None = None, kind: AlarmKind | None = None
) -> Page[AlarmRow]:
    """Everything that blocks measurement, each with its remedy, on one page.

    no_space: a disk budget is spent, so the server takes no work. stale_device: jobs are queued for a device without a
    worker. stale_worker: a worker is online, has jobs and returns no results. paused_worker: several jobs in a row
    failed for a reason of its machine. unfit: the state of a device prevents measurement. shared_device: several
    workers measure on one physical device. slower_card: series of unchanged code became slower on one physical card.
    missing: a series has no result and no status at the newest commits. vanished: an operator, variant or case left the
    catalogue. An entry clears when its cause is gone.
    """
    repository_id = None if repository is None else repository_or_404(session, repository).id
    alarms = alarms_of(request).list(session, repository_id)
    return Page([row for row in alarms if kind in (None, row.kind)], None)


@api.get("/alarms.csv", responses=documented(404, 422) | CSV_ANSWER, response_class=Response)
def get_alarms_csv(
    request: Request, session: Db, repository: str | None = None, kind: AlarmKind | None = None
) -> Response:
    """The same list as CSV."""
    return csv_response(AlarmRow, get_alarms(request, session, repository, kind).items, "alarms")
