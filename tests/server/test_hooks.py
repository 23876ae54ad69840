"""Webhooks: only what is signed is believed, and the same event twice is one submission."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from fastapi.testclient import TestClient

from tests.apps import create_app
from tests.builders import Lab, catalogue, commit, make_repository, run_git
from tests.server.listener import listening, signature
from tests.server.test_code import problem
from warpwatch.db import registry
from warpwatch.db.database import Database
from warpwatch.server.http.security import MAX_BODY_BYTES
from warpwatch.server.threads.callbacks import StatusNotifier
from warpwatch.settings import Settings

SECRET = "a secret of some length"
HOOK = "/api/v1/hooks/kernels"
NOTHING = "0" * 40


@pytest.fixture
def lab(database: Database, tmp_path: Path) -> Lab:
    """main: 0 to 2. feature: 3, which left main at 1."""
    source = tmp_path / "source"
    shas = make_repository(source, 3)
    run_git(source, "checkout", "--quiet", "-b", "feature", shas[1])
    shas.append(commit(source, "Square faster"))
    run_git(source, "checkout", "--quiet", "main")
    lab = Lab(database, source, shas, tmp_path)
    with database.session() as session:
        registry.record_catalogue(session, lab.commits[shas[0]], catalogue())
        registry.set_repository(session, lab.repository, {"webhook_secret": SECRET})
    return lab


def github(
    client: TestClient, event: str, message: Any, *, secret: str = SECRET, path: str = HOOK, **headers: str
) -> Any:
    body = message if isinstance(message, bytes) else json.dumps(message).encode()
    sent = {
        "X-GitHub-Event": event,
        "X-Hub-Signature-256": signature(secret, body),
        "Content-Type": "application/json",
    } | headers
    return client.post(path, content=body, headers=sent)


def gitlab(client: TestClient, message: Any, token: str = SECRET) -> Any:
    return client.post(HOOK, json=message, headers={"X-Gitlab-Event": "Some Hook", "X-Gitlab-Token": token})


def push(lab: Lab, before: int | None, after: int, ref: str = "refs/heads/main") -> dict[str, Any]:
    return {
        "ref": ref,
        "before": NOTHING if before is None else lab.shas[before],
        "after": lab.shas[after],
        "repository": {"default_branch": "main"},
    }


def pull(lab: Lab, action: str = "opened", head: str = "acme/kernels") -> dict[str, Any]:
    return {
        "action": action,
        "pull_request": {
            "head": {"sha": lab.shas[3], "repo": {"full_name": head}},
            "base": {"sha": lab.shas[2], "ref": "main", "repo": {"full_name": "acme/kernels"}},
        },
    }


def bases(client: TestClient, lab: Lab, submission: int) -> tuple[int, int | None]:
    """Numbers of the commit measured and of what it is held against."""
    found = client.get(f"/api/v1/submissions/{submission}/report").json()
    return lab.shas.index(found["head_sha"]), None if found["base_sha"] is None else lab.shas.index(found["base_sha"])


def test_a_push_is_held_against_what_was_there_before(client: TestClient, lab: Lab) -> None:
    answer = github(client, "push", push(lab, 0, 2))
    assert answer.status_code == 201, answer.text
    made = answer.json()
    assert made["event"] == "push"
    assert made["url"].endswith(f"/runs/{made['submission_id']}")
    assert bases(client, lab, made["submission_id"]) == (2, 0)
    row = client.get(f"/api/v1/submissions/{made['submission_id']}").json()
    assert (row["origin"], row["state"]) == ("webhook", "queued")


def test_a_pull_request_is_held_against_where_it_left_its_target(client: TestClient, lab: Lab) -> None:
    made = github(client, "pull_request", pull(lab)).json()
    assert bases(client, lab, made["submission_id"]) == (3, 1)


@pytest.mark.parametrize("action", ["opened", "synchronize", "reopened"])
def test_the_same_event_again_is_the_same_submission(client: TestClient, lab: Lab, action: str) -> None:
    """Whoever sends a signed message once more, under another delivery's name, makes nothing."""
    first = github(client, "pull_request", pull(lab), **{"X-GitHub-Delivery": "1"})
    again = github(client, "pull_request", pull(lab, action), **{"X-GitHub-Delivery": "2"})
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json()["submission_id"] == first.json()["submission_id"]
    assert again.json()["reason"] == "submitted before"


