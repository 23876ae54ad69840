"""Parses events of GitHub and GitLab: pushes, change requests, and commands in their comments. Pure."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs

from warpwatch.server.intake.comment_commands import CommentCommand, parse_command

SIGNATURE, TOKEN = "x-hub-signature-256", "x-gitlab-token"
_SHA = re.compile(r"[0-9a-f]{40}")
_NOTHING = "0" * 40
"""The id that both send for a commit that does not exist."""
_GITHUB_ACTIONS = ("opened", "synchronize", "reopened", "ready_for_review")
_GITLAB_ACTIONS = ("open", "update", "reopen")
_MAX_LOGIN = 255


class HookError(ValueError):
    """The event does not have the form that GitHub or GitLab send; the text says what is wrong."""


@dataclass(frozen=True, slots=True)
class Push:
    """Commits pushed to a branch. before: its previous newest commit, None for a new branch."""

    branch: str
    default_branch: str | None
    before: str | None
    head: str


@dataclass(frozen=True, slots=True)
class ChangeRequest:
    """A pull or merge request. target: what it is to be merged into, a commit's id or a branch. number, at: what the
    forge calls it, and when it got this head by the forge's clock; None where the event does not say so."""

    head: str
    target: str
    number: int | None = None
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ForkRequest:
    """A pull or merge request from a fork: anybody can open one, so a member starts its run."""

    event: str
    head: str
    number: int | None = None
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class CommentEvent:
    """A command in a comment of a pull or merge request. at: by the forge's clock."""

    event: str
    number: int
    comment_id: int
    user_id: int
    login: str
    at: datetime
    command: CommentCommand


@dataclass(frozen=True, slots=True)
class Ignored:
    """An event that starts no run, and why."""

    event: str
    reason: str


HookEvent = Push | ChangeRequest | ForkRequest | CommentEvent | Ignored


def sign(secret: str, content: bytes) -> str:
    """The signature of a webhook's body, in the form that GitHub uses."""
    return "sha256=" + hmac.new(secret.encode(), content, hashlib.sha256).hexdigest()


def is_genuine(secret: str | None, headers: Mapping[str, str], body: bytes) -> bool:
    """Whether the sender knows the secret. Takes the same time without a secret, so that timing reveals nothing."""
    if SIGNATURE in headers:
        expected = sign(secret or "", body)
        given = headers[SIGNATURE]
    else:
        expected, given = secret or "-", headers.get(TOKEN, "")
    return hmac.compare_digest(given.encode(), expected.encode()) and bool(secret)


def understand(headers: Mapping[str, str], body: bytes) -> HookEvent:
    """Parses an authenticated event; HookError when it cannot be read."""
    message = _payload(headers, body)
    try:
        if "x-gitlab-event" in headers:
            return _gitlab(str(message.get("object_kind")), message)
        return _github(headers.get("x-github-event", "no event"), message)
    except HookError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise HookError(
            f"the event has no {error}" if isinstance(error, KeyError) else "the event has an unknown form"
        ) from None


