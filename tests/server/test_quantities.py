"""Memory and error of a variant, and the compile time of its library, over commits: chart and API."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.builders import CASES, Lab
from tests.server.test_builds import build, kernel
from tests.server.test_operator_page import figure
from tests.server.test_trades import TOLERANCE, bench_with_memory, check
from warpwatch.db.reads.quantities import Quantity

HTML = {"Accept": "text/html"}


@pytest.fixture
def series_id(client: TestClient, lab: Lab) -> int:
    """Two commits with all quantities, and between them one that was only checked; the newest check counts."""
    for index, (error, size) in enumerate([(1e-7, 4 * 2**20), (2e-7, None), (5e-6, 6 * 2**20)]):
        check(lab, index, {"v1": error})
        if size is not None:
            bench_with_memory(lab, index, 10_000.0, float(size))
    check(lab, 2, {"v1": 8e-6})
    build(lab, 0, [kernel("one", "a")], seconds=2.0)
    build(lab, 2, [kernel("one", "b")], seconds=3.5)
    series: list[dict[str, Any]] = client.get("/api/v1/series", params={"repository": "kernels"}).json()["items"]
    return next(int(row["id"]) for row in series if row["case"] == CASES[0])


@pytest.mark.parametrize(
    ("quantity", "places", "values"),
    [
        ("memory", (0, 2), [4 * 2**20, 6 * 2**20]),
        ("error", (0, 1, 2), [1e-7 / TOLERANCE, 2e-7 / TOLERANCE, 0.8]),
        ("compile", (0, 2), [2.0, 3.5]),
    ],
)
def test_the_newest_value_of_each_commit(
    client: TestClient, lab: Lab, series_id: int, quantity: str, places: tuple[int, ...], values: list[float]
) -> None:
    rows = client.get(f"/api/v1/history/{series_id}/quantities", params={"quantity": quantity}).json()["items"]
    assert [row["commit_sha"] for row in rows] == [lab.shas[index] for index in places]
    assert [row["value"] for row in rows] == pytest.approx(values)


@pytest.mark.parametrize(
    ("quantity", "title", "heights", "words"),
    [
        ("memory", "memory of a call, MiB", [4, 6], "6.00\u2009MiB at the newest of 2 commits"),
        ("error", "largest error, % of what is tolerated", [1, 2, 80], "80.0\u2009% at the newest of 3 commits"),
        ("compile", "compile time of the library, s", [2, 3.5], "3.5\u2009s at the newest of 2 commits"),
    ],
)
def test_the_chart_draws_a_quantity_instead_of_times(
    client: TestClient, series_id: int, quantity: str, title: str, heights: list[float], words: str
) -> None:
    page = client.get(f"/history/{series_id}", params={"y": quantity}, headers=HTML).text
    drawn = figure(page, "history-figure")
    (line,) = drawn["data"]
    assert line["y"] == pytest.approx(heights)
    assert drawn["layout"]["yaxis"]["title"]["text"] == title
    assert words in page
    assert f'<option value="{quantity}" selected>' in page


@pytest.mark.parametrize("quantity", Quantity)
def test_a_quantity_that_nothing_has_counted(client: TestClient, lab: Lab, quantity: Quantity) -> None:
    lab.bench(0, {("v1", CASES[0]): 10_000.0})
    row = client.get("/api/v1/series", params={"repository": "kernels"}).json()["items"][0]
    page = client.get(f"/history/{row['id']}", params={"y": quantity}, headers=HTML).text
    assert "Nothing known yet" in page
    assert client.get(f"/api/v1/history/{row['id']}/quantities", params={"quantity": quantity}).json()["items"] == []


def test_an_unknown_quantity_names_the_field(client: TestClient, series_id: int) -> None:
    answer = client.get(f"/api/v1/history/{series_id}/quantities", params={"quantity": "weight"})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "quantity")
