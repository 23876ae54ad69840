"""Commit statuses: written with what they tell, sent once each and in order, tried again while that may help."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from tests.builders import CASES, Lab, catalogue
from tests.server.listener import Heard, listening
from tests.server.test_code import problem
from warpwatch.contract.outcome import Finding
from warpwatch.contract.words import Status
from warpwatch.db import callbacks, registry
from warpwatch.db.database import Database
from warpwatch.db.unjudged import mark_judged
from warpwatch.server.reports.status import status_body
from warpwatch.server.threads import callbacks as threads
from warpwatch.server.threads import posting
from warpwatch.server.threads.callbacks import StatusNotifier
from warpwatch.server.threads.notifier import MAX_ATTEMPTS
from warpwatch.settings import Settings

API = "/api/v1"
TOKEN = "a-token-that-nobody-may-read"
V1 = ("v1", CASES[0])


@pytest.fixture(autouse=True)
def _long_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round ends when nothing is due, however slow the machine is."""
    monkeypatch.setattr(threads, "POLL_SECONDS", 60.0)


@pytest.fixture
def heard() -> Iterator[Heard]:
    with listening() as heard:
        yield heard


@pytest.fixture
def teller(settings: Settings, database: Database) -> Iterator[StatusNotifier]:
    teller = StatusNotifier(settings, database, first_pause=0)
    yield teller
    teller._pool.shutdown()


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
    columns = "submission_id, body ->> 'state' AS state, attempts, sent_at, given_up_at, message"
    with database.session() as session:
        return [dict(row) for row in session.execute(text(f"SELECT {columns} FROM callbacks ORDER BY id")).mappings()]


def told(database: Database, submission: int) -> list[dict[str, Any]]:
    """The statuses of one submission."""
    return [row for row in rows(database) if row["submission_id"] == submission]


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
    assert body["target_url"] == f"http://127.0.0.1:8321/runs/{submission}"
    assert 0 < len(body["description"]) <= 140


def test_a_failure_is_told_before_everything_has_ended(
    client: TestClient, lab: Lab, teller: StatusNotifier, heard: Heard, submission: int, database: Database
) -> None:
    asked = {"repository": "kernels", "commits": "main", "base": "parent", "device": "cpu", "kinds": ["check"]}
    both = client.post(f"{API}/submissions", json=asked | {"operators": ["square", "cube"], "seed": 1}).json()["id"]
    end(client, lab, submission)
    (first, second) = client.get(f"{API}/jobs", params={"submission": both}).json()["items"]
    teller.sweep()
    assert [row["state"] for row in told(database, both)] == ["pending"], "nothing is decided"
    for job, status in ((first, Status.WRONG), (second, Status.OK)):
        lab.finish(job["id"], replace(lab.outcome([Finding(*V1, status, "")]), catalogue=catalogue(("square", "cube"))))
        with database.session() as session:
            mark_judged(session, job["id"])
        for _ in range(3):
            teller.sweep()
        states = [row["state"] for row in told(database, both)]
        assert states == ["pending", "failure", "failure"][: 2 if job is first else 3]
    with database.session() as session:
        assert callbacks.list_open(session) == []
    assert heard.states.count("failure") == 2


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


