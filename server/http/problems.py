"""Errors as RFC 9457 problems: what happened, which field it is about, and what to do."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from threading import Lock
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException

from warpwatch.db import errors as db_errors
from warpwatch.git import GitError
from warpwatch.server.http.validation import explain

MEDIA_TYPE = "application/problem+json"
REFERENCE = "#/components/schemas/{model}"
"""Where the OpenAPI description holds the schema of a type."""
_log = logging.getLogger(__name__)


class FieldError(BaseModel):
    """Error in one field of a request, and advice on the value to enter instead."""

    field: str
    message: str
    remedy: str = ""


class ProblemBody(BaseModel):
    """An RFC 9457 problem. `errors` names the fields of the request that are at fault."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    instance: str
    errors: list[FieldError] = []


class Problem(Exception):  # noqa: N818 - RFC 9457 calls it so.
    """A request that cannot be answered; `detail` is for people and names what to do."""

    def __init__(
        self, status: int, detail: str, errors: list[FieldError] | None = None, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.title = HTTPStatus(status).phrase
        self.detail = detail
        self.errors = errors or []
        self.headers = headers or {}


class UnknownNameProblem(Problem):
    """A request names something that is not in the database, and that a measurement may bring; numbers that are not
    given, and addresses that lead nowhere, are a plain 404."""

    def __init__(self, detail: str) -> None:
        super().__init__(404, detail)


def not_found(what: str, name: object, remedy: str = "") -> Problem:
    """The problem that there is no `what` called `name`, or with this number."""
    detail = f"there is no {what} {name!r}" + (f"; {remedy}" if remedy else "")
    return Problem(404, detail) if isinstance(name, int) else UnknownNameProblem(detail)


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The problems that an endpoint may answer with, for the OpenAPI description; every one may answer 400 and 503.

    `_describe_problems` adds their content. With "model", FastAPI would prepare ProblemBody 700 times at each start.
    """
    return {status: {"description": HTTPStatus(status).phrase} for status in (400, *statuses, 503)}


def respond(request: Request, problem: Problem) -> Response:
    """JSON below /api, a page for people elsewhere when the pages have one to show."""
    page: Callable[[Request, Problem], Response] | None = getattr(request.app.state, "problem_page", None)
    if page is not None and not request.url.path.startswith("/api/"):
        response = page(request, problem)
        response.headers.update(problem.headers)
        return response
    return json_problem(problem, request.url.path)


def json_problem(problem: Problem, instance: str) -> JSONResponse:
    body = ProblemBody(
        title=problem.title, status=problem.status, detail=problem.detail, instance=instance, errors=problem.errors
    )
    return JSONResponse(body.model_dump(), problem.status, problem.headers, MEDIA_TYPE)


_STATUS_OF_ENGINE_ERRORS = {
    db_errors.DatabaseDownError: 503,
    db_errors.DatabaseBusyError: 503,
    db_errors.DatabaseFullError: 503,
    db_errors.SchemaOutdatedError: 503,
    db_errors.SchemaTooNewError: 503,
    db_errors.SchemaTooOldError: 503,
    db_errors.StateError: 409,
    db_errors.StaleRunError: 409,
}


def install(app: FastAPI) -> None:
    """Answer every error of `app` with a problem, and describe it so in OpenAPI."""
    handlers: dict[Any, Callable[[Request, Any], Problem]] = {
        Problem: lambda request, error: error,
        RequestValidationError: lambda request, error: _from_validation(error),
        HTTPException: _from_http,
        db_errors.EngineError: lambda request, error: _from_engine(error),
        db_errors.UnusableValueError: lambda request, error: Problem(422, f"a value cannot be used: {error}"),
        GitError: lambda request, error: Problem(502, str(error)),
    }
    for kind, translate in handlers.items():
        app.add_exception_handler(kind, _handler(translate))
    _describe_problems(app)


def _handler(translate: Callable[[Request, Any], Problem]) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def handle(request: Request, error: Exception) -> Response:
        return respond(request, translate(request, error))

    return handle


def _from_validation(error: RequestValidationError) -> Problem:
    found = error.errors()
    if any(entry["type"] == "json_invalid" for entry in found):
        return Problem(400, 'the body is not valid JSON; send an object such as {"name": …}')
    explained = [(_field(entry["loc"]), *explain(entry)) for entry in found]
    fields = [FieldError(field=field, message=message, remedy=remedy) for field, message, remedy in explained]
    return Problem(422, "some fields are not valid", fields)


def _field(location: tuple[Any, ...]) -> str:
    """`body → kinds → 0` as `kinds[0]`, the way a caller wrote it."""
    name = ""
    for part in location[1:] or location:
        name += f"[{part}]" if isinstance(part, int) else f".{part}" if name else str(part)
    return name


def _from_http(request: Request, error: HTTPException) -> Problem:
    detail = str(error.detail)
    if error.status_code == 404:
        is_api = request.url.path.startswith("/api/")
        detail = f"there is nothing at {request.url.path}" + ("; see /api/v1/openapi.json" if is_api else "")
    return Problem(error.status_code, detail, headers=dict(error.headers or {}))


def _from_engine(error: db_errors.EngineError) -> Problem:
    if isinstance(error, db_errors.NotFoundError):
        return UnknownNameProblem(str(error))
    status = _STATUS_OF_ENGINE_ERRORS.get(type(error), 500)
    return Problem(status, str(error), headers={"Retry-After": "5"} if status == 503 else None)


def surprise(request: Request, error: Exception) -> Response:
    """The answer to an error that nobody foresaw; the log has it, the answer tells nothing of the inside."""
    _log.error("unexpected error at %s %s", request.method, request.url.path, exc_info=error)
    problem = Problem(500, "the server met an error it does not know; its log says more. Nothing was half-written")
    try:
        return respond(request, problem)
    except Exception:  # noqa: BLE001 - the page for errors may be what fails.
        return json_problem(problem, request.url.path)


def _describe_problems(app: FastAPI) -> None:
    """FastAPI describes errors as application/json and 422 in its own words; say what is really sent."""

    lock = Lock()

    def describe() -> dict[str, Any]:
        if app.openapi_schema is not None:
            return app.openapi_schema
        # It takes a second of the interpreter. Requests that need it at once would each take one.
        with lock:
            return describe_once()

    def describe_once() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            for operation in (operation for path in schema["paths"].values() for operation in path.values()):
                # Parameters that it does not have are refused everywhere.
                operation["responses"].setdefault("422", {"description": HTTPStatus(422).phrase})
                for status, response in operation["responses"].items():
                    if status.startswith(("4", "5")):
                        reference = REFERENCE.format(model=ProblemBody.__name__)
                        response["content"] = {MEDIA_TYPE: {"schema": {"$ref": reference}}}
            components = schema["components"]["schemas"]
            for name in ("HTTPValidationError", "ValidationError"):
                components.pop(name, None)
            _, problems = models_json_schema([(ProblemBody, "validation")], ref_template=REFERENCE)
            schema["components"]["schemas"] = dict(sorted((components | problems["$defs"]).items()))
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = describe  # type: ignore[method-assign]
