"""Closes connections whose request does not arrive in time, so that half-sent requests do not pile up."""

from __future__ import annotations

import asyncio

import h11
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 15.0
"""How long the head of a request may take from its first byte, or from the start of the connection."""
BODY_SECONDS = 30.0
"""How long the body of a request may take after its head. No body of ours is longer than a megabyte."""
_TOO_SLOW = "the body of the request did not arrive in time; send it again, without a pause"


class HttpConnection(H11Protocol):
    """uvicorn's protocol, with a time limit for the head of a request and for a body that nobody reads.

    uvicorn limits only the pause between two requests, and the first byte of the next one ends that limit.
    """

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Starts the limit while the client owes bytes that no application waits for, and ends it afterwards."""
        is_answered = self.cycle is None or self.cycle.response_complete
        if not is_answered or self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._cancel()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _cancel(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def with_deadline(receive: Receive) -> Receive:
    """Raises HTTPException 408 when the whole body did not arrive within BODY_SECONDS."""
    ends_at: float | None = asyncio.get_running_loop().time() + BODY_SECONDS

    async def receive_in_time() -> Message:
        nonlocal ends_at
        try:
            async with asyncio.timeout_at(ends_at):
                message = await receive()
        except TimeoutError:
            # The rest of the body may still come, so that this connection cannot carry another request.
            raise HTTPException(408, _TOO_SLOW, headers={"Connection": "close"}) from None
        if not message.get("more_body", False):
            ends_at = None  # What comes next is only the end of the connection, which streams wait for.
        return message

    return receive_in_time
