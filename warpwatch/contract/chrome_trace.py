"""Reads Chrome traces event by event, for the process that records one and for the server that shows it.

torch.profiler writes names of `record_function` without escaping the quotes in them, and a trace may come from
anywhere. An event that is no JSON is mended where its name is at fault, else skipped and counted. The standard library
only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from math import isfinite
from typing import Any, TypeGuard

CALL = "warpwatch call"
"""The annotation around each recorded call."""
DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
RUNTIME_CATEGORIES = ("cuda_runtime", "cuda_driver")
LONGEST_US = 86_400e6
"""A day: events that say that they took longer come from a clock that broke."""
EVENTS = '"traceEvents"'
_FAR = 2**20
"""Characters that follow an event which is no JSON, before it counts as that and not as one that goes on."""
_BETWEEN = re.compile(r"[ \n\r\t,]*")
"""The characters between two events. The pattern also matches the empty string, so it matches everywhere."""
_END = re.compile(r'\}(?=\s*,\s*\{\s*"(?:ph|name|cat|pid|tid|ts)"|\s*\])')
"""The end of an event, with the beginning of the next one or the end of the list behind it."""
_NAME = re.compile(r'("name"\s*:\s*")(.*?)("\s*(?:,\s*"(?:ph|cat|pid|tid|ts|dur|args|id|bp|s)"\s*:|\}))', re.DOTALL)
_BARE_QUOTE = re.compile(r'(?<!\\)"')


class TraceReader:
    """The events of a Chrome trace, which is an object with `traceEvents` or the list of them alone.

    pieces: its text. left_out: how many events could not be read, so far. mended: how many had a name with bare quotes.
    """

    def __init__(self, pieces: Iterable[str]) -> None:
        self._pieces = iter(pieces)
        self._text, self._place = "", 0
        self.left_out = 0
        self.mended = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        decoder = json.JSONDecoder()
        if not self._find_events():
            return
        while True:
            self._place = _BETWEEN.match(self._text, self._place).end()  # type: ignore[union-attr]
            if self._place == len(self._text):
                if not self._read_more():
                    return
                continue
            if self._text[self._place] == "]":
                return
            try:
                event, self._place = decoder.raw_decode(self._text, self._place)
            except (json.JSONDecodeError, RecursionError):
                if len(self._text) - self._place < _FAR and self._read_more():
                    continue
                event = self._mend()
                if event is None and self._place == len(self._text):
                    return
            if isinstance(event, dict):
                yield event
            else:
                self.left_out += 1

    def _find_events(self) -> bool:
        """Goes to the first event; False where there is no list of them."""
        while True:
            start = self._text.find(EVENTS)
            if self._text.lstrip("\ufeff \n\r\t").startswith("["):
                start = 0
            if start >= 0 and (bracket := self._text.find("[", start)) >= 0:
                self._place = bracket + 1
                return True
            if not self._read_more():
                return False

    def _read_more(self) -> bool:
        piece = next(self._pieces, "")
        self._text, self._place = self._text[self._place :] + piece, 0
        return bool(piece)

    def _mend(self) -> Any:
        """The event at the current place with the quotes of its name escaped; None where that makes it no JSON, or
        where it has no end. Goes on behind it."""
        found = _END.search(self._text, self._place)
        end = found.end() if found else len(self._text)
        text, self._place = self._text[self._place : end], end
        mended = _NAME.sub(lambda match: match[1] + _BARE_QUOTE.sub(r"\\" + '"', match[2]) + match[3], text, count=1)
        try:
            event = json.loads(mended)
        except (ValueError, RecursionError):
            if found is None:
                self.left_out += 1
            return None
        self.mended += 1
        return event


def read_times(event: dict[str, Any]) -> tuple[float, float] | None:
    """Start and duration of an event in nanoseconds; None where it has none that a clock can show."""
    start, duration = event.get("ts"), event.get("dur")
    if _is_time(start) and _is_time(duration) and duration <= LONGEST_US:
        return start * 1e3, duration * 1e3
    return None


def arguments_of(event: dict[str, Any]) -> dict[str, Any]:
    arguments = event.get("args")
    return arguments if isinstance(arguments, dict) else {}


def _is_time(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) and value >= 0
