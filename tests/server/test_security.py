"""Who may ask, and what an answer lets a browser do."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from tests.apps import create_app
from tests.builders import Lab
from tests.server.test_code import problem
from warpwatch.db.database import Database
from warpwatch.server.http import security, sessions
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
    assert "Sign out" not in exposed.get("/login").text
    exposed.post("/login", data={"token": TOKEN})
    assert "Sign out" in exposed.get("/").text
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


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refusals come without their delay."""
    monkeypatch.setattr(security, "LATE_SECONDS", 0.0)


def show(client: TestClient, token: str, **headers: str) -> int:
    return client.get(LIST, headers={"Authorization": f"Bearer {token}", **headers}).status_code


@pytest.mark.parametrize("way", ["bearer", "form"])
@pytest.mark.usefixtures("at_once")
def test_wrong_tokens_are_refused_and_the_right_one_never_is(exposed: TestClient, way: str) -> None:
    def guess(token: str) -> int:
        if way == "form":
            return exposed.post("/login", data={"token": token}).status_code
        return show(exposed, token)

    statuses = [guess(f"guess {number}") for number in range(12)]
    assert statuses == [401] * 10 + [429] * 2
    assert guess(TOKEN) == (303 if way == "form" else 200), "others may have the same address"
    assert guess("guess 13") == 429
    assert exposed.get(HEALTH).status_code == 200


def test_a_refusal_is_late(exposed: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    late: list[float] = []

    async def sleep(seconds: float) -> None:
        late.append(seconds)

    monkeypatch.setattr(security, "sleep", sleep)
    for number in range(10):
        show(exposed, f"guess {number}")
    assert security.LATE_SECONDS not in late
    show(exposed, "guess 10")
    assert late.count(security.LATE_SECONDS) == 1


@pytest.mark.usefixtures("at_once")
def test_guesses_of_many_addresses_are_counted_together(
    settings: Settings, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warpwatch.server.app.TOTAL_GUESSES", 30)
    with proxied(settings, database) as client:
        statuses = [show(client, "guess", **{"X-Forwarded-For": f"203.0.113.{number}"}) for number in range(40)]
        assert statuses == [401] * 30 + [429] * 10
        assert show(client, TOKEN, **{"X-Forwarded-For": "203.0.113.99"}) == 200


@contextmanager
def proxied(settings: Settings, database: Database, proxies: str = "10.0.0.0/8,fd00::/8") -> Iterator[TestClient]:
    """A server that is asked by the proxy 10.0.0.1."""
    networks = tuple(ipaddress.ip_network(text) for text in proxies.split(",") if text)
    app = create_app(replace(settings, host="0.0.0.0", token=TOKEN, proxies=networks), database, judge=False)
    with TestClient(app, base_url="http://gpu7.example", client=("10.0.0.1", 5), follow_redirects=False) as client:
        yield client


@pytest.mark.parametrize(
    ("proxies", "addresses", "limited"),
    [
        ("10.0.0.0/8", "203.0.113.{}", False),
        ("", "203.0.113.{}", True),
        ("192.0.2.1", "203.0.113.{}", True),
        ("10.0.0.0/8", "198.51.100.{}, 203.0.113.1", True),
        ("10.0.0.0/8", "198.51.100.{}, 203.0.113.1, 10.0.0.7", True),
        ("10.0.0.0/8", "203.0.113.{}, 10.0.0.7:443", False),
        ("10.0.0.0/8", "203.0.113.{}, nonsense", True),
        ("10.0.0.0/8", "2001:db8::{}", True),
        ("10.0.0.0/8", "[2001:db8::{}]:443", True),
        ("10.0.0.0/8", "2001:db8:0:{}::1", False),
        ("10.0.0.0/8", "::ffff:203.0.113.{}", False),
    ],
)
@pytest.mark.usefixtures("at_once")
def test_addresses_are_those_that_named_proxies_saw(
    settings: Settings, database: Database, proxies: str, addresses: str, limited: bool
) -> None:
    """What a client invents about itself, left of the first stranger or without a proxy, gives it no further guess."""
    with proxied(settings, database, proxies) as client:
        statuses = {show(client, "guess", **{"X-Forwarded-For": addresses.format(number)}) for number in range(1, 13)}
    assert statuses == ({401, 429} if limited else {401})


@pytest.mark.parametrize(("proxies", "is_secure"), [("10.0.0.1", True), ("", False)])
def test_the_scheme_is_what_a_named_proxy_says(
    settings: Settings, database: Database, proxies: str, is_secure: bool
) -> None:
    with proxied(settings, database, proxies) as client:
        answer = client.post("/login", data={"token": TOKEN}, headers={"X-Forwarded-Proto": "https"})
    assert ("Secure" in answer.headers["set-cookie"]) is is_secure


def test_addresses_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_ADDRESSES", 10)
    limit = sessions.RequestLimit(sessions.GUESSES, sessions.TOTAL_GUESSES)
    for number in range(100):
        limit.count(str(number))
    assert len(limit._times) == 10


@pytest.mark.parametrize("header", ["Host", "Origin"])
@pytest.mark.parametrize("value", ["[", "http://[", "//", "a]b:99999999", "\x00"])
def test_malformed_addresses_are_refused(client: TestClient, header: str, value: str) -> None:
    answer = client.post(REGISTER, json={"name": "x", "url": "/nothing"}, headers={header: value})
    assert answer.status_code in (400, 403)


@pytest.mark.parametrize("host", ["[", "[x]", "a b", "127.0.0.1:port", "127.0.0.1:123456", "a/b", "a@b", "\xff", ""])
@pytest.mark.parametrize("path", ["/", "/nothing", HEALTH, "/runs/jobs"])
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


@pytest.mark.parametrize("path", [LIST, "/api/v1/caller", "/metrics", "/", "/api/v1/export.csv?repository=none"])
def test_what_needs_a_login_is_not_kept(exposed: TestClient, path: str) -> None:
    for headers in ({}, {"Authorization": f"Bearer {TOKEN}"}):
        assert exposed.get(path, headers=headers).headers["cache-control"] == "no-store"


def test_what_may_be_kept(exposed: TestClient, client: TestClient, lab: Lab) -> None:
    assert "no-store" not in exposed.get("/static/tokens.css").headers.get("cache-control", "")
    assert client.get(LIST).headers["cache-control"] == "no-store"
    assert client.get("/api/v1/badges/kernels.svg").headers["cache-control"].startswith("max-age=")
    badge = exposed.get("/api/v1/badges/kernels.svg", headers={"Authorization": f"Bearer {TOKEN}"})
    assert badge.headers["cache-control"] == "private, no-cache"
    assert badge.headers["etag"]
