"""Closes connections whose request does not arrive in time, so that half-sent requests do not pile up, or whose end a
proxy could see elsewhere, so that nobody's request becomes a part of another's."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import h11
from h11._receivebuffer import ReceiveBuffer
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 15.0
"""How long the head of a request may take from its first byte, or from the start of the connection."""
BODY_SECONDS = 30.0
"""How long the body of a request may take after its head. No body of ours is longer than a megabyte."""
MAX_HEAD_BYTES = 2**16
_BARE_LINE_END = re.compile(rb"(?<!\r)\n")
_TOO_SLOW = "the body of the request did not arrive in time; send it again, without a pause"


class _Lines(ReceiveBuffer):
    """Heads of requests, whose lines end in CR and LF: h11 takes LF alone, which others take for a part of a line."""

    def maybe_extract_lines(self) -> list[bytearray] | None:
        before = bytes(self._data)
        lines = super().maybe_extract_lines()
        head = before[: len(before) - len(self._data)]
        if _BARE_LINE_END.search(head if lines is not None else before):
            raise h11.RemoteProtocolError("a line of the head ends in LF alone")
        return lines


class _StrictConnection(h11.Connection):
    """h11's parser of requests, which refuses those whose length can be read in two ways."""

    def __init__(self) -> None:
        super().__init__(h11.SERVER, MAX_HEAD_BYTES)
        self._receive_buffer = _Lines()

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            names = {name for name, _ in event.headers}
            if b"transfer-encoding" in names and (b"content-length" in names or event.http_version < b"1.1"):
                raise h11.RemoteProtocolError("Transfer-Encoding stands beside Content-Length, or in HTTP/1.0")
        return event


class HttpConnection(H11Protocol):
    """uvicorn's protocol with a strict parser, and a time limit for the head of a request and for a body that nobody
    reads.

    uvicorn limits only the pause between two requests, and the first byte of the next one ends that limit.
    """

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.conn = _StrictConnection()
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
