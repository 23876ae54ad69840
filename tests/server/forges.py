"""A GitHub and a GitLab that speak their real paths over HTTP, keep what they are sent, and fail as told."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import RSAKey

APP_ID, SLUG = "4711", "warpwatch-test"
PROJECT = "acme/kernels"
TOKEN = "glpat-a-token-that-nobody-may-read"
BOT = {"login": f"{SLUG}[bot]", "id": 99, "type": "Bot"}
Answer = tuple[int, dict[str, str], Any]
_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
_FORM = serialization.PublicFormat.SubjectPublicKeyInfo
_PUBLIC_KEY = RSAKey.import_key(_KEY.public_key().public_bytes(serialization.Encoding.PEM, _FORM))


def write_key(folder: Path) -> Path:
    """The private key of the app, as GitHub gives it out."""
    path = folder / "app.pem"
    form = serialization.PrivateFormat.TraditionalOpenSSL
    path.write_bytes(_KEY.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    return path


@dataclass
class Forge:
    """What a code host holds. refusals: what the next requests that match are answered instead."""

    url: str = ""
    requests: list[tuple[str, str, Any]] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    refusals: list[tuple[str, Answer]] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    """Requests that match are done, and their answer is lost."""
    pulls: dict[int, dict[str, Any]] = field(default_factory=dict)
    comments: dict[int, dict[str, Any]] = field(default_factory=dict)
    check_runs: dict[int, dict[str, Any]] = field(default_factory=dict)
    statuses: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    issues: dict[int, dict[str, Any]] = field(default_factory=dict)
    reactions: list[tuple[int, str]] = field(default_factory=list)
    writers: dict[str, int] = field(default_factory=lambda: {"ann": 1})
    """Who may write: login and id."""
    is_installed: bool = True
    permissions: dict[str, str] = field(
        default_factory=lambda: {"metadata": "read", "checks": "write", "issues": "write", "pull_requests": "write"}
    )
    tokens: list[str] = field(default_factory=list)
    """Those that are valid; the newest was given out last."""
    token_seconds: float = 3600.0
    _ids: int = 1000

    def new_id(self) -> int:
        self._ids += 1
        return self._ids

    def asked(self, pattern: str) -> list[Any]:
        """Bodies of the requests whose method and path match."""
        return [body for method, path, body in self.requests if re.search(pattern, f"{method} {path}")]

    def bodies_of(self, number: int) -> list[str]:
        """The comments of the app on a pull request."""
        return [row["body"] for row in self.comments.values() if row["number"] == number and row["user"] == BOT]


@contextmanager
def serving(answer: Callable[[Forge, str, str, dict[str, list[str]], dict[str, str], Any], Answer]) -> Iterator[Forge]:
    """A forge on a port of its own."""
    forge, lock = Forge(), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            parts = urlsplit(self.path)
            headers = {name.lower(): value for name, value in self.headers.items()}
            line = f"{self.command} {parts.path}"
            with lock:
                forge.requests.append((self.command, parts.path, body))
                refusal = next((entry for entry in forge.refusals if re.search(entry[0], line)), None)
                if refusal is not None:
                    forge.refusals.remove(refusal)
                    status, more, content = refusal[1]
                else:
                    query = parse_qs(parts.query)
                    status, more, content = answer(forge, self.command, parts.path, query, headers, body)
                lost = next((pattern for pattern in forge.lost if re.search(pattern, line)), None)
            if lost is not None:
                forge.lost.remove(lost)
                self.close_connection = True
                return
            text = json.dumps(content).encode() if content is not None else b""
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(text))} | more).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PATCH = do_PUT = do  # noqa: N815 - names of the library.

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    forge.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield forge
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def github(
    forge: Forge, method: str, path: str, query: dict[str, list[str]], headers: dict[str, str], body: Any
) -> Answer:
    """As https://docs.github.com/rest describes it."""
    bearer = headers.get("authorization", "").removeprefix("Bearer ")
    if path in ("/app", f"/repos/{PROJECT}/installation") or path.startswith("/app/"):
        return _github_app(forge, method, path, bearer, body)
    if bearer not in forge.tokens:
        return 401, {}, {"message": "Bad credentials"}
    if not path.startswith(f"/repos/{PROJECT}"):
        return 404, {}, {"message": "Not Found"}
    rest = path.removeprefix(f"/repos/{PROJECT}")
    for pattern, handle in _GITHUB:
        if match := re.fullmatch(pattern, f"{method} {rest}"):
            return handle(forge, match, query, body)
    forge.unknown.append(f"{method} {path}")
    return 404, {}, {"message": "Not Found"}


