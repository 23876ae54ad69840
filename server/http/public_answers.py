"""Answers to the public: without what needs an account, and for a while in the caches between."""

from __future__ import annotations

import hashlib
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from warpwatch.server.http.access import PUBLIC
from warpwatch.server.http.permissions import is_public
from warpwatch.server.http.public_markup import PublicMarkup, parse, write

KEPT_SECONDS = 60
"""How long a proxy may show an answer to others without asking."""


def public_place(address: str) -> str | None:
    """The address, if the public may ask for it."""
    path = urlsplit(address).path
    return address if path.startswith("/static/") or is_public("GET", path) else None


class PublicAnswers:
    """Leaves forms and links that need an account out of pages that the public asked for, and lets proxies keep them.

    The answer is held until it is whole, because its digest stands in its head.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope.get("state", {}).get("caller") is not PUBLIC:
            await self.app(scope, receive, send)
            return
        start: Message = {}
        body = bytearray()

        async def collect(message: Message) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
            else:
                body.extend(message.get("body", b""))

        await self.app(scope, receive, collect)
        headers = MutableHeaders(raw=list(start["headers"]))
        content = bytes(body)
        if headers.get("content-type", "").startswith("text/html"):
            markup = PublicMarkup(public_place, scope["path"])
            content = write(markup.kept(parse(content.decode()))).encode()
            headers["Content-Length"] = str(len(content))
        if start["status"] in (200, 304):
            start["status"] = _allow_caches(headers, content, Headers(scope=scope).get("if-none-match", ""))
        if start["status"] == 304:
            content = b""
            del headers["Content-Length"]
        await send({**start, "headers": headers.raw})
        await send({"type": "http.response.body", "body": content})


def _allow_caches(headers: MutableHeaders, content: bytes, known: str) -> int:
    """The status of an answer that caches may keep; 304 where the reader has it."""
    # Weak, because the same content may be sent compressed.
    tag = headers.get("ETag") or f'W/"{hashlib.sha256(content).hexdigest()[:20]}"'
    headers["ETag"] = tag
    headers["Cache-Control"] = f"public, max-age={KEPT_SECONDS}"
    # Somebody who logged in gets another answer at the same address.
    headers.add_vary_header("Authorization")
    headers.add_vary_header("Cookie")
    return 304 if tag.removeprefix("W/") in known else 200