@pytest.mark.parametrize(
    ("event", "message", "reason"),
    [
        ("ping", lambda lab: {"zen": "Keep it logically awesome."}, "pong"),
        ("issues", lambda lab: {}, "starts no run"),
        ("pull_request", lambda lab: pull(lab, "closed"), "closed"),
        ("pull_request", lambda lab: pull(lab, head="mallory/kernels"), "fork"),
        ("push", lambda lab: push(lab, 1, 3, "refs/heads/feature"), "not the watched branch main"),
        ("push", lambda lab: push(lab, 1, 3, "refs/tags/v1"), "not a branch"),
        ("push", lambda lab: push(lab, 1, 3) | {"after": NOTHING}, "deleted"),
    ],
)
def test_what_nothing_is_measured_for(client: TestClient, lab: Lab, event: str, message: Any, reason: str) -> None:
    answer = github(client, event, message(lab))
    assert answer.status_code == 200
    assert answer.json()["submission_id"] is None
    assert reason in answer.json()["reason"]


def test_another_branch_may_be_watched(client: TestClient, lab: Lab) -> None:
    assert client.patch("/api/v1/repositories/kernels", json={"branch": "feature"}).status_code == 200
    assert github(client, "push", push(lab, 0, 2)).json()["submission_id"] is None
    assert github(client, "push", push(lab, 1, 3, "refs/heads/feature")).status_code == 201


@pytest.mark.parametrize(("before", "base"), [(None, 1), ("f" * 40, 1)])
def test_without_a_commit_before_it_is_the_parent(client: TestClient, lab: Lab, before: str | None, base: int) -> None:
    message = push(lab, None, 2) | ({"before": before} if before else {})
    made = github(client, "push", message)
    assert bases(client, lab, made.json()["submission_id"]) == (2, base)
    assert github(client, "push", message).json() == made.json() | {"reason": "submitted before"}


def test_the_first_commit_is_held_against_nothing(client: TestClient, lab: Lab) -> None:
    assert bases(client, lab, github(client, "push", push(lab, None, 0)).json()["submission_id"]) == (0, None)


def test_gitlab(client: TestClient, lab: Lab) -> None:
    pushed = gitlab(client, {"object_kind": "push", "project": {"default_branch": "main"}} | push(lab, 1, 2))
    assert bases(client, lab, pushed.json()["submission_id"]) == (2, 1)
    change = {
        "action": "open",
        "last_commit": {"id": lab.shas[3]},
        "target_branch": "main",
        "source_project_id": 1,
        "target_project_id": 1,
    }
    merge = {"object_kind": "merge_request", "object_attributes": change}
    assert bases(client, lab, gitlab(client, merge).json()["submission_id"]) == (3, 1)
    for ignored in ({"action": "update"}, {"action": "merge"}, {"source_project_id": 2}):
        assert gitlab(client, merge | {"object_attributes": change | ignored}).json()["submission_id"] is None
    assert (
        gitlab(client, merge | {"object_attributes": change | {"action": "update", "oldrev": lab.shas[1]}}).status_code
        == 200
    )
    assert gitlab(client, {"object_kind": "wiki_page"}).status_code == 200


@pytest.mark.parametrize("secret", ["another secret of that length", "", SECRET + " "])
def test_what_is_not_signed_is_refused(client: TestClient, lab: Lab, secret: str) -> None:
    problem(github(client, "push", push(lab, 0, 2), secret=secret), 403)
    problem(gitlab(client, {"object_kind": "push"}, secret), 403)
    problem(client.post(HOOK, json=push(lab, 0, 2), headers={"X-GitHub-Event": "push"}), 403)
    assert client.get("/api/v1/submissions").json()["items"] == []


def test_a_signature_is_for_the_very_bytes(client: TestClient, lab: Lab) -> None:
    body = json.dumps(push(lab, 0, 2)).encode()
    right = signature(SECRET, body)
    for sent, shown in (
        (body + b" ", right),
        (body, right.upper()),
        (body, right[:-1]),
        (body, right[7:]),
        (body, "é"),
    ):
        headers = {b"X-GitHub-Event": b"push", b"X-Hub-Signature-256": shown.encode()}
        problem(client.post(HOOK, content=sent, headers=headers), 403)
    assert (
        client.post(HOOK, content=body, headers={"X-GitHub-Event": "push", "X-Hub-Signature-256": right}).status_code
        == 201
    )


def test_an_unknown_repository_looks_like_a_wrong_signature(client: TestClient, lab: Lab) -> None:
    with lab.database.session() as session:
        registry.ensure_repository(session, "silent", str(lab.source))
    answers = [
        github(client, "push", push(lab, 0, 2), path=f"/api/v1/hooks/{name}").json() for name in ("nobody", "silent")
    ]
    answers.append(github(client, "push", push(lab, 0, 2), secret="wrong").json())
    assert {answer["detail"] for answer in answers} == {answers[0]["detail"]}
    problem(github(client, "push", push(lab, 0, 2), secret="", path="/api/v1/hooks/silent"), 403)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b"\xff",
        b"[" * 100_000,
        b'{"ref": 7}',
        b'{"ref": "refs/heads/main", "before": "x", "after": "y"}',
    ],
)
def test_a_signed_message_may_be_broken(client: TestClient, lab: Lab, message: bytes) -> None:
    problem(github(client, "push", message), 400)
    problem(github(client, "pull_request", message), 400)


