"""Each address of docs/what-is-shown.md shows the words that its row quotes, on a server with the shipped results."""

from __future__ import annotations

import html
import re
from collections import defaultdict
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from tests.conftest import emptied
from warpwatch.db.database import Database
from warpwatch.server.intake.bundles import import_bundle

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def database_url(shared_database: Database) -> str:
    url = emptied(shared_database)
    for name in ("h200", "h100"):
        import_bundle(shared_database, DOCS / "example" / f"{name}.wwb", f"example-{name}", "example")
    return url


def test_each_address_shows_what_its_row_quotes(client: TestClient) -> None:
    rows = re.findall(r"^\| .*`(/\S*)`[^|]*\| “(.*)” \|$", (DOCS / "what-is-shown.md").read_text(), re.MULTILINE)
    assert len(rows) > 40
    quoted = defaultdict(list)
    for address, words in rows:
        quoted[address].append(words)
    missing = {}
    for address, expected in quoted.items():
        answer = client.get(address)
        shown = html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", answer.text)))
        if answer.status_code != 200 or not all(words in shown for words in expected):
            missing[address] = (answer.status_code, expected if answer.status_code == 200 else shown)
    assert missing == {}


@pytest.mark.usefixtures("database_url")
def test_postgresql_knows_how_large_its_tables_are_after_an_import(shared_database: Database) -> None:
    statement = text(
        "SELECT reltuples, (SELECT count(*) FROM all_points) FROM pg_class WHERE oid = 'all_points'::regclass"
    )
    with shared_database.session() as s:
        planned, points = s.execute(statement).one()
    assert 0.7 * points < planned <= points, "plans of pages rest on it"


def test_launches_of_an_operator_without_a_trace_say_how_to_record_them(client: TestClient) -> None:
    page = client.get("/runs/traces?repository=example-h200&operator=spmm&view=launches").text
    assert "--kinds profile --output traces.wwb --operators spmm" in page
    assert "warpwatch submit" not in page, "example data cannot be measured here"


def test_launches_that_take_little_stand_folded(client: TestClient) -> None:
    page = client.get("/runs/traces?repository=example-h200&operator=gru&view=launches").text
    assert re.search(r"<summary>\d+ more, \d\.\d\D% of the time</summary>", page)
