"""Personal tokens may do what their scope says, until they expire or are revoked; and what they changed is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import text

from tests.apps import create_app
from tests.builders import Lab
from tests.server.test_code import problem
from warpwatch.contract.words import AccountRole, TokenScope
from warpwatch.db.access import add_token
from warpwatch.db.accounts import ensure_account
from warpwatch.db.database import Database
from warpwatch.server.http.access import hash_of
from warpwatch.server.http.permissions import required_scope
from warpwatch.settings import Settings

API, TOKEN, ADDRESS = "/api/v1", "the-token-of-the-server", "http://bench.example"
ADMINISTRATOR = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def apps(settings: Settings, lab: Lab) -> list[FastAPI]:
    """Two servers that others reach, on one database."""
    return [create_app(replace(settings, host="0.0.0.0", token=TOKEN), lab.database, judge=False) for _ in range(2)]


@pytest.fixture
def exposed(apps: list[FastAPI]) -> Iterator[TestClient]:
    with TestClient(apps[0], base_url=ADDRESS, follow_redirects=False) as client:
        yield client


@pytest.fixture
def issue(exposed: TestClient) -> Callable[[str], tuple[int, dict[str, str]]]:
    def issue_token(scope: str) -> tuple[int, dict[str, str]]:
        body = {"person": "ann", "scope": scope, "purpose": "laptop"}
        row = exposed.post(f"{API}/tokens", json=body, headers=ADMINISTRATOR).json()
        return row["id"], {"Authorization": f"Bearer {row['token']}"}

    return issue_token


def requests(lab: Lab) -> dict[TokenScope, tuple[str, str, dict[str, Any]]]:
    """A request that needs each scope."""
    submission = {"repository": "kernels", "commits": lab.shas[0], "operators": ["square"]}
    watch = {"repository": "kernels", "person": "ann", "operator": "square"}
    return {
        TokenScope.READ: ("GET", "/repositories", {}),
        TokenScope.SUBMIT: ("POST", "/submissions", {"json": submission}),
        TokenScope.TRIAGE: ("POST", "/watches", {"json": watch}),
        TokenScope.ADMINISTER: ("PATCH", "/repositories/kernels/retention", {"json": {"logs": 7}}),
    }


@pytest.mark.parametrize("scope", TokenScope)
def test_a_token_may_do_what_its_scope_says(exposed: TestClient, lab: Lab, issue: Any, scope: TokenScope) -> None:
    lab.bench(0, {})
    _, headers = issue(scope)
    order = list(TokenScope)
    for needed, (method, path, body) in requests(lab).items():
        answer = exposed.request(method, f"{API}{path}", headers=headers, **body)
        if order.index(scope) < order.index(needed):
            problem(answer, 403)
        else:
            assert answer.status_code in (200, 201), answer.text
    for path, tab in (("/accounts", "users"), ("/audit", "audit")):
        expected = 200 if scope is TokenScope.ADMINISTER else 403
        assert exposed.get(f"{API}{path}", headers=headers).status_code == expected
        assert exposed.get(f"/settings/people?tab={tab}", headers=headers).status_code == expected
    own = exposed.get("/settings/people", headers=headers)
    assert own.status_code == 200
    assert ("Audit log" in own.text) == (scope is TokenScope.ADMINISTER)


def test_what_is_not_known_needs_most(exposed: TestClient, apps: list[FastAPI]) -> None:
    """Every operation that changes something is named, or an administrator's alone."""
    assert required_scope("POST", f"{API}/something/new") is TokenScope.ADMINISTER
    schema = apps[0].openapi()["paths"]
    needed: dict[TokenScope, set[str]] = {scope: set() for scope in TokenScope}
    for path, operations in schema.items():
        for method in operations:
            needed[required_scope(method.upper(), path.replace("_id}", "").replace("{", "1"))].add(path)
    for word in ("repositories", "channels", "tokens", "worker-keys"):
        changing = {path for path in schema if f"/{word}" in path and set(schema[path]) - {"get"}}
        assert not {path for path in changing if "preview" not in path} & (
            needed[TokenScope.SUBMIT] | needed[TokenScope.TRIAGE]
        )
    assert "delete" not in {
        method
        for path in needed[TokenScope.SUBMIT]
        for method in schema[path]
        if required_scope(method.upper(), path) is TokenScope.SUBMIT
    }


