"""Requests to addresses that others have named, with limits on where these lead, how long they take and how much comes
back."""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx

from warpwatch import __version__
from warpwatch.destinations import DestinationError, Destinations, UnknownHostError, uses_proxy

TIMEOUT = httpx.Timeout(10, connect=5)


class HttpResponse(NamedTuple):
    """Response of the other server. headers: with lower-case names."""

    status: int
    headers: Mapping[str, str]
    content: bytes


class RequestError(Exception):
    """There is no answer that can be used. is_final: asking again is in vain."""

    def __init__(self, trouble: str, *, is_final: bool = False) -> None:
        super().__init__(trouble)
        self.is_final = is_final


def request(
    method: str,
    url: str,
    headers: Mapping[str, str],
    destinations: Destinations | None,
    *,
    seconds: float,
    content: bytes | None = None,
    max_bytes: int = 0,
    stop: threading.Event | None = None,
) -> HttpResponse:
    """The answer to a request, with at most max_bytes of its body; RequestError where there is none.

    No redirect is followed: secrets are for this address alone. It takes at most so many seconds, however slowly the
    other side answers, or until `stop` is set. destinations: None where the operator of the service named the address.
    No transaction may be open, and no event loop in this thread.
    """
    return asyncio.run(_within(_stream(method, url, headers, destinations, content, max_bytes), url, seconds, stop))


async def _within(stream: Any, url: str, seconds: float, stop: threading.Event | None) -> HttpResponse:
    place = urlsplit(url).netloc
    sending: asyncio.Task[HttpResponse] = asyncio.create_task(stream)
    ends_at = time.monotonic() + seconds
    while not sending.done() and time.monotonic() < ends_at and (stop is None or not stop.is_set()):
        await asyncio.wait({sending}, timeout=0.1)
    if not sending.done():
        sending.cancel()
        raise RequestError(f"no answer from {place} within {seconds:g} s")
    try:
        return sending.result()
    except UnknownHostError as error:
        raise RequestError(str(error)) from None
    except DestinationError as error:
        raise RequestError(str(error), is_final=True) from None
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        is_final = isinstance(error, httpx.InvalidURL)
        raise RequestError(f"{type(error).__name__}: no answer from {place}", is_final=is_final) from None


async def _stream(
    method: str,
    address: str,
    given: Mapping[str, str],
    destinations: Destinations | None,
    content: bytes | None,
    max_bytes: int,
) -> HttpResponse:
    # A compressed answer of some bytes could become one of gigabytes.
    usual = {"Accept-Encoding": "identity", "User-Agent": f"warpwatch/{__version__}"}
    url, headers = httpx.URL(address), {**usual, **given}
    extensions: dict[str, Any] = {}
    is_direct = destinations is not None and not uses_proxy(url.scheme, url.host)
    if destinations is not None and is_direct:
        # The name could have another address when it is looked up again.
        port = url.port or (443 if url.scheme == "https" else 80)
        resolved = await asyncio.to_thread(destinations.resolve, url.host, port)
        headers["Host"], extensions["sni_hostname"] = url.netloc.decode(), url.host
        url = url.copy_with(host=resolved)
    async with (
        httpx.AsyncClient(timeout=TIMEOUT, verify=_tls(), trust_env=not is_direct) as client,
        client.stream(method, url, content=content, headers=headers, extensions=extensions) as answer,
    ):
        body = b""
        if max_bytes:
            async for chunk in answer.aiter_raw():
                body += chunk
                if len(body) > max_bytes:
                    raise ValueError(f"the answer has more than {max_bytes} bytes")
        return HttpResponse(answer.status_code, dict(answer.headers), body)


@cache
def _tls() -> ssl.SSLContext:
    """One for all requests, because reading the certificates takes longer than most of them."""
    return httpx.create_ssl_context()
