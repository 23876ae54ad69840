"""An OpenID provider on a port of its own, by authlib: it signs tokens, and can be told to sign wrong ones."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from authlib.oauth2.rfc7636 import create_s256_code_challenge
from joserfc import jwt
from joserfc.jwk import KeySet, OctKey, RSAKey

CLIENT_ID, CLIENT_SECRET = "warpwatch", "the-secret-of-the-client"


@cache
def first_key() -> RSAKey:
    """The key of all providers, until a test changes it: to make one takes longer than most tests."""
    return RSAKey.generate_key(2048, {"kid": "first", "use": "sig"})


class Provider:
    """Signs `claims` in. changes: what the next ID token says instead. requests: paths that it was asked for."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.key = first_key()
        self.claims: dict[str, Any] = {"sub": "u1", "email": "ann@acme.example", "email_verified": True}
        self.changes: dict[str, Any] = {}
        self.userinfo: dict[str, Any] = {}
        self.algorithm = "RS256"
        self.requests: list[str] = []
        self.codes: dict[str, dict[str, str]] = {}
        self.lock = threading.Lock()

    def authorize(self, address: str) -> str:
        """What a browser does that was sent here and whose user agrees: the address that it is sent back to."""
        question = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
        assert question["client_id"] == CLIENT_ID
        assert question["code_challenge_method"] == "S256"
        code = f"code-{len(self.codes)}"
        self.codes[code] = question
        return f"{question['redirect_uri']}?{urlencode({'code': code, 'state': question['state']})}"

    def sign(self, claims: dict[str, Any], key: RSAKey | OctKey | None = None) -> str:
        """A token of this provider; with another key, a forged one."""
        now = int(time.time())
        claims = {"iss": self.url, "iat": now, "exp": now + 300, **claims}
        if self.algorithm == "none":
            parts = [{"alg": "none", "kid": "first"}, claims]
            return (
                ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)
                + "."
            )
        chosen = key or self.key
        return jwt.encode({"alg": self.algorithm, "kid": "first"}, claims, chosen, algorithms=[self.algorithm])

    def metadata(self) -> dict[str, Any]:
        return {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "userinfo_endpoint": f"{self.url}/userinfo",
            "jwks_uri": f"{self.url}/keys",
        }

    def exchange(self, form: dict[str, str], authorization: str) -> tuple[int, dict[str, Any]]:
        """An ID token for a code that was not used before, by the client that got it and its verifier."""
        shown = base64.b64decode(authorization.removeprefix("Basic ")).decode()
        with self.lock:
            question = self.codes.pop(form["code"], None)
        if shown != f"{CLIENT_ID}:{CLIENT_SECRET}" or question is None:
            return 400, {"error": "invalid_grant"}
        if create_s256_code_challenge(form["code_verifier"]) != question["code_challenge"]:
            return 400, {"error": "invalid_grant"}
        claims = {"aud": CLIENT_ID, "nonce": question["nonce"], **self.claims, **self.changes}
        token = self.sign(claims, OctKey.import_key(CLIENT_SECRET) if self.algorithm == "HS256" else None)
        return 200, {"access_token": "access", "token_type": "Bearer", "id_token": token}


@contextmanager
def running_provider(host: str = "127.0.0.1") -> Iterator[Provider]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            provider.requests.append(self.path)
            keys = KeySet([provider.key]).as_dict(private=False)
            pages: dict[str, Any] = {
                "/.well-known/openid-configuration": provider.metadata(),
                "/keys": keys,
                "/userinfo": {"sub": provider.claims["sub"], **provider.userinfo},
            }
            if self.path.startswith("/authorize?"):
                # Whoever comes is Ann, and agrees.
                self.send_response(303)
                self.send_header("Location", provider.authorize(self.path))
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.answer(200 if self.path in pages else 404, pages.get(self.path, {}))

        def do_POST(self) -> None:
            provider.requests.append(self.path)
            body = self.rfile.read(int(self.headers["content-length"])).decode()
            form = {name: values[0] for name, values in parse_qs(body).items()}
            self.answer(*provider.exchange(form, self.headers.get("authorization", "")))

        def answer(self, status: int, value: Any) -> None:
            content = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    provider = Provider(f"http://{host}:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield provider
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
