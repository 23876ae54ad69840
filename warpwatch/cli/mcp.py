"""`warpwatch mcp`: the tools of agents over standard input and output, on a server that WARPWATCH_URL names."""

from __future__ import annotations

from typing import Any

import typer

from warpwatch.cli.app import app


@app.command()
def mcp(
    url: str | None = typer.Option(None, help="Address of the server. Default: WARPWATCH_URL."),
) -> None:
    """Serve the tools of agents over stdio (Model Context Protocol), with the rights of WARPWATCH_TOKEN.

    A client starts this command itself. A server has the same tools at /mcp, for clients that speak streamable HTTP.
    """
    from anyio import to_thread
    from mcp.server.mcpserver.exceptions import ToolError

    from warpwatch.cli.client import ApiError, Client
    from warpwatch.server.mcp.tools import make_server
    from warpwatch.settings import load_settings

    # An agent that waits is told of an outage soon; it can ask again.
    client = Client(url or load_settings().server_url, patience=10)

    async def ask(method: str, path: str, body: dict[str, Any] | bytes | None = None) -> dict[str, Any]:
        def send() -> Any:
            if method == "GET":
                return client.get(path)
            return client.send(path, body) if isinstance(body, bytes) else client.post(path, body)

        try:
            answer: dict[str, Any] = await to_thread.run_sync(send)
        except ApiError as error:
            raise ToolError(f"{error.status}: {error}" if error.status else str(error)) from None
        return answer

    make_server(lambda context: ask).run()
