"""A trace: its kernel table, the trace itself in the embedded viewer, and the files."""

from __future__ import annotations

from urllib.parse import quote

from fastapi import APIRouter, Response

from db.reads.traces import read_trace
from server.pages.render import Page
from server.problems import not_found

router = APIRouter()


@router.get("/traces/{trace_id}")
def trace(page: Page, trace_id: int) -> Response:
    """The viewer is loaded from our own host and given the trace's address, so nothing leaves the machine."""
    found = read_trace(page.session, trace_id)
    if found is None:
        raise not_found("trace", trace_id)
    page.moved(found.repository)
    file = f"{str(page.request.base_url).rstrip('/')}/api/v1/traces/{trace_id}/download.json.gz"
    viewer = f"/perfetto/#!/?mode=embedded&hideSidebar=true&url={quote(file, safe='')}"
    return page.page("trace.html", json=f"/traces/{trace_id}", trace=found, viewer=viewer)