def _payload(headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
    try:
        text = body.decode()
        if headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
            text = parse_qs(text)["payload"][0]
        message = json.loads(text)
    except (ValueError, KeyError, RecursionError):
        raise HookError("the event is not JSON") from None
    if not isinstance(message, dict):
        raise HookError("the event is not a JSON object")
    return message


def _github(event: str, message: dict[str, Any]) -> HookEvent:
    if event == "push":
        default = message.get("repository", {}).get("default_branch")
        return _push(message["ref"], default, message["before"], message["after"])
    if event == "issue_comment":
        return _github_comment(event, message)
    if event != "pull_request":
        return Ignored(event, "pong" if event == "ping" else "this event starts no run")
    action, change = message["action"], message["pull_request"]
    if action not in _GITHUB_ACTIONS:
        return Ignored(event, f"action {action} starts no run")
    head, base = change["head"], change["base"]
    number, at = _number_or_none(message.get("number")), _moment_or_none(change.get("updated_at"))
    # A deleted repository is null.
    if (head.get("repo") or {}).get("full_name") != (base.get("repo") or {}).get("full_name"):
        return ForkRequest(event, _sha(head["sha"]), number, at)
    return ChangeRequest(_sha(head["sha"]), _sha(base["sha"]), number, at)


def _github_comment(event: str, message: dict[str, Any]) -> HookEvent:
    comment, issue = message["comment"], message["issue"]
    if message["action"] != "created" or "pull_request" not in issue or comment["user"].get("type") == "Bot":
        return Ignored(event, "only new comments of people on pull requests are read")
    user = comment["user"]
    return _comment(event, issue["number"], comment["id"], user["id"], user["login"], comment["created_at"], comment)


def _gitlab(kind: str, message: dict[str, Any]) -> HookEvent:
    if kind == "push":
        default = message.get("project", {}).get("default_branch")
        return _push(message["ref"], default, message["before"], message["after"])
    if kind == "note":
        return _gitlab_comment(kind, message)
    if kind != "merge_request":
        return Ignored(kind, "this event starts no run")
    change = message["object_attributes"]
    action = change.get("action", "no action")
    # GitLab sends oldrev with an update only when the update contains commits.
    if action not in _GITLAB_ACTIONS or (action == "update" and "oldrev" not in change):
        return Ignored(kind, f"action {action} starts no run")
    number, at = _number_or_none(change.get("iid")), _moment_or_none(change.get("updated_at"))
    if change.get("source_project_id") != change.get("target_project_id"):
        return ForkRequest(kind, _sha(change["last_commit"]["id"]), number, at)
    return ChangeRequest(_sha(change["last_commit"]["id"]), _branch(change["target_branch"]), number, at)


def _gitlab_comment(kind: str, message: dict[str, Any]) -> HookEvent:
    note, user = message["object_attributes"], message["user"]
    if note.get("noteable_type") != "MergeRequest" or note.get("action", "create") != "create":
        return Ignored(kind, "only new comments on merge requests are read")
    number, at = message["merge_request"]["iid"], note["created_at"]
    return _comment(kind, number, note["id"], user["id"], user["username"], at, {"body": note["note"]})


def _comment(
    event: str, number: Any, comment_id: Any, user_id: Any, login: Any, at: Any, comment: dict[str, Any]
) -> HookEvent:
    command = parse_command(str(comment["body"] or ""))
    if command is None:
        return Ignored(event, "the comment holds no command")
    numbers = [value for value in map(_number_or_none, (number, comment_id, user_id)) if value is not None]
    moment = _moment_or_none(at)
    if len(numbers) < 3 or moment is None or not isinstance(login, str) or not 0 < len(login) <= _MAX_LOGIN:
        raise HookError("the comment has an unknown form")
    return CommentEvent(event, numbers[0], numbers[1], numbers[2], login, moment, command)


def _push(ref: str, default: str | None, before: str, after: str) -> Push | Ignored:
    if not ref.startswith("refs/heads/"):
        return Ignored("push", f"{ref[:200]} is not a branch")
    if after == _NOTHING:
        return Ignored("push", "the branch was deleted")
    return Push(ref.removeprefix("refs/heads/"), default, None if before == _NOTHING else _sha(before), _sha(after))


def _number_or_none(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**62 else None


def _moment_or_none(value: Any) -> datetime | None:
    """A moment as GitHub and GitLab write it: 2026-01-31T12:00:00Z, or with a blank and UTC."""
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value.removesuffix(" UTC"))
    except ValueError:
        return None
    return moment.astimezone(UTC) if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _sha(text: str) -> str:
    if not _SHA.fullmatch(text):
        raise HookError("a commit is not given by its full SHA")
    return text


def _branch(text: str) -> str:
    if not isinstance(text, str) or not 0 < len(text) <= 200:
        raise HookError("the branch has no valid name")
    return text
