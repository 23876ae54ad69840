"""Pages show what matters and leave out what does not."""

from __future__ import annotations

import re

from fastapi.testclient import TestClient

from tests.builders import CASES, Lab
from warpwatch.contract.words import Status

CELL = ("v1", CASES[0])


def heat_rows(page: str) -> list[str]:
    """The operators in the heat map."""
    (table,) = re.findall(r'<table class="heat-map.*?</table>', page, re.DOTALL)
    return re.findall(r'<th scope="row">([^<]+)</th>', table)


def test_a_long_heat_map_shows_the_operators_that_changed(client: TestClient, lab: Lab) -> None:
    names = [f"op{number:02}" for number in range(13)]
    lab.operators = tuple(names)
    for number in (0, 1):
        for name in names:
            lab.bench(number, {CELL: 1300.0 if (number, name) == (1, "op07") else 1000.0}, operator=name)
    page = client.get("/overview").text
    assert heat_rows(page) == ["op07"]
    assert "12 operators without a change" in page
    assert all(f'data-operator="{name}"' in page for name in names), "the table below has all of them"


def test_a_short_heat_map_shows_every_operator(client: TestClient, lab: Lab) -> None:
    for number in (0, 1):
        lab.bench(number, {CELL: 1000.0})
    assert heat_rows(client.get("/overview").text) == ["square"]


def test_a_submission_that_found_something_is_not_green(client: TestClient, lab: Lab) -> None:
    lab.check(0, {CELL: Status.OK})
    assert '<span class="badge good">done</span>' in client.get("/submissions").text
    lab.check(1, {CELL: Status.WRONG})
    newest = client.get("/submissions").text.split("</tr>")[1]
    assert '<span class="badge">done</span>' in newest
