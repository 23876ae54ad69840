"""Home: every repository and how it stands, on one page; and its JSON."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request, Response

from warpwatch.db.reads.home import HomeRow, list_home, read_job_repositories
from warpwatch.db.reads.query import Page, Session
from warpwatch.db.reads.trades import count_watched_costs
from warpwatch.server.figures.home_strip import verdict_strip
from warpwatch.server.http.brief import briefly, documented_brief
from warpwatch.server.http.problems import documented
from warpwatch.server.http.service import Before, Config, Db, Limit, settings_of
from warpwatch.server.verdicts.trades import LEFT
from warpwatch.server.web.brief import brief_home
from warpwatch.server.web.lanes import read_lanes
from warpwatch.server.web.moved import lead_to
from warpwatch.server.web.render import Scope, query

router = APIRouter()
PAGE_SIZE = 25
URL_EXAMPLE = "https://github.com/acme/kernels.git"
DEFINITIONS_EXAMPLE = "https://github.com/acme/definitions.git@main"
OF_HOME = {"before", "chart"}
"""Parameters of this page. Any other one, such as `?repository=`, is of the overview, whose address this was."""


@router.get("/")
def home(request: Request, session: Db, before: Before = None) -> Response:
    """A row per repository; leads to the overview where the query is one of the overview."""
    if not set(request.query_params) <= OF_HOME:
        return lead_to(request, "/overview")
    return show_home(Scope(request, session), before=before)


def show_home(
    page: Scope,
    entered: dict[str, Any] | None = None,
    errors: dict[str, str] | None = None,
    before: int | None = None,
) -> Response:
    """The repositories, and the form that registers one. entered: its input, where it is wrong."""
    now = datetime.now(UTC)
    rows = read_home(page.session, settings_of(page.request).lease_seconds, before, PAGE_SIZE)
    return page.page(
        "home.html" if rows.items else "welcome.html",
        json=query("/home", before=before),
        status=422 if errors else 200,
        rows=rows,
        strips={row.id: verdict_strip(row.verdicts, now) for row in rows.items},
        before=before,
        entered=entered or {},
        errors=errors or {},
        url_example=URL_EXAMPLE,
        definitions_example=DEFINITIONS_EXAMPLE,
    )


def read_home(session: Session, lease_seconds: float, before: int | None, limit: int) -> Page[HomeRow]:
    """A page of repositories, with the open costs and the estimated end of the work of each."""
    rows = list_home(session, before, limit)
    costs = count_watched_costs(session, [row.id for row in rows.items], LEFT)
    rows = Page([replace(row, costs=costs.get(row.id, 0)) for row in rows.items], rows.next_before)
    if not any(row.queued or row.running for row in rows.items):
        return rows
    repositories = read_job_repositories(session)
    lanes = read_lanes(session, lease_seconds)
    ends: dict[int, datetime] = {}
    for block in (block for device in lanes.rows for block in device.blocks):
        if (repository_id := repositories.get(block.job_id)) is not None:
            ends[repository_id] = max(ends.get(repository_id, lanes.now), block.end)
    return Page([replace(row, queue_end=ends.get(row.id)) for row in rows.items], rows.next_before)


api = APIRouter(tags=["code"])


@api.get("/home", responses=documented(422) | documented_brief())
@briefly(brief_home)
def get_home(session: Db, settings: Config, before: Before = None, limit: Limit = 50) -> Page[HomeRow]:
    """How every repository stands on its watched branch: open, suspected and failing, open costs, the queue with its
    estimated end, and the confirmed changes of the last 90 days."""
    return read_home(session, settings.lease_seconds, before, limit)
