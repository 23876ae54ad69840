"""Logging in and out where a token is needed."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form, Request
from fastapi.responses import RedirectResponse, Response

from warpwatch.server.http.access import ADMINISTRATOR, find_holder
from warpwatch.server.http.access import log_out as end_everywhere
from warpwatch.server.http.security import COOKIE, identify_token, session_cookie
from warpwatch.server.http.service import database_of
from warpwatch.server.http.sessions import SESSION_SECONDS, Sessions
from warpwatch.server.pages.render import render

router = APIRouter(include_in_schema=False)


@router.get("/login")
def show_login(request: Request) -> Response:
    return render(request, "login.html", message="")


@router.post("/login")
def log_in(request: Request, token: Annotated[str, Form(max_length=500)]) -> Response:
    """Start a session and go to the overview; the form again with a message when the token is wrong."""
    sessions: Sessions | None = request.app.state.sessions
    response = RedirectResponse("/", status_code=303)
    if sessions is None:
        return response
    database = database_of(request)
    caller, problem = identify_token(sessions, request.app.state.guesses, database, request.scope, token)
    if problem is not None and problem.status == 401:
        return render(request, "login.html", status=401, message="Wrong token.")
    if problem is not None:
        answer = render(request, "login.html", status=problem.status, message=f"{problem.detail.capitalize()}.")
        answer.headers.update(problem.headers)
        return answer
    holder = find_holder(database, token) if caller is not ADMINISTRATOR else None
    session = sessions.issue(holder.id if holder is not None else None)
    secure = request.url.scheme == "https"
    response.set_cookie(COOKIE, session, max_age=SESSION_SECONDS, httponly=True, samesite="strict", secure=secure)
    return response


@router.post("/logout")
def log_out(request: Request) -> Response:
    """End the session of this browser and show the form."""
    sessions: Sessions | None = request.app.state.sessions
    subject = sessions.read(session_cookie(request.headers)) if sessions is not None else None
    if subject is not None:
        end_everywhere(database_of(request), subject)
    response = RedirectResponse("/login", status_code=303)
    response.delete_cookie(COOKIE)
    return response
