"""A server that lets the public in shows public repositories, without what is private in them, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from tests.apps import create_app
from tests.builders import CASES, Lab
from tests.server.test_permissions import OPEN, filled, routes
from warpwatch.cli.publish import publish_site
from warpwatch.contract.words import Status
from warpwatch.db import registry
from warpwatch.db.published import open_published
from warpwatch.server.http.permissions import PUBLIC, is_public
from warpwatch.server.http.security import check_exposure
from warpwatch.settings import SettingError, Settings

TOKEN = "the-token-of-the-server"
ADMINISTRATOR = {"Authorization": f"Bearer {TOKEN}"}
SECRETS = {
    "a host": "node-1-",
    "an e-mail address": "ann@secret.example",
    "an assignee": "secret-assignee",
    "a link of triage": "tracker.secret.example",
    "a log": "secret-line-of-a-log",
    "a message of a crash": "secret-message-of-a-crash",
    "a note": "secret-note",
    "a status address": "status.secret.example",
    "a variable": "secret-variable",
    "another repository": "secret-repository",
}
"""What is planted in the database, and in no answer to the public."""


@pytest.fixture
def planted(lab: Lab) -> Lab:
    """A public repository with a regression, a second one that is not, and secrets in every corner of both."""
    for index, nanoseconds in ((0, 1000.0), (1, 1500.0), (2, 1500.0)):
        lab.bench(index, {("v1", CASES[0]): nanoseconds})
    lab.check(0, {("v1", CASES[0]): Status.OK})
    lab.check(1, {("v1", CASES[0]): Status.CRASHED})
    number, job = lab.confirm(0, 1)
    lab.compare(job, {("v1", CASES[0]): ([1000.0] * 6, [1500.0] * 6)})
    with lab.database.session() as s:
        other = registry.ensure_repository(s, "secret-repository", str(lab.source))
        registry.set_repository(s, lab.repository, {"is_public": True, "status_url": "https://status.secret.example"})
        registry.ensure_operators(s, other, ["secret-repository-operator"])
        for statement in (
            "UPDATE commits SET author = 'Ann ann@secret.example', subject = 'by <ann@secret.example>'",
            f"UPDATE regressions SET assignee = 'secret-assignee', verdict = 'confirmed', ratio = 1.5, low = 1.4, "
            f"high = 1.6, link = 'https://tracker.secret.example/1' WHERE id = {number}",
            f"INSERT INTO regression_notes (regression_id, author, state, note, changes) "
            f"VALUES ({number}, 'ann', 'new', 'secret-note', '{{}}')",
            "UPDATE all_results SET message = 'secret-message-of-a-crash' WHERE status = 'crashed'",
            "UPDATE builds SET log = 'secret-line-of-a-log'",
            "UPDATE runs SET message = 'secret-line-of-a-log'",
            "INSERT INTO run_logs (run_id, text) SELECT id, 'secret-line-of-a-log' FROM runs",
            """UPDATE environments SET facts = facts || '{"variables": {"A": "secret-variable"}}'""",
        ):
            s.execute(text(statement.replace(":", r"\:")))
    return lab


@pytest.fixture
def exposed(settings: Settings, planted: Lab) -> Iterator[TestClient]:
    settings = replace(settings, host="0.0.0.0", token=TOKEN, is_public=True)
    app = create_app(settings, planted.database, judge=False)
    with TestClient(app, base_url="http://bench.example", follow_redirects=False) as client:
        yield client


def test_the_public_reads_the_pages_of_the_table_and_nothing_else(exposed: TestClient, planted: Lab) -> None:
    known = {f"{method} {path.removeprefix('/api/v1')}".replace(":path", "") for method, path in routes(exposed)}
    assert {row for row in PUBLIC if row not in known} == set()
    statuses = []
    for method, path in routes(exposed):
        address = filled(path.replace("{sha}", planted.shas[1]))
        if path.startswith(OPEN):
            continue
        answer = exposed.request(method, address, headers={"Accept": "application/json"})
        if is_public(method, address):
            assert answer.status_code in (200, 307, 308, 404, 422), (method, address, answer.text[:300])
            statuses.append(answer.status_code)
        elif not path.startswith("/api/v1/hooks/"):
            assert answer.status_code == 401, (method, address)
    assert statuses.count(200) >= 20
    for shown in ("wrong", f"{TOKEN}x"):
        assert exposed.get("/", headers={"Authorization": f"Bearer {shown}"}).status_code == 401


def test_what_is_private_is_in_no_answer(exposed: TestClient, planted: Lab, tmp_path: Path, settings: Settings) -> None:
    """Follows every link of the public's pages, live and published; an administrator sees what they may not."""
    waiting, answers = ["/", "/?repository=secret-repository", f"/commits/{planted.shas[1]}"], dict[str, str]()
    while waiting:
        address = waiting.pop()
        if address in answers or len(answers) > 120:
            continue
        answer = exposed.get(address, headers={"Accept": "text/html"}, follow_redirects=True)
        assert answer.status_code in (200, 404), (address, answer.text[:300])
        assert answer.status_code == 200 or "warpwatch submit" not in answer.text, "the public cannot measure"
        answers[address] = answer.text
        if answer.headers["content-type"].startswith("text/html"):
            links = re.findall(r'(?:href|hx-get|action)="(/[^"#]*)', answer.text)
            assert all(link.startswith("/static/") or is_public("GET", link.partition("?")[0]) for link in links), links
            waiting += [link.replace("&amp;", "&") for link in links if not link.startswith("/static/")]
            assert 'method="post"' not in answer.text, address
    assert any("/api/v1/regressions/" in address for address in answers)
    publish_site(settings, planted.database.url, tmp_path / "site", None)
    files = {str(file): file.read_text() for file in (tmp_path / "site").rglob("*.*") if file.suffix != ".woff2"}
    assert len(files) > 20
    for kind, secret in SECRETS.items():
        assert [place for place, content in (answers | files).items() if secret in content] == [], kind
    seen = exposed.get("/regressions/1?repository=kernels", headers=ADMINISTRATOR).text
    assert all(SECRETS[kind] in seen for kind in ("an assignee", "a note", "an e-mail address"))


