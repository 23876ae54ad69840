"""A code host: it takes commit statuses and answers as it is told to, and sends signed webhooks."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Heard:
    """What was sent. answers: status codes for the next messages; 201 once they are used up."""

    url: str = ""
    answers: list[int] = field(default_factory=list)
    messages: list[tuple[str, dict[str, str], dict[str, Any]]] = field(default_factory=list)

    @property
    def states(self) -> list[str]:
        return [body["state"] for _, _, body in self.messages]


@contextmanager
def listening() -> Iterator[Heard]:
    """A server on a port of its own."""
    heard = Heard()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            heard.messages.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
            code = heard.answers.pop(0) if heard.answers else 201
            self.send_response(code)
            if code in (301, 302):
                self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    heard.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield heard
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def signature(secret: str, body: bytes) -> str:
    """How GitHub signs a message."""
    return "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def send_hook(url: str, secret: str, event: str, message: dict[str, Any]) -> dict[str, Any]:
    """Send a webhook the way GitHub does; the answer."""
    body = json.dumps(message).encode()
    headers = {
        "X-GitHub-Event": event,
        "X-Hub-Signature-256": signature(secret, body),
        "Content-Type": "application/json",
    }
    with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as answer:
        found: dict[str, Any] = json.load(answer)
    return found
