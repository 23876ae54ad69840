"""Pages of a service that has nothing yet, or whose database is away."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main
from fastapi.testclient import TestClient

from tests.apps import create_app
from warpwatch.cli.app import app
from warpwatch.db import registry
from warpwatch.db.database import Database
from warpwatch.server.intake.bundles import import_bundle
from warpwatch.server.web.render import WEB
from warpwatch.settings import Settings

ADDRESS = "http://127.0.0.1:8321"
EXAMPLE = Path(__file__).parents[2] / "docs" / "example" / "h100.wwb"


@pytest.fixture
def client(tmp_path: Path, database_url: str, database: Database) -> Iterator[TestClient]:
    app = create_app(Settings(home=tmp_path, database_url=database_url), database, judge=False)
    with TestClient(app, base_url=ADDRESS, raise_server_exceptions=False) as client:
        yield client


@pytest.mark.parametrize("path", ["/", "/overview", "/commits", "/compare", "/regressions", "/schedules", "/runs/new"])
def test_without_a_repository_pages_say_how_to_register_one(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 200
    assert "warpwatch repository add mine" in answer.text


@pytest.mark.parametrize(
    ("path", "command"),
    [
        ("/overview", "warpwatch worker --device cpu"),
        ("/commits", "warpwatch submit --repository mine --commit HEAD --wait"),
        ("/regressions", "warpwatch submit --repository mine --commit HEAD~20..HEAD --wait"),
        ("/runs", "warpwatch submit --commit HEAD --wait"),
        ("/runs/jobs", "warpwatch submit --commit HEAD --wait"),
        ("/devices", "warpwatch worker --device cpu"),
    ],
)
def test_an_empty_page_names_the_command_that_fills_it(
    client: TestClient, database: Database, path: str, command: str
) -> None:
    with database.session() as s:
        registry.ensure_repository(s, "mine", "/srv/mine")
    answer = client.get(path)
    assert answer.status_code == 200
    assert command in html.unescape(answer.text)


def test_a_measured_device_without_results_says_so(client: TestClient, database: Database) -> None:
    with database.session() as s:
        registry.ensure_repository(s, "mine", "/srv/mine")
        registry.ensure_device(s, "some-cpu", "cpu", "Some CPU")
    assert "Nothing measured on this device yet" in client.get("/overview").text
    assert "no worker" in client.get("/devices").text


def test_example_data_is_labelled_and_is_not_what_one_sees_first(client: TestClient, database: Database) -> None:
    with database.session() as s:
        registry.ensure_repository(s, "mine", "/srv/mine")
        registry.ensure_repository(s, "example-h100", "/srv/mine", is_example=True)
        registry.ensure_repository(s, "examples-of-ours", "/srv/ours")
    assert "Example data." not in client.get("/commits?repository=examples-of-ours").text
    assert "Example data." not in client.get("/commits").text
    shown = client.get("/commits?repository=example-h100").text
    assert "Example data." in shown
    assert 'title="Overview of example-h100"' in shown
    assert 'href="/runs?repository=example-h100"' in shown
    assert "Example data." not in client.get("/settings/devices?repository=example-h100").text


def test_an_imported_file_is_named_where_others_say_what_was_asked_for(client: TestClient, database: Database) -> None:
    found = import_bundle(database, EXAMPLE, "example-h100", "example")
    assert "Example data." in client.get("/runs?repository=example-h100").text
    for path in ("/runs?repository=example-h100", f"/runs/{found.submission_id}"):
        assert f'<span class="mono">{EXAMPLE.name}</span>' in client.get(path).text


def test_a_database_that_is_away_is_explained(tmp_path: Path) -> None:
    away = Database("postgresql://nobody@127.0.0.1:9/none")
    app = create_app(Settings(home=tmp_path), away, judge=False)
    answer = TestClient(app, base_url=ADDRESS, raise_server_exceptions=False).get("/runs/jobs")
    assert answer.status_code == 503
    assert "Database unavailable" in answer.text
    assert "No data is lost" in answer.text
    assert "curl http://127.0.0.1:8321/api/v1/health" in answer.text
    assert answer.headers["retry-after"]


def test_a_surprise_is_a_page_without_its_insides(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr("warpwatch.server.web.devices.list_devices", fail)
    answer = client.get("/devices")
    assert answer.status_code == 500
    assert "Something went wrong" in answer.text
    assert "secret detail" not in answer.text


def test_what_people_write_is_text(client: TestClient, database: Database) -> None:
    with database.session() as s:
        registry.ensure_repository(s, "<script>alert(1)</script>", "/srv/mine")
    assert "<script>alert" not in client.get("/commits").text


def test_scripts_come_from_our_own_files_only(client: TestClient) -> None:
    policy = client.get("/devices").headers["content-security-policy"]
    assert "script-src" not in policy
    assert policy.startswith("default-src 'self'")
    for template in WEB.rglob("*.html"):
        for opening in re.findall(r"<script[^>]*>", template.read_text()):
            assert 'src="' in opening or 'type="application/json"' in opening, template
        assert not re.search(r"\son[a-z]+=|style=|https?://", template.read_text()), template


def test_templates_stay_small() -> None:
    long = {path.name: count for path in WEB.rglob("*.html") if (count := len(path.read_text().splitlines())) > 150}
    assert long == {}


def test_vendored_files_are_the_published_ones() -> None:
    import hashlib

    folder = WEB / "static" / "vendor"
    noted = dict(re.findall(r"^\| `([^`]+)` .* `([0-9a-f]{64})` \|$", (folder / "README.md").read_text(), re.MULTILINE))
    assert noted == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.js")}


def test_a_visitor_without_a_token_is_shown_where_to_log_in(
    tmp_path: Path, database_url: str, database: Database
) -> None:
    settings = Settings(home=tmp_path, database_url=database_url, host="0.0.0.0", token="t" * 24)
    visitor = TestClient(create_app(settings, database, judge=False), base_url=ADDRESS, headers={"Accept": "text/html"})
    answer = visitor.get("/runs/jobs")
    assert answer.url.path == "/login"
    assert "Token" in answer.text
    assert 'aria-label="Main"' not in answer.text, "links that nobody may follow yet"
    refused = visitor.post("/login", data={"token": "wrong"})
    assert refused.status_code == 401
    assert "Wrong token." in refused.text
    assert visitor.post("/login", data={"token": "t" * 24}).url.path == "/"
    assert visitor.get("/runs/jobs").url.path == "/runs/jobs"


def test_static_files_are_small_and_kept(client: TestClient) -> None:
    address = re.search(r'src="(/static/theme.js[^"]+)"', client.get("/devices").text)
    assert address
    kept = client.get(address[1])
    assert "immutable" in kept.headers["cache-control"]
    assert kept.headers["content-encoding"] == "gzip"
    assert "cache-control" not in client.get("/static/theme.js").headers


def test_every_command_that_a_page_names_exists() -> None:
    named = {
        words
        for path in [*WEB.rglob("*.html"), WEB.parent / "server/web/render.py"]
        for words in re.findall(r"\"warpwatch ([a-z]+)", path.read_text())
    }
    commands = set(getattr(typer.main.get_command(app), "commands"))  # noqa: B009 - a group, which its type does not say.
    assert {"submit", "worker"} <= named <= commands