def test_caches_may_keep_what_the_public_sees(exposed: TestClient) -> None:
    for path in ("/overview?repository=kernels", "/api/v1/home", "/api/v1/badges/kernels.svg"):
        answer = exposed.get(path)
        assert answer.headers["cache-control"] == "public, max-age=60", path
        assert {"authorization", "cookie"} <= set(answer.headers["vary"].lower().split(", "))
        again = exposed.get(path, headers={"If-None-Match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert exposed.head(path).headers["content-length"] == exposed.get(path).headers["content-length"]
        assert "public" not in exposed.get(path, headers=ADMINISTRATOR).headers["cache-control"]


def test_who_asks_too_often_waits(settings: Settings, planted: Lab) -> None:
    settings = replace(settings, host="0.0.0.0", token=TOKEN, is_public=True, public_requests=2)
    app = create_app(settings, planted.database, judge=False)
    with TestClient(app, base_url="http://bench.example") as client:
        answers = [client.get("/api/v1/home") for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert 0 < int(answers[2].headers["retry-after"]) <= 60
        assert client.get("/api/v1/home", headers=ADMINISTRATOR).status_code == 200


def test_the_public_is_not_let_in_unless_it_is_asked(settings: Settings, planted: Lab) -> None:
    app = create_app(replace(settings, host="0.0.0.0", token=TOKEN), planted.database, judge=False)
    with TestClient(app, base_url="http://bench.example") as client:
        assert client.get("/overview?repository=kernels", headers={"Accept": "*/*"}).status_code == 401
    with pytest.raises(SettingError, match="needs a WARPWATCH_TOKEN"):
        check_exposure(replace(settings, is_public=True))


def test_the_public_cannot_write(planted: Lab) -> None:
    published = open_published(planted.database.url)
    with pytest.raises(Exception, match="read-only transaction"), published.session() as s:
        s.execute(text("INSERT INTO public.saved_views (repository_id, name, path) VALUES (1, 'x', '/')"))
    published.close()


def test_a_page_whose_data_did_not_change_is_not_rendered_again(
    planted: Lab, settings: Settings, tmp_path: Path
) -> None:
    def publish() -> tuple[int, int]:
        report = publish_site(settings, planted.database.url, tmp_path / "site", ["kernels"])
        return report.rendered, report.kept

    rendered, kept = publish()
    assert rendered > 20
    assert kept == 0
    commit = tmp_path / "site" / "kernels" / "commits" / f"{planted.shas[0]}.html"
    before = commit.stat().st_mtime_ns
    assert publish() == (0, rendered)
    planted.bench(3, {("v1", CASES[0]): 1500.0})
    again, left = publish()
    assert again + left == rendered
    assert left >= 4, "the pages of the other commits"
    assert planted.shas[3][:8] in (tmp_path / "site" / "kernels" / "index.html").read_text()
    assert commit.stat().st_mtime_ns == before


def test_a_site_is_written_into_no_folder_of_others(planted: Lab, settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(RuntimeError, match="holds no published site"):
        publish_site(settings, planted.database.url, tmp_path, ["kernels"])
    with pytest.raises(RuntimeError, match="nothing to publish"):
        publish_site(settings, planted.database.url, tmp_path / "site", ["nobody"])
