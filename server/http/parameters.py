"""Query parameters that an operation of the API does not have are refused: passed over, they would return what nobody
asked for."""

from __future__ import annotations

from fastapi import Request
from fastapi.openapi.utils import get_openapi
from starlette.concurrency import run_in_threadpool

from warpwatch.server.http.problems import FieldError, Problem

PREFIX = "/api/v1"


async def refuse_unknown_parameters(request: Request) -> None:
    """Raises Problem that names each parameter that the operation's description does not."""
    # Most requests have none, and a step in a thread takes longer than everything else here.
    if request.query_params:
        await run_in_threadpool(_refuse_unknown, request)


def _refuse_unknown(request: Request) -> None:
    known = _query_parameters(request)
    remedy = f"use {', '.join(known)}, or leave it out" if known else "leave it out"
    unknown = [
        FieldError(field=name, message="there is no such parameter", remedy=remedy)
        for name in request.query_params
        if name not in known
    ]
    if unknown:
        raise Problem(422, "some parameters are not known here; see `errors`", unknown)


def _query_parameters(request: Request) -> list[str]:
    """The names of the operation's query parameters, sorted.

    Only this operation is described for it: the description of all of them takes a second of the interpreter.
    """
    route, known = request.scope["route"], request.app.state.query_parameters
    operation = (request.method.lower(), route.path_format)
    if operation not in known:
        (path,) = get_openapi(title="", version="", routes=[route])["paths"].values()
        parameters = path[request.method.lower()].get("parameters", [])
        known[operation] = sorted(entry["name"] for entry in parameters if entry["in"] == "query")
    names: list[str] = known[operation]
    return names
