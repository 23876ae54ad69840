"""Who may ask: Host, Origin and token are checked and bodies bounded before anything else sees a request."""

from __future__ import annotations

import ipaddress
import math
import re
from asyncio import sleep
from collections.abc import Sequence
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from warpwatch.db.database import Database
from warpwatch.db.errors import EngineError
from warpwatch.destinations import Address, Network, is_loopback
from warpwatch.server.http.access import (
    ADMINISTRATOR,
    LOCAL,
    NOBODY,
    PUBLIC,
    Caller,
    caller_with,
    find_holder,
    find_session_caller,
    keep_trail,
    may,
)
from warpwatch.server.http.ci_tokens import identify_ci, is_id_token, refuse_elsewhere
from warpwatch.server.http.deadlines import with_deadline
from warpwatch.server.http.permissions import SAFE_METHODS, is_change, is_public, required_scope
from warpwatch.server.http.problems import Problem, json_problem, respond, surprise
from warpwatch.server.http.providers import ProviderError, Providers
from warpwatch.server.http.sessions import RequestLimit, Sessions
from warpwatch.settings import SettingError, Settings

_WITH_PORT = re.compile(r"\[([^\]]+)\](?::\d{1,5})?|([\d.]+):\d{1,5}")
_MOST_HOPS = 20
"""More than any chain of proxies has."""


def read_forwarded(scope: Scope, proxies: Sequence[Network]) -> None:
    """Puts the client and the scheme that a proxy reports into the scope; anybody else's X-Forwarded headers say
    nothing."""
    client = scope.get("client")
    address = _parse(client[0]) if client else None
    if address is None or not _is_in(address, proxies):
        return
    headers = Headers(scope=scope)
    hops = ",".join(headers.getlist("x-forwarded-for")).split(",")
    # Each proxy adds at the end whom it was asked by. Left of the first stranger stands the stranger's own claim.
    for hop in reversed(hops[-_MOST_HOPS:]):
        sender = _parse(hop.strip())
        if sender is None:
            break
        address = sender
        if not _is_in(address, proxies):
            break
    scope["client"] = (str(address), 0)
    scheme = (headers.getlist("x-forwarded-proto") or [""])[-1].strip().lower()
    if scheme in ("http", "https"):
        scope["scheme"] = scheme


def address_group(scope: Scope) -> str:
    """The address that a request came from, as one person has it: of IPv6, which gives each customer at least 2**64
    addresses, the network."""
    shown = scope["client"][0] if scope.get("client") else ""
    address = _parse(shown)
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((address, 64), strict=False))
    return shown if address is None else str(address)


