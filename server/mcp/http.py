"""`/mcp`: the tools over streamable HTTP, in the process of the server.

A tool sends its requests through the whole application, with the token of its caller: what the caller may not do over
REST, no tool does.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import httpx
from fastapi import APIRouter, Response
from starlette.types import ASGIApp, Receive, Scope, Send

if TYPE_CHECKING:
    from mcp.server.mcpserver import Context
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
_FORWARDED = ("authorization", "host", "traceparent")


class McpApi:
    """The REST API of the application that a tool was called through, asked as its caller."""

    def __init__(self, context: Context[Any, Any]) -> None:
        request = context.request_context.request
        assert request is not None
        self._app: ASGIApp = request.app
        self._client = (request.client.host, request.client.port) if request.client else ("127.0.0.1", 0)
        self._headers = {name: request.headers[name] for name in _FORWARDED if name in request.headers}

    async def __call__(self, method: str, path: str, body: dict[str, Any] | bytes | None = None) -> dict[str, Any]:
        from mcp.server.mcpserver.exceptions import ToolError

        transport = httpx.ASGITransport(self._app, client=self._client)
        content = json.dumps(body).encode() if isinstance(body, dict) else body
        kind = "application/json" if isinstance(body, dict) else "application/octet-stream"
        headers = self._headers | {"content-type": kind}
        async with httpx.AsyncClient(transport=transport, base_url="http://server/api/v1") as client:
            answer = await client.request(method, path, content=content, headers=headers)
        result: dict[str, Any] = answer.json()
        if answer.is_error:
            raise ToolError(explain(result))
        return result


def explain(problem: dict[str, Any]) -> str:
    """An RFC 9457 problem as text: its detail, then each field's message and remedy."""
    fields = [
        f"{error['field']}: {'; '.join(filter(None, (error['message'], error.get('remedy'))))}"
        for error in problem.get("errors", [])
    ]
    return "\n".join([f"{problem.get('status')}: {problem.get('detail')}", *fields])


class McpSessions:
    """Answers the MCP requests of an application. Without a session between requests any of several servers can answer.

    The SDK is loaded by the first request, because it takes as long to load as the rest of the server.
    """

    def __init__(self) -> None:
        self._manager: StreamableHTTPSessionManager | None = None
        self._lock = asyncio.Lock()
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._lock:
            if self._manager is None:
                self._manager = await self._start()
        await self._manager.handle_request(scope, receive, send)

    async def _start(self) -> StreamableHTTPSessionManager:
        from mcp.server.transport_security import TransportSecuritySettings

        from warpwatch.server.mcp.tools import make_server

        server = make_server(McpApi)
        # RequestGuard has checked Host and Origin.
        security = TransportSecuritySettings(enable_dns_rebinding_protection=False)
        server.streamable_http_app(json_response=True, stateless_http=True, transport_security=security)
        manager = server.session_manager
        started = asyncio.Event()

        async def run() -> None:
            async with manager.run():
                started.set()
                await self._stop.wait()

        self._task = asyncio.create_task(run())
        await started.wait()
        return manager

    async def stop(self) -> None:
        """Ends what still waits for an answer."""
        self._stop.set()
        if self._task is not None:
            with suppress(asyncio.CancelledError):
                await self._task


class _McpResponse(Response):
    """Lets the SDK read the request and answer it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sessions: McpSessions = scope["app"].state.mcp
        await sessions.answer(scope, receive, send)


router = APIRouter(include_in_schema=False)


@router.post("/mcp")
async def post_mcp() -> Response:
    """One JSON-RPC message. Nothing is sent that nobody asked for, so there is no stream to open with GET, and no
    session to end with DELETE."""
    return _McpResponse()
