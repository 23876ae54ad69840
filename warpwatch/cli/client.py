"""A small client of the REST API, on urllib, so that the base install can submit jobs from CI; how commands use it."""

from __future__ import annotations

import base64
import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from warpwatch import git
from warpwatch.settings import SettingError, load_settings

RENEW_SECONDS = 60.0
"""How long before its end a token is replaced; GitHub's last five minutes."""
OUTAGE_SECONDS = 120.0
"""How long a request waits for a server or database that is away."""
RETRY_SECONDS = 0.2
OUTAGES = (None, 502, 503, 504)
"""Statuses of a server that is away, or whose proxy or database says so."""
_GIT_FAILED = 502
"""Status that the server itself returns where git fails. The same status of a proxy comes without a problem in JSON."""
console = Console(stderr=True, highlight=False)


class CiToken:
    """Asks GitHub for tokens whose audience is `audience`, again when one is about to expire."""

    def __init__(self, audience: str) -> None:
        self._audience = audience
        self._token: str | None = None
        self._expires_at = 0.0

    def read(self) -> str | None:
        """A valid token; None outside GitHub Actions, and where the job lacks the permission `id-token: write`."""
        address = os.environ.get("ACTIONS_ID_TOKEN_REQUEST_URL")
        secret = os.environ.get("ACTIONS_ID_TOKEN_REQUEST_TOKEN")
        if not address or not secret:
            return None
        if self._token is None or time.time() > self._expires_at - RENEW_SECONDS:
            query = urllib.parse.urlencode({"audience": self._audience})
            joined = f"{address}{'&' if '?' in address else '?'}{query}"
            request = urllib.request.Request(joined, headers={"Authorization": f"Bearer {secret}"})
            with urllib.request.urlopen(request, timeout=30) as answer:
                self._token = str(json.load(answer)["value"])
            part = self._token.split(".")[1]
            self._expires_at = float(json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))["exp"])
        return self._token


class ApiError(RuntimeError):
    """The server rejected a request or cannot be reached; the message is for people.

    status is None when the server did not respond. is_final: asking again soon is in vain.
    """

    def __init__(self, message: str, status: int | None = None, *, is_final: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.is_final = is_final


class Client:
    """Calls /api/v1 of the server at `url`, with WARPWATCH_TOKEN if it is set, else with the ID token of a CI job.

    Once the server has answered, GET and requests with an idempotency key wait up to `patience` seconds for a server
    that is being started again.
    """

    def __init__(self, url: str, timeout: float = 60, patience: float = OUTAGE_SECONDS) -> None:
        if not url.startswith(("http://", "https://")):
            raise ApiError(f"WARPWATCH_URL={url!r} must begin with http:// or https://")
        self.url = url.rstrip("/")
        self.timeout = timeout
        self.patience = patience
        self.has_answered = False
        self._ci_token = CiToken(self.url)

    def get(self, path: str, **query: Any) -> Any:
        """GET `path` below /api/v1 as JSON; arguments that are None are left out."""
        text = urllib.parse.urlencode({key: value for key, value in query.items() if value is not None}, doseq=True)
        return self._call("GET", f"{path}?{text}" if text else path, None, {})

    def post(self, path: str, body: dict[str, Any] | None = None, idempotency_key: str | None = None) -> Any:
        """POST `body`; returns the JSON response."""
        headers = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
        return self._call("POST", path, body or {}, headers)

    def send(self, path: str, content: bytes) -> Any:
        """POST bytes as they are; returns the JSON response. Only for what may be repeated."""
        return json.loads(self._send("POST", path, content, {"Content-Type": "application/octet-stream"}))

    def patch(self, path: str, body: dict[str, Any]) -> Any:
        """PATCH `body`; returns the JSON response."""
        return self._call("PATCH", path, body, {})

    def put(self, path: str, body: dict[str, Any]) -> Any:
        """PUT `body`; returns the JSON response."""
        return self._call("PUT", path, body, {})

    def delete(self, path: str) -> bytes:
        """DELETE `path`; returns the response, which may be empty."""
        return self._send("DELETE", path, None, {})

    def read(self, path: str) -> bytes:
        """GET `path` below /api/v1 as bytes, in any format."""
        return self._send("GET", path, None, {"Accept": "*/*"})

    def _call(self, method: str, path: str, body: dict[str, Any] | None, headers: dict[str, str]) -> Any:
        return json.loads(self._send(method, path, body, headers))

    def _send(self, method: str, path: str, body: dict[str, Any] | bytes | None, headers: dict[str, str]) -> bytes:
        deadline = time.monotonic() + self.patience
        is_repeatable = method == "GET" or "Idempotency-Key" in headers
        while True:
            try:
                content = self._send_once(method, path, body, headers)
            except ApiError as error:
                is_awaited = is_repeatable and self.has_answered and error.status in OUTAGES and not error.is_final
                if not is_awaited or time.monotonic() > deadline:
                    raise
                self._wait()
            else:
                self.has_answered = True
                return content

    def _wait(self) -> None:
        """Called between the attempts during an outage."""
        time.sleep(RETRY_SECONDS)

    def _send_once(self, method: str, path: str, body: dict[str, Any] | bytes | None, headers: dict[str, str]) -> bytes:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        headers = {
            "Accept": "application/json",
            "Content-Type": "application/json",
            "X-Warpwatch-Origin": "cli",
            **headers,
        }
        if token := os.environ.get("WARPWATCH_TOKEN") or self._read_ci_token():
            headers["Authorization"] = f"Bearer {token}"
        request = urllib.request.Request(f"{self.url}/api/v1{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as answer:
                content: bytes = answer.read()
                return content
        except urllib.error.HTTPError as error:
            is_final = error.code == _GIT_FAILED and error.headers.get_content_type() == "application/problem+json"
            raise ApiError(_explain(error), error.code, is_final=is_final) from None
        except (urllib.error.URLError, ConnectionError, TimeoutError) as error:
            reason = getattr(error, "reason", error)
            raise ApiError(
                f"no Warpwatch server at {self.url} ({reason}); start it with `make up`, or set WARPWATCH_URL"
            ) from None

    def _read_ci_token(self) -> str | None:
        try:
            return self._ci_token.read()
        except (urllib.error.URLError, ValueError, KeyError, IndexError, OSError) as error:
            raise ApiError(f"the code host gave no ID token: {error}; check the permission id-token: write") from None


def _explain(error: urllib.error.HTTPError) -> str:
    """The text of an RFC 9457 problem: its detail, then each field's message and remedy."""
    try:
        problem = json.load(error)
    except ValueError:
        return f"the server returned {error.code} {error.reason}"
    lines = [str(problem.get("detail") or problem.get("title") or error.reason)]
    lines += [
        f"  {entry.get('field')}: {'; '.join(filter(None, (entry.get('message'), entry.get('remedy'))))}"
        for entry in problem.get("errors", [])
    ]
    return "\n".join(lines)


@contextmanager
def asking() -> Iterator[Client]:
    """A client of the configured server; an error ends the command with exit code 2."""
    try:
        yield Client(load_settings().server_url)
    except (ApiError, SettingError, git.GitError) as error:
        console.print(str(error), style="red", markup=False)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        console.print("stopped waiting; the jobs continue, see `warpwatch status` or `warpwatch cancel`")
        raise typer.Exit(2) from None


def submission_bars(console: Console, *, transient: bool = False) -> Progress:
    """A bar per submission: how many of its jobs have ended, the time that has passed, and a note."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, TextColumn("{task.fields[note]}"), console=console, transient=transient)