def test_a_form_is_understood_too(client: TestClient, lab: Lab) -> None:
    body = urlencode({"payload": json.dumps(push(lab, 0, 2))}).encode()
    answer = github(client, "push", body, **{"Content-Type": "application/x-www-form-urlencoded"})
    assert answer.status_code == 201


def test_a_commit_that_cannot_be_had_is_named(client: TestClient, lab: Lab) -> None:
    found = problem(github(client, "push", push(lab, 0, 2) | {"after": "f" * 40}), 422)
    assert "commits" in str(found["errors"])


def test_bodies_are_bounded(client: TestClient, lab: Lab) -> None:
    problem(github(client, "push", b" " * (MAX_BODY_BYTES + 1)), 413)


def test_while_no_worker_lives_work_waits_for_it(client: TestClient, lab: Lab) -> None:
    with lab.database.session() as session:
        registry.stop_worker(session, lab.worker)
    assert github(client, "push", push(lab, 0, 2)).status_code == 201


@pytest.fixture
def exposed(settings: Settings, database: Database) -> Iterator[TestClient]:
    """A server that listens to other machines."""
    app = create_app(replace(settings, host="0.0.0.0", token="a-token-of-some-length"), database, judge=False)
    with TestClient(app, base_url="http://warp.example:8321", follow_redirects=False) as client:
        yield client


def test_hooks_need_a_signature_but_no_token_and_nothing_else_does(exposed: TestClient, lab: Lab) -> None:
    assert github(exposed, "push", push(lab, 0, 2)).status_code == 201
    problem(github(exposed, "push", push(lab, 0, 2), secret="wrong"), 403)
    problem(exposed.get(HOOK), 401)
    others = (
        "/api/v1/hooks",
        "/api/v1/hooks/",
        f"{HOOK}/more",
        "/api/v1/submissions",
        "/api/v1/hooks/../submissions",
        "/api/v1/hooks/%2e%2e/submissions",
        "//api/v1/hooks/x/../y",
        "/api/v1/hooksx/kernels",
    )
    for path in others:
        answer = github(exposed, "push", push(lab, 0, 2), path=path)
        assert answer.status_code in (401, 403), path
        assert answer.status_code == 401 or "signature" in answer.text, path
    problem(exposed.patch("/api/v1/repositories/kernels", json={"branch": "x"}), 401)


@pytest.mark.parametrize("host", ["github", "gitlab"])
def test_a_fork_gets_a_status_that_it_waits_for_a_member(
    client: TestClient, lab: Lab, settings: Settings, host: str
) -> None:
    """Once, whatever is sent again; a later submission's status follows it, and neither waits for the other."""
    with listening() as heard:
        body = {"status_url": f"{heard.url}/statuses/{{sha}}", "status_token": "a-token"}
        assert client.patch("/api/v1/repositories/kernels", json=body).status_code == 200
        for _ in range(2):
            if host == "github":
                answer = github(client, "pull_request", pull(lab, head="mallory/kernels"))
            else:
                change = {"action": "open", "last_commit": {"id": lab.shas[3]}, "target_branch": "main"}
                change |= {"source_project_id": "666", "target_project_id": "1"}
                answer = gitlab(client, {"object_kind": "merge_request", "object_attributes": change})
            assert (answer.status_code, answer.json()["submission_id"]) == (200, None)
        teller = StatusNotifier(settings, lab.database, first_pause=0)
        teller.sweep()
        assert heard.states == ["pending"]
        path, headers, sent = heard.messages[0]
        assert path == f"/statuses/{lab.shas[3]}"
        assert headers["authorization"] == "Bearer a-token"
        form = client.get(sent["target_url"].removeprefix(settings.server_url))
        assert form.status_code == 200
        assert lab.shas[3] in form.text
        request = {"repository": "kernels", "commits": lab.shas[3], "base": "merge-base", "kinds": ["check"]}
        submitted = client.post("/api/v1/submissions", json=request)
        assert submitted.status_code == 201, submitted.text
        teller.sweep()
        assert heard.states == ["pending", "pending"]
        assert heard.messages[1][2]["target_url"].endswith(f"/runs/{submitted.json()['id']}")
        teller._pool.shutdown()
