"""Pages show what matters and leave out what does not."""

from __future__ import annotations

import re

from fastapi.testclient import TestClient

from tests.builders import CASES, Lab
from warpwatch.contract.words import Status
from warpwatch.db.database import Database
from warpwatch.db.regressions import open_suspicion, settle

CELL = ("v1", CASES[0])


def heat_rows(page: str) -> list[str]:
    """The operators in the heat map."""
    (table,) = re.findall(r'<table class="heat-map.*?</table>', page, re.DOTALL)
    return re.findall(r'<th scope="row">([^<]+)</th>', table)


def test_the_heat_map_shows_the_operators_of_which_something_is_said(client: TestClient, lab: Lab) -> None:
    names = [f"op{number:02}" for number in range(13)]
    lab.operators = tuple(names)
    for number in (0, 1):
        for name in names:
            lab.bench(number, {CELL: 13_000.0 if (number, name) == (1, "op07") else 10_000.0}, operator=name)
    heat_map = client.get("/overview/shifts", params={"repository": "kernels"}).text
    assert heat_rows(heat_map) == ["op07"]
    page = client.get("/overview").text
    assert "heat-map sticky" not in page, "it comes when it is asked for"
    assert all(f'data-operator="{name}"' in page for name in names), "the table has all of them"


def test_suspected_changes_are_counted_beside_open_ones(client: TestClient, lab: Lab, database: Database) -> None:
    """Of imported results nothing can be confirmed here: they are suspected, and never no regressions."""
    lab.bench(0, {CELL: 10_000.0})
    lab.bench(1, {CELL: 10_800.0})
    of_device = {"repository": "kernels", "device": "test-cpu"}
    (cell,) = client.get("/api/v1/overview", params=of_device).json()["items"]
    with database.session() as session:
        number = open_suspicion(
            session,
            operator_id=1,
            device_id=lab.device,
            base_commit_id=lab.commits[lab.shas[0]],
            head_commit_id=lab.commits[lab.shas[1]],
            direction="slower",
            ratio=1.08,
            series=[(cell["series_id"], 1.08)],
        )
        assert number is not None
        settle(session, number)
    page = client.get("/overview").text
    assert "No open regressions" not in page
    assert "has no open regressions" not in page
    assert "cannot be confirmed here" in page
    assert f'data-regression="{number}" data-phase="unpaired"' in page
    assert re.search(r'class="verdict statement suspected" data-statement="suspected"', page), "hollow in the timeline"
    (cell,) = client.get("/api/v1/overview", params=of_device).json()["items"]
    assert (cell["statement"]["kind"], cell["statement"]["can_confirm"]) == ("suspected", False)


def test_a_submission_that_found_something_is_not_green(client: TestClient, lab: Lab) -> None:
    lab.check(0, {CELL: Status.OK})
    assert '<span class="badge good">done</span>' in client.get("/submissions").text
    lab.check(1, {CELL: Status.WRONG})
    newest = client.get("/submissions").text.split("</tr>")[1]
    assert '<span class="badge">done</span>' in newest
