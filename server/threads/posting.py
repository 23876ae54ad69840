"""Posts JSON to addresses that others have named, with limits on where these lead and on how long that may take."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx

from warpwatch import __version__
from warpwatch.destinations import DestinationError, UnknownHostError, uses_proxy
from warpwatch.settings import Settings

LONGEST_PAUSE_SECONDS = 3600.0
TIMEOUT = httpx.Timeout(10, connect=5)
DELIVERY_SECONDS = 20.0
"""How long one delivery may take, from looking up the name to the head of the answer."""


class PostAttempt(NamedTuple):
    """How sending one message went.

    trouble: None when it arrived. is_final: trying again is in vain. pause_seconds: what the other side asked for.
    """

    trouble: str | None = None
    is_final: bool = False
    pause_seconds: float = 0.0


class HttpResponse(NamedTuple):
    """What the other side answered. headers: with lower-case names."""

    status: int
    headers: Mapping[str, str]
    content: bytes


class Poster:
    """Sends messages until `stop` is set."""

    def __init__(self, settings: Settings, stop: threading.Event) -> None:
        self._destinations = settings.destinations
        self._stop = stop
        self._tls = httpx.create_ssl_context()

    def post(self, url: str, content: bytes, headers: Mapping[str, str]) -> PostAttempt:
        """Posts JSON, with no transaction open. Of the answer only the head is read."""
        response = self.request("POST", url, headers, content)
        if isinstance(response, PostAttempt):
            return response
        if 200 <= response.status < 300:
            return PostAttempt()
        is_final = 300 <= response.status < 500 and response.status not in (408, 429)
        return PostAttempt(f"it was answered with {response.status}", is_final, retry_after(response.headers))

    def request(
        self, method: str, url: str, headers: Mapping[str, str], content: bytes | None = None, max_bytes: int = 0
    ) -> HttpResponse | PostAttempt:
        """The answer to a request, with at most max_bytes of its body; or why there is none.

        It takes at most DELIVERY_SECONDS, however slowly the other side answers, or until this stops.
        """
        return asyncio.run(self._send(method, url, headers, content, max_bytes))

    async def _send(
        self, method: str, url: str, headers: Mapping[str, str], content: bytes | None, max_bytes: int
    ) -> HttpResponse | PostAttempt:
        place = urlsplit(url).netloc
        post = asyncio.create_task(self._stream(method, url, headers, content, max_bytes))
        ends_at = time.monotonic() + DELIVERY_SECONDS
        while not post.done() and time.monotonic() < ends_at and not self._stop.is_set():
            await asyncio.wait({post}, timeout=0.1)
        if not post.done():
            post.cancel()
            return PostAttempt(f"no answer from {place} within {DELIVERY_SECONDS:g} s")
        try:
            return post.result()
        except UnknownHostError as error:
            return PostAttempt(str(error))
        except DestinationError as error:
            return PostAttempt(str(error), is_final=True)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            is_final = isinstance(error, httpx.InvalidURL)
            return PostAttempt(f"{type(error).__name__}: no answer from {place}", is_final=is_final)

    async def _stream(
        self, method: str, address: str, given: Mapping[str, str], content: bytes | None, max_bytes: int
    ) -> HttpResponse:
        """No redirect is followed: secrets are for this address alone."""
        # A compressed answer of some bytes could become one of gigabytes.
        usual = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        url, headers = httpx.URL(address), {**usual, **given}
        extensions: dict[str, Any] = {}
        is_direct = not uses_proxy(url.scheme, url.host)
        if is_direct:
            # The name could have another address when it is looked up again.
            port = url.port or (443 if url.scheme == "https" else 80)
            address = await asyncio.to_thread(self._destinations.resolve, url.host, port)
            headers["Host"], extensions["sni_hostname"] = url.netloc.decode(), url.host
            url = url.copy_with(host=address)
        agent = {"User-Agent": f"warpwatch/{__version__}"}
        async with (
            httpx.AsyncClient(timeout=TIMEOUT, verify=self._tls, trust_env=not is_direct, headers=agent) as client,
            client.stream(method, url, content=content, headers=headers, extensions=extensions) as answer,
        ):
            body = b""
            if max_bytes:
                async for chunk in answer.aiter_raw():
                    body += chunk
                    if len(body) > max_bytes:
                        raise ValueError(f"the answer has more than {max_bytes} bytes")
            return HttpResponse(answer.status_code, dict(answer.headers), body)


def retry_after(headers: Mapping[str, str]) -> float:
    """Seconds that the other side wants to be left alone; 0 where it does not say so."""
    with suppress(ValueError):
        return min(max(0.0, float(headers.get("retry-after", ""))), LONGEST_PAUSE_SECONDS)
    return 0.0
