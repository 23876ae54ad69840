"""Accounts: invitations, roles, tokens that never exceed them, and what disabling ends."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text
from typer.testing import CliRunner

from tests.apps import create_app
from tests.builders import Lab
from tests.server.test_code import problem
from warpwatch.cli.app import app as command
from warpwatch.contract.words import AccountRole
from warpwatch.db.access import add_token
from warpwatch.db.accounts import ensure_account
from warpwatch.db.database import Database
from warpwatch.server.http.access import hash_of
from warpwatch.server.http.permissions import ROLE_SCOPES
from warpwatch.settings import Settings

API, TOKEN, ADDRESS = "/api/v1", "the-token-of-the-server", "http://bench.example"
ADMINISTRATOR = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def exposed(settings: Settings, lab: Lab) -> Iterator[TestClient]:
    settings = replace(settings, host="0.0.0.0", token=TOKEN, server_url=ADDRESS)
    with TestClient(
        create_app(settings, lab.database, judge=False), base_url=ADDRESS, follow_redirects=False
    ) as client:
        yield client


def invite(client: TestClient, name: str = "ann", role: str = "submitter") -> tuple[int, str]:
    """The id of a new account and the address that invites its owner."""
    answer = client.post(f"{API}/accounts", json={"name": name, "role": role}, headers=ADMINISTRATOR)
    assert answer.status_code == 201, answer.text
    return answer.json()["account_id"], answer.json()["link"].removeprefix(ADDRESS)


def accept(client: TestClient, link: str) -> dict[str, str]:
    """Headers with the token that an invitation gives."""
    answer = client.post("/login/invitation", data={"token": link.partition("token=")[2]})
    assert answer.status_code == 200, answer.text
    client.cookies.clear()
    return {"Authorization": f"Bearer {answer.text.split('id=' + chr(34) + 'issued' + chr(34) + '>')[1].split('<')[0]}"}


def test_an_invitation_signs_in_once(exposed: TestClient, database: Database) -> None:
    account_id, link = invite(exposed)
    assert exposed.get(f"{API}/accounts?name=ann", headers=ADMINISTRATOR).json()["items"][0]["state"] == "invited"
    for _ in range(2):
        assert "ann" in exposed.get(link).text, "opening the link, as mail programs do, ends nothing"
    assert exposed.get(f"{API}/caller").status_code == 401
    answer = exposed.post("/login/invitation", data={"token": link.partition("token=")[2]})
    assert exposed.get(f"{API}/caller").json() == {"name": "ann", "scope": "submit", "account_id": account_id}
    assert "wwp_" in answer.text
    exposed.cookies.clear()
    assert exposed.post("/login/invitation", data={"token": link.partition("token=")[2]}).status_code == 404
    assert exposed.get(link).status_code == 404
    with database.session() as session:
        kept = session.scalars(text("SELECT row_to_json(accounts)::text FROM accounts")).all()
    assert link.partition("token=")[2] not in str(kept)


def test_the_token_of_an_invitation_logs_in_later(exposed: TestClient) -> None:
    headers = accept(exposed, invite(exposed)[1])
    assert exposed.post("/login", data={"token": headers["Authorization"].removeprefix("Bearer ")}).status_code == 303
    assert exposed.get(f"{API}/caller").json()["name"] == "ann"
    (row,) = exposed.get(f"{API}/tokens").json()["items"]
    assert (row["person"], row["purpose"], row["scope"]) == ("ann", "sign-in", "submit")
    entry = exposed.get(f"{API}/audit", headers=ADMINISTRATOR).json()["items"][0]
    assert (entry["caller"], entry["path"]) == ("ann", "/login/invitation"), "it made a token"


def test_an_invitation_ends(exposed: TestClient, database: Database) -> None:
    account_id, first = invite(exposed)
    second = exposed.post(f"{API}/accounts/{account_id}/invitation", headers=ADMINISTRATOR).json()["link"]
    assert exposed.get(first).status_code == 404, "another link replaced it"
    with database.session() as session:
        session.execute(text("UPDATE accounts SET invitation_expires_at = now() - interval '1 s'"))
    assert exposed.get(second).status_code == 404
    assert exposed.post("/login/invitation", data={"token": second.partition("token=")[2]}).status_code == 404
    assert exposed.get(f"{API}/accounts", headers=ADMINISTRATOR).json()["items"][0]["state"] == "expired"
    third = exposed.post(f"{API}/accounts/{account_id}/invitation", headers=ADMINISTRATOR).json()["link"]
    exposed.patch(f"{API}/accounts/{account_id}", json={"is_disabled": True}, headers=ADMINISTRATOR)
    assert exposed.get(third).status_code == 404
    problem(exposed.post(f"{API}/accounts/{account_id}/invitation", headers=ADMINISTRATOR), 409)
    problem(exposed.post(f"{API}/accounts/999/invitation", headers=ADMINISTRATOR), 404)


def test_guessing_invitations_is_slow(exposed: TestClient, lab: Lab) -> None:
    statuses = [exposed.get(f"/login/invitation?token=wwi_{guess}").status_code for guess in range(12)]
    assert statuses == [404] * 10 + [429] * 2


def test_a_role_counts_at_once_everywhere(exposed: TestClient) -> None:
    account_id, link = invite(exposed, role="administrator")
    headers = accept(exposed, link)
    assert exposed.get(f"{API}/accounts", headers=headers).status_code == 200
    exposed.patch(f"{API}/accounts/{account_id}", json={"role": "viewer"}, headers=ADMINISTRATOR)
    problem(exposed.get(f"{API}/accounts", headers=headers), 403)
    assert exposed.get(f"{API}/tokens", headers=headers).json()["items"][0]["scope"] == "read"
    exposed.patch(f"{API}/accounts/{account_id}", json={"is_disabled": True}, headers=ADMINISTRATOR)
    problem(exposed.get(f"{API}/repositories", headers=headers), 401)
    assert exposed.get(f"{API}/tokens", headers=ADMINISTRATOR).json()["items"][0]["state"] == "disabled"
    exposed.patch(f"{API}/accounts/{account_id}", json={"is_disabled": False}, headers=ADMINISTRATOR)
    assert exposed.get(f"{API}/repositories", headers=headers).status_code == 200


@pytest.mark.parametrize("role", AccountRole)
def test_a_token_never_exceeds_its_role(exposed: TestClient, database: Database, role: AccountRole) -> None:
    """Neither when it is made nor when it is stronger in the database."""
    headers = accept(exposed, invite(exposed, role=role)[1])
    scopes = list(ROLE_SCOPES.values())
    for scope in scopes:
        answer = exposed.post(f"{API}/tokens", json={"scope": scope}, headers=headers)
        assert answer.status_code == (201 if scopes.index(scope) <= scopes.index(ROLE_SCOPES[role]) else 422)
    with database.session() as session:
        session.execute(text("UPDATE access_tokens SET scope = 'administer'"))
    assert exposed.get(f"{API}/caller", headers=headers).json()["scope"] == ROLE_SCOPES[role]


def test_a_weak_token_makes_no_stronger_one(exposed: TestClient) -> None:
    headers = accept(exposed, invite(exposed, role="administrator")[1])
    weak = exposed.post(f"{API}/tokens", json={"scope": "read"}, headers=headers).json()["token"]
    answer = exposed.post(f"{API}/tokens", json={"scope": "administer"}, headers={"Authorization": f"Bearer {weak}"})
    assert problem(answer, 422)["errors"]


def test_everybody_manages_their_own_tokens_alone(exposed: TestClient) -> None:
    ann, bob = (accept(exposed, invite(exposed, name, "viewer")[1]) for name in ("ann", "bob"))
    number = exposed.post(f"{API}/tokens", json={"purpose": "notebook"}, headers=ann).json()["id"]
    assert {row["person"] for row in exposed.get(f"{API}/tokens", headers=ann).json()["items"]} == {"ann"}
    assert "notebook" not in exposed.get("/tokens", headers=bob).text
    problem(exposed.delete(f"{API}/tokens/{number}", headers=bob), 404)
    assert exposed.post(f"/tokens/{number}/revoke", headers=bob).status_code == 404
    problem(exposed.post(f"{API}/tokens", json={"person": "ann"}, headers=bob), 403)
    assert exposed.delete(f"{API}/tokens/{number}", headers=ann).status_code == 204
    page = exposed.post("/tokens", data={"scope": "submit", "days": "5"}, headers=bob)
    assert (page.status_code, "scope-error" in page.text) == (422, True)
    assert "issued" in exposed.post("/tokens", data={"scope": "read", "days": "5"}, headers=bob).text
    audit = exposed.get(f"{API}/audit", headers=ADMINISTRATOR).json()["items"]
    assert [(row["caller"], row["method"]) for row in audit][:2] == [("bob", "POST"), ("ann", "DELETE")]


def test_a_token_for_a_new_name_makes_its_account(exposed: TestClient) -> None:
    exposed.post(f"{API}/tokens", json={"person": "ci", "scope": "submit"}, headers=ADMINISTRATOR)
    rows = exposed.get(f"{API}/accounts", headers=ADMINISTRATOR).json()["items"]
    assert [(row["name"], row["role"]) for row in rows] == [("ci", "submitter")]
    answer = exposed.post(f"{API}/tokens", json={"person": "ci", "scope": "administer"}, headers=ADMINISTRATOR)
    problem(answer, 422)
    problem(exposed.post(f"{API}/tokens", json={"scope": "read"}, headers=ADMINISTRATOR), 422)


@pytest.mark.parametrize("name", ["token", "Local", "webhook", "ci repo:a/b", "a\nb", "", "x" * 201])
def test_names_that_no_account_may_have(exposed: TestClient, name: str) -> None:
    answer = exposed.post(f"{API}/accounts", json={"name": name}, headers=ADMINISTRATOR)
    assert problem(answer, 422)["errors"][0]["field"] == "name"


def test_a_token_of_the_release_before_still_works(exposed: TestClient, database: Database) -> None:
    """It runs beside the new one during an upgrade, and knows no accounts."""
    with database.session() as session:
        account = ensure_account(session, "ann", AccountRole.VIEWER)
        add_token(session, account.id, "ann", "", hash_of("wwp_old"), ROLE_SCOPES[AccountRole.TRIAGER], None)
        session.execute(text("UPDATE access_tokens SET account_id = NULL"))
    headers = {"Authorization": "Bearer wwp_old"}
    assert exposed.get(f"{API}/caller", headers=headers).json() == {
        "name": "ann",
        "scope": "triage",
        "account_id": None,
    }
    assert exposed.get(f"{API}/tokens", headers=headers).json()["items"] == []


def test_the_page(client: TestClient, lab: Lab) -> None:
    assert 'aria-describedby="name-error"' in client.post("/accounts", data={"name": ""}).text
    answer = client.post("/accounts", data={"name": "ann", "role": "triager"})
    assert re.search(r'id="invitation">http://[^<]*/login/invitation\?token=wwi_', answer.text)
    assert 'aria-describedby="name-error"' in client.post("/accounts", data={"name": "ann"}).text
    assert client.post("/accounts/1", data={"role": "viewer"}, follow_redirects=False).status_code == 303
    assert client.post("/accounts/1", data={"is_disabled": "true"}, follow_redirects=False).status_code == 303
    assert client.post("/accounts/1", data={"role": "king"}).status_code == 422
    page = client.get("/accounts").text
    assert "wwi_" not in page
    assert 'aria-label="Enable ann"' in page
    assert client.post("/accounts/1/invite").status_code == 409
    assert client.post("/accounts/9", data={"role": "viewer"}).status_code == 404


def test_a_page_that_a_role_may_not_see_is_a_page(exposed: TestClient) -> None:
    headers = {"Accept": "text/html", **accept(exposed, invite(exposed, role="viewer")[1])}
    answer = exposed.get("/accounts", headers=headers)
    assert (answer.status_code, answer.headers["content-type"]) == (403, "text/html; charset=utf-8")
    assert "administer" in answer.text
    assert exposed.post("/repositories", data={"name": "x"}, headers=headers).status_code == 403
    problem(exposed.get(f"{API}/accounts", headers=headers), 403)


def test_on_loopback_nobody_logs_in(client: TestClient) -> None:
    assert client.get("/").status_code == 200
    caller: dict[str, Any] = client.get(f"{API}/caller").json()
    assert caller == {"name": "local", "scope": "administer", "account_id": None}
    assert client.get("/login/oidc").status_code == 404


def test_the_command(served: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARPWATCH_URL", served.server_url)
    runner = CliRunner()

    def run(*words: str, code: int = 0) -> str:
        result = runner.invoke(command, ["account", *words])
        assert result.exit_code == code, result.output
        return result.output

    assert "/login/invitation?token=wwi_" in run("add", "ann", "--role", "submitter")
    assert "/login/invitation?token=wwi_" in run("invite", "ann")
    assert "triager" in run("role", "ann", "triager")
    assert "disabled" in run("disable", "ann")
    run("enable", "ann")
    assert run("list").split("\t")[:2] == ["ann", "triager"]
    assert run("me").split() == ["local", "administer"]
    run("role", "bob", "viewer", code=2)
    run("add", "ann", code=2)
