"""The page that compares: the last two commits by default, the largest change first, a dot per row."""

from __future__ import annotations

from xml.etree import ElementTree

from fastapi.testclient import TestClient

from tests.builders import CASES, Lab
from warpwatch.db.reads.commits import ComparedRow
from warpwatch.server.figures.dot_plot import MOST_ROWS, dot_plot_svg
from warpwatch.server.pages.compare import worst_first


def row(ratio: float | None, *, separated: bool = True, case: str = "n=1") -> ComparedRow:
    return ComparedRow("square", case, "v1", "v1", "ok", "ok", 100.0, 100.0 * (ratio or 1), ratio, separated, 1, 1)


def test_the_largest_change_of_either_direction_comes_first() -> None:
    rows = [row(1.5), row(0.1), row(None, separated=False), row(3.0, separated=False), row(1.01)]
    assert [entry.ratio for entry in worst_first(rows)] == [0.1, 1.5, 1.01, 3.0, None]


def test_a_dot_per_row_on_the_side_of_its_change() -> None:
    picture = dot_plot_svg([row(2.0, case="<b>&"), row(0.5), row(1.2, separated=False), row(None)])
    assert picture is not None
    root = ElementTree.fromstring(picture)
    places = {
        group.get("class"): float(circle.get("cx", "0")) for group in root.iter("g") for circle in group.iter("circle")
    }
    assert places["better"] < places["same"] < places["worse"]
    assert dot_plot_svg([row(None)]) is None
    many = dot_plot_svg([row(1.5)] * 500)
    assert many is not None
    assert many.count("<circle") == MOST_ROWS


def test_the_last_two_benchmarked_commits_are_compared(client: TestClient, lab: Lab) -> None:
    lab.bench(0, {("v1", CASES[0]): 1000.0, ("v2", CASES[0]): 1000.0})
    assert 'class="dots-plot"' not in client.get("/compare").text, "one commit has nothing to be compared with"
    lab.bench(2, {("v1", CASES[0]): 1500.0, ("v2", CASES[0]): 1000.0})
    page = client.get("/compare").text
    assert f'value="{lab.shas[0]}"' in page
    assert f'value="{lab.shas[2]}"' in page
    assert page.count("<circle") >= 2
    changes = client.get("/compare", params={"only": "changes"}).text
    assert "+50.0" in changes
    assert "within noise" not in changes
