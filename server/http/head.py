"""Answers HEAD on every address that answers GET, with the same status and head."""

from __future__ import annotations

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class _HeadSentError(OSError):
    """Ends a body that comes in pieces, such as live events, which may have no end."""


class HeadRequests:
    """Asks the application for GET and sends the head of its answer alone."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return

        async def send_head(message: Message) -> None:
            if message["type"] != "http.response.body":
                await send(message)
                return
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            if message.get("more_body"):
                raise _HeadSentError

        # The same scope is passed on, because the observer of requests reads the route from it.
        scope["method"] = "GET"
        try:
            await self.app(scope, receive, send_head)
        except (_HeadSentError, ClientDisconnect):
            pass
        finally:
            scope["method"] = "HEAD"
