"""Overview, series, history, samples and comparisons over REST."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from html import unescape

import pytest
from fastapi.testclient import TestClient

from tests.builders import CASES, CPU, GPU, Lab
from tests.rewording import stored
from tests.server.test_code import problem
from warpwatch.contract.outcome import Finding
from warpwatch.contract.words import Status
from warpwatch.server.web import history

CELL = ("v1", CASES[0])
HERE = {"repository": "kernels", "device": "test-cpu"}


def overview(client: TestClient, **filters: str) -> dict[tuple[str, str], dict[str, object]]:
    answer = client.get("/api/v1/overview", params=HERE | filters)
    assert answer.status_code == 200, answer.text
    return {(cell["variant"], cell["case"]): cell for cell in answer.json()["items"]}


def series_id(client: TestClient, **filters: str) -> int:
    (row,) = client.get("/api/v1/series", params={"repository": "kernels", "metric": "hot"} | filters).json()["items"]
    return int(row["id"])


def test_a_cell_shows_the_newest_commit_however_late_others_were_measured(client: TestClient, lab: Lab) -> None:
    lab.bench(3, {CELL: 1500.0})
    lab.bench(0, {CELL: 1000.0})
    lab.bench(1, {CELL: 1200.0})
    cell = overview(client)[CELL]
    assert cell["commit_sha"] == lab.shas[3]
    assert cell["median_ns"] == 1500.0
    assert cell["previous_sha"] == lab.shas[1]
    assert cell["change"] == 1.25
    assert cell["gflops"] == pytest.approx(1000 / 1500)
    assert cell["gbs"] == pytest.approx(8000 / 1500)


def test_cells_show_their_newest_times_however_far_back_these_are(client: TestClient, lab: Lab) -> None:
    """Those of the last two measured commits are read at once, all others one by one."""
    measured = {"v1": (0, 1, 4, 5), "v2": (0, 5), "v3": (4,), "v4": (1, 4), "v5": (0, 1), "v6": (2,)}
    for index in range(6):
        times = {(name, CASES[0]): 1000.0 + index for name, at in measured.items() if index in at}
        if times:
            lab.bench(index, times)
    lab.check(1, {("v1", CASES[0]): Status.WRONG, ("v2", CASES[0]): Status.WRONG})
    lab.check(5, {("v1", CASES[0]): Status.OK})
    cells = overview(client)
    for name, at in measured.items():
        cell = cells[name, CASES[0]]
        assert (cell["commit_sha"], cell["median_ns"]) == (lab.shas[at[-1]], 1000.0 + at[-1]), name
        before = at[-2] if len(at) > 1 else None
        assert cell["previous_sha"] == (None if before is None else lab.shas[before]), name
        assert cell["previous_ns"] == (None if before is None else 1000.0 + before), name
    assert {name: cells[name, CASES[0]]["check_status"] for name in ("v1", "v2", "v3")} == {
        "v1": "ok",
        "v2": "wrong",
        "v3": None,
    }


def test_only_the_newest_result_of_a_commit_counts(client: TestClient, lab: Lab) -> None:
    lab.bench(0, {CELL: 1000.0})
    lab.bench(1, {CELL: 5000.0})
    lab.bench(1, {CELL: 1100.0})
    assert overview(client)[CELL]["change"] == 1.1
    points = client.get(f"/api/v1/history/{series_id(client)}").json()["points"]
    assert [point["median_ns"] for point in points] == [1000.0, 1100.0]


def test_cells_tell_wrong_broken_and_never_tried_apart(client: TestClient, lab: Lab) -> None:
    lab.check(0, {CELL: Status.WRONG, ("v2", CASES[0]): Status.OK})
    lab.bench(0, {("v2", CASES[0]): Status.OUT_OF_MEMORY})
    cells = overview(client)
    assert set(cells) == {CELL, ("v2", CASES[0])}
    assert (cells[CELL]["check_status"], cells[CELL]["bench_status"]) == ("wrong", None)
    assert (cells["v2", CASES[0]]["check_status"], cells["v2", CASES[0]]["bench_status"]) == ("ok", "out_of_memory")
    assert cells["v2", CASES[0]]["bench_message"] == stored("it was out_of_memory")


def test_the_overview_is_of_one_device_metric_suite_and_operator(client: TestClient, lab: Lab) -> None:
    lab.bench(0, {CELL: 1000.0, ("v1", CASES[2]): 2000.0})
    lab.switch(GPU)
    lab.bench(0, {CELL: 3000.0})
    assert overview(client)[CELL]["median_ns"] == 1000.0
    assert overview(client, device="test-gpu")[CELL]["median_ns"] == 3000.0
    assert overview(client, device="test-gpu", metric="call")[CELL]["median_ns"] == 3000.0
    assert set(overview(client, suite="quick")) == {CELL}
    assert set(overview(client, suite="full")) == {CELL, ("v1", CASES[2])}
    assert overview(client, operator="cube") == {}
    rows = list(csv.DictReader(io.StringIO(client.get("/api/v1/overview.csv", params=HERE).text)))
    assert [row["median_ns"] for row in rows if row["case"] == CASES[0]] == ["1000.0"]


def test_cases_that_are_checked_alone_show_when_they_are_not_right(client: TestClient, lab: Lab) -> None:
    edge = ("v1", "n=0,f32,fwd")
    catalogue = lab.outcome([]).catalogue
    assert catalogue is not None
    cases = catalogue.operators[0].cases
    cases.append(replace(cases[0], key=edge[1], suites=["edge"]))
    for status, shown in ((Status.OK, set()), (Status.UNSUPPORTED, set()), (Status.WRONG, {edge})):
        job = lab.submit("check", 0)
        lab.finish(job, replace(lab.outcome([Finding(*edge, status)]), catalogue=catalogue))
        assert set(overview(client)) == shown
        assert set(overview(client, suite="edge")) == {edge}


def test_the_overview_says_what_is_unknown(client: TestClient, lab: Lab) -> None:
    problem(client.get("/api/v1/overview", params=HERE | {"repository": "nobody"}), 404)
    problem(client.get("/api/v1/overview", params=HERE | {"device": "abacus"}), 404)
    errors = problem(client.get("/api/v1/overview", params=HERE | {"metric": "graph"}), 422)["errors"]
    assert errors == [{"field": "metric", "message": "test-cpu has no metric 'graph'", "remedy": "use hot, cold"}]
    missing = problem(client.get("/api/v1/overview"), 422)["errors"]
    assert [error["field"] for error in missing] == ["repository", "device"]


def test_series_are_filtered_and_paged(client: TestClient, lab: Lab) -> None:
    lab.bench(0, {(variant, case): 1000.0 for variant in ("v1", "v2") for case in CASES})
    filters = {"repository": "kernels", "operator": "square", "case": CASES[0], "variant": "v2", "device": "test-cpu"}
    found = client.get("/api/v1/series", params=filters).json()["items"]
    assert {row["metric"] for row in found} == {"hot", "cold"}
    first = client.get("/api/v1/series", params={"repository": "kernels", "limit": 7}).json()
    second = client.get(
        "/api/v1/series", params={"repository": "kernels", "limit": 7, "before": first["next_before"]}
    ).json()
    ids = [row["id"] for row in first["items"] + second["items"]]
    assert ids == sorted(ids, reverse=True)
    assert len(set(ids)) == 12
    assert second["next_before"] is None


def test_history(client: TestClient, lab: Lab) -> None:
    for index in (4, 0, 2, 1, 3):
        lab.bench(index, {CELL: 1000.0 + index})
    lab.check(2, {CELL: Status.WRONG})
    lab.check(1, {CELL: Status.WRONG})
    lab.check(1, {CELL: Status.OK})
    number = series_id(client)
    history = client.get(f"/api/v1/history/{number}").json()
    assert [point["commit_sha"] for point in history["points"]] == lab.shas[:5]
    assert [point["median_ns"] for point in history["points"]] == [1000.0, 1001.0, 1002.0, 1003.0, 1004.0]
    assert [(mark["commit_sha"], mark["kind"], mark["status"]) for mark in history["marks"]] == [
        (lab.shas[2], "check", "wrong")
    ]
    environment = str(history["points"][0]["environment_id"])
    assert history["environments"][environment]["torch"] == "2.13.0"
    bounded = client.get(f"/api/v1/history/{number}", params={"first": 2, "last": 4}).json()
    assert [point["ordinal"] for point in bounded["points"]] == [2, 3, 4]
    newest = client.get(f"/api/v1/history/{number}", params={"limit": 2}).json()
    assert [point["ordinal"] for point in newest["points"]] == [4, 5]
    assert newest["marks"] == []
    rows = list(csv.DictReader(io.StringIO(client.get(f"/api/v1/history/{number}.csv").text)))
    assert [row["commit_sha"] for row in rows] == lab.shas[:5]
    problem(client.get("/api/v1/history/999"), 404)
    problem(client.get("/api/v1/history/x"), 422)


def test_history_keeps_environments_apart(client: TestClient, lab: Lab) -> None:
    lab.bench(0, {CELL: 1000.0})
    lab.environment = replace(CPU, key="d" * 64, facts={"torch": "2.14.0"})
    lab.bench(1, {CELL: 1000.0})
    history = client.get(f"/api/v1/history/{series_id(client)}").json()
    versions = [history["environments"][str(point["environment_id"])]["torch"] for point in history["points"]]
    assert versions == ["2.13.0", "2.14.0"]


def test_samples_of_a_point(client: TestClient, lab: Lab) -> None:
    lab.bench(0, {CELL: 1000.0})
    (point,) = client.get(f"/api/v1/history/{series_id(client)}").json()["points"]
    samples = client.get(f"/api/v1/points/{point['id']}/samples").json()
    assert samples["samples_ns"] == [998.0, 1000.0, 1002.0]
    assert samples["commit_sha"] == lab.shas[0]
    problem(client.get("/api/v1/points/99999/samples"), 404)


def test_compare_commits(client: TestClient, lab: Lab) -> None:
    lab.bench(0, {CELL: 1000.0, ("v2", CASES[0]): 1000.0})
    lab.bench(1, {CELL: 1300.0, ("v2", CASES[0]): Status.CRASHED, ("v3", CASES[0]): 500.0})
    params = HERE | {"left": lab.shas[0], "right": lab.shas[1][:12]}
    rows = {row["left_variant"]: row for row in client.get("/api/v1/compare", params=params).json()["items"]}
    assert (rows["v1"]["ratio"], rows["v1"]["separated"]) == (1.3, True)
    assert (rows["v2"]["right_status"], rows["v2"]["ratio"], rows["v2"]["separated"]) == ("crashed", None, False)
    assert (rows["v3"]["left_status"], rows["v3"]["right_ns"]) == (None, 500.0)
    assert len(list(csv.DictReader(io.StringIO(client.get("/api/v1/compare.csv", params=params).text)))) == 3
    problem(client.get("/api/v1/compare", params=params | {"left": "abcdef"}), 404)


def test_compare_variants(client: TestClient, lab: Lab) -> None:
    lab.bench(0, {CELL: 1000.0, ("v2", CASES[0]): 1001.0, ("v2", CASES[1]): 700.0})
    params = HERE | {"left": "v1", "right": "v2", "commit": lab.shas[0]}
    rows = {row["case"]: row for row in client.get("/api/v1/compare", params=params).json()["items"]}
    assert (rows[CASES[0]]["ratio"], rows[CASES[0]]["separated"]) == (1.001, False)
    assert (rows[CASES[1]]["left_ns"], rows[CASES[1]]["right_ns"]) == (None, 700.0)


def test_devices_workers_and_environments(client: TestClient, lab: Lab) -> None:
    lab.bench(0, {CELL: 1000.0})
    lab.submit("check", 0)
    job = lab.submit("check", 1)
    lab.begin(job)
    (device,) = client.get("/api/v1/devices").json()["items"]
    assert {
        "key": "test-cpu",
        "kind": "cpu",
        "workers": 1,
        "queued": 1,
        "running": 1,
        "environments": 1,
    }.items() <= device.items()
    (worker,) = client.get("/api/v1/workers").json()["items"]
    assert {"name": "node-1-test-cpu", "state": "alive", "job_id": job}.items() <= worker.items()
    environment = client.get("/api/v1/environments/1").json()
    assert environment["peaks"] == {"copy": 1e10, "f32": 1e11}
    problem(client.get("/api/v1/environments/77"), 404)


def test_the_table_of_a_history_is_paged(client: TestClient, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without JavaScript it is the way to the older points."""
    monkeypatch.setattr(history, "ROWS", 2)
    for index in range(5):
        lab.bench(index, {CELL: 1000.0 + index})
    address: str | None = f"/history/{series_id(client)}?y=first"
    shown = []
    while address is not None:
        page = client.get(address).text
        table = page[page.index('id="points"') :]
        shown.append([sha for sha in lab.shas if f"/commits/{sha}" in table])
        older = re.search(r'rel="next" href="([^"]+)"', table)
        address = unescape(older[1]) if older else None
    assert shown == [[lab.shas[3], lab.shas[4]], [lab.shas[1], lab.shas[2]], [lab.shas[0]]]
    assert "data-figure" in page, "the chart has all points on every page"
    assert "y=first" in page[page.index('rel="prev"') :]
    assert client.get(f"/history/{series_id(client)}?page=0").status_code == 422
