"""The results of one commit: what fails first, then what changed, and never all of many at once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from tests.builders import CASES, Lab
from tests.conftest import emptied
from tests.server.test_code import problem
from warpwatch.contract.words import Status
from warpwatch.db.database import Database
from warpwatch.db.models import RegressionRecord, RegressionSeriesRecord

VARIANTS = [f"v{number}" for number in range(1, 81)]
WRONG = ("v70", CASES[2])
CHANGED = ("v60", CASES[1])
PAGE_BYTES = 150_000


@pytest.fixture(scope="module")
def database_url(shared_database: Database) -> str:
    """Of the database that every test here reads."""
    return emptied(shared_database)


@pytest.fixture(scope="module")
def many(
    shared_database: Database,
    database_url: str,
    source: tuple[Path, list[str]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Lab:
    """Two operators with 240 cells each at one commit: one of `square` is wrong, one has a confirmed change."""
    lab = Lab(shared_database, *source, folder=tmp_path_factory.mktemp("many"))
    cells = {(variant, case): 1000.0 for variant in VARIANTS for case in CASES}
    lab.operators = ("square", "cube")
    for operator in lab.operators:
        lab.bench(0, cells, operator=operator)
        lab.bench(1, cells | ({CHANGED: 1500.0} if operator == "square" else {}), operator=operator)
    lab.check(1, {WRONG: Status.WRONG})
    with lab.database.session() as s:
        find = """
            SELECT series.* FROM series JOIN operators ON operators.id = series.operator_id
            JOIN variants ON variants.id = variant_id JOIN cases ON cases.id = case_id
            WHERE metric = 'hot' AND operators.name = 'square' AND variants.name = :variant AND cases.key = :case
        """
        series = s.execute(text(find), dict(zip(("variant", "case"), CHANGED, strict=True))).one()
        ends = {"base_commit_id": lab.commits[lab.shas[0]], "head_commit_id": lab.commits[lab.shas[1]]}
        place = {"operator_id": series.operator_id, "device_id": series.device_id}
        change = RegressionRecord(**place, **ends, direction="slower", verdict="confirmed", state="new", ratio=1.5)
        s.add(change)
        s.flush()
        found = {"verdict": "confirmed", "ratio": 1.5, "low": 1.4, "high": 1.75}
        s.add(RegressionSeriesRecord(regression_id=change.id, series_id=series.id, **found))
    return lab


def pages(client: TestClient, lab: Lab, **filters: Any) -> list[dict[str, Any]]:
    """Every cell, page after page."""
    seen: list[dict[str, Any]] = []
    before = None
    while True:
        asked = {"repository": "kernels", "before": before, **filters}
        asked = {name: value for name, value in asked.items() if value is not None}
        answer = client.get(f"/api/v1/commits/{lab.shas[1]}/cells", params=asked)
        assert answer.status_code == 200, answer.text
        seen += answer.json()["items"]
        before = answer.json()["next_before"]
        if before is None:
            return seen


def test_every_cell_is_on_one_page(client: TestClient, many: Lab) -> None:
    cells = pages(client, many, limit=37)
    places = [(cell["operator"], cell["variant"], cell["case"]) for cell in cells]
    assert len(places) == len(set(places)) == 2 * len(VARIANTS) * len(CASES)
    assert places[:2] == [("square", *WRONG), ("square", *CHANGED)]
    assert [(cell["is_failing"], cell["is_changed"]) for cell in cells[:3]] == [
        (True, False),
        (False, True),
        (False, False),
    ]
    assert [name for name, _, _ in places[2:]] == sorted(name for name, _, _ in places[2:])
    assert cells[1]["change"] == 1.5


def test_cells_are_chosen_by_operator_and_by_what_is_to_be_said_of_them(client: TestClient, many: Lab) -> None:
    assert {cell["operator"] for cell in pages(client, many, operator="cube")} == {"cube"}
    (wrong,) = pages(client, many, show="problems")
    assert (wrong["variant"], wrong["case"], wrong["check_status"]) == (*WRONG, "wrong")
    (changed,) = pages(client, many, show="changed")
    assert (changed["variant"], changed["case"]) == CHANGED
    assert pages(client, many, show="changed", operator="cube") == []


def test_the_tallies_are_those_of_the_cells(client: TestClient, many: Lab) -> None:
    detail = client.get(f"/api/v1/commits/{many.shas[1]}", params={"repository": "kernels"}).json()
    each = len(VARIANTS) * len(CASES)
    assert [(row["operator"], row["cells"], row["failing"], row["changed"]) for row in detail["operators"]] == [
        ("cube", each, 0, 0),
        ("square", each, 1, 1),
    ]


def test_the_page_of_a_large_commit_is_small_and_leads_to_the_rest(client: TestClient, many: Lab) -> None:
    path = f"/commits/{many.shas[1]}"
    first = client.get(path, params={"repository": "kernels"})
    assert len(first.content) < PAGE_BYTES
    assert first.text.index(f">{WRONG[0]}<") < first.text.index(f">{CHANGED[0]}<") < first.text.index(">v1<")
    assert 'rel="next"' in first.text
    for filters in ({"show": "problems"}, {"show": "changed"}, {"operator": "cube"}, {"show": "nonsense"}):
        assert client.get(path, params={"repository": "kernels", **filters}).status_code == 200
    empty = client.get(path, params={"repository": "kernels", "operator": "cube", "show": "problems"})
    assert empty.status_code == 200
    assert 'id="group-1"' not in empty.text


def test_a_wrong_filter_is_named(client: TestClient, many: Lab) -> None:
    address = f"/api/v1/commits/{many.shas[1]}/cells"
    problem(client.get(address, params={"repository": "kernels", "show": "some"}), 422)
    problem(client.get(address, params={"repository": "kernels", "limit": 1000}), 422)
    problem(client.get(address.replace(many.shas[1], "f" * 40), params={"repository": "kernels"}), 404)


def test_a_changed_cell_says_what_its_comparison_found(client: TestClient, many: Lab) -> None:
    cells = pages(client, many, operator="square")
    assert {
        (cell["variant"], cell["case"]): (cell["compared"], cell["compared_low"], cell["compared_high"])
        for cell in cells
        if cell["compared"]
    } == {CHANGED: (1.5, 1.4, 1.75)}
    page = client.get(f"/commits/{many.shas[1]}?show=changed").text
    assert re.search(r'data-statement="confirmed"[^>]*>.*?\+50\.0', page), "the cell says what its trial decided"
    (stated,) = [cell["statement"] for cell in cells if (cell["variant"], cell["case"]) == CHANGED]
    assert (stated["kind"], stated["direction"], stated["ratio"]) == ("confirmed", "slower", 1.5)
    assert "(+40.0 … +75.0" in page, "the plot has its interval"
