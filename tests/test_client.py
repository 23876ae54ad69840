"""The command line's client while a server is being started again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from warpwatch.cli import client as clients
from warpwatch.cli.client import ApiError, Client


class Server:
    """Answers each request with the next of `statuses`, and with 200 once they are used up."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.requests: list[str] = []
        self.media_type = "application/json"
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer()

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self._answer()

            def _answer(self) -> None:
                outer.requests.append(self.command)
                self.send_response(outer.statuses.pop(0) if outer.statuses else 200)
                self.send_header("Content-Type", outer.media_type)
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_: object) -> None:
                """Prints nothing."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(clients, "RETRY_SECONDS", 0.01)
    server = Server()
    yield server
    server.close()


def test_what_can_be_sent_again_waits_for_the_server(server: Server) -> None:
    client = Client(server.url)
    client.get("/health")
    server.statuses = [502, 503]
    assert client.get("/health") == {}
    server.statuses = [504]
    assert client.post("/submissions", {}, idempotency_key="ci-1") == {}
    assert server.requests == ["GET"] * 4 + ["POST"] * 2


def test_what_could_happen_twice_is_sent_once(server: Server) -> None:
    client = Client(server.url)
    client.get("/health")
    server.statuses = [503]
    with pytest.raises(ApiError) as failure:
        client.post("/schedules", {})
    assert failure.value.status == 503
    assert server.requests == ["GET", "POST"]


def test_an_error_of_the_request_is_final(server: Server) -> None:
    client = Client(server.url)
    client.get("/health")
    server.statuses = [422]
    with pytest.raises(ApiError):
        client.get("/jobs")
    assert len(server.requests) == 2


def test_a_fault_of_git_is_no_outage(server: Server) -> None:
    client = Client(server.url)
    client.get("/health")
    server.statuses, server.media_type = [502], "application/problem+json"
    with pytest.raises(ApiError):
        client.get("/repositories/kernels/commits")
    assert len(server.requests) == 2


def test_a_server_that_never_answered_is_not_awaited(server: Server) -> None:
    server.statuses = [503]
    with pytest.raises(ApiError):
        Client(server.url).get("/health")
    assert len(server.requests) == 1


def test_patience_ends(server: Server) -> None:
    client = Client(server.url, patience=0.05)
    client.get("/health")
    server.statuses = [503] * 1000
    with pytest.raises(ApiError):
        client.get("/jobs")
    assert 1 < len(server.requests) < 1000
