"""Query parameters that an operation of the API does not have are refused: passed over, they would return what nobody
asked for."""

from __future__ import annotations

from fastapi import Request
from starlette.concurrency import run_in_threadpool

from warpwatch.server.http.problems import FieldError, Problem

PREFIX = "/api/v1"


async def refuse_unknown_parameters(request: Request) -> None:
    """Raises Problem that names each parameter that the operation's description does not."""
    # Most requests have none, and a step in a thread takes longer than everything else here.
    if request.query_params:
        await run_in_threadpool(_refuse_unknown, request)


def _refuse_unknown(request: Request) -> None:
    # Whether a route knows the prefix that it was included under depends on FastAPI's version.
    path = PREFIX + request.scope["route"].path_format.removeprefix(PREFIX)
    operation = request.app.openapi()["paths"][path][request.method.lower()]
    known = sorted(entry["name"] for entry in operation.get("parameters", []) if entry["in"] == "query")
    remedy = f"use {', '.join(known)}, or leave it out" if known else "leave it out"
    unknown = [
        FieldError(field=name, message="there is no such parameter", remedy=remedy)
        for name in request.query_params
        if name not in known
    ]
    if unknown:
        raise Problem(422, "some parameters are not known here; see `errors`", unknown)
