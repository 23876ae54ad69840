"""Interface to a code host, the same for all hosts, and the error of a request."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from warpwatch.contract.words import ForgeState
from warpwatch.server.http.outgoing import HttpResponse, RequestError
from warpwatch.server.reports.model import Report
from warpwatch.server.threads.posting import LONGEST_PAUSE_SECONDS, Poster, retry_after

MAX_BYTES = 4 * 2**20
"""Of an answer; a page of the longest comments has half of that."""
PAGE_ROWS = 30
MAX_PAGES = 20
"""Pages of a list in which a comment or issue of ours is looked for."""
LIMIT_PAUSE_SECONDS = 60.0
"""After a limit was reached and the forge does not say for how long."""
LABEL = "warpwatch"
"""Of the issues that are filed."""


class ForgeError(Exception):
    """A forge did not do what it was asked.

    is_final: asking again is in vain. pause_seconds: how long it wants to be left alone. state: what that says of the
    link; None for nothing. status: of the answer; 0 for none.
    """

    def __init__(
        self,
        trouble: str,
        state: ForgeState | None = None,
        *,
        is_final: bool = False,
        pause_seconds: float = 0.0,
        status: int = 0,
    ) -> None:
        super().__init__(trouble)
        self.trouble = trouble
        self.state = state
        self.is_final = is_final
        self.pause_seconds = pause_seconds
        self.status = status


@dataclass(frozen=True, slots=True)
class ForgeUser:
    """Who wrote a comment. login: as the event spells it, which the user may have chosen."""

    id: int
    login: str


@dataclass(frozen=True, slots=True)
class ForgeChange:
    """A pull or merge request, as the forge has it now. target: the branch that it is to be merged into."""

    head_sha: str
    target: str
    is_fork: bool


class ForgeClient(ABC):
    """The project of a repository on its forge. Every method raises ForgeError."""

    @abstractmethod
    def check_link(self) -> None:
        """Whether the project can be reached with the key or token."""

    @abstractmethod
    def send_check_run(self, report: Report, name: str, state: str, folder: str, remote_id: str | None) -> str:
        """Tells how a submission fares; what the forge calls the check run. state: see db.forge."""

    @abstractmethod
    def put_comment(self, number: int, remote_id: str | None, marker: str, text: str) -> str:
        """Makes or edits the one comment with the marker; what the forge calls it."""

    @abstractmethod
    def react(self, number: int, comment_id: int, *, is_accepted: bool) -> None:
        """A thumb up or down at a comment."""

    @abstractmethod
    def is_member(self, user: ForgeUser) -> bool:
        """Whether a user may write to the project."""

    @abstractmethod
    def read_change(self, number: int) -> ForgeChange:
        """A pull or merge request."""

    @abstractmethod
    def put_issue(self, remote_id: str | None, marker: str, title: str, text: str, *, is_open: bool) -> str | None:
        """Files an issue, or edits and closes it; what the forge calls it. None where none was filed and none is to."""


class JsonRequester:
    """Asks for JSON below one address, and sorts what goes wrong."""

    def __init__(self, poster: Poster, base: str) -> None:
        self._poster = poster
        self._base = base

    def ask(self, method: str, path: str, headers: Mapping[str, str], body: dict[str, Any] | None = None) -> Any:
        """The parsed answer; None for one without a body."""
        content = json.dumps(body).encode() if body is not None else None
        try:
            response = self._poster.request(method, f"{self._base}{path}", headers, content, MAX_BYTES)
        except RequestError as failure:
            raise ForgeError(str(failure), ForgeState.UNREACHABLE, is_final=failure.is_final) from None
        if not 200 <= response.status < 300:
            raise _refusal(method, path, response)
        if not response.content:
            return None
        try:
            return json.loads(response.content)
        except (ValueError, RecursionError):
            raise ForgeError(f"{method} {path} was answered without JSON", ForgeState.UNREACHABLE) from None


def _refusal(method: str, path: str, response: HttpResponse) -> ForgeError:
    status = response.status
    trouble = f"{method} {path} was answered with {status}"
    if status == 429 or (status == 403 and _is_limit(response)):
        pause = min(max(_pause_of(response.headers), 1.0), LONGEST_PAUSE_SECONDS)
        return ForgeError(f"{trouble}: a limit of requests", pause_seconds=pause, status=status)
    if 300 <= status < 400:
        words = f"{trouble}, a redirect, which is not followed; set the project's new name"
        return ForgeError(words, ForgeState.MISSING, is_final=True, status=status)
    if status in (401, 403):
        return ForgeError(trouble, ForgeState.REFUSED, is_final=True, status=status)
    return ForgeError(trouble, is_final=status < 500 and status != 408, status=status)


def _is_limit(response: HttpResponse) -> bool:
    """Whether a refusal is one of the limits of GitHub, which are answered with 403 as well."""
    if "retry-after" in response.headers or response.headers.get("x-ratelimit-remaining") == "0":
        return True
    with suppress(ValueError, RecursionError, AttributeError):
        return "rate-limit" in str(json.loads(response.content).get("documentation_url"))
    return False


def _pause_of(headers: Mapping[str, str]) -> float:
    if "retry-after" in headers:
        return retry_after(headers)
    with suppress(ValueError):
        if headers.get("x-ratelimit-remaining") == "0":
            return float(headers.get("x-ratelimit-reset", "")) - time.time()
    return LIMIT_PAUSE_SECONDS