@contextmanager
def dribbling() -> Iterator[str]:
    """A status endpoint that sends the head of its answer byte by byte and never ends it; its address."""
    ended = threading.Event()

    def answer(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.sendall(b"HTTP/1.1 201 Created\r\nX: ")
            while not ended.wait(0.02):
                connection.sendall(b"x")

    def accept(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, args=(listener,), daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        ended.set()


@pytest.mark.words
def test_an_endpoint_that_dribbles_stops_no_other(
    client: TestClient,
    lab: Lab,
    settings: Settings,
    heard: Heard,
    database: Database,
    submission: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(posting, "DELIVERY_SECONDS", 3.0)
    idle = "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'"
    with dribbling() as address, database.session() as session:
        slow = registry.ensure_repository(session, "slow", "/nowhere")
        values = {"repository": slow, "url": f"{address}/status"}
        told = """
        WITH new AS (INSERT INTO submissions (repository_id, request) VALUES (:repository, '{}') RETURNING id)
        INSERT INTO callbacks (submission_id, url, body, next_at, concluded_at)
        SELECT id, :url, '{"state": "pending"}', now() - interval '1 day', now() FROM new
        """
        session.execute(text(told), values)
        session.commit()
        sweeping = threading.Thread(target=StatusNotifier(settings, database, first_pause=3600).sweep)
        sweeping.start()
        while not heard.states:
            assert sweeping.is_alive(), "the status of the other repository was not sent in this round"
            time.sleep(0.01)
        assert sweeping.is_alive(), "the slow delivery is under way"
        with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            # What wrote down the other status may not have ended yet.
            while connection.scalar(text(idle)):
                assert sweeping.is_alive(), "no transaction is open while a status is sent"
                time.sleep(0.01)
        sweeping.join()
    slow_row, other = sorted(rows(database), key=lambda row: row["attempts"] == 0 or bool(row["sent_at"]))
    assert other["sent_at"]
    assert (slow_row["attempts"], slow_row["sent_at"]) == (1, None)


def test_a_status_that_is_being_sent_is_not_overtaken(
    client: TestClient, lab: Lab, database: Database, submission: int
) -> None:
    """Also not by a later one of its submission, and only until the server that sends it must have died."""
    with database.session() as session:
        assert callbacks.claim_due(session) is not None
    end(client, lab, submission)
    with database.session() as session:
        callbacks.tell(session, submission, "http://127.0.0.1:1/", {"state": "success"}, is_final=True)
        assert callbacks.claim_due(session) is None
        session.execute(text("UPDATE callbacks SET claimed_until = now() - interval '1 second'"))
        due = callbacks.claim_due(session)
    assert due is not None
    assert due.body["state"] == "success"


@pytest.mark.parametrize("address", ["http://169.254.169.254/{sha}", "http://[fe80::1]/", "https://0.0.0.0/x"])
def test_metadata_is_no_endpoint(client: TestClient, lab: Lab, address: str) -> None:
    found = problem(client.patch(f"{API}/repositories/kernels", json={"status_url": address}), 422)
    assert found["errors"][0]["field"] == "status_url"


def test_a_name_that_leads_to_this_machine_is_given_up(
    settings: Settings, client: TestClient, database: Database, heard: Heard, submission: int
) -> None:
    """A server that others can ask connects to no private address that its settings do not allow."""
    with database.session() as session:
        session.execute(text("UPDATE callbacks SET url = replace(url, '127.0.0.1', 'localhost')"))
    asked_by_others = replace(settings, token="a-token-of-some-length")
    StatusNotifier(asked_by_others, database).sweep()
    assert heard.states == []
    (row,) = rows(database)
    assert row["given_up_at"]
    with database.session() as session:
        session.execute(text("UPDATE callbacks SET given_up_at = NULL"))
    StatusNotifier(replace(asked_by_others, private_hosts="localhost"), database).sweep()
    assert heard.states == ["pending"]


def test_the_address_that_was_checked_is_connected_to(
    teller: StatusNotifier, database: Database, heard: Heard, submission: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name server cannot give another answer afterwards."""
    lookups: list[str] = []
    ask = socket.getaddrinfo

    def look_up(host: str, port: int, *arguments: Any, **named: Any) -> Any:
        if host == "statuses.example":
            lookups.append(host)
            host = "127.0.0.1"
        return ask(host, port, *arguments, **named)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    with database.session() as session:
        session.execute(text("UPDATE callbacks SET url = replace(url, '127.0.0.1', 'statuses.example')"))
    teller.sweep()
    assert lookups == ["statuses.example"]
    assert heard.messages[0][1]["host"].startswith("statuses.example:")
