"""Whether the server lives and can work, and its metrics, for load balancers and monitoring."""

from __future__ import annotations

import tempfile

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from warpwatch.db.errors import DatabaseDownError, EngineError, SchemaTooNewError, SchemaTooOldError
from warpwatch.server.http.metrics import CONTENT_TYPE, ServiceMetrics
from warpwatch.server.http.problems import FieldError, Problem, json_problem
from warpwatch.server.http.service import Config, database_of, require_schema

api = APIRouter(include_in_schema=False)


@api.get("/healthz")
async def get_liveness() -> Response:
    """Whether the process answers; asks nothing else, so that an outage of the database restarts no server."""
    return JSONResponse({"status": "ok"})


@api.get("/readyz")
def get_readiness(request: Request, settings: Config) -> Response:
    """Whether requests can be served: the database answers, its schema is current, and the folder can be written to.

    503 names what is not so, as `errors`.
    """
    errors = []
    state = request.app.state
    was_current, state.schema_is_current = state.schema_is_current, False
    try:
        with database_of(request).session() as session:
            session.connection()
        require_schema(request)
    except (SchemaTooNewError, SchemaTooOldError) as error:
        # A newer release has migrated while this server runs, which migrations allow.
        state.schema_is_current = was_current
        if not was_current:
            errors.append(FieldError(field="schema", message=str(error), remedy="install that version here"))
    except DatabaseDownError as error:
        errors.append(FieldError(field="database", message=str(error), remedy="start it"))
    except EngineError as error:
        errors.append(FieldError(field="schema", message=str(error), remedy="run `warpwatch migrate`"))
    try:
        settings.home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=settings.home):
            pass
    except OSError as error:
        remedy = f"let this user write to {settings.home}, and free space there"
        errors.append(FieldError(field="folder", message=str(error.strerror or error), remedy=remedy))
    if errors:
        problem = Problem(503, "the server cannot work now; see `errors`", errors, {"Retry-After": "5"})
        # As JSON, although it is no path of the API: programs ask.
        return json_problem(problem, request.url.path)
    return JSONResponse({"status": "ok"})


@api.get("/metrics")
def get_metrics(request: Request) -> Response:
    """Everything that docs/operations.md draws alerts from, as OpenMetrics."""
    metrics: ServiceMetrics = request.app.state.metrics
    return Response(metrics.export(), media_type=CONTENT_TYPE)
