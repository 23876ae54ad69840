"""Old addresses of pages: each leads to the address of today, with its query, so that links in chats keep working."""

from __future__ import annotations

from urllib.parse import quote

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

router = APIRouter()
MOVED: dict[str, str] = {
    "/operators/{name}": "/kernels/{name}",
    "/submissions": "/runs",
    "/submissions/new": "/runs/new",
    "/submissions/{submission_id}": "/runs/{submission_id}",
    "/jobs": "/runs/jobs",
    "/traces": "/runs/traces",
}
"""Address of today by old address; both may hold the same path parameters."""


def lead_to(request: Request, new: str) -> Response:
    """A permanent redirect, which a browser may remember, to `new` with the query of the request."""
    path = new.format(**{name: quote(value) for name, value in request.path_params.items()})
    query = request.url.query
    return RedirectResponse(f"{path}?{query}" if query else path, 308)


def _lead(old: str, new: str) -> None:
    @router.get(old)
    def moved(request: Request) -> Response:
        return lead_to(request, new)


for old_address, new_address in MOVED.items():
    _lead(old_address, new_address)
