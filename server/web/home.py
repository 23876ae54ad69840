"""Home, the page of all repositories."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from warpwatch.server.http.service import Db
from warpwatch.server.web.moved import lead_to
from warpwatch.server.web.render import Scope, query

router = APIRouter()


@router.get("/")
def home(request: Request, session: Db) -> Response:
    """Leads to the overview, whose address this was: a query, such as `?repository=`, was one of the overview."""
    if request.query_params:
        return lead_to(request, "/overview")
    page = Scope(request, session)
    if page.repository is None:
        return page.page("welcome.html", json="/health")
    return RedirectResponse(query("/overview", repository=page.repository.name), 303)
