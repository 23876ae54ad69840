"""What a worker's key opens, and what is told of keys."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import text

from tests.apps import create_app
from tests.server.test_worker_api import WORKER
from warpwatch.contract.codec import to_json
from warpwatch.db.database import Database
from warpwatch.db.worker_keys import add_key
from warpwatch.settings import Settings

TOKEN = "a-token-of-some-length"


@pytest.fixture
def exposed(settings: Settings, database: Database) -> Iterator[TestClient]:
    """A server with a token."""
    app = create_app(replace(settings, token=TOKEN), database, judge=False)
    with TestClient(app, base_url="http://127.0.0.1:8321", follow_redirects=False) as client:
        yield client


def addresses(app: FastAPI) -> list[tuple[str, str]]:
    """Method and address of every operation of the API, and of every page."""
    paths = [(method, path) for path, item in app.openapi()["paths"].items() for method in item]
    pages = [("get", path) for path in ("/", "/runs/jobs", "/devices", "/runs", "/repositories", "/regressions")]
    return [(method, re.sub(r"\{\w+\}", "1", path)) for method, path in [*paths, *pages]]


def test_a_workers_key_opens_nothing_else(exposed: TestClient, app: FastAPI, database: Database) -> None:
    with database.session() as s:
        key = add_key(s, "cluster")
    exposed.app.state.guesses.count = lambda _address: 0.0  # type: ignore[attr-defined]
    answers = {
        (method, path): exposed.request(method, path, headers={"Authorization": f"Bearer {key}"}).status_code
        for method, path in addresses(app)
        if "/worker/" not in path and not path.startswith(("/api/v1/health", "/api/v1/hooks/"))
    }
    assert len(answers) > 60
    assert {answer: status for answer, status in answers.items() if status != 401} == {}


def test_nothing_else_opens_what_workers_ask_for(exposed: TestClient, app: FastAPI) -> None:
    asked = [(method, path) for method, path in addresses(app) if "/worker/" in path]
    assert len(asked) >= 10
    for shown in ("", TOKEN, "wwk_guess"):
        headers = {"Authorization": f"Bearer {shown}"} if shown else {}
        for method, path in asked:
            body = BODIES.get(path.rpartition("/")[2])
            parameters: dict[str, Any] = {"device": "x"} if path.endswith("/queue") else {}
            answer = exposed.request(method, path, headers=headers, json=body, params=parameters)
            assert answer.status_code == 401, (method, path, answer.text)


BODIES: dict[str, Any] = {
    "registration": to_json(WORKER),
    "claim": {"after_run_id": 0},
    "lease": {},
    "pause": {"seconds": 1, "reason": "host_fault"},
    "log": {"text": "x"},
    "end": {"ending": {"kind": "released"}},
}


def test_keys_are_made_listed_and_revoked(client: TestClient, database: Database) -> None:
    made = client.post("/api/v1/worker-keys", json={"name": "cluster"})
    assert made.status_code == 201
    key = made.json()["key"]
    assert client.post("/api/v1/worker-keys", json={"name": "cluster"}).status_code == 409
    assert client.post("/api/v1/worker-keys", json={"name": "a/b"}).status_code == 422
    headers = {"Authorization": f"Bearer {key}"}
    assert client.get("/api/v1/worker/queue", params={"device": "none"}, headers=headers).json() == {"queued": 0}
    listed = client.get("/api/v1/worker-keys")
    (row,) = listed.json()["items"]
    assert (row["name"], row["revoked_at"], row["workers"]) == ("cluster", None, 0)
    assert row["last_used_at"] is not None
    assert key not in listed.text
    with database.session() as s:
        stored = s.scalars(text("SELECT digest FROM worker_keys")).one()
    assert stored == hashlib.sha256(key.encode()).hexdigest()
    assert client.delete("/api/v1/worker-keys/cluster").status_code == 204
    assert client.delete("/api/v1/worker-keys/other").status_code == 404
    assert client.get("/api/v1/worker/queue", params={"device": "none"}, headers=headers).status_code == 401
    assert client.get("/api/v1/worker-keys").json()["items"][0]["revoked_at"] is not None
