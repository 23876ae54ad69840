"""Understands what GitHub and GitLab send when someone pushes or proposes a change.

Pure: nothing is asked, nothing is kept.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

SIGNATURE, TOKEN = "x-hub-signature-256", "x-gitlab-token"
_SHA = re.compile(r"[0-9a-f]{40}")
_NOTHING = "0" * 40
"""How both say that there was, or is, no commit."""
_GITHUB_ACTIONS = ("opened", "synchronize", "reopened", "ready_for_review")
_GITLAB_ACTIONS = ("open", "update", "reopen")


class HookError(ValueError):
    """The message is not what GitHub or GitLab send; the text says what is missing."""


@dataclass(frozen=True, slots=True)
class Push:
    """Commits that came to a branch. before: its newest commit until then, None for a new branch."""

    branch: str
    default_branch: str | None
    before: str | None
    head: str


@dataclass(frozen=True, slots=True)
class ChangeRequest:
    """A pull or merge request. target: what it is to be merged into, a commit's id or a branch."""

    head: str
    target: str


@dataclass(frozen=True, slots=True)
class Ignored:
    """A message that asks for nothing, and why."""

    event: str
    reason: str


def is_genuine(secret: str | None, headers: Mapping[str, str], body: bytes) -> bool:
    """Whether the message was sent by someone who knows the secret.

    Takes as long when there is none to compare with.
    """
    key = (secret or "").encode()
    if SIGNATURE in headers:
        wanted = "sha256=" + hmac.new(key, body, hashlib.sha256).hexdigest()
        shown = headers[SIGNATURE]
    else:
        wanted, shown = secret or "-", headers.get(TOKEN, "")
    return hmac.compare_digest(shown.encode(), wanted.encode()) and bool(secret)


def understand(headers: Mapping[str, str], body: bytes) -> Push | ChangeRequest | Ignored:
    """What a genuine message asks for; HookError when it cannot be read."""
    message = _payload(headers, body)
    try:
        if "x-gitlab-event" in headers:
            return _gitlab(str(message.get("object_kind")), message)
        return _github(headers.get("x-github-event", "no event"), message)
    except (KeyError, TypeError, AttributeError) as error:
        raise HookError(
            f"the message lacks {error}" if isinstance(error, KeyError) else "the message has another form"
        ) from None


def _payload(headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
    try:
        text = body.decode()
        if headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
            text = parse_qs(text)["payload"][0]
        message = json.loads(text)
    except (ValueError, KeyError, RecursionError):
        raise HookError("the message is not JSON") from None
    if not isinstance(message, dict):
        raise HookError("the message is no JSON object")
    return message


def _github(event: str, message: dict[str, Any]) -> Push | ChangeRequest | Ignored:
    if event == "push":
        default = message.get("repository", {}).get("default_branch")
        return _push(message["ref"], default, message["before"], message["after"])
    if event != "pull_request":
        return Ignored(event, "pong" if event == "ping" else "nothing is measured for it")
    action, change = message["action"], message["pull_request"]
    if action not in _GITHUB_ACTIONS:
        return Ignored(event, f"nothing is measured when one is {action}")
    head, base = change["head"], change["base"]
    if _differ(head.get("repo"), base.get("repo"), "full_name"):
        return Ignored(
            event, "it comes from a fork, whose code is not run unasked; submit it by hand when it was looked at"
        )
    return ChangeRequest(_sha(head["sha"]), _sha(base["sha"]))


def _gitlab(kind: str, message: dict[str, Any]) -> Push | ChangeRequest | Ignored:
    if kind == "push":
        default = message.get("project", {}).get("default_branch")
        return _push(message["ref"], default, message["before"], message["after"])
    if kind != "merge_request":
        return Ignored(kind, "nothing is measured for it")
    change = message["object_attributes"]
    action = change.get("action", "no action")
    # An update says what it was before only when it brings commits.
    if action not in _GITLAB_ACTIONS or (action == "update" and "oldrev" not in change):
        return Ignored(kind, f"nothing is measured for {action}")
    if change.get("source_project_id") != change.get("target_project_id"):
        return Ignored(
            kind, "it comes from a fork, whose code is not run unasked; submit it by hand when it was looked at"
        )
    return ChangeRequest(_sha(change["last_commit"]["id"]), _branch(change["target_branch"]))


def _push(ref: str, default: str | None, before: str, after: str) -> Push | Ignored:
    if not ref.startswith("refs/heads/"):
        return Ignored("push", f"{ref[:200]} is no branch")
    if after == _NOTHING:
        return Ignored("push", "the branch was deleted")
    return Push(ref.removeprefix("refs/heads/"), default, None if before == _NOTHING else _sha(before), _sha(after))


def _differ(one: Any, other: Any, name: str) -> bool:
    """Whether two repositories are told and are not the same; one that was deleted is told as null."""
    return (one or {}).get(name) != (other or {}).get(name)


def _sha(text: str) -> str:
    if not _SHA.fullmatch(text):
        raise HookError("a commit is not named by its full id")
    return text


def _branch(text: str) -> str:
    if not isinstance(text, str) or not 0 < len(text) <= 200:
        raise HookError("the branch has no usable name")
    return text
