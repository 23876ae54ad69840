"""Errors as pages: what happened and what to do."""

from __future__ import annotations

from fastapi import Request, Response

from warpwatch.server.http.problems import FieldError, Problem, UnknownNameProblem
from warpwatch.server.pages.forms import field_message
from warpwatch.server.pages.render import render

_TITLES = {
    400: "Invalid request",
    401: "Log in first",
    403: "Not allowed",
    404: "Not found",
    409: "Not possible now",
    413: "Too large",
    422: "Invalid request",
    500: "Something went wrong",
    502: "The repository cannot be read",
    503: "Database unavailable",
}
_HINTS = {
    404: ("It may not have been measured yet. To measure a commit:", "warpwatch submit --commit HEAD --wait"),
    500: ("No data was changed. Check the service:", "curl {address}api/v1/health"),
    503: (
        "No data is lost; reload when the database is back. Check the service:",
        "curl {address}api/v1/health",
    ),
}


def problem_page(request: Request, problem: Problem) -> Response:
    """The page for a problem; reads nothing from the database, which may be what is broken."""
    # Measuring a commit makes names known; it does not help an address that leads nowhere.
    has_hint = problem.status != 404 or isinstance(problem, UnknownNameProblem)
    text, command = _HINTS.get(problem.status, ("", None)) if has_hint else ("", None)
    command = command and command.format(address=request.base_url)
    title = _TITLES.get(problem.status, problem.title)
    detail = field_message(FieldError(field="", message=problem.detail))
    return render(
        request,
        "error.html",
        status=problem.status,
        problem=problem,
        detail=detail,
        title=title,
        hint=text,
        command=command,
    )
