"""GitHub, as an app: a token of the installation per project, check runs, comments, issues."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import RSAKey

from warpwatch.contract.words import ForgeState
from warpwatch.db.forge import FAILING, FINAL
from warpwatch.server.forge.client import (
    LABEL,
    MAX_PAGES,
    PAGE_ROWS,
    ForgeChange,
    ForgeClient,
    ForgeError,
    ForgeUser,
    JsonRequester,
)
from warpwatch.server.reports.github import check_run
from warpwatch.server.reports.model import Report
from warpwatch.server.threads.posting import Poster
from warpwatch.settings import Settings

_HEADERS = {"Accept": "application/vnd.github+json", "X-GitHub-Api-Version": "2022-11-28"}
_LOGIN = re.compile(r"[A-Za-z0-9_-]{1,100}")
PERMISSIONS = ("checks", "issues", "pull_requests")
"""Resources that the app must have permission to write."""
_WRITERS = ("admin", "write")
"""Values of `permission` for users who may write; the value `write` includes maintainers."""
_KEY_SECONDS, _CLOCK_SECONDS = 540, 60
"""How long what the key signs is valid, and how far the two clocks may differ. GitHub allows ten minutes."""
_RENEWAL_SECONDS = 300.0
"""A token is not used for the last minutes of its hour."""


@dataclass(frozen=True, slots=True)
class InstallationToken:
    """Opens one project, until a moment."""

    text: str
    expires_at: float


class GithubApp:
    """GitHub App of this server: signs with the app's key, and gets tokens that open one project each."""

    def __init__(self, settings: Settings, poster: Poster) -> None:
        self._app_id = settings.github_app_id
        self._key_file = settings.github_app_key
        self._login: str | None = None
        self._tokens: dict[str, InstallationToken] = {}
        self.requester = JsonRequester(poster, settings.github_api)

    def token(self, project: str) -> str:
        """A valid token that opens the project alone."""
        known = self._tokens.get(project)
        if known is not None and known.expires_at - time.time() > _RENEWAL_SECONDS:
            return known.text
        try:
            installation = int(self.installation(project)["id"])
            body = {"repositories": [project.partition("/")[2]]}
            answer = self._ask("POST", f"/app/installations/{installation}/access_tokens", body)
            expires_at = datetime.fromisoformat(str(answer["expires_at"])).timestamp()
            new = InstallationToken(str(answer["token"]), expires_at)
        except (KeyError, TypeError, ValueError):
            raise ForgeError("GitHub returned no token", ForgeState.UNREACHABLE) from None
        self._tokens[project] = new
        return new.text

    def installation(self, project: str) -> Any:
        """The installation of the app that a project belongs to."""
        try:
            return self._ask("GET", f"/repos/{project}/installation")
        except ForgeError as error:
            if error.status != 404:
                raise
            words = f"the app is not installed for {project}, or the project has another name"
            raise ForgeError(words, ForgeState.MISSING, is_final=True, status=404) from None

    def forget_token(self, project: str) -> None:
        """A token that was refused before its time."""
        self._tokens.pop(project, None)

    def login(self) -> str:
        """The name under which the app writes; no person can have it."""
        if self._login is None:
            self._login = f"{_text(self._ask('GET', '/app'), 'slug')}[bot]"
        return self._login

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        headers = _HEADERS | {"Authorization": f"Bearer {self._sign()}"}
        return self.requester.ask(method, path, headers, body)

    def _sign(self) -> str:
        if self._app_id is None or self._key_file is None:
            words = "the server has no GitHub App: set WARPWATCH_GITHUB_APP_ID and WARPWATCH_GITHUB_APP_KEY"
            raise ForgeError(words, ForgeState.REFUSED, is_final=True)
        now = int(time.time())
        claims = {"iat": now - _CLOCK_SECONDS, "exp": now + _KEY_SECONDS, "iss": self._app_id}
        try:
            return jwt.encode({"alg": "RS256"}, claims, _import_key(self._key_file.read_bytes()))
        except (OSError, ValueError, JoseError) as error:
            words = f"WARPWATCH_GITHUB_APP_KEY cannot be used: {type(error).__name__}"
            raise ForgeError(words, ForgeState.REFUSED, is_final=True) from None


@lru_cache(maxsize=1)
def _import_key(pem: bytes) -> RSAKey:
    """The key of the app. Importing a key tests whether its factors are prime, which takes 0.1 s of a core."""
    return RSAKey.import_key(pem)


