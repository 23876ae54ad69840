"""Sends messages to addresses that others have named, until its thread is to stop."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from warpwatch.server.http.outgoing import HttpResponse, RequestError, request
from warpwatch.settings import Settings

LONGEST_PAUSE_SECONDS = 3600.0
DELIVERY_SECONDS = 20.0
"""How long one delivery may take, from looking up the name to the head of the answer."""


class PostAttempt(NamedTuple):
    """How sending one message went.

    trouble: None when it arrived. is_final: trying again is in vain. pause_seconds: what the other side asked for.
    """

    trouble: str | None = None
    is_final: bool = False
    pause_seconds: float = 0.0


class Poster:
    """Sends messages until `stop` is set."""

    def __init__(self, settings: Settings, stop: threading.Event) -> None:
        self._destinations = settings.destinations
        self._stop = stop

    def post(self, url: str, content: bytes, headers: Mapping[str, str]) -> PostAttempt:
        """Posts JSON, with no transaction open. Of the answer only the head is read."""
        try:
            response = self.request("POST", url, headers, content)
        except RequestError as failure:
            return PostAttempt(str(failure), failure.is_final)
        if 200 <= response.status < 300:
            return PostAttempt()
        is_final = 300 <= response.status < 500 and response.status not in (408, 429)
        return PostAttempt(f"it was answered with {response.status}", is_final, retry_after(response.headers))

    def request(
        self, method: str, url: str, headers: Mapping[str, str], content: bytes | None = None, max_bytes: int = 0
    ) -> HttpResponse:
        """The answer to a request, with at most max_bytes of its body; RequestError where there is none."""
        return request(
            method,
            url,
            {"Content-Type": "application/json", **headers},
            self._destinations,
            seconds=DELIVERY_SECONDS,
            content=content,
            max_bytes=max_bytes,
            stop=self._stop,
        )


def retry_after(headers: Mapping[str, str]) -> float:
    """Seconds that the other side wants to be left alone; 0 where it does not say so."""
    with suppress(ValueError):
        return min(max(0.0, float(headers.get("retry-after", ""))), LONGEST_PAUSE_SECONDS)
    return 0.0
