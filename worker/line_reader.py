"""Reads lines from a descriptor that another process writes to, without ever waiting."""

from __future__ import annotations

import os
import re

_COLOUR = re.compile(r"\x1b\[[0-9;:]*[mK]")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""All control characters but tabs and line ends."""


def printable(text: str) -> str:
    """`text` without colours, and with a replacement character for every other control character.

    A terminal that shows a log would obey them: retitle its window, fill its clipboard, hide lines that came before.
    """
    # A carriage return at the end of a line is part of that end.
    return _CONTROL.sub("\ufffd", _COLOUR.sub("", text).replace("\r\n", "\n").removesuffix("\r"))


class LineReader:
    """Bytes from a non-blocking descriptor as lines; one longer than `limit` is handed out in pieces."""

    def __init__(self, descriptor: int, limit: int) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self.ended = False
        self._limit = limit
        self._buffer = bytearray()
        self._searched = 0

    def read(self) -> bool:
        """Reads once; whether anything came."""
        try:
            data = os.read(self.descriptor, 2**16)
        except BlockingIOError:
            return False
        self.ended = not data
        self._buffer += data
        return bool(data)

    def take(self) -> bytes | None:
        """The next line without its end, or a piece of one that grew past the limit."""
        end = self._buffer.find(b"\n", self._searched)
        if end < 0:
            self._searched = len(self._buffer)
            if self._searched <= self._limit:
                return None
            end = self._limit
        line = bytes(self._buffer[:end])
        del self._buffer[: end + self._buffer.startswith(b"\n", end)]
        self._searched = 0
        return line

    def finish(self) -> None:
        """Ends the last line, which a crash may have cut off."""
        for _ in range(16):
            self.read()
        if self._buffer and not self._buffer.endswith(b"\n"):
            self._buffer += b"\n"