def _github_app(forge: Forge, method: str, path: str, bearer: str, body: Any) -> Answer:
    try:
        claims = jwt.decode(bearer, _PUBLIC_KEY, algorithms=["RS256"]).claims
        jwt.JWTClaimsRegistry(iss={"essential": True, "value": APP_ID}).validate(claims)
    except JoseError:
        return 401, {}, {"message": "A JSON web token could not be decoded"}
    assert claims["exp"] - claims["iat"] <= 600, "GitHub takes no longer ones"
    if path == "/app":
        return 200, {}, {"id": int(APP_ID), "slug": SLUG}
    if not forge.is_installed:
        return 404, {}, {"message": "Not Found"}
    if method == "GET":
        return 200, {}, {"id": 5, "permissions": forge.permissions}
    assert path == "/app/installations/5/access_tokens"
    assert body == {"repositories": ["kernels"]}, "a token opens one project"
    forge.tokens.append(f"ghs_{forge.new_id()}")
    expires_at = datetime.now(UTC) + timedelta(seconds=forge.token_seconds)
    return 201, {}, {"token": forge.tokens[-1], "expires_at": expires_at.strftime("%Y-%m-%dT%H:%M:%SZ")}


def _add_comment(forge: Forge, match: re.Match[str], _query: Any, body: Any) -> Answer:
    number = forge.new_id()
    forge.comments[number] = {"id": number, "number": int(match[1]), "user": BOT, "body": body["body"]}
    return 201, {}, forge.comments[number]


def _page(rows: list[Any], query: dict[str, list[str]]) -> list[Any]:
    size, page = int(query["per_page"][0]), int(query["page"][0])
    return rows[(page - 1) * size : page * size]


def _edit(rows: dict[int, dict[str, Any]], match: re.Match[str], body: Any) -> Answer:
    if int(match[1]) not in rows:
        return 404, {}, {"message": "Not Found"}
    rows[int(match[1])] |= body
    return 200, {}, rows[int(match[1])]


def _add_check_run(forge: Forge, _match: re.Match[str], _query: Any, body: Any) -> Answer:
    number = forge.new_id()
    forge.check_runs[number] = body | {"id": number}
    return 201, {}, forge.check_runs[number]


def _edit_check_run(forge: Forge, match: re.Match[str], _query: Any, body: Any) -> Answer:
    """Annotations are added to those that there are."""
    earlier = forge.check_runs[int(match[1])]["output"]["annotations"]
    status, headers, row = _edit(forge.check_runs, match, body)
    row["output"] = body["output"] | {"annotations": earlier + body["output"]["annotations"]}
    return status, headers, row


def _permission(forge: Forge, match: re.Match[str], _query: Any, _body: Any) -> Answer:
    known = forge.writers.get(match[1])
    return 200, {}, {"permission": "write" if known else "read", "user": {"login": match[1], "id": known or 66}}


def _add_issue(forge: Forge, _match: re.Match[str], _query: Any, body: Any) -> Answer:
    number = forge.new_id()
    forge.issues[number] = body | {"number": number, "iid": number, "user": BOT, "state": "open"}
    return 201, {}, forge.issues[number]


def _react(forge: Forge, match: re.Match[str], _query: Any, body: Any) -> Answer:
    forge.reactions.append((int(match[1]), body.get("content") or body["name"]))
    return 201, {}, {"id": forge.new_id()}


def _list_comments(forge: Forge, match: re.Match[str], query: dict[str, list[str]], _body: Any) -> Answer:
    return 200, {}, _page([row for row in forge.comments.values() if row["number"] == int(match[1])], query)


def _list_check_runs(forge: Forge, match: re.Match[str], _query: Any, _body: Any) -> Answer:
    rows = [row for row in forge.check_runs.values() if row["head_sha"] == match[1]]
    return 200, {}, {"total_count": len(rows), "check_runs": rows}


def _list_issues(forge: Forge, _match: re.Match[str], query: dict[str, list[str]], _body: Any) -> Answer:
    assert (query["creator"], query["state"]) == ([BOT["login"]], ["all"])
    return 200, {}, _page(list(forge.issues.values()), query)


