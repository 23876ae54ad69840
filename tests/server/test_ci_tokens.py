"""CI jobs submit with the ID token of their code host: for the repositories that trust them, and nothing else."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from fastapi.testclient import TestClient
from joserfc.jwk import RSAKey
from typer.testing import CliRunner

from tests.apps import create_app
from tests.builders import Lab
from tests.server.provider import Provider, running_provider
from tests.server.test_code import problem
from tests.server.test_permissions import OPEN, routes
from warpwatch.cli.app import app as command
from warpwatch.cli.client import CiToken
from warpwatch.settings import Settings

API, TOKEN, ADDRESS = "/api/v1", "the-token-of-the-server", "http://bench.example"
ADMINISTRATOR = {"Authorization": f"Bearer {TOKEN}"}
SUBJECT = "repo:acme/kernels:ref:refs/heads/main"


@pytest.fixture
def provider() -> Iterator[Provider]:
    """A code host that signs ID tokens."""
    with running_provider() as running:
        yield running


@pytest.fixture
def exposed(settings: Settings, lab: Lab, provider: Provider) -> Iterator[TestClient]:
    """A server whose repository `kernels` trusts acme/kernels at the code host."""
    lab.bench(0, {})
    settings = replace(settings, host="0.0.0.0", token=TOKEN, server_url=ADDRESS, private_hosts="127.0.0.0/8")
    with TestClient(
        create_app(settings, lab.database, judge=False), base_url=ADDRESS, follow_redirects=False
    ) as client:
        body = {"issuer": provider.url, "subject": "repo:acme/kernels:*"}
        answer = client.post(f"{API}/repositories/kernels/ci", json=body, headers=ADMINISTRATOR)
        assert answer.status_code == 201, answer.text
        yield client


def shown(provider: Provider, **changes: Any) -> dict[str, str]:
    return {"Authorization": f"Bearer {provider.sign({'aud': ADDRESS, 'sub': SUBJECT, **changes})}"}


def submission(lab: Lab, repository: str = "kernels") -> dict[str, Any]:
    return {"repository": repository, "commits": lab.shas[0], "operators": ["square"]}


def test_a_job_submits_and_reads_its_submission(exposed: TestClient, provider: Provider, lab: Lab) -> None:
    headers = shown(provider)
    assert exposed.get(f"{API}/caller", headers=headers).json()["name"] == f"ci {SUBJECT}"
    row = exposed.post(f"{API}/submissions", json=submission(lab), headers=headers)
    assert row.status_code == 201, row.text
    for path in ("", "/report", "/report.junit.xml", "/report.github.json", "/verdicts"):
        assert exposed.get(f"{API}/submissions/{row.json()['id']}{path}", headers=headers).status_code == 200
    assert exposed.get(f"{API}/badges/kernels.svg", headers=headers).status_code == 200
    assert exposed.post(f"{API}/submissions/{row.json()['id']}/cancel", headers=headers).status_code == 200
    assert provider.requests.count("/keys") == 1
    entry = exposed.get(f"{API}/audit", headers=ADMINISTRATOR).json()["items"][0]
    assert (entry["caller"], entry["route"]) == (f"ci {SUBJECT}", "/api/v1/submissions/{submission_id}/cancel")
    (identity,) = exposed.get(f"{API}/repositories/kernels/ci", headers=ADMINISTRATOR).json()["items"]
    assert identity["last_used_at"] is not None


def test_a_job_reaches_nothing_else(exposed: TestClient, provider: Provider, lab: Lab) -> None:
    """Neither another repository's submissions nor any other route."""
    headers = shown(provider)
    other = exposed.post(f"{API}/repositories", json={"name": "other", "url": str(lab.source)}, headers=ADMINISTRATOR)
    assert other.status_code in (200, 201), other.text
    theirs = exposed.post(f"{API}/submissions", json=submission(lab, "other"), headers=ADMINISTRATOR).json()["id"]
    names = [row["name"] for row in exposed.get(f"{API}/repositories", headers=headers).json()["items"]]
    assert names == ["kernels"]
    problem(exposed.post(f"{API}/submissions", json=submission(lab, "other"), headers=headers), 403)
    problem(exposed.post(f"{API}/submissions/preview", json=submission(lab, "other"), headers=headers), 403)
    query = "repository=other&commit=main&format=json"
    problem(exposed.post(f"{API}/imports?{query}", json={}, headers=headers), 403)
    for path in ("", "/report", "/report.md", "/verdicts"):
        problem(exposed.get(f"{API}/submissions/{theirs}{path}", headers=headers), 403)
    problem(exposed.post(f"{API}/submissions/{theirs}/cancel", headers=headers), 403)
    problem(exposed.get(f"{API}/badges/other.svg", headers=headers), 403)
    allowed = {"/repositories", "/caller", "/submissions", "/submissions/preview", "/imports"}
    for method, path in routes(exposed):
        is_open = path.startswith(OPEN)
        short = path.removeprefix(API)
        if is_open or (path.startswith(API) and short in allowed and method in ("GET", "POST")):
            continue
        if short.startswith("/submissions/{") or short.startswith("/badges"):
            continue
        answer = exposed.request(method, path.replace("{", "").replace("}", ""), headers=headers)
        assert answer.status_code == 403, (method, path, answer.status_code)


