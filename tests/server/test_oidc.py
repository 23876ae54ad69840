"""Signing in at an OpenID provider, honest or not."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from fastapi.testclient import TestClient
from joserfc.jwk import RSAKey

from tests.apps import create_app
from tests.server.provider import CLIENT_ID, CLIENT_SECRET, Provider, running_provider
from tests.server.test_code import problem
from warpwatch.contract.words import AccountRole
from warpwatch.db.accounts import add_account
from warpwatch.db.database import Database
from warpwatch.server.http import providers
from warpwatch.server.http.oidc import strongest_role
from warpwatch.server.http.security import check_exposure
from warpwatch.settings import ProviderSettings, SettingError, Settings, load_settings

API, TOKEN, ADDRESS = "/api/v1", "the-token-of-the-server", "https://bench.example"
ROLES = (
    ("@acme.example", AccountRole.VIEWER),
    ("kernels", AccountRole.SUBMITTER),
    ("leads", AccountRole.ADMINISTRATOR),
)


@pytest.fixture
def provider() -> Iterator[Provider]:
    with running_provider() as running:
        yield running


@pytest.fixture
def exposed(settings: Settings, database: Database, provider: Provider) -> Iterator[TestClient]:
    """A browser at a server whose people sign in at the provider."""
    chosen = ProviderSettings(provider.url, CLIENT_ID, CLIENT_SECRET, ROLES)
    settings = replace(settings, host="0.0.0.0", token=TOKEN, server_url=ADDRESS, provider=chosen)
    app = create_app(settings, database, judge=False)
    with TestClient(app, base_url=ADDRESS, follow_redirects=False) as client:
        yield client


def sign_in(client: TestClient, provider: Provider) -> Any:
    begun = client.get("/login/oidc")
    assert begun.status_code == 303, begun.text
    return client.get(provider.authorize(begun.headers["location"]))


def test_signing_in_gives_a_session_with_the_role_of_the_group(exposed: TestClient, provider: Provider) -> None:
    assert "/login/oidc" in exposed.get("/login").text
    answer = sign_in(exposed, provider)
    assert answer.status_code == 200
    assert 'http-equiv="refresh"' in answer.text, "a strict cookie would not survive a redirect from the provider"
    me = exposed.get(f"{API}/caller").json()
    assert (me["name"], me["scope"]) == ("ann@acme.example", "read")
    problem(exposed.post(f"{API}/repositories", json={}), 403)
    provider.claims["groups"] = ["kernels", "@leads", "*"]
    sign_in(exposed, provider)
    assert exposed.get(f"{API}/caller").json() == me | {"scope": "submit"}
    entries = exposed.get(f"{API}/audit", headers={"Authorization": f"Bearer {TOKEN}"}).json()["items"]
    assert [(row["caller"], row["path"]) for row in entries] == [("ann@acme.example", "/login/oidc/callback")] * 2
    row = exposed.get(f"{API}/accounts", headers={"Authorization": f"Bearer {TOKEN}"}).json()["items"][0]
    assert (row["role"], row["issuer"], row["state"]) == ("submitter", provider.url, "active")


def test_a_role_that_an_administrator_chose_stays(exposed: TestClient, provider: Provider) -> None:
    sign_in(exposed, provider)
    administrator = {"Authorization": f"Bearer {TOKEN}"}
    exposed.patch(f"{API}/accounts/1", json={"role": "triager"}, headers=administrator)
    assert exposed.get(f"{API}/caller").json()["scope"] == "triage", "an open session follows"
    sign_in(exposed, provider)
    assert exposed.get(f"{API}/caller").json()["scope"] == "triage"
    exposed.patch(f"{API}/accounts/1", json={"is_disabled": True}, headers=administrator)
    problem(exposed.get(f"{API}/caller"), 401)
    assert sign_in(exposed, provider).status_code == 403


def test_who_has_no_role_may_not_sign_in(exposed: TestClient, provider: Provider) -> None:
    provider.claims |= {"email_verified": False, "groups": ["others", "*", "@acme.example"]}
    assert sign_in(exposed, provider).status_code == 403
    problem(exposed.get(f"{API}/caller"), 401)
    assert exposed.get(f"{API}/accounts", headers={"Authorization": f"Bearer {TOKEN}"}).json()["items"] == []


def test_an_account_that_was_made_for_an_address_is_its_owners(
    exposed: TestClient, provider: Provider, database: Database
) -> None:
    with database.session() as session:
        add_account(session, "ann@acme.example", AccountRole.TRIAGER)
    # Whoever only claims the address gets nothing of it.
    provider.claims |= {"sub": "u2", "email_verified": False, "preferred_username": "ann@acme.example"}
    provider.claims["groups"] = ["kernels"]
    sign_in(exposed, provider)
    assert exposed.get(f"{API}/caller").json()["name"] == "u2"
    provider.claims |= {"sub": "u1", "email_verified": True}
    sign_in(exposed, provider)
    me = exposed.get(f"{API}/caller").json()
    assert (me["name"], me["scope"]) == ("ann@acme.example", "triage")


def test_no_name_passes_for_another_caller(exposed: TestClient, provider: Provider) -> None:
    provider.claims = {"sub": "u3", "preferred_username": "token", "groups": ["kernels"]}
    sign_in(exposed, provider)
    assert exposed.get(f"{API}/caller").json()["name"] == "u3"


WRONG: dict[str, dict[str, Any]] = {
    "another nonce": {"changes": {"nonce": "another"}},
    "no nonce": {"changes": {"nonce": None}},
    "another audience": {"changes": {"aud": "another"}},
    "another party": {"changes": {"aud": [CLIENT_ID, "another"], "azp": "another"}},
    "another issuer": {"changes": {"iss": "https://evil.example"}},
    "expired": {"changes": {"exp": int(time.time()) - 3600}},
    "no end": {"changes": {"exp": None}},
    "nobody": {"changes": {"sub": ""}},
    "another access token": {"changes": {"at_hash": "AAAAAAAAAAAAAAAAAAAAAA"}},
    "no signature": {"algorithm": "none"},
    "signed with the shared secret": {"algorithm": "HS256"},
    "userinfo of somebody else": {"userinfo": {"sub": "u9", "groups": ["leads"]}},
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_token_signs_nobody_in(exposed: TestClient, provider: Provider, name: str) -> None:
    for attribute, value in WRONG[name].items():
        setattr(provider, attribute, value)
    answer = sign_in(exposed, provider)
    assert answer.status_code == 401, answer.text
    assert "warpwatch_session" not in exposed.cookies
    problem(exposed.get(f"{API}/caller"), 401)


def test_a_forged_signature_signs_nobody_in(exposed: TestClient, provider: Provider) -> None:
    begun = exposed.get("/login/oidc")
    forger = RSAKey.generate_key(2048, {"kid": "first"})
    provider.sign = lambda claims, key=None: Provider.sign(provider, claims, forger)  # type: ignore[method-assign]
    assert exposed.get(provider.authorize(begun.headers["location"])).status_code == 401


def test_the_way_back_works_once_and_in_its_own_browser(
    exposed: TestClient, provider: Provider, settings: Settings
) -> None:
    begun = exposed.get("/login/oidc")
    visit = {"Cookie": f"warpwatch_visit={exposed.cookies['warpwatch_visit']}"}
    back = provider.authorize(begun.headers["location"])
    exposed.cookies.clear()
    assert exposed.get(back).status_code == 400, "another browser"
    assert exposed.get(back.replace("state=", "state=x"), headers=visit).status_code == 400, "another state"
    assert exposed.get(back, headers=visit).status_code == 200
    exposed.cookies.clear()
    assert exposed.get(back, headers=visit).status_code == 400, "the same state again"
    assert exposed.get("/login/oidc/callback?error=access_denied&state=x").status_code == 400


def test_what_is_signed_counts_more_than_userinfo(exposed: TestClient, provider: Provider) -> None:
    provider.userinfo = {"email": "eve@acme.example", "email_verified": True, "groups": ["kernels"]}
    sign_in(exposed, provider)
    me = exposed.get(f"{API}/caller").json()
    assert (me["name"], me["scope"]) == ("ann@acme.example", "submit")


def test_keys_are_fetched_once_and_again_when_they_change(
    exposed: TestClient, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        assert sign_in(exposed, provider).status_code == 200
    assert provider.requests.count("/keys") == 1
    provider.key = RSAKey.generate_key(2048, {"kid": "second"})
    provider.sign = lambda claims, key=None: _signed_by(provider, claims)  # type: ignore[method-assign]
    assert sign_in(exposed, provider).status_code == 401, "not more often than every RETRY_SECONDS"
    monkeypatch.setattr(providers, "RETRY_SECONDS", 0.0)
    assert sign_in(exposed, provider).status_code == 200


def _signed_by(provider: Provider, claims: dict[str, Any]) -> str:
    from joserfc import jwt

    now = int(time.time())
    return jwt.encode(
        {"alg": "RS256", "kid": "second"}, {"iss": provider.url, "iat": now, "exp": now + 60, **claims}, provider.key
    )


def test_a_provider_that_is_away(exposed: TestClient, provider: Provider) -> None:
    begun = exposed.get("/login/oidc")
    back = provider.authorize(begun.headers["location"])
    provider.exchange = lambda form, authorization: (503, {})  # type: ignore[method-assign]
    assert exposed.get(back).status_code == 502
    assert exposed.post("/login", data={"token": TOKEN}).status_code == 303, "the token of the server still works"


def test_a_provider_that_is_another_one(settings: Settings, database: Database, provider: Provider) -> None:
    wrong = ProviderSettings(provider.url.replace("127.0.0.1", "localhost"), CLIENT_ID, None, ROLES)
    app = create_app(replace(settings, token=TOKEN, provider=wrong), database, judge=False)
    with TestClient(app, base_url="http://127.0.0.1:8321", follow_redirects=False) as client:
        assert client.get("/login/oidc").status_code == 502


def test_the_strongest_role_counts() -> None:
    assert strongest_role(ROLES, "ann@ACME.example", ["kernels"]) is AccountRole.SUBMITTER
    assert strongest_role(ROLES, "ann@evil.example", []) is None
    assert strongest_role(ROLES, "ann@acme.example@evil.example", []) is None
    assert strongest_role((("*", AccountRole.VIEWER),), None, []) is AccountRole.VIEWER


GOOD = {
    "WARPWATCH_OIDC_ISSUER": "https://id.example",
    "WARPWATCH_OIDC_CLIENT_ID": "warpwatch",
    "WARPWATCH_OIDC_ROLES": "@acme.example=viewer, kernels=submitter",
}


@pytest.mark.parametrize(
    "wrong",
    [
        {"WARPWATCH_OIDC_ISSUER": "http://id.example"},
        {"WARPWATCH_OIDC_CLIENT_ID": ""},
        {"WARPWATCH_OIDC_ROLES": ""},
        {"WARPWATCH_OIDC_ROLES": "kernels=king"},
        {"WARPWATCH_OIDC_ROLES": "=viewer"},
        {"WARPWATCH_OIDC_CLIENT_SECRET_FILE": "/nonexistent/secret"},
    ],
)
def test_settings_that_cannot_be_used(wrong: dict[str, str]) -> None:
    name = next(iter(wrong))
    with pytest.raises(SettingError, match=name.removesuffix("S")):
        load_settings(GOOD | wrong)


def test_settings(tmp_path: Any) -> None:
    secret = tmp_path / "secret"
    secret.write_text("from a file\n")
    settings = load_settings(GOOD | {"WARPWATCH_OIDC_CLIENT_SECRET_FILE": str(secret)})
    assert settings.provider is not None
    assert settings.provider.client_secret == "from a file"
    assert settings.provider.roles == (("@acme.example", AccountRole.VIEWER), ("kernels", AccountRole.SUBMITTER))
    with pytest.raises(SettingError, match="WARPWATCH_TOKEN"):
        check_exposure(settings)
    check_exposure(replace(settings, token=TOKEN))
