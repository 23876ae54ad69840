"""Everything that a variant and its library take beside time, over commits: chart and API."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests import builders
from tests.builders import CASES, Lab
from tests.server.test_builds import build, kernel
from tests.server.test_operator_page import figure
from tests.server.test_trades import TOLERANCE, bench_with_memory, check, seconds
from warpwatch.contract.measurement import Counter
from warpwatch.contract.outcome import Finding
from warpwatch.contract.words import Status
from warpwatch.db.outcomes import list_exported_runs, read_outcome
from warpwatch.db.reads.quantities import Quantity

HTML = {"Accept": "text/html"}


@pytest.fixture
def series_id(client: TestClient, lab: Lab) -> int:
    """Two commits with all quantities, and between them one that was only checked; the newest check counts.

    The energy of the first commit is that of a bench after which it was benched again without.
    """
    with_energy = Finding("v1", CASES[0], Status.OK, bench=builders.bench(counters=builders.energy(0.0123)))
    lab.finish(lab.submit("bench", 0), lab.outcome([with_energy]))
    for index, (error, size) in enumerate([(1e-7, 4 * 2**20), (2e-7, None), (5e-6, 6 * 2**20)]):
        check(lab, index, {"v1": error}, counters=seconds(load=0.5, first_call=2.0))
        if size is not None:
            bench_with_memory(lab, index, 10_000.0, size / 2, "kept")
            bench_with_memory(lab, index, 10_000.0, float(size))
    check(lab, 2, {"v1": 8e-6}, ("y",), changed_rows=2, counters=seconds(load=0.25, first_call=4.0))
    lab.profile(2, joules=0.5)
    lab.profile(2, joules=0.00982)
    build(lab, 0, [kernel("one", "a")], seconds=2.0)
    build(lab, 2, [kernel("one", "b", size=2048), kernel("two", "c", size=1024)], seconds=3.5)
    series: list[dict[str, Any]] = client.get("/api/v1/series", params={"repository": "kernels"}).json()["items"]
    return next(int(row["id"]) for row in series if row["case"] == CASES[0])


VALUES = {
    "kept": ((0, 2), [2 * 2**20, 3 * 2**20]),
    "code": ((0, 2), [640.0, 3072.0]),
    "differing": ((0, 1, 2), [0.0, 0.0, 3.0]),
    "rows": ((2,), [0.25]),
    "load": ((0, 1, 2), [0.5, 0.5, 0.25]),
    "first_call": ((0, 1, 2), [2.0, 2.0, 4.0]),
    "memory": ((0, 2), [4 * 2**20, 6 * 2**20]),
    "error": ((0, 1, 2), [1e-7 / TOLERANCE, 2e-7 / TOLERANCE, 0.8]),
    "compile": ((0, 2), [2.0, 3.5]),
    "energy": ((0, 2), [0.0123, 0.00982]),
}
"""The commits that have a quantity, and its newest value at each."""
DRAWN = {
    "kept": ("memory kept between forward and backward, MiB", [2, 3], "3.00\u2009MiB at the newest of 2 commits"),
    "code": ("machine code of the library, KiB", [0.625, 3], "3.00\u2009KiB at the newest of 2 commits"),
    "differing": ("elements that differ between two calls", [0, 0, 3], "3 elements at the newest of 3 commits"),
    "rows": ("% of rows that depend on their neighbours", [25], "25.0\u2009% at the newest of 1 commit"),
    "load": ("time to load, s", [0.5, 0.5, 0.25], "250\u2009ms at the newest of 3 commits"),
    "first_call": ("first call in a new process, s", [2, 2, 4], "4.0\u2009s at the newest of 3 commits"),
    "memory": ("memory of a call, MiB", [4, 6], "6.00\u2009MiB at the newest of 2 commits"),
    "error": ("largest error, % of what is tolerated", [1, 2, 80], "80.0\u2009% at the newest of 3 commits"),
    "compile": ("compile time of the library, s", [2, 3.5], "3.5\u2009s at the newest of 2 commits"),
    "energy": ("energy of a call, mJ", [12.3, 9.82], "9.82\u2009mJ at the newest of 2 commits"),
}
"""The title of a quantity's axis, the heights of its line, and what the page says of it."""


def test_the_newest_value_of_each_commit(client: TestClient, lab: Lab, series_id: int) -> None:
    for quantity, (places, values) in VALUES.items():
        rows = client.get(f"/api/v1/history/{series_id}/quantities", params={"quantity": quantity}).json()["items"]
        assert [row["commit_sha"] for row in rows] == [lab.shas[index] for index in places], quantity
        assert [row["value"] for row in rows] == pytest.approx(values), quantity
        text = client.get(f"/api/v1/history/{series_id}/quantities.csv", params={"quantity": quantity}).text
        lines = list(csv.DictReader(io.StringIO(text)))
        assert [float(line["value"]) for line in lines] == pytest.approx(values), quantity
        assert [line["commit_sha"] for line in lines] == [row["commit_sha"] for row in rows], quantity