def test_jobs_list_no_submissions_of_others(exposed: TestClient, provider: Provider) -> None:
    problem(exposed.get(f"{API}/submissions", headers=shown(provider)), 403)


WRONG: dict[str, dict[str, Any]] = {
    "another audience": {"aud": "https://other.example"},
    "no audience": {"aud": None},
    "another repository": {"sub": "repo:acme/kernels-evil:ref:refs/heads/main"},
    "another owner": {"sub": "repo:evil/repo:acme/kernels:ref:refs/heads/main"},
    "expired": {"exp": int(time.time()) - 3600},
    "no end": {"exp": None},
    "from the future": {"nbf": int(time.time()) + 3600},
    "an unknown issuer": {"iss": "https://evil.example"},
    "an issuer that is no text": {"iss": ["https://evil.example"]},
}


@pytest.mark.parametrize("name", WRONG)
def test_other_tokens_open_nothing(exposed: TestClient, provider: Provider, name: str) -> None:
    problem(exposed.get(f"{API}/repositories", headers=shown(provider, **WRONG[name])), 401)


def test_a_forged_token_opens_nothing(exposed: TestClient, provider: Provider) -> None:
    forger = RSAKey.generate_key(2048, {"kid": "first"})
    claims = {"aud": ADDRESS, "sub": SUBJECT}
    problem(exposed.get(f"{API}/caller", headers={"Authorization": f"Bearer {provider.sign(claims, forger)}"}), 401)
    provider.algorithm = "none"
    problem(exposed.get(f"{API}/caller", headers=shown(provider)), 401)
    for text in ("a.b.c", "a.b.", f"{'a' * 20_000}.b.c", "e30.W10.c", "e30.MQ.c"):
        problem(exposed.get(f"{API}/caller", headers={"Authorization": f"Bearer {text}"}), 401)


def test_guessing_id_tokens_is_slow(exposed: TestClient, provider: Provider) -> None:
    statuses = [exposed.get(f"{API}/caller", headers=shown(provider, aud="x")).status_code for _ in range(12)]
    assert statuses == [401] * 10 + [429] * 2
    assert provider.requests == [], "nobody asked for keys"


def test_trust_ends_at_once(exposed: TestClient, provider: Provider) -> None:
    headers = shown(provider)
    assert exposed.get(f"{API}/caller", headers=headers).status_code == 200
    assert exposed.delete(f"{API}/repositories/kernels/ci/1", headers=ADMINISTRATOR).status_code == 204
    problem(exposed.get(f"{API}/caller", headers=headers), 401)
    problem(exposed.delete(f"{API}/repositories/kernels/ci/1", headers=ADMINISTRATOR), 404)