_GITHUB: list[tuple[str, Callable[[Forge, re.Match[str], Any, Any], Answer]]] = [
    (r"GET ", lambda *_: (200, {}, {"full_name": PROJECT})),
    (r"GET /collaborators/([^/]+)/permission", _permission),
    (r"GET /pulls/(\d+)", lambda forge, match, _query, _body: (200, {}, forge.pulls[int(match[1])])),
    (r"GET /issues/(\d+)/comments", _list_comments),
    (r"POST /issues/(\d+)/comments", _add_comment),
    (r"PATCH /issues/comments/(\d+)", lambda forge, match, _query, body: _edit(forge.comments, match, body)),
    (r"POST /issues/comments/(\d+)/reactions", _react),
    (r"GET /commits/([0-9a-f]{40})/check-runs", _list_check_runs),
    (r"POST /check-runs", _add_check_run),
    (r"PATCH /check-runs/(\d+)", _edit_check_run),
    (r"GET /issues", _list_issues),
    (r"POST /issues", _add_issue),
    (r"PATCH /issues/(\d+)", lambda forge, match, _query, body: _edit(forge.issues, match, body)),
]


def gitlab(
    forge: Forge, method: str, path: str, query: dict[str, list[str]], headers: dict[str, str], body: Any
) -> Answer:
    """As https://docs.gitlab.com/api describes it."""
    if headers.get("private-token") != TOKEN:
        return 401, {}, {"message": "401 Unauthorized"}
    if (method, path) == ("GET", "/api/v4/user"):
        return 200, {}, {"id": BOT["id"]}
    start = "/api/v4/projects/acme%2Fkernels"
    if not path.startswith(start):
        return 404, {}, {"message": f"404 {unquote(path)} Not Found"}
    for pattern, handle in _GITLAB:
        if match := re.fullmatch(pattern, f"{method} {path.removeprefix(start)}"):
            return handle(forge, match, query, body)
    forge.unknown.append(f"{method} {path}")
    return 404, {}, {"message": "404 Not Found"}


def _gitlab_member(forge: Forge, match: re.Match[str], _query: Any, _body: Any) -> Answer:
    if int(match[1]) not in forge.writers.values():
        return 404, {}, {"message": "404 Not found"}
    return 200, {}, {"id": int(match[1]), "access_level": 30, "state": "active"}


def _gitlab_status(forge: Forge, match: re.Match[str], _query: Any, body: Any) -> Answer:
    forge.statuses.append((match[1], body))
    return 201, {}, {"id": forge.new_id()}


def _gitlab_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row | {"author": {"id": row["user"]["id"]}} for row in rows]


def _gitlab_comments(forge: Forge, match: re.Match[str], query: dict[str, list[str]], _body: Any) -> Answer:
    rows = [row for row in forge.comments.values() if row["number"] == int(match[1])]
    return 200, {}, _page(_gitlab_rows(rows), query)


def _gitlab_issues(forge: Forge, _match: re.Match[str], query: dict[str, list[str]], _body: Any) -> Answer:
    assert (query["author_id"], query["state"]) == ([str(BOT["id"])], ["all"])
    return 200, {}, _page(_gitlab_rows([*forge.issues.values()]), query)


_GITLAB: list[tuple[str, Callable[[Forge, re.Match[str], Any, Any], Answer]]] = [
    (r"GET ", lambda *_: (200, {}, {"path_with_namespace": PROJECT})),
    (r"GET /members/all/(\d+)", _gitlab_member),
    (r"GET /merge_requests/(\d+)", lambda forge, match, _query, _body: (200, {}, forge.pulls[int(match[1])])),
    (r"GET /merge_requests/(\d+)/notes", _gitlab_comments),
    (r"POST /merge_requests/(\d+)/notes", _add_comment),
    (
        r"PUT /merge_requests/\d+/notes/(\d+)",
        lambda forge, match, _query, body: _edit(forge.comments, match, body),
    ),
    (r"POST /merge_requests/\d+/notes/(\d+)/award_emoji", _react),
    (r"POST /statuses/([0-9a-f]{40})", _gitlab_status),
    (
        r"GET /issues",
        lambda forge, _match, query, _body: (200, {}, _page(_gitlab_rows([*forge.issues.values()]), query)),
    ),
    (r"POST /issues", _add_issue),
    (r"PUT /issues/(\d+)", lambda forge, match, _query, body: _edit(forge.issues, match, body)),
]


def in_seconds(seconds: float) -> str:
    """A moment as the header x-ratelimit-reset has it."""
    return str(int(time.time() + seconds))
