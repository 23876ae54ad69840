"""Old addresses of pages: each leads to the address of today, with its query, so that links in chats keep working."""

from __future__ import annotations

from urllib.parse import quote

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

router = APIRouter()
MOVED: dict[str, str] = {
    "/operators/{name}": "/kernels/{name}",
    "/repositories": "/",
    "/repositories/{name}/delete": "/settings/repository?repository={name}#delete",
    "/repositories/{name}/forge": "/settings/repository?repository={name}&tab=code-host",
    "/repositories/{name}/ci": "/settings/repository?repository={name}&tab=ci",
    "/repositories/{name}/retention": "/settings/repository?repository={name}&tab=retention",
    "/channels": "/settings/repository?tab=notifications",
    "/schedules": "/settings/repository?tab=schedules",
    "/muted": "/settings/repository?tab=muted",
    "/views": "/settings/repository?tab=views",
    "/watches": "/settings/repository?tab=watches",
    "/accounts": "/settings/people?tab=users",
    "/tokens": "/settings/people?tab=tokens",
    "/audit": "/settings/people?tab=audit",
    "/devices": "/settings/devices",
    "/alarms": "/settings/devices?tab=health",
    "/proofs": "/settings/devices?tab=self-tests",
    "/submissions": "/runs",
    "/submissions/new": "/runs/new",
    "/submissions/{submission_id}": "/runs/{submission_id}",
    "/jobs": "/runs/jobs",
    "/traces": "/runs/traces",
    "/traces/survey": "/runs/traces?view=launches",
    "/judgements": "/runs/judgements",
    "/branches": "/commits?tab=branches",
}
"""Address of today by old address; both may hold the same path parameters."""


def lead_to(request: Request, new: str) -> Response:
    """A permanent redirect, which a browser may remember, to `new` with the query of the request."""
    address, hash_sign, anchor = new.format(
        **{name: quote(value, safe="") for name, value in request.path_params.items()}
    ).partition("#")
    parts = [part for part in (address.partition("?")[2], request.url.query) if part]
    path = address.partition("?")[0]
    return RedirectResponse((f"{path}?{'&'.join(parts)}" if parts else path) + hash_sign + anchor, 308)


def _lead(old: str, new: str) -> None:
    @router.get(old)
    def moved(request: Request) -> Response:
        return lead_to(request, new)


for old_address, new_address in MOVED.items():
    _lead(old_address, new_address)