def _parse(text: str) -> Address | None:
    """The address of a hop, with or without a port; an IPv4 address where IPv6 only carries it."""
    match = _WITH_PORT.fullmatch(text)
    try:
        address = ipaddress.ip_address(((match[1] or match[2]) if match else text).partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _is_in(address: Address, networks: Sequence[Network]) -> bool:
    return any(address in network for network in networks)


MAX_BODY_BYTES = 1_000_000
"""No request of ours is longer; results come in through the database, bundles through the command."""
_TOO_LARGE = f"the body is larger than {MAX_BODY_BYTES} bytes; bring results in with `warpwatch import`"
COOKIE = "warpwatch_session"
MIN_TOKEN_LENGTH = 16
LATE_SECONDS = 1.0
"""How late a 429 is answered: a connection carries one guess a second."""
_OPEN_PATHS = ("/login", "/static/", "/llms.txt", "/api/v1/health", "/healthz", "/readyz", "/api/v1/worker/")
"""Paths without a token: log-in page, styles and manuals, health checks, and the worker API, which needs a worker's key
instead."""
_HOST = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")
_HOOK = re.compile(r"/api/v1/hooks/[^/]+")
"""Webhooks show no token: what they say is signed, and they are refused where it is not."""

CONTENT_POLICY = (
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; frame-src 'self'; "
    "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
PERFETTO_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'wasm-unsafe-eval' blob:; worker-src 'self' blob:; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; connect-src 'self' data: blob:; object-src 'none'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
"""The trace viewer starts itself from an inline script and asks for one outside script, which this stops."""


def check_exposure(settings: Settings) -> None:
    """SettingError when the server would be open to other machines without a token, or could sign nobody in."""
    has_token = settings.token is not None and len(settings.token) >= MIN_TOKEN_LENGTH
    if not is_loopback(settings.host) and not has_token:
        raise SettingError(
            f"WARPWATCH_HOST={settings.host} is open to other machines; "
            f"set WARPWATCH_TOKEN to at least {MIN_TOKEN_LENGTH} characters (openssl rand -hex 24), "
            "or listen on 127.0.0.1"
        )
    if settings.provider is not None and not has_token:
        raise SettingError(
            f"WARPWATCH_OIDC_ISSUER needs a WARPWATCH_TOKEN of at least {MIN_TOKEN_LENGTH} characters: it signs the "
            "sessions of browsers, and lets you in while the provider is away (openssl rand -hex 24)"
        )
    if settings.is_public and not has_token:
        raise SettingError(
            f"WARPWATCH_PUBLIC=read needs a WARPWATCH_TOKEN of at least {MIN_TOKEN_LENGTH} characters, which tells the "
            "public from you (openssl rand -hex 24)"
        )


class RequestGuard:
    """ASGI middleware in front of the whole application."""

    def __init__(
        self,
        app: ASGIApp,
        settings: Settings,
        sessions: Sessions | None,
        guesses: RequestLimit,
        readers: RequestLimit | None,
        database: Database,
        providers: Providers,
    ) -> None:
        """readers: of the public; None where the public is not let in."""
        self.app = app
        self.sessions = sessions
        self.guesses = guesses
        self.readers = readers
        self.database = database
        self.providers = providers
        self.proxies = settings.proxies
        self.is_everywhere = settings.host in ("0.0.0.0", "::")  # noqa: S104 - only compared.
        self.hosts = {settings.host.strip("[]"), "localhost", "127.0.0.1", "::1"}
        if settings.token is not None:
            # A reverse proxy passes on the name that people open.
            self.hosts.add(urlsplit(settings.server_url).hostname or "localhost")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        read_forwarded(scope, self.proxies)
        is_open = self.sessions is None or _is_open(scope)
        problem = self._refuse_address(scope, headers)
        caller: Caller | None = None
        if problem is None and self.sessions is not None and not is_open:
            caller, problem = await run_in_threadpool(self._identify, self.sessions, scope, headers)
        is_private = not is_open and (caller is not PUBLIC or problem is not None)
        send = _with_security_headers(scope["path"], send, is_private=is_private)
        problem = problem or _refuse_size(headers)
        if problem is not None:
            await _refuse(scope, headers, problem)(scope, receive, send)
            return
        caller = caller or (LOCAL if self.sessions is None else NOBODY)
        scope["state"] = {**scope.get("state", {}), "caller": caller}
        status = await self._answer(scope, receive, send)
        if status is not None and status < 400 and is_change(scope["method"], scope["path"]):
            name = "webhook" if _is_hook(scope) else caller.name
            await run_in_threadpool(keep_trail, self.database, name, scope, status)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> int | None:
        """The status that the application answered with; None where it gave no answer of its own.

        What nobody foresaw is answered here, so that even this answer has the security headers.
        """
        status: int | None = None

        async def send_noticed(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self.app(scope, with_deadline(_bounded(receive)), send_noticed)
        except ClientDisconnect:
            # The reader has gone, for instance to another page, and nobody is left to answer.
            return status
        except Exception as error:
            if status is not None:
                raise
            await surprise(Request(scope), error)(scope, receive, send)
        return status

    def _refuse_address(self, scope: Scope, headers: Headers) -> Problem | None:
        host = headers.get("host", "")
        # Addresses in answers are made from it, also where every name is right.
        if _HOST.fullmatch(host) is None:
            return Problem(400, f"the Host header {host!r} is no host; send the name and port of this server")
        # A page elsewhere can point its own name at this address; the Host header tells. A token does the same job
        # better.
        if not self.is_everywhere and _host_name(host) not in self.hosts:
            return Problem(
                400, f"this server does not answer for host {host!r}; open it at one of {', '.join(sorted(self.hosts))}"
            )
        if scope["method"] not in SAFE_METHODS and not _same_origin(headers, host):
            return Problem(403, "this request was sent by a page of another site; send it from this server's own pages")
        return None

    def _identify(self, sessions: Sessions, scope: Scope, headers: Headers) -> tuple[Caller | None, Problem | None]:
        """Who shows a token as a bearer, or a session that /login gave them; or the problem with it."""
        scheme, _, shown = headers.get("authorization", "").partition(" ")
        try:
            if scheme.lower() == "bearer" and is_id_token(shown):
                caller, problem = self._identify_ci(scope, shown)
            elif scheme.lower() == "bearer":
                caller, problem = identify_token(sessions, self.guesses, self.database, scope, shown)
            else:
                subject = sessions.read(session_cookie(headers))
                caller = find_session_caller(self.database, subject) if subject is not None else None
                if caller is None and self.readers is not None and is_public(scope["method"], scope["path"]):
                    return PUBLIC, _refuse_hasty(self.readers, scope)
                problem = None if caller is not None else _token_needed()
            if caller is not None and problem is None:
                problem = refuse_elsewhere(self.database, caller, scope["method"], scope["path"])
        except EngineError as error:
            return None, Problem(503, str(error), headers={"Retry-After": "5"})
        required = required_scope(scope["method"], scope["path"])
        if caller is not None and not may(caller, required):
            detail = (
                f"this needs the scope {required}; {caller.name} has {caller.scope}. An administrator can change it"
            )
            return caller, Problem(403, detail)
        return caller, problem

    def _identify_ci(self, scope: Scope, shown: str) -> tuple[Caller | None, Problem | None]:
        """The CI job that shows an ID token of its code host; or what is wrong, or a 503 while the host's keys are
        unknown."""
        try:
            caller = identify_ci(self.providers, self.database, shown)
        except ProviderError as error:
            return None, Problem(503, f"the ID token cannot be verified now: {error}", headers={"Retry-After": "30"})
        return caller, None if caller is not None else count_guess(self.guesses, scope) or _token_needed()


def identify_token(
    sessions: Sessions, guesses: RequestLimit, database: Database, scope: Scope, shown: str
) -> tuple[Caller | None, Problem | None]:
    """Who shows a token; or a 401, or a 429 where too many wrong ones were shown.

    A right token is let in however many wrong ones its address showed: others may have the same address.
    """
    if sessions.is_token(shown):
        return ADMINISTRATOR, None
    holder = find_holder(database, shown)
    if holder is not None:
        return caller_with(holder), None
    return None, count_guess(guesses, scope) or _token_needed()


def count_guess(guesses: RequestLimit, scope: Scope) -> Problem | None:
    """Notes that a request showed something wrong; a 429 where its address, or all together, did so too often."""
    seconds = guesses.count(address_group(scope))
    if not seconds:
        return None
    wait = math.ceil(seconds)
    return Problem(429, f"too many wrong tokens; try again in {wait} s", headers={"Retry-After": str(wait)})


def _refuse_hasty(readers: RequestLimit, scope: Scope) -> Problem | None:
    """A 429 where an address, or the public together, asked too often within a minute."""
    seconds = readers.count(address_group(scope))
    if not seconds:
        return None
    wait = math.ceil(seconds)
    detail = f"too many requests without a token; try again in {wait} s, or log in"
    return Problem(429, detail, headers={"Retry-After": str(wait)})


def _refuse(scope: Scope, headers: Headers, problem: Problem) -> Response:
    """Who opens a page in a browser is shown where to log in, or a page; everybody else gets JSON."""
    if "text/html" not in headers.get("accept", ""):
        return json_problem(problem, scope["path"])
    if problem.status == 401 and scope["method"] == "GET":
        return RedirectResponse("/login", 303)
    return respond(Request(scope), problem)


def _refuse_size(headers: Headers) -> Problem | None:
    length = headers.get("content-length", "0")
    is_small = length.isdigit() and int(length) <= MAX_BODY_BYTES
    return None if is_small else Problem(413, _TOO_LARGE)


def _token_needed() -> Problem:
    remedy = "send `Authorization: Bearer $WARPWATCH_TOKEN`, or log in at /login"
    return Problem(401, f"a token is needed; {remedy}", headers={"WWW-Authenticate": "Bearer"})


def session_cookie(headers: Headers) -> str:
    """The session that a request shows; empty without one."""
    return read_cookie(headers, COOKIE)


def read_cookie(headers: Headers, name: str) -> str:
    """The value of a cookie; empty without one."""
    try:
        cookies = SimpleCookie(headers.get("cookie", ""))
    except CookieError:
        return ""
    return cookies[name].value if name in cookies else ""


def _is_open(scope: Scope) -> bool:
    """Whether a request needs no token."""
    return _is_hook(scope) or scope["path"].startswith(_OPEN_PATHS)


def _is_hook(scope: Scope) -> bool:
    return scope["method"] == "POST" and _HOOK.fullmatch(scope["path"]) is not None


def _host_name(host: str) -> str | None:
    """The name in a well-formed Host header, without its port; None for brackets around what is no address."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _same_origin(headers: Headers, host: str) -> bool:
    origin = headers.get("origin")
    if origin is not None:
        return origin.partition("://")[2] == host
    return headers.get("sec-fetch-site", "same-origin") in ("same-origin", "none")


def _with_security_headers(path: str, send: Send, *, is_private: bool) -> Send:
    """is_private: whether the answer is for those who logged in."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            if message["status"] == 429:
                await sleep(LATE_SECONDS)
            headers = MutableHeaders(scope=message)
            headers["X-Content-Type-Options"] = "nosniff"
            headers["Referrer-Policy"] = "same-origin"
            if is_private:
                # A cache on the way, or the browser after a log-out, would show it to others.
                headers["Cache-Control"] = "private, no-cache" if "ETag" in headers else "no-store"
            elif path.startswith("/api/"):
                headers.setdefault("Cache-Control", "no-store")
            headers["Content-Security-Policy"] = PERFETTO_POLICY if path.startswith("/perfetto") else CONTENT_POLICY
        await send(message)

    return send_with_headers


def _bounded(receive: Receive) -> Receive:
    """A body sent in pieces declares no length, so it is counted as it comes."""
    received = 0

    async def receive_bounded() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > MAX_BODY_BYTES:
            # FastAPI lets an error of this kind alone through while it reads a body.
            raise HTTPException(413, _TOO_LARGE)
        return message

    return receive_bounded
