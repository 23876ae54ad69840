"""What each role may do: every route of the API and of the pages, with every role and without one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.apps import create_app
from tests.builders import CASES, Lab
from warpwatch.contract.words import AccountRole, Status, TokenScope
from warpwatch.db.access import add_token
from warpwatch.db.accounts import ensure_account
from warpwatch.server.http.access import hash_of
from warpwatch.server.http.permissions import PERMISSIONS, ROLE_SCOPES, SAFE_METHODS, SCOPES, required_scope
from warpwatch.settings import Settings

TOKEN, ADDRESS = "the-token-of-the-server", "http://bench.example"
OPEN = ("/login", "/llms.txt", "/api/v1/health", "/healthz", "/readyz", "/api/v1/worker/", "/api/v1/hooks/")
"""What asks for no token, or for another one."""
STREAMS = ("/events",)
PAGE = (Path(__file__).parent.parent.parent / "docs" / "security.md").read_text()


def routes(client: TestClient) -> list[tuple[str, str]]:
    """Method and template of every route, pages included."""
    application: Any = client.app
    contexts = [
        context
        for router in application.routes
        if hasattr(router, "effective_route_contexts")
        for context in router.effective_route_contexts()
    ]
    return sorted({(method, context.path) for context in contexts for method in context.methods})


@pytest.fixture
def exposed(settings: Settings, lab: Lab) -> Iterator[TestClient]:
    lab.check(0, {("v1", CASES[0]): Status.OK})
    lab.bench(0, {("v1", CASES[0]): 1000.0})
    app = create_app(replace(settings, host="0.0.0.0", token=TOKEN), lab.database, judge=False)
    with TestClient(app, base_url=ADDRESS, follow_redirects=False, raise_server_exceptions=False) as client:
        yield client


def filled(template: str) -> str:
    """An address of a route: of things that exist where ids are small, so that handlers are reached."""
    # Whoever walks would otherwise revoke the own token.
    path = re.sub(r"\{(\w*_id)(:\w+)?\}", "1", template.replace("{token_id}", "999"))
    return (
        re.sub(r"\{(name|repository)(:\w+)?\}", "kernels", path)
        .replace("{operator}", "square")
        .replace("{", "")
        .replace("}", "")
    )


def test_every_route_answers_those_who_may_ask_alone(exposed: TestClient, lab: Lab) -> None:
    walked = [(method, path) for method, path in routes(exposed) if not path.startswith(OPEN)]
    assert len(walked) >= 180
    assert {path.startswith("/api/") for _, path in walked} == {True, False}
    for role in (None, *AccountRole):
        headers = {"Accept": "application/json"}
        if role is not None:
            with lab.database.session() as session:
                account = ensure_account(session, role, role)
                token = f"wwp_{role}"
                add_token(session, account.id, role, "", hash_of(token), ROLE_SCOPES[role], None)
            headers["Authorization"] = f"Bearer {token}"
        for method, path in walked:
            if path.endswith(STREAMS):
                continue
            needed = required_scope(method, filled(path))
            above = -1 if role is None else SCOPES.index(ROLE_SCOPES[role]) - SCOPES.index(needed)
            may = above >= 0
            if role is not None and above not in (-1, 0):
                # The least role that may ask and the greatest that may not say the same, and an answer takes long.
                continue
            if may and role is AccountRole.ADMINISTRATOR and method not in SAFE_METHODS and "{" in path:
                # What is deleted would be missing from the walk.
                continue
            answer = exposed.request(method, filled(path), headers=headers)
            place = f"{role} {method} {path}: {answer.status_code}"
            assert answer.status_code < 500, place
            if may:
                assert answer.status_code not in (401, 403), place
            else:
                assert answer.status_code == (401 if role is None else 403), place
                assert answer.headers["content-type"] == "application/problem+json", place


def test_the_table_names_routes_that_exist(exposed: TestClient) -> None:
    known = {f"{method} {path.removeprefix('/api/v1')}" for method, path in routes(exposed)}
    named = {row for rows in PERMISSIONS.values() for row in rows}
    assert named - known == set()
    assert sum(len(rows) for rows in PERMISSIONS.values()) == len(named), "a row stands at one scope"


def test_what_deletes_for_good_is_an_administrators(exposed: TestClient) -> None:
    for method, path in routes(exposed):
        if method == "DELETE" and not re.search("/(worker|watches|views|tokens|series|jobs)/", path):
            assert required_scope(method, filled(path)) is TokenScope.ADMINISTER, path


def test_tricks_with_addresses_open_nothing(exposed: TestClient, lab: Lab) -> None:
    with lab.database.session() as session:
        account = ensure_account(session, "ann", AccountRole.VIEWER)
        add_token(session, account.id, "ann", "", hash_of("wwp_a"), TokenScope.READ, None)
    headers = {"Authorization": "Bearer wwp_a"}
    for path in ("/audit/", "/%61udit", "/api/v1/accounts/", "/audit;x", "/static/../audit", "/./audit"):
        answer = exposed.get(path, headers=headers)
        assert "Who changed what</h1>" not in answer.text, path
        assert answer.status_code in (307, 400, 403, 404), (path, answer.status_code)
    for method in ("PUT", "PATCH", "DELETE", "TRACE", "POST"):
        assert exposed.request(method, "/api/v1/repositories/kernels", headers=headers).status_code == 403
    headers["X-HTTP-Method-Override"] = "GET"
    assert exposed.delete("/api/v1/repositories/kernels", headers=headers).status_code == 403


def test_the_document_holds_the_table() -> None:
    for role, scope in ROLE_SCOPES.items():
        assert f"| {role} | `{scope}` |" in PAGE