def test_the_chart_draws_a_quantity_instead_of_times(client: TestClient, series_id: int) -> None:
    for quantity, (title, heights, words) in DRAWN.items():
        page = client.get(f"/history/{series_id}", params={"y": quantity}, headers=HTML).text
        drawn = figure(page, "history-figure")
        (line,) = drawn["data"]
        assert line["y"] == pytest.approx(heights), quantity
        assert drawn["layout"]["yaxis"]["title"]["text"] == title
        assert words in page
        assert f'<option value="{quantity}" selected>' in page
        assert f"/api/v1/history/{series_id}/quantities.csv?quantity={quantity}" in page


def test_a_line_ends_with_its_environment(client: TestClient, lab: Lab) -> None:
    newer = replace(builders.CPU, key="d" * 64, facts={"torch": "2.14.0", "threads": 2})
    for index, environment in enumerate([builders.CPU, builders.CPU, newer]):
        counters = {"memory": Counter("bytes", 2.0**20, 2.0**20, 2.0**20, 1)}
        timed = builders.bench(builders.measurement(10_000.0, "hot"), counters=counters)
        outcome = lab.outcome([Finding("v1", CASES[0], Status.OK, bench=timed)])
        lab.finish(lab.submit("bench", index), replace(outcome, environment=environment))
    row = client.get("/api/v1/series", params={"repository": "kernels"}).json()["items"][0]
    drawn = figure(client.get(f"/history/{row['id']}", params={"y": "memory"}, headers=HTML).text, "history-figure")
    assert drawn["data"][0]["y"] == [1, 1, None, 1]


@pytest.mark.parametrize("quantity", Quantity)
def test_a_quantity_that_nothing_has_counted(client: TestClient, lab: Lab, quantity: Quantity) -> None:
    lab.bench(0, {("v1", CASES[0]): 10_000.0})
    row = client.get("/api/v1/series", params={"repository": "kernels"}).json()["items"][0]
    page = client.get(f"/history/{row['id']}", params={"y": quantity}, headers=HTML).text
    assert "Nothing known yet" in page
    assert client.get(f"/api/v1/history/{row['id']}/quantities", params={"quantity": quantity}).json()["items"] == []


def test_the_energy_of_a_call_is_on_the_pages_of_its_trace_and_its_bench(client: TestClient, lab: Lab) -> None:
    reply = replace(builders.trace(lab.folder), counters=builders.energy(8.2e-6), summary={"calls": 2})
    profile = lab.submit("profile", 0)
    lab.finish(profile, lab.outcome([Finding("v1", CASES[0], Status.OK, profile=reply)]))
    trace_id = client.get(f"/api/v1/jobs/{profile}").json()["results"][0]["trace_id"]
    assert client.get(f"/api/v1/traces/{trace_id}").json()["counters"]["energy"]["median"] == 8.2e-6
    page = client.get(f"/traces/{trace_id}", headers=HTML).text
    assert "8.20\u2009µJ" in page
    assert "at 412 W" in page
    timed = builders.bench(builders.measurement(10_000.0, "hot"), counters=builders.energy(0.0123))
    bench = lab.submit("bench", 0)
    lab.finish(bench, lab.outcome([Finding("v1", CASES[0], Status.OK, bench=timed)]))
    assert "12.3\u2009mJ" in client.get(f"/jobs/{bench}", headers=HTML).text
    lab.profile(1)
    (without,) = client.get("/api/v1/traces", params={"commit": lab.shas[1], "repository": "kernels"}).json()["items"]
    answer = client.get(f"/traces/{without['id']}", headers=HTML)
    assert answer.status_code == 200
    assert "Energy of a call" not in answer.text


def test_the_energy_of_a_profile_leaves_with_the_results(lab: Lab, tmp_path: Path) -> None:
    lab.profile(0, joules=0.0123)
    with lab.database.session() as s:
        (run,) = list_exported_runs(s, lab.repository)
        (finding,) = read_outcome(s, run, tmp_path).findings
    assert finding.profile is not None
    assert finding.profile.counters == builders.energy(0.0123)


def test_an_unknown_quantity_names_the_field(client: TestClient, series_id: int) -> None:
    answer = client.get(f"/api/v1/history/{series_id}/quantities", params={"quantity": "weight"})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "quantity")
