"""Log-in by token; a cookie keeps the browser logged in."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form, Request
from fastapi.responses import RedirectResponse, Response
from starlette.datastructures import Headers

from warpwatch.server.http.security import COOKIE, has_token
from warpwatch.server.http.service import Config
from warpwatch.server.pages.render import render

router = APIRouter(include_in_schema=False)
_MONTH = 30 * 24 * 3600


@router.get("/login")
def show_login(request: Request) -> Response:
    return render(request, "login.html", message="")


@router.post("/login")
def log_in(request: Request, settings: Config, token: Annotated[str, Form(max_length=500)]) -> Response:
    """Sets the cookie and redirects to the overview; shows the form again with a message for a wrong token."""
    shown = Headers({"authorization": f"Bearer {token}"})
    if settings.token is not None and not has_token(shown, settings.token):
        return render(request, "login.html", status=401, message="Wrong token.")
    response = RedirectResponse("/", status_code=303)
    secure = request.url.scheme == "https"
    response.set_cookie(COOKIE, token, max_age=_MONTH, httponly=True, samesite="strict", secure=secure)
    return response