class GithubClient(ForgeClient):
    """One project on GitHub."""

    def __init__(self, app: GithubApp, project: str) -> None:
        self._app = app
        self._project = project

    def check_link(self) -> None:
        self._app.login()
        installation = self._app.installation(self._project)
        given = installation.get("permissions") if isinstance(installation, dict) else None
        lacking = [name for name in PERMISSIONS if not isinstance(given, dict) or given.get(name) != "write"]
        if lacking:
            words = (
                f"the app may not write {', '.join(lacking)}: grant that in its settings, and accept it in the project"
            )
            raise ForgeError(words, ForgeState.REFUSED, is_final=True)
        self._ask("GET", "")

    def send_check_run(self, report: Report, name: str, state: str, folder: str, remote_id: str | None) -> str:
        body = check_run(report, folder) | {"name": name}
        if state != FINAL:
            # GitHub adds those of each update to those before it.
            body["output"] = body["output"] | {"annotations": []}
        if state == FAILING:
            body |= {"status": "completed", "conclusion": "failure"}
        known = remote_id if state in (FAILING, FINAL) else None
        known = known or self._find_check_run(body["head_sha"], name, body["external_id"])
        answer = self._edit(f"/check-runs/{known}", body) if known is not None else None
        return _id(answer if answer is not None else self._ask("POST", "/check-runs", body))

    def _find_check_run(self, sha: str, name: str, external_id: str) -> str | None:
        """One that was made when the answer was lost."""
        answer = self._ask("GET", f"/commits/{sha}/check-runs?filter=all&per_page=100")
        for row in _rows(answer, "check_runs"):
            if (row.get("name"), row.get("external_id")) == (name, external_id) and row.get("status") != "completed":
                return _id(row)
        return None

    def put_comment(self, number: int, remote_id: str | None, marker: str, text: str) -> str:
        body = {"body": text}
        edited = self._edit(f"/issues/comments/{remote_id}", body) if remote_id is not None else None
        if edited is None:
            found = self._find(f"/issues/{number}/comments?", marker)
            edited = self._edit(f"/issues/comments/{_id(found)}", body) if found is not None else None
        return _id(edited if edited is not None else self._ask("POST", f"/issues/{number}/comments", body))

    def react(self, number: int, comment_id: int, *, is_accepted: bool) -> None:  # noqa: ARG002 - ids are unique
        body = {"content": "+1" if is_accepted else "-1"}
        self._ask("POST", f"/issues/comments/{comment_id}/reactions", body)

    def is_member(self, user: ForgeUser) -> bool:
        if not _LOGIN.fullmatch(user.login):
            return False
        try:
            answer = self._ask("GET", f"/collaborators/{user.login}/permission")
        except ForgeError as error:
            if error.status == 404:
                return False
            raise
        # A name can be given up and taken by somebody else.
        is_same = isinstance(answer, dict) and (answer.get("user") or {}).get("id") == user.id
        return is_same and answer.get("permission") in _WRITERS

    def read_change(self, number: int) -> ForgeChange:
        answer = self._ask("GET", f"/pulls/{number}")
        try:
            head, base = answer["head"], answer["base"]
            source = (head.get("repo") or {}).get("full_name")
            is_fork = source != (base.get("repo") or {}).get("full_name")
            return ForgeChange(str(head["sha"]), str(base["ref"]), is_fork)
        except (KeyError, TypeError, AttributeError):
            raise ForgeError(f"pull request {number} was answered in an unknown form") from None

    def put_issue(self, remote_id: str | None, marker: str, title: str, text: str, *, is_open: bool) -> str | None:
        if remote_id is None:
            found = self._find(f"/issues?state=all&labels={LABEL}&creator={self._app.login()}&", marker)
            remote_id = str(found["number"]) if found is not None else None
        body: dict[str, Any] = {"body": text}
        if remote_id is None:
            if not is_open:
                return None
            return str(self._ask("POST", "/issues", body | {"title": title, "labels": [LABEL]})["number"])
        if not is_open:
            body |= {"state": "closed", "state_reason": "completed"}
        self._ask("PATCH", f"/issues/{remote_id}", body)
        return remote_id

    def _find(self, path: str, marker: str) -> dict[str, Any] | None:
        """The comment or issue that the app wrote with the marker; people may write the same marker."""
        login = self._app.login()
        for row in self._list(path):
            user, text = row.get("user") or {}, row.get("body") or ""
            if user.get("login") == login and user.get("type") == "Bot" and str(text).startswith(marker):
                return row
        return None

    def _list(self, path: str) -> Iterator[dict[str, Any]]:
        for page in range(1, MAX_PAGES + 1):
            rows = _rows({"rows": self._ask("GET", f"{path}per_page={PAGE_ROWS}&page={page}")}, "rows")
            yield from rows
            if len(rows) < PAGE_ROWS:
                return

    def _edit(self, path: str, body: dict[str, Any]) -> Any:
        """The answer to a change; None where somebody deleted what was to be changed."""
        try:
            return self._ask("PATCH", path, body)
        except ForgeError as error:
            if error.status in (404, 410):
                return None
            raise

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """As the installation; a token that was taken back is replaced once."""
        for is_last in (False, True):
            headers = _HEADERS | {"Authorization": f"Bearer {self._app.token(self._project)}"}
            try:
                return self._app.requester.ask(method, f"/repos/{self._project}{path}", headers, body)
            except ForgeError as error:
                if error.status != 401:
                    raise
                self._app.forget_token(self._project)
                if is_last:
                    raise
        raise AssertionError


def _rows(answer: Any, name: str) -> list[dict[str, Any]]:
    rows = answer.get(name) if isinstance(answer, dict) else None
    if not isinstance(rows, list):
        raise ForgeError("GitHub returned no list")
    return [row for row in rows if isinstance(row, dict)]


def _id(row: Any) -> str:
    return _text(row, "id")


def _text(row: Any, name: str) -> str:
    if not isinstance(row, dict) or not isinstance(row.get(name), (int, str)):
        raise ForgeError(f"GitHub returned no {name}")
    return str(row[name])
