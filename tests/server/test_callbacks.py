"""Commit statuses: written with what they tell, sent once each and in order, tried again while that may help."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from tests.builders import CASES, Lab
from tests.server.listener import Heard, listening
from tests.server.test_code import problem
from warpwatch.contract.outcome import Finding
from warpwatch.contract.words import Status
from warpwatch.db import callbacks, registry
from warpwatch.db.database import Database
from warpwatch.db.regressions import mark_judged
from warpwatch.server.threads.callbacks import MAX_ATTEMPTS, StatusNotifier, status_body
from warpwatch.settings import Settings

API = "/api/v1"
TOKEN = "a-token-that-nobody-may-read"
V1 = ("v1", CASES[0])


@pytest.fixture
def heard() -> Iterator[Heard]:
    with listening() as heard:
        yield heard


@pytest.fixture
def teller(settings: Settings, database: Database) -> Iterator[StatusNotifier]:
    teller = StatusNotifier(settings, database, first_pause=0)
    yield teller
    teller._client.close()


@pytest.fixture
def submission(client: TestClient, lab: Lab, heard: Heard) -> int:
    """A check of the newest commit, held against its parent, of a repository that wants to be told."""
    body = {"status_url": f"{heard.url}/statuses/{{sha}}", "status_token": TOKEN}
    assert client.patch(f"{API}/repositories/kernels", json=body).status_code == 200
    asked = {
        "repository": "kernels",
        "commits": "main",
        "base": "parent",
        "device": "cpu",
        "kinds": ["check"],
        "operators": ["square"],
    }
    return int(client.post(f"{API}/submissions", json=asked).json()["id"])


def end(client: TestClient, lab: Lab, submission: int, status: Status = Status.OK) -> None:
    for job in client.get(f"{API}/jobs", params={"submission": submission}).json()["items"]:
        lab.finish(job["id"], lab.outcome([Finding(*V1, status, "")]))
        with lab.database.session() as session:
            mark_judged(session, job["id"])


def rows(database: Database) -> list[dict[str, Any]]:
    with database.session() as session:
        sql = "SELECT body ->> 'state' AS state, attempts, sent_at, given_up_at, message FROM callbacks ORDER BY id"
        return [dict(row) for row in session.execute(text(sql)).mappings()]


@pytest.mark.parametrize(
    ("status", "state"),
    [(Status.OK, "success"), (Status.WRONG, "failure"), (Status.CRASHED, "error"), (Status.SKIPPED, "success")],
)
def test_a_commit_is_pending_and_then_told_of(
    client: TestClient, lab: Lab, teller: StatusNotifier, heard: Heard, submission: int, status: Status, state: str
) -> None:
    teller.sweep()
    teller.sweep()
    assert heard.states == ["pending"]
    end(client, lab, submission, status)
    teller.sweep()
    teller.sweep()
    assert heard.states == ["pending", state]
    path, headers, body = heard.messages[-1]
    assert path == f"/statuses/{lab.shas[5]}"
    assert headers["authorization"] == f"Bearer {TOKEN}"
    assert body["context"] == "warpwatch"
    assert body["target_url"] == f"http://127.0.0.1:8321/submissions/{submission}"
    assert 0 < len(body["description"]) <= 140


def test_a_status_comes_to_be_with_what_it_tells(
    client: TestClient, lab: Lab, database: Database, submission: int
) -> None:
    """Nothing is told of what was not made, and nothing made is forgotten, whether or not anybody sends it by then."""
    assert [row["state"] for row in rows(database)] == ["pending"]
    refused = {"repository": "kernels", "commits": "main", "base": "parent", "operators": ["nothing"]}
    problem(client.post(f"{API}/submissions", json=refused), 422)
    assert len(rows(database)) == 1


def test_what_is_not_held_against_anything_is_not_told_of(
    client: TestClient, lab: Lab, database: Database, submission: int
) -> None:
    client.post(f"{API}/submissions", json={"repository": "kernels", "commits": "main", "device": "cpu"})
    assert len(rows(database)) == 1


def test_it_is_tried_again_while_the_other_side_stumbles(
    client: TestClient, lab: Lab, teller: StatusNotifier, heard: Heard, database: Database, submission: int
) -> None:
    heard.answers = [500, 503, 429, 408]
    teller.sweep()
    assert heard.states == ["pending"] * 5
    (row,) = rows(database)
    assert (row["attempts"], row["message"]) == (5, "")
    assert row["sent_at"]


def test_pauses_grow(settings: Settings, database: Database, client: TestClient, heard: Heard, submission: int) -> None:
    teller = StatusNotifier(settings, database, first_pause=100)
    pauses = []
    heard.answers = [500] * 4
    for _ in range(4):
        teller.sweep()
        with database.session() as session:
            pauses.append(
                session.execute(text("SELECT extract(epoch FROM next_at - now()) FROM callbacks")).scalar_one()
            )
            session.execute(text("UPDATE callbacks SET next_at = now()"))
    assert [round(float(pause), -1) for pause in pauses] == [100, 200, 400, 800]


@pytest.mark.words
@pytest.mark.parametrize("code", [400, 401, 404, 422, 302])
def test_what_will_never_be_taken_is_given_up(
    teller: StatusNotifier, heard: Heard, database: Database, submission: int, code: int
) -> None:
    heard.answers = [code]
    teller.sweep()
    teller.sweep()
    assert heard.states == ["pending"]
    (row,) = rows(database)
    assert row["given_up_at"]
    assert row["message"] == f"it was answered with {code}"


def test_there_is_an_end_to_trying(teller: StatusNotifier, heard: Heard, database: Database, submission: int) -> None:
    heard.answers = [500] * 100
    teller.sweep()
    assert len(heard.states) == MAX_ATTEMPTS
    assert rows(database)[0]["given_up_at"]


@pytest.mark.words
def test_an_older_status_never_follows_a_newer_one(
    client: TestClient, lab: Lab, settings: Settings, heard: Heard, database: Database, submission: int
) -> None:
    slow = StatusNotifier(settings, database, first_pause=3600)
    heard.answers = [500]
    slow.sweep()
    end(client, lab, submission)
    slow.sweep()
    with database.session() as session:
        session.execute(text("UPDATE callbacks SET next_at = now()"))
    slow.sweep()
    assert heard.states == ["pending", "success"]
    assert rows(database)[0]["message"] == callbacks.SUPERSEDED


def test_two_servers_tell_it_once(
    client: TestClient, lab: Lab, settings: Settings, database: Database, heard: Heard, submission: int
) -> None:
    end(client, lab, submission)
    tellers = [StatusNotifier(settings, database) for _ in range(4)]
    threads = [threading.Thread(target=teller.sweep) for teller in tellers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tellers[0].sweep()
    assert heard.states[-1] == "success"
    assert heard.states.count("success") == 1
    assert [row["state"] for row in rows(database)] == ["pending", "success"]


def test_a_retry_is_pending_again(
    client: TestClient, lab: Lab, teller: StatusNotifier, heard: Heard, submission: int
) -> None:
    (job,) = client.get(f"{API}/jobs", params={"submission": submission}).json()["items"]
    client.post(f"{API}/jobs/{job['id']}/cancel")
    with lab.database.session() as session:
        mark_judged(session, job["id"])
    teller.sweep()
    client.post(f"{API}/submissions/{submission}/retry")
    teller.sweep()
    end(client, lab, submission)
    teller.sweep()
    assert heard.states == ["error", "pending", "success"]


@pytest.mark.words
def test_nobody_there(settings: Settings, database: Database, client: TestClient, lab: Lab, caplog: Any) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{closed.getsockname()[1]}/{{sha}}"
    with database.session() as session:
        registry.set_repository(session, lab.repository, {"status_url": address, "status_token": TOKEN})
    client.post(
        f"{API}/submissions", json={"repository": "kernels", "commits": "main", "base": "parent", "device": "cpu"}
    )
    with caplog.at_level(logging.DEBUG):
        StatusNotifier(settings, database).sweep()
    (row,) = rows(database)
    assert "ConnectError" in row["message"]
    assert "not taken" in caplog.text
    assert TOKEN not in caplog.text + row["message"]


def test_gitlab_is_told_in_its_own_words() -> None:
    url = "https://gitlab.example/api/v4/projects/7/statuses/abc"
    said = {
        state: status_body(url, state, "x" * 200, "http://warp", 1)
        for state in ("pending", "success", "failure", "error")
    }
    assert [body["state"] for body in said.values()] == ["pending", "success", "failed", "failed"]
    assert said["error"]["name"] == "warpwatch"
    assert len(said["error"]["description"]) == 140


def test_secrets_are_set_and_never_told(client: TestClient, lab: Lab) -> None:
    body = {
        "webhook_secret": "a-secret-of-some-length",
        "status_token": TOKEN,
        "status_url": "https://host.example/{sha}",
    }
    answer = client.patch(f"{API}/repositories/kernels", json=body)
    expected = {
        "branch": None,
        "status_url": "https://host.example/{sha}",
        "has_webhook_secret": True,
        "has_status_token": True,
    }
    assert answer.json() | expected == answer.json()
    told = answer.text + client.get(f"{API}/repositories").text + client.get(f"{API}/repositories/kernels").text
    assert TOKEN not in told
    assert body["webhook_secret"] not in told
    cleared = client.patch(f"{API}/repositories/kernels", json={"status_token": None}).json()
    assert (cleared["has_status_token"], cleared["has_webhook_secret"]) == (False, True)
    again = client.post(f"{API}/repositories", json={"name": "kernels", "url": str(lab.source)})
    assert again.json()["has_webhook_secret"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"webhook_secret": "short"}, "webhook_secret"),
        ({"webhook_secret": "line\nbreak of some length"}, "webhook_secret"),
        ({"status_token": "ünicode"}, "status_token"),
        ({"status_url": "file:///etc/passwd"}, "status_url"),
        ({"status_url": "https://user:password@host.example/"}, "status_url"),
        ({"status_url": "https://"}, "status_url"),
        ({"status_url": "http://[::1"}, "status_url"),
        ({"branch": ""}, "branch"),
        ({"secret": "x"}, "secret"),
    ],
)
def test_settings_that_cannot_be(client: TestClient, lab: Lab, body: dict[str, str], field: str) -> None:
    answer = client.patch(f"{API}/repositories/kernels", json=body)
    found = problem(answer, 422)
    assert field in str(found["errors"])
    assert all(value not in answer.text for value in body.values() if len(value) > 6)
