"""Every error is a problem that names what to do: malformed requests, and a database that is down, full or behind."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from tests.apps import create_app
from tests.server.test_code import problem
from warpwatch.db import migrate
from warpwatch.db.database import Database
from warpwatch.db.errors import DatabaseFullError, SchemaTooNewError
from warpwatch.db.models import RepositoryRecord
from warpwatch.server.http.service import Db
from warpwatch.settings import Settings


@contextmanager
def client_of(settings: Settings, url: str) -> Iterator[TestClient]:
    database = Database(url)
    with TestClient(
        create_app(settings, database, judge=False), base_url="http://127.0.0.1:8321", raise_server_exceptions=False
    ) as client:
        yield client
    database.close()


def test_a_reader_who_leaves_is_no_error(app: FastAPI, caplog: pytest.LogCaptureFixture) -> None:
    """A page that is left ends its requests, also one whose form has not arrived yet."""
    sent: list[Any] = []

    async def receive() -> dict[str, str]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = {"host": "127.0.0.1:8321", "content-type": "application/x-www-form-urlencoded", "content-length": "9"}
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/runs/preview",
        "raw_path": b"/runs/preview",
        "query_string": b"",
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "server": ("127.0.0.1", 8321),
        "client": ("127.0.0.1", 4711),
    }
    asyncio.run(app(scope, receive, send))
    assert (sent, caplog.records) == ([], [])


def test_malformed_json(client: TestClient) -> None:
    answer = client.post(
        "/api/v1/submissions", content=b'{"repository": ', headers={"Content-Type": "application/json"}
    )
    assert "not valid JSON" in str(problem(answer, 400)["detail"])


@pytest.mark.parametrize("content", [b"[]", b"3", b"null", b'"text"', b"\xff\xfe"])
def test_json_that_is_no_object(client: TestClient, content: bytes) -> None:
    answer = client.post("/api/v1/submissions", content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422)
    problem(answer, answer.status_code)


def test_nothing_there_and_not_allowed(client: TestClient) -> None:
    assert problem(client.get("/api/v1/nothing"), 404)["instance"] == "/api/v1/nothing"
    problem(client.delete("/api/v1/repositories"), 405)


def test_a_parameter_that_is_not_known_is_named(client: TestClient) -> None:
    (error,) = problem(client.get("/api/v1/jobs", params={"state": "done", "repositry": "kernels"}), 422)["errors"]
    assert error["field"] == "repositry"
    assert "state" in error["remedy"]
    (error,) = problem(client.get("/api/v1/health", params={"x": "1"}), 422)["errors"]
    assert error == {"field": "x", "message": "there is no such parameter", "remedy": "leave it out"}


def test_a_database_that_is_down(settings: Settings) -> None:
    with client_of(settings, "postgresql://someone:secret@127.0.0.1:1/nothing") as client:
        for method, path in (("GET", "/health"), ("GET", "/repositories"), ("POST", "/submissions")):
            answer = client.request(
                method, f"/api/v1{path}", json={"repository": "x", "commits": "main"} if method == "POST" else None
            )
            detail = str(problem(answer, 503)["detail"])
            assert "WARPWATCH_DATABASE_URL" in detail
            assert "secret" not in detail
            assert answer.headers["retry-after"]


def test_the_server_recovers_with_its_database(settings: Settings, database_url: str) -> None:
    database = Database("postgresql://someone@127.0.0.1:1/nothing")
    app = create_app(settings, database, judge=False)
    with TestClient(app, base_url="http://127.0.0.1:8321") as client:
        problem(client.get("/api/v1/repositories"), 503)
        app.state.database = Database(database_url)
        assert client.get("/api/v1/repositories").status_code == 200
        app.state.database.close()


def test_a_database_without_its_tables(settings: Settings, postgres_url: str) -> None:
    with migrate.scratch_database(postgres_url) as url, client_of(settings, url) as client:
        for path in ("/health", "/repositories", "/jobs"):
            assert "warpwatch migrate" in str(problem(client.get(f"/api/v1{path}"), 503)["detail"])
        migrate.upgrade(url)
        assert client.get("/api/v1/repositories").status_code == 200


@pytest.mark.parametrize("error", [DatabaseFullError, SchemaTooNewError])
def test_a_database_that_is_full_or_newer(app: FastAPI, client: TestClient, error: type[Exception]) -> None:
    def fail() -> None:
        raise error

    app.add_api_route("/api/v1/failing", fail)
    detail = str(problem(client.get("/api/v1/failing"), 503)["detail"])
    assert "free some space" in detail or "upgrade" in detail


def test_a_surprise_tells_nothing_of_the_inside(app: FastAPI, client: TestClient) -> None:
    def fail() -> None:
        raise RuntimeError("password=hunter2")

    app.add_api_route("/api/v1/failing", fail)
    assert "hunter2" not in str(problem(client.get("/api/v1/failing"), 500))


def test_what_cannot_be_committed_is_not_answered_as_done(app: FastAPI, client: TestClient) -> None:
    def forget_the_name(session: Db) -> str:
        session.add(RepositoryRecord(url="/nowhere"))
        return "done"

    app.add_api_route("/api/v1/failing", forget_the_name)
    problem(client.get("/api/v1/failing"), 500)


def test_health(client: TestClient) -> None:
    body = client.get("/api/v1/health").json()
    assert body["status"] == "ok"
    assert body["counts"] | {"database_bytes": 0} == {
        "queued": 0,
        "running": 0,
        "workers": 0,
        "repositories": 0,
        "database_bytes": 0,
    }


def test_a_number_that_is_not_given_comes_by_no_measurement(client: TestClient) -> None:
    pages = {
        path: client.get(path, headers={"Accept": "text/html"}) for path in ("/regressions/9999", "/commits/abcdef12")
    }
    assert {page.status_code for page in pages.values()} == {404}
    assert ["warpwatch submit" in page.text for page in pages.values()] == [False, True]
