"""Logging in and out where a token is needed: by a token, an invitation, or at an OpenID provider."""

from __future__ import annotations

import hmac
import logging
from typing import Annotated

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import RedirectResponse, Response

from warpwatch.db.access import end_session
from warpwatch.db.accounts import find_invited, sign_in
from warpwatch.server.http.access import ADMINISTRATOR, find_holder, hash_of, keep_trail
from warpwatch.server.http.access import log_out as end_everywhere
from warpwatch.server.http.oidc import CALLBACK, finish_visit, start_visit
from warpwatch.server.http.problems import Problem
from warpwatch.server.http.providers import ProviderError, WrongTokenError
from warpwatch.server.http.security import COOKIE, count_guess, identify_token, read_cookie, session_cookie
from warpwatch.server.http.service import database_of, settings_of
from warpwatch.server.http.sessions import SESSION_SECONDS, VISIT_SECONDS, Sessions
from warpwatch.server.intake.accounts import accept
from warpwatch.server.web.render import render

router = APIRouter(include_in_schema=False)
VISIT_COOKIE = "warpwatch_visit"
_Secret = Annotated[str, Query(max_length=2000)]
_log = logging.getLogger(__name__)


@router.get("/login")
def show_login(request: Request) -> Response:
    return _form(request)


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
        return _form(request, 401, errors={"token": "Wrong token."})
    if problem is not None:
        return _refuse(request, problem)
    holder = find_holder(database, token) if caller is not ADMINISTRATOR else None
    _set_session(request, response, sessions.issue(holder.id if holder is not None else None))
    return response


@router.get("/login/oidc")
def visit_provider(request: Request) -> Response:
    """Send the browser to the OpenID provider."""
    sessions, settings = request.app.state.sessions, settings_of(request)
    if sessions is None or settings.provider is None:
        return _form(request, 404, "This server has no OpenID provider.")
    try:
        address, visit = start_visit(request.app.state.providers, settings.provider, settings.server_url)
    except ProviderError as error:
        _log.warning("nobody can sign in: %s", error)
        return _form(request, 502, "The OpenID provider does not answer. Try again later.")
    response = RedirectResponse(address, status_code=303)
    # The provider sends the browser back from another site, which a strict cookie would not survive.
    secure = request.url.scheme == "https"
    cookie = sessions.sign_visit(visit)
    response.set_cookie(
        VISIT_COOKIE, cookie, max_age=VISIT_SECONDS, path=CALLBACK, httponly=True, samesite="lax", secure=secure
    )
    return response


@router.get(CALLBACK)
def return_from_provider(request: Request, state: _Secret = "", code: _Secret = "", error: _Secret = "") -> Response:
    """Start a session for whom the provider signed in."""
    sessions: Sessions | None = request.app.state.sessions
    settings = settings_of(request)
    if sessions is None or settings.provider is None:
        return _form(request, 404, "This server has no OpenID provider.")
    visit = sessions.read_visit(read_cookie(request.headers, VISIT_COOKIE))
    if visit is None or not hmac.compare_digest(visit.state.encode(), state.encode()):
        return _form(request, 400, "This sign-in did not begin in this browser, or took too long. Try again.")
    database = database_of(request)
    with database.session() as session:
        is_first = end_session(session, f"visit {visit.state}", VISIT_SECONDS)
    if not is_first:
        return _form(request, 400, "This sign-in has ended before. Try again.")
    if not code or error:
        return _form(request, 403, "The OpenID provider signed nobody in.")
    try:
        identity = finish_visit(request.app.state.providers, settings.provider, settings.server_url, visit, code)
    except WrongTokenError as refusal:
        _log.warning("a sign-in was refused: %s", refusal)
        return _form(request, 401, "The OpenID provider's answer cannot be trusted. The server's log says why.")
    except ProviderError as trouble:
        _log.warning("nobody can sign in: %s", trouble)
        return _form(request, 502, "The OpenID provider does not answer. Try again later.")
    with database.session() as session:
        account = sign_in(session, identity)
    if account is None:
        return _form(request, 403, f"{identity.email or identity.name} may not use this server. Ask an administrator.")
    # A sign-in may make the account or change its role.
    keep_trail(database, account.name, request.scope, 200)
    # A redirect would count as the provider's, and the browser would not send the strict cookie along.
    response = render(request, "signed_in.html", name=account.name, token=None)
    _set_session(request, response, sessions.issue(account_id=account.id))
    response.delete_cookie(VISIT_COOKIE, path=CALLBACK)
    return response


@router.get("/login/invitation")
def show_invitation(request: Request, token: _Secret = "") -> Response:
    """Whom a link invites. Opening it ends nothing: mail programs open links, too."""
    with database_of(request).session() as session:
        account = find_invited(session, hash_of(token))
    if account is None:
        return _refuse_invitation(request)
    return render(request, "invitation.html", account=account, invitation=token)


@router.post("/login/invitation")
def accept_invitation(request: Request, token: Annotated[str, Form(max_length=500)]) -> Response:
    """Start a session and show once what to sign in with from now on."""
    sessions: Sessions | None = request.app.state.sessions
    if sessions is None:
        return RedirectResponse("/", status_code=303)
    with database_of(request).session() as session:
        accepted = accept(session, token)
    if accepted is None:
        return _refuse_invitation(request)
    account, personal = accepted
    keep_trail(database_of(request), account.name, request.scope, 200)
    response = render(request, "signed_in.html", name=account.name, token=personal)
    _set_session(request, response, sessions.issue(account_id=account.id))
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


def _set_session(request: Request, response: Response, session: str) -> None:
    secure = request.url.scheme == "https"
    response.set_cookie(COOKIE, session, max_age=SESSION_SECONDS, httponly=True, samesite="strict", secure=secure)


def _form(request: Request, status: int = 200, message: str = "", errors: dict[str, str] | None = None) -> Response:
    provider = settings_of(request).provider
    return render(request, "login.html", status=status, message=message, errors=errors or {}, provider=provider)


def _refuse(request: Request, problem: Problem) -> Response:
    answer = _form(request, problem.status, f"{problem.detail.capitalize()}.")
    answer.headers.update(problem.headers)
    return answer


def _refuse_invitation(request: Request) -> Response:
    problem = count_guess(request.app.state.guesses, request.scope)
    message = "This invitation was used before, has expired or was replaced. Ask an administrator for another one."
    return _refuse(request, problem) if problem is not None else _form(request, 404, message)