def test_a_token_ends_when_it_expires_or_is_revoked(exposed: TestClient, database: Database, issue: Any) -> None:
    number, headers = issue("read")
    assert exposed.get(f"{API}/repositories", headers=headers).status_code == 200
    (row,) = exposed.get(f"{API}/tokens", headers=ADMINISTRATOR).json()["items"]
    assert (row["person"], row["purpose"], row["state"], bool(row["last_used_at"])) == ("ann", "laptop", "valid", True)
    assert headers["Authorization"].removeprefix("Bearer ") not in str(row)
    assert exposed.delete(f"{API}/tokens/{number}", headers=ADMINISTRATOR).status_code == 204
    problem(exposed.get(f"{API}/repositories", headers=headers), 401)
    with database.session() as session:
        past = datetime.now(UTC) - timedelta(seconds=1)
        bob = ensure_account(session, "bob", AccountRole.VIEWER)
        add_token(session, bob.id, "bob", "", hash_of("wwp_old"), TokenScope.READ, past)
        assert session.scalars(text("SELECT count(*) FROM access_tokens WHERE token_hash LIKE '%wwp_%'")).one() == 0
    problem(exposed.get(f"{API}/repositories", headers={"Authorization": "Bearer wwp_old"}), 401)
    states = {row["state"] for row in exposed.get(f"{API}/tokens", headers=ADMINISTRATOR).json()["items"]}
    assert states == {"revoked", "expired"}


def test_guessing_personal_tokens_is_slow(exposed: TestClient, lab: Lab) -> None:
    statuses = [
        exposed.get(f"{API}/repositories", headers={"Authorization": f"Bearer wwp_{guess}"}).status_code
        for guess in range(12)
    ]
    assert statuses == [401] * 10 + [429] * 2


def test_a_session_has_the_scope_of_its_token_and_ends_with_it(exposed: TestClient, issue: Any) -> None:
    number, headers = issue("read")
    token = headers["Authorization"].removeprefix("Bearer ")
    assert exposed.post("/login", data={"token": token}).status_code == 303
    assert exposed.get(f"{API}/repositories").status_code == 200
    problem(exposed.patch(f"{API}/repositories/kernels/retention", json={"logs": 7}), 403)
    exposed.delete(f"{API}/tokens/{number}", headers=ADMINISTRATOR)
    problem(exposed.get(f"{API}/repositories"), 401)


def test_a_log_out_counts_on_all_servers(apps: list[FastAPI], exposed: TestClient) -> None:
    exposed.post("/login", data={"token": TOKEN})
    cookie = {"Cookie": f"warpwatch_session={exposed.cookies['warpwatch_session']}"}
    with TestClient(apps[1], base_url=ADDRESS, follow_redirects=False) as other:
        assert other.get(f"{API}/repositories", headers=cookie).status_code == 200
        assert exposed.post("/logout").status_code == 303
        problem(other.get(f"{API}/repositories", headers=cookie), 401)


def test_cookies_of_other_sites_change_nothing(exposed: TestClient, lab: Lab) -> None:
    exposed.post("/login", data={"token": TOKEN})
    elsewhere = {"Origin": "http://evil.example"}
    problem(exposed.post(f"{API}/tokens", json={"person": "eve"}, headers=elsewhere), 403)
    assert exposed.get(f"{API}/tokens").json()["items"] == []


def test_who_changed_what_is_kept(exposed: TestClient, lab: Lab, issue: Any, client: TestClient) -> None:
    _, headers = issue("administer")
    exposed.get(f"{API}/repositories", headers=headers)
    exposed.post(f"{API}/repositories/kernels/retention/preview", json={"logs": 7}, headers=headers)
    given = {"X-Request-ID": "mine", **headers}
    exposed.patch(f"{API}/repositories/kernels/retention", json={"logs": 7}, headers=given)
    exposed.patch(f"{API}/repositories/kernels/retention", json={"logs": 0}, headers=headers)
    client.patch(f"{API}/repositories/kernels/retention", json={"logs": 8})
    rows = exposed.get(f"{API}/audit", headers=ADMINISTRATOR).json()["items"][::-1]
    assert [(row["caller"], row["method"], row["route"]) for row in rows] == [
        ("token", "POST", "/api/v1/tokens"),
        ("ann", "PATCH", "/api/v1/repositories/{name}/retention"),
        ("local", "PATCH", "/api/v1/repositories/{name}/retention"),
    ]
    assert (rows[1]["request_id"], rows[1]["status"]) == ("mine", 200)
    assert "/api/v1/repositories/kernels/retention" in client.get("/audit").text


def test_the_page_shows_a_token_once(client: TestClient, lab: Lab) -> None:
    assert 'aria-describedby="days-error"' in client.post("/tokens", data={"person": "ann", "days": "x"}).text
    answer = client.post("/tokens", data={"person": "ann", "scope": "submit", "days": ""})
    token = answer.text.split('id="issued">')[1].split("<")[0]
    assert token.startswith("wwp_")
    page = client.get("/tokens").text
    assert token not in page
    assert 'action="/tokens/1/revoke"' in page
    assert client.post("/tokens/1/revoke", follow_redirects=False).status_code == 303
    assert client.get(f"{API}/tokens").json()["items"][0]["state"] == "revoked"
