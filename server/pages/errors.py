"""Errors as pages: what happened, and what to do."""

from __future__ import annotations

from fastapi import Request, Response

from warpwatch.server.http.problems import Problem, UnknownNameProblem
from warpwatch.server.pages.render import render

_TITLES = {
    400: "This request cannot be understood",
    401: "Log in first",
    403: "This is not allowed",
    404: "Not found",
    409: "That cannot be done now",
    413: "Too large",
    422: "Some of this cannot be used",
    500: "Something went wrong",
    502: "The repository cannot be read",
    503: "The database cannot be used",
}
_HINTS = {
    404: ("It may never have been measured. Ask for a commit and it will be:", "warpwatch submit --commit HEAD --wait"),
    500: ("Nothing was half-written. See whether the service is well:", "curl {address}api/v1/health"),
    503: (
        "Nothing is lost; this page comes back when the database does. See how it fares:",
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
    return render(
        request, "error.html", status=problem.status, problem=problem, title=title, hint=text, command=command
    )
