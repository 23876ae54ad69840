"""Who may ask, and what an answer lets a browser do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from tests.apps import create_app
from tests.server.test_code import problem
from warpwatch.db.database import Database
from warpwatch.server.http.security import MAX_BODY_BYTES, check_exposure
from warpwatch.settings import SettingError, Settings

TOKEN = "a-token-of-some-length"
HEALTH, LIST, REGISTER = "/api/v1/health", "/api/v1/repositories", "/api/v1/repositories"


@pytest.fixture
def exposed(settings: Settings, database: Database) -> Iterator[TestClient]:
    """A server that listens to other machines."""
    app = create_app(replace(settings, host="0.0.0.0", token=TOKEN), database, judge=False)
    with TestClient(app, base_url="http://gpu7.example:8321", follow_redirects=False) as client:
        yield client


@pytest.mark.parametrize("host", ["127.0.0.1:8321", "localhost", "[::1]:8321", "127.0.0.1"])
def test_loopback_needs_no_login(client: TestClient, host: str) -> None:
    assert client.get(LIST, headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8321", ""])
def test_a_name_that_was_pointed_here_is_refused(client: TestClient, host: str) -> None:
    problem(client.get(LIST, headers={"Host": host}), 400)


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "http://127.0.0.1:9999"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_other_sites_may_not_change_anything(client: TestClient, headers: dict[str, str]) -> None:
    answer = client.post(REGISTER, json={"name": "x", "url": "/nothing"}, headers=headers)
    assert "another site" in str(problem(answer, 403)["detail"])


def test_our_own_pages_and_commands_may(client: TestClient) -> None:
    for headers in ({"Origin": "http://127.0.0.1:8321"}, {"Sec-Fetch-Site": "same-origin"}, {}):
        problem(client.post(REGISTER, json={"name": "x", "url": "/nothing"}, headers=headers), 422)


def test_elsewhere_a_token_is_needed(exposed: TestClient) -> None:
    answer = exposed.get(LIST)
    assert "WARPWATCH_TOKEN" in str(problem(answer, 401)["detail"])
    assert answer.headers["www-authenticate"] == "Bearer"
    problem(exposed.get(LIST, headers={"Authorization": "Bearer wrong"}), 401)
    problem(exposed.get(LIST, headers={"Authorization": f"Basic {TOKEN}"}), 401)
    assert exposed.get(LIST, headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
    assert exposed.get(HEALTH).status_code == 200


def test_logging_in(exposed: TestClient) -> None:
    assert exposed.get("/login").status_code == 200
    assert exposed.post("/login", data={"token": "wrong"}).status_code == 401
    problem(exposed.get(LIST), 401)
    answer = exposed.post("/login", data={"token": TOKEN})
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert TOKEN not in cookie, "a session is not the token"
    assert exposed.get(LIST).status_code == 200
    problem(exposed.post(REGISTER, json={"name": "x", "url": "/x"}, headers={"Origin": "http://evil.example"}), 403)


def test_logging_out_ends_the_session(exposed: TestClient) -> None:
    assert "Log out" not in exposed.get("/login").text
    exposed.post("/login", data={"token": TOKEN})
    assert "Log out" in exposed.get("/").text
    session = exposed.cookies["warpwatch_session"]
    answer = exposed.post("/logout")
    assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    problem(exposed.get(LIST), 401)
    problem(exposed.get(LIST, headers={"Cookie": f"warpwatch_session={session}"}), 401)
    problem(exposed.get(LIST, headers={"Cookie": f"warpwatch_session={session[:-2]}xx"}), 401)


def test_a_token_that_is_set_is_asked_for_on_loopback(settings: Settings, database: Database) -> None:
    app = create_app(replace(settings, token=TOKEN), database, judge=False)
    with TestClient(app, base_url="http://127.0.0.1:8321", follow_redirects=False) as client:
        problem(client.get(LIST), 401)
        assert client.get("/", headers={"Accept": "text/html"}).headers["location"] == "/login"
        assert client.get(LIST, headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_a_reverse_proxy_may_pass_on_the_public_name(settings: Settings, database: Database) -> None:
    """A proxy on this machine speaks TLS, and the server listens on loopback; only with a token."""
    public = replace(settings, token=TOKEN, server_url="https://bench.example")
    with TestClient(
        create_app(public, database, judge=False), base_url="https://bench.example", follow_redirects=False
    ) as client:
        problem(client.get(LIST, headers={"Host": "other.example"}), 400)
        problem(client.get(LIST), 401)
        foreign = client.post("/login", data={"token": TOKEN}, headers={"Origin": "https://other.example"})
        assert foreign.status_code == 403
        login = client.post("/login", data={"token": TOKEN}, headers={"Origin": "https://bench.example"})
        assert login.status_code == 303
        assert "Secure" in login.headers["set-cookie"]
        assert client.get(LIST).status_code == 200
    open_app = create_app(replace(public, token=None), database, judge=False)
    with TestClient(open_app, base_url="https://bench.example") as client:
        problem(client.get(LIST), 400)


@pytest.mark.parametrize("way", ["form", "bearer"])
def test_guessing_is_slow(exposed: TestClient, way: str) -> None:
    def guess(token: str) -> int:
        if way == "form":
            return exposed.post("/login", data={"token": token}).status_code
        return exposed.get(LIST, headers={"Authorization": f"Bearer {token}"}).status_code

    statuses = [guess(f"guess {number}") for number in range(12)]
    assert statuses == [401] * 10 + [429] * 2
    assert guess(TOKEN) == 429, "the right token must not be told from a wrong one meanwhile"
    assert exposed.get(HEALTH).status_code == 200


@pytest.mark.parametrize("header", ["Host", "Origin"])
@pytest.mark.parametrize("value", ["[", "http://[", "//", "a]b:99999999", "\x00"])
def test_malformed_addresses_are_refused(client: TestClient, header: str, value: str) -> None:
    answer = client.post(REGISTER, json={"name": "x", "url": "/nothing"}, headers={header: value})
    assert answer.status_code in (400, 403)


@pytest.mark.parametrize("host", ["[", "[x]", "a b", "127.0.0.1:port", "127.0.0.1:123456", "a/b", "a@b", "\xff", ""])
@pytest.mark.parametrize("path", ["/", "/nothing", HEALTH, "/jobs"])
def test_malformed_hosts_are_refused_where_every_name_is_right(exposed: TestClient, host: str, path: str) -> None:
    """Addresses in answers are made from this header."""
    headers = {b"Host": host.encode("latin-1"), b"Authorization": f"Bearer {TOKEN}".encode()}
    problem(exposed.get(path, headers=headers), 400)


@pytest.mark.parametrize(
    ("host", "token"), [("0.0.0.0", None), ("gpu7.example", None), ("::", "short"), ("192.168.1.5", "")]
)
def test_the_server_does_not_start_open_to_everyone(settings: Settings, host: str, token: str | None) -> None:
    with pytest.raises(SettingError, match="WARPWATCH_TOKEN"):
        check_exposure(replace(settings, host=host, token=token))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.8.8.8"])
def test_loopback_needs_no_token(settings: Settings, host: str) -> None:
    check_exposure(replace(settings, host=host))


def test_answers_keep_browsers_from_asking_elsewhere(app: FastAPI, client: TestClient) -> None:
    def fail() -> None:
        raise RuntimeError

    app.add_api_route("/api/v1/failing", fail)
    for path in (LIST, "/static/tokens.css", "/api/v1/nothing", "/nothing", "/api/v1/failing"):
        headers = client.get(path).headers
        assert "default-src 'self'" in headers["content-security-policy"]
        assert "script-src" not in headers["content-security-policy"], "scripts come from here alone, none inline"
        assert headers["x-content-type-options"] == "nosniff"


def test_perfetto_is_served_from_here(client: TestClient) -> None:
    page = client.get("/perfetto/")
    assert "Perfetto UI" in page.text
    policy = page.headers["content-security-policy"]
    assert "http" not in policy
    assert "frame-ancestors 'self'" in policy
    version = page.text.partition('"stable":"')[2].partition('"')[0]
    engine = client.get(f"/perfetto/{version}/trace_processor.wasm")
    assert engine.headers["content-type"] == "application/wasm"
    assert "cross-origin-opener-policy" not in engine.headers
    assert engine.headers["content-encoding"] == "gzip"
    assert "immutable" in engine.headers["cache-control"]
    assert "cache-control" not in page.headers, "the first page names the version, so it is asked for each time"


def test_everything_is_compressed_but_the_login_page(client: TestClient) -> None:
    for path in ("/", "/api/v1/openapi.json", "/static/page.js"):
        assert client.get(path).headers["content-encoding"] == "gzip"
    assert "content-encoding" not in client.get("/login").headers
    assert "content-encoding" not in client.get("/", headers={"Accept-Encoding": "identity"}).headers


def test_bodies_are_bounded(client: TestClient) -> None:
    problem(client.post(REGISTER, content=b" " * (MAX_BODY_BYTES + 1)), 413)

    def pieces() -> Iterator[bytes]:
        for _ in range(20):
            yield b" " * 100_000

    problem(client.post(REGISTER, content=pieces()), 413)
    problem(client.get(LIST, headers={"Content-Length": "many"}), 413)
