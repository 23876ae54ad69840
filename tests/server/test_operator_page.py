"""The tabs of an operator's page: where the arrows of its roofline start, and what it draws over sizes and history."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from tests.builders import CASES, Lab
from tests.planted import plant
from warpwatch.contract.words import Status
from warpwatch.db.reads import history
from warpwatch.db.reads.lines import ALL_COMMITS
from warpwatch.db.trends import list_recent_points, list_release_times

V1 = ("v1", CASES[0])
LARGE = ("v1", CASES[2])


def series_of(lab: Lab) -> list[int]:
    with lab.database.session() as s:
        return list(s.execute(text("SELECT id FROM series WHERE metric = 'hot' ORDER BY id")).scalars())


def figure(page: str, name: str) -> Any:
    return json.loads(page.split(f'id="{name}">')[1].split("</script>")[0])


def test_arrows_start_at_the_newest_release(lab: Lab, client: TestClient) -> None:
    for index, median in enumerate((100_000.0, 80_000.0, 60_000.0, 40_000.0)):
        lab.bench(index, {V1: median})
    series = series_of(lab)
    with lab.database.session() as s:
        assert list_release_times(s, lab.repository, series, ALL_COMMITS) == []
        for index, tag in ((0, "v1.0"), (1, "v1.1")):
            s.execute(
                text("UPDATE commits SET tags = CAST(:tags AS jsonb) WHERE sha = :sha"),
                {"tags": json.dumps([tag]), "sha": lab.shas[index]},
            )
    with lab.database.session() as s:
        (release,) = list_release_times(s, lab.repository, series, ALL_COMMITS)
        assert (release.sha, release.tags, release.median_ns) == (lab.shas[1], ["v1.1"], 80_000.0)
        recent = list_recent_points(s, series, ALL_COMMITS, limit=3)
        assert [point.median_ns for point in recent] == [80_000.0, 60_000.0, 40_000.0]
    assert "roofline-figure" not in client.get("/kernels/square").text, "the plane is drawn on demand"
    page = client.get("/kernels/square?plane=true").text
    assert "arrows from v1.1" in page
    arrows = [note for note in figure(page, "roofline-figure")["layout"]["annotations"] if note["showarrow"]]
    assert [round(10 ** (note["y"] - note["ay"]), 6) for note in arrows] == [2.0]
    assert page.count('class="multiple"') == 1


def test_without_a_release_arrows_start_at_the_commit_before(lab: Lab, client: TestClient) -> None:
    lab.bench(0, {V1: 90_000.0})
    lab.bench(1, {V1: 30_000.0})
    arrows = figure(client.get("/kernels/square?plane=true").text, "roofline-figure")["layout"]["annotations"]
    assert [round(10 ** (note["y"] - note["ay"]), 6) for note in arrows if note["showarrow"]] == [3.0]


def test_variants_are_drawn_over_a_size(lab: Lab, client: TestClient) -> None:
    lab.bench(0, {V1: 10_000.0, LARGE: 40_000.0, ("v2", CASES[0]): 20_000.0, ("v2", CASES[2]): 20_000.0})
    page = client.get("/kernels/square?against=speedup").text
    lines = {trace["name"]: trace for trace in figure(page, "sizes-figure")["data"]}
    assert lines["v1"]["x"] == [1024.0, 4096.0]
    assert lines["v2"]["y"] == [0.5, 2.0]
    assert page.count("v2 beats v1 from n 2560") == 3, (
        "below the chart, and in the labels of the chart and its download"
    )
    assert "Dotted: " in page
    lab.bench(1, {V1: 10_000.0, LARGE: 40_000.0, ("v2", CASES[0]): 20_000.0, ("v2", CASES[2]): 90_000.0})
    page = client.get("/kernels/square?tab=sizes").text
    assert "Cases: f32,fwd." in page
    assert "Dotted: " not in page, "v1 is the fastest everywhere"
    assert client.get("/kernels/square?against=nothing").status_code == 422


def test_the_page_of_an_operator_names_its_open_regressions(lab: Lab, client: TestClient) -> None:
    for index in (0, 1):
        lab.bench(index, {V1: 100.0, LARGE: 200.0})
    number = plant(lab, 0, 1, 1.3, [V1, LARGE])
    page = client.get("/kernels/square").text
    (chips,) = re.findall(r'aria-label="Open regressions">.*?</ul>', page, re.DOTALL)
    assert chips.count(f'data-regression="{number}"') == 1
    with lab.database.session() as s:
        s.execute(
            text("UPDATE regression_series SET fixed_by_commit_id = :fix WHERE series_id = :series"),
            {"fix": lab.commits[lab.shas[1]], "series": series_of(lab)[0]},
        )
    (chips,) = re.findall(r'aria-label="Open regressions">.*?</ul>', client.get("/kernels/square").text, re.DOTALL)
    assert LARGE[1] in re.sub(r"<[^>]+>", "", chips), "the case that still shows it"
    assert CASES[0] not in re.sub(r"<[^>]+>", "", chips)
    client.post(
        f"/api/v1/regressions/{number}/triage", json={"author": "ann", "state": "accepted", "note": "as intended"}
    )
    assert "data-regression" not in client.get("/kernels/square").text


def test_a_history_begins_with_a_case_that_has_a_time(lab: Lab, client: TestClient) -> None:
    """The first case in the order of names was only checked, after a comparison had made its series."""
    lab.bench(0, {("v1", CASES[1]): 100.0, V1: 100.0})
    with lab.database.session() as s:
        s.execute(
            text(
                "DELETE FROM points WHERE series_id IN (SELECT series.id FROM series JOIN cases ON cases.id = case_id"
                " WHERE cases.key = :case)"
            ),
            {"case": CASES[1]},
        )
    assert f"<title>square {CASES[0]}, over commits " in client.get("/history?operator=square").text
    lab.check(0, {("v1", CASES[1]): Status.WRONG})
    page = client.get("/history", params={"operator": "square", "case": CASES[1]}).text
    assert f"<title>square {CASES[1]}, over commits " in page
    assert 'data-figure="history-figure"' not in page, "a chart without a time would be an empty frame"
    assert 'class="status bad"' in page


def test_a_history_with_many_changes_holds_the_newest(
    lab: Lab, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for index in range(4):
        lab.bench(index, {V1: 100.0})
    numbers = [plant(lab, index, index + 1, 1.3, [V1]) for index in range(3)]
    monkeypatch.setattr(history, "MAX_CHANGES", 2)
    found = client.get(f"/api/v1/history/{series_of(lab)[0]}").json()["changes"]
    assert [change["regression_id"] for change in found] == numbers[1:]
