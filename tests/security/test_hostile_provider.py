"""An OpenID provider that means harm: it says who somebody is, and gains nothing else of the server."""

from __future__ import annotations

import base64
import hmac
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from fastapi.testclient import TestClient
from joserfc.jwk import KeySet, OctKey, RSAKey

from tests.server.conftest import app as app
from tests.server.conftest import settings as settings
from tests.server.provider import Provider, first_key
from tests.server.test_oidc import exposed as exposed
from tests.server.test_oidc import provider as provider
from tests.server.test_oidc import sign_in
from warpwatch.server.http import providers

ENDLESS = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{" + b" " * 2**16
REDIRECT = b"HTTP/1.1 302 Found\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n"
SILENT = b""
SECRET_PLACES = ["http://localhost:{}/", "http://[::1]:{}/", "http://127.0.0.2:{}/", "https://169.254.169.254/x"]


class Peer:
    """Answers every connection with the same bytes, again and again where `is_endless`, and counts."""

    def __init__(self, answer: bytes, *, is_endless: bool = False) -> None:
        self.answer, self.is_endless = answer, is_endless
        self.connections = self.sent = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.connections += 1
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            client.recv(65536)
            while True:
                client.sendall(self.answer)
                self.sent += len(self.answer)
                if not self.is_endless:
                    # Until the other side gives up.
                    while self.answer == SILENT and client.recv(65536):
                        pass
                    return

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@contextmanager
def peer(answer: bytes, *, is_endless: bool = False) -> Iterator[Peer]:
    running = Peer(answer, is_endless=is_endless)
    try:
        yield running
    finally:
        running.close()


def publish(provider: Provider, **changes: Any) -> None:
    metadata = provider.metadata()
    provider.metadata = lambda: metadata | changes  # type: ignore[method-assign]


@pytest.mark.parametrize("endpoint", ["jwks_uri", "token_endpoint", "userinfo_endpoint"])
@pytest.mark.parametrize("place", SECRET_PLACES)
def test_its_addresses_lead_to_no_other_private_host(
    exposed: TestClient, provider: Provider, endpoint: str, place: str
) -> None:
    with peer(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}") as inside:
        publish(provider, **{endpoint: place.format(inside.port)})
        begun = exposed.get("/login/oidc")
        if endpoint == "jwks_uri":
            assert begun.status_code == 502
        else:
            assert exposed.get(provider.authorize(begun.headers["location"])).status_code == 502
        assert inside.connections == 0


@pytest.mark.parametrize("endpoint", ["jwks_uri", "token_endpoint", "userinfo_endpoint"])
def test_its_redirects_are_not_followed(exposed: TestClient, provider: Provider, endpoint: str) -> None:
    with peer(b"") as inside, peer(REDIRECT % inside.url.encode()) as outside:
        publish(provider, **{endpoint: outside.url})
        begun = exposed.get("/login/oidc")
        if endpoint != "jwks_uri":
            assert exposed.get(provider.authorize(begun.headers["location"])).status_code == 502
        assert (outside.connections, inside.connections) == (1, 0)


@pytest.mark.parametrize("endpoint", ["jwks_uri", "token_endpoint", "userinfo_endpoint"])
def test_its_answers_end(exposed: TestClient, provider: Provider, endpoint: str) -> None:
    with peer(ENDLESS, is_endless=True) as endless:
        publish(provider, **{endpoint: endless.url})
        begun = exposed.get("/login/oidc")
        if endpoint != "jwks_uri":
            assert exposed.get(provider.authorize(begun.headers["location"])).status_code == 502
        assert endless.connections == 1
        # The buffers of both ends hold a few megabytes.
        assert endless.sent < 50_000_000


def test_its_silence_takes_no_more_than_its_time(
    exposed: TestClient, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(providers, "FETCH_SECONDS", 0.5)
    with peer(SILENT) as silent:
        publish(provider, token_endpoint=silent.url)
        begun = exposed.get("/login/oidc")
        assert exposed.get(provider.authorize(begun.headers["location"])).status_code == 502


def test_a_slow_provider_keeps_no_threads(
    exposed: TestClient, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others wait for a moment, and have the keys of before or an answer."""
    monkeypatch.setattr(providers, "WAIT_SECONDS", 0.05)
    asked, go_on = threading.Event(), threading.Event()
    honest = provider.metadata()

    def answer_late() -> dict[str, Any]:
        asked.set()
        go_on.wait(60)
        return honest

    known = exposed.app.state.providers  # type: ignore[attr-defined]
    provider.metadata = answer_late  # type: ignore[method-assign]
    first = threading.Thread(target=lambda: known.metadata(provider.url, is_operators=True))
    first.start()
    try:
        assert asked.wait(60)
        assert exposed.get("/login/oidc").status_code == 502
    finally:
        go_on.set()
        first.join()
    assert exposed.get("/login/oidc").status_code == 303


def test_it_publishes_few_keys(exposed: TestClient, provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    key = first_key().as_dict(private=False)
    flood = {"keys": [key | {"kid": f"{number}"} for number in range(providers.MOST_KEYS + 1)]}
    monkeypatch.setattr(KeySet, "as_dict", lambda *_, **__: flood)
    assert exposed.get("/login/oidc").status_code == 502


def test_a_public_key_is_no_shared_secret(exposed: TestClient, provider: Provider) -> None:
    """HS256 with the published key as its secret, which verifiers have taken that let the token choose."""
    secret = first_key().as_pem(private=False)

    def encode(part: bytes) -> bytes:
        return base64.urlsafe_b64encode(part).rstrip(b"=")

    def forge(claims: dict[str, Any], key: RSAKey | OctKey | None = None) -> str:
        now = int(time.time())
        claims = {"iss": provider.url, "iat": now, "exp": now + 60, **claims}
        parts = [encode(json.dumps(part).encode()) for part in ({"alg": "HS256", "kid": "first"}, claims)]
        signature = hmac.digest(secret, b".".join(parts), "sha256")
        return b".".join([*parts, encode(signature)]).decode()

    provider.sign = forge  # type: ignore[method-assign]
    assert sign_in(exposed, provider).status_code == 401


def test_what_it_says_is_one_line_of_the_log(
    exposed: TestClient, provider: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    provider.exchange = lambda form, authorization: (400, {"error": "x\n2026 INFO signed in"})  # type: ignore[method-assign]
    assert sign_in(exposed, provider).status_code == 401
    assert not any("\n" in record.getMessage() for record in caplog.records)