def test_a_code_host_that_is_away(settings: Settings, lab: Lab, provider: Provider) -> None:
    """No address that the server may not reach is asked, and the answer says so."""
    settings = replace(settings, host="0.0.0.0", token=TOKEN, server_url=ADDRESS, private_hosts="")
    with TestClient(create_app(settings, lab.database, judge=False), base_url=ADDRESS) as client:
        lab.bench(0, {})
        body = {"issuer": provider.url, "subject": "repo:acme/kernels:*"}
        answer = client.post(f"{API}/repositories/kernels/ci", json=body, headers=ADMINISTRATOR)
        assert problem(answer, 422)["errors"]
        named = provider.url.replace("127.0.0.1", "localhost")
        answer = client.post(f"{API}/repositories/kernels/ci", json=body | {"issuer": named}, headers=ADMINISTRATOR)
        assert problem(answer, 422)["errors"]
    settings = replace(settings, private_hosts="127.0.0.0/8")
    with TestClient(create_app(settings, lab.database, judge=False), base_url=ADDRESS) as client:
        gone = {"issuer": "http://127.0.0.1:9", "subject": "repo:acme/kernels:*"}
        assert client.post(f"{API}/repositories/kernels/ci", json=gone, headers=ADMINISTRATOR).status_code == 201
        answer = client.get(f"{API}/caller", headers=shown(provider, iss="http://127.0.0.1:9"))
        problem(answer, 503)
        assert answer.headers["retry-after"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("issuer", "http://gitlab.example"),
        ("issuer", "gitlab.example"),
        ("subject", "*"),
        ("subject", "repo:acme*"),
        ("subject", "repo:acme/ker*"),
        ("subject", ""),
    ],
)
def test_what_would_let_others_in_is_refused(exposed: TestClient, field: str, value: str) -> None:
    body = {"subject": "repo:acme/kernels:*"} | {field: value}
    answer = exposed.post(f"{API}/repositories/kernels/ci", json=body, headers=ADMINISTRATOR)
    errors: Any = problem(answer, 422)["errors"]
    assert errors[0]["field"] == field


def test_the_page(client: TestClient, lab: Lab) -> None:
    lab.bench(0, {})
    address = "/repositories/kernels/ci"
    assert f'action="{address}"' in client.get(address).text
    assert 'aria-describedby="subject-error"' in client.post(address, data={"subject": "*"}).text
    answer = client.post(address, data={"issuer": "https://gitlab.example/", "subject": "project_path:a/b:*"})
    assert "project_path:a/b:*" in answer.text
    row = client.get(f"{API}{address}").json()["items"][0]
    assert (row["issuer"], row["audience"]) == ("https://gitlab.example", "http://127.0.0.1:8321")
    assert "project_path" not in client.post(f"{address}/1/remove").text.replace("project_path:GROUP", "")


def test_the_commands(served: Settings, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.bench(0, {})
    monkeypatch.setenv("WARPWATCH_URL", served.server_url)
    runner = CliRunner()
    added = runner.invoke(command, ["ci", "trust", "kernels", "--github", "acme/kernels"]).output
    assert added.split("\t")[2] == "repo:acme/kernels:*"
    runner.invoke(command, ["ci", "trust", "kernels", "--gitlab", "a/b", "--issuer", "https://gitlab.example"])
    rows = runner.invoke(command, ["ci", "list", "kernels"]).output.strip().splitlines()
    assert [row.split("\t")[2] for row in rows] == ["project_path:a/b:*", "repo:acme/kernels:*"]
    assert runner.invoke(command, ["ci", "remove", "kernels", "1"]).exit_code == 0
    assert runner.invoke(command, ["ci", "remove", "kernels", "1"]).exit_code == 2
    assert runner.invoke(command, ["ci", "trust", "kernels"]).exit_code == 2


def test_the_command_takes_the_token_of_its_job(monkeypatch: pytest.MonkeyPatch, provider: Provider) -> None:
    """And another one before it expires; GitHub's last five minutes, and a wait may take hours."""
    asked: list[tuple[str, str | None]] = []
    lives = [30, 600]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers.get("authorization")))
            claims = {"aud": "us", "sub": SUBJECT, "exp": int(time.time()) + lives[len(asked) - 1]}
            content = json.dumps({"value": provider.sign(claims)}).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *arguments: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    token = CiToken("https://bench.example")
    assert token.read() is None
    monkeypatch.setenv("ACTIONS_ID_TOKEN_REQUEST_URL", f"http://127.0.0.1:{server.server_port}/?api-version=2")
    monkeypatch.setenv("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "secret")
    assert len({token.read() for _ in range(4)}) == 2
    assert asked == [("/?api-version=2&audience=https%3A%2F%2Fbench.example", "Bearer secret")] * 2
    server.shutdown()
    server.server_close()
