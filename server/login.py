"""Logging in where a token is needed: the cookie that lets a browser in."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.datastructures import Headers

from server.security import COOKIE, has_token
from server.service import Config

router = APIRouter(include_in_schema=False)
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Log in · Warpwatch</title><link rel="stylesheet" href="/static/tokens.css"><link rel="stylesheet" href="/static/layout.css">
<link rel="stylesheet" href="/static/components.css"></head>
<body><main><h1>Warpwatch</h1><form method="post" action="/login">
<label for="token">Token</label> <input id="token" name="token" type="password" autocomplete="current-password" required autofocus>
<button type="submit">Log in</button></form><p role="alert">{message}</p>
<p>It is the text in <code>WARPWATCH_TOKEN</code> where the server was started.</p></main></body></html>
"""
_MONTH = 30 * 24 * 3600


@router.get("/login")
def show_login() -> HTMLResponse:
    return HTMLResponse(_PAGE.format(message=""))


@router.post("/login")
def log_in(request: Request, settings: Config, token: Annotated[str, Form(max_length=500)]) -> Response:
    """Set the cookie and go to the first page; the same page again with a word when the token is not the right one."""
    shown = Headers({"authorization": f"Bearer {token}"})
    if settings.token is not None and not has_token(shown, settings.token):
        return HTMLResponse(_PAGE.format(message="This is not the token."), status_code=401)
    response = RedirectResponse("/", status_code=303)
    secure = request.url.scheme == "https"
    response.set_cookie(COOKIE, token, max_age=_MONTH, httponly=True, samesite="strict", secure=secure)
    return response
