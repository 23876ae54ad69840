"""GitLab, with the token of a project: commit statuses, notes, issues."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from warpwatch.contract.words import ForgeState
from warpwatch.db.forge import FAILING
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
from warpwatch.server.reports.model import Report
from warpwatch.server.threads.posting import Poster

_DEVELOPER = 30
"""The least level of access with which somebody may push to a project."""
_STATES = {"pending": "pending", "success": "success", "failure": "failed", "error": "failed"}
_MAX_DESCRIPTION = 140


class GitlabClient(ForgeClient):
    """One project on GitLab."""

    def __init__(self, poster: Poster, api_url: str, project: str, token: str) -> None:
        self._headers = {"PRIVATE-TOKEN": token}
        self._requester = JsonRequester(poster, api_url)
        self._project = f"/projects/{quote(project, safe='')}"
        self._own_id: int | None = None

    def check_link(self) -> None:
        self._user_id()
        try:
            self._ask("GET", "")
        except ForgeError as error:
            if error.status == 404:
                words = "the project does not exist, or the token does not open it"
                raise ForgeError(words, ForgeState.MISSING, is_final=True, status=404) from None
            raise

    def send_check_run(
        self,
        report: Report,
        name: str,
        state: str,
        folder: str,  # noqa: ARG002 - a commit status has no annotations
        remote_id: str | None,  # noqa: ARG002 - GitLab replaces the status of the same name
    ) -> str:
        description = report.summary
        if len(description) > _MAX_DESCRIPTION:
            description = f"{description[: _MAX_DESCRIPTION - 1]}…"
        body = {
            "state": "failed" if state == FAILING else _STATES[report.conclusion],
            "name": name,
            "target_url": report.url,
            "description": description,
        }
        return _id(self._ask("POST", f"/statuses/{report.head_sha}", body))

    def put_comment(self, number: int, remote_id: str | None, marker: str, text: str) -> str:
        notes, body = f"/merge_requests/{number}/notes", {"body": text}
        edited = self._edit(f"{notes}/{remote_id}", body) if remote_id is not None else None
        if edited is None:
            found = self._find(f"{notes}?sort=asc&", marker, "body")
            edited = self._edit(f"{notes}/{_id(found)}", body) if found is not None else None
        return _id(edited if edited is not None else self._ask("POST", notes, body))

    def react(self, number: int, comment_id: int, *, is_accepted: bool) -> None:
        body = {"name": "thumbsup" if is_accepted else "thumbsdown"}
        try:
            self._ask("POST", f"/merge_requests/{number}/notes/{comment_id}/award_emoji", body)
        except ForgeError as error:
            # It is there already, or the comment is gone.
            if error.status != 404:
                raise

    def is_member(self, user: ForgeUser) -> bool:
        try:
            answer = self._ask("GET", f"/members/all/{user.id}")
        except ForgeError as error:
            if error.status == 404:
                return False
            raise
        level = answer.get("access_level") if isinstance(answer, dict) else None
        is_active = isinstance(answer, dict) and answer.get("state", "active") == "active"
        return is_active and isinstance(level, int) and level >= _DEVELOPER

    def read_change(self, number: int) -> ForgeChange:
        answer = self._ask("GET", f"/merge_requests/{number}")
        try:
            is_fork = answer["source_project_id"] != answer["target_project_id"]
            return ForgeChange(str(answer["sha"]), str(answer["target_branch"]), is_fork)
        except (KeyError, TypeError):
            raise ForgeError(f"merge request {number} was answered in an unknown form") from None

    def put_issue(self, remote_id: str | None, marker: str, title: str, text: str, *, is_open: bool) -> str | None:
        if remote_id is None:
            path = f"/issues?scope=all&state=all&labels={LABEL}&author_id={self._user_id()}&"
            found = self._find(path, marker, "description")
            remote_id = str(found["iid"]) if found is not None else None
        body = {"description": text}
        if remote_id is None:
            return (
                str(self._ask("POST", "/issues", body | {"title": title, "labels": LABEL})["iid"]) if is_open else None
            )
        self._ask("PUT", f"/issues/{remote_id}", body if is_open else body | {"state_event": "close"})
        return remote_id

    def _user_id(self) -> int:
        if self._own_id is None:
            self._own_id = int(_id(self._requester.ask("GET", "/user", self._headers)))
        return self._own_id

    def _find(self, path: str, marker: str, field: str) -> dict[str, Any] | None:
        """The note or issue that the token's user wrote with the marker; people may write the same marker."""
        own_id = self._user_id()
        for row in self._list(path):
            if (row.get("author") or {}).get("id") == own_id and str(row.get(field) or "").startswith(marker):
                return row
        return None

    def _list(self, path: str) -> Iterator[dict[str, Any]]:
        for page in range(1, MAX_PAGES + 1):
            rows = self._ask("GET", f"{path}per_page={PAGE_ROWS}&page={page}")
            if not isinstance(rows, list):
                raise ForgeError("GitLab returned no list")
            yield from (row for row in rows if isinstance(row, dict))
            if len(rows) < PAGE_ROWS:
                return

    def _edit(self, path: str, body: dict[str, Any]) -> Any:
        """The answer to a change; None where somebody deleted what was to be changed."""
        try:
            return self._ask("PUT", path, body)
        except ForgeError as error:
            if error.status == 404:
                return None
            raise

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        return self._requester.ask(method, f"{self._project}{path}", self._headers, body)


def _id(row: Any) -> str:
    if not isinstance(row, dict) or not isinstance(row.get("id"), int):
        raise ForgeError("GitLab returned no id")
    return str(row["id"])
