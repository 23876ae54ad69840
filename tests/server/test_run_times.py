"""Where the time of runs went, on the pages of a job and of the devices."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree

import pytest
from fastapi.testclient import TestClient

from tests.builders import CASES, Lab
from warpwatch.contract.activities import RunTimes
from warpwatch.contract.outcome import Finding
from warpwatch.contract.words import JobKind, Status
from warpwatch.db import runs
from warpwatch.db.reads.occupancy import TimedRun, list_timed_runs
from warpwatch.server.figures.run_times import device_times, shares_of, times_svg

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
TIMES = RunTimes(checkout=1, start=2, samples=4, verify=1)


def timed(kind: str, seconds: float, results: int, times: RunTimes = TIMES, device: int = 1) -> TimedRun:
    return TimedRun(device, kind, NOW - timedelta(hours=2), seconds, results, times)


def test_shares_add_up_to_the_whole_run() -> None:
    shares = shares_of(TIMES, 2.0)
    assert [(part.name, part.seconds) for part in shares] == [
        ("checkout", 1),
        ("start", 2),
        ("samples", 4),
        ("verify", 1),
        ("rest", 2),
    ]
    assert sum(part.share for part in shares) == pytest.approx(1)
    root = ElementTree.fromstring(times_svg(shares))
    widths = [float(bar.get("width", "")) for bar in root]
    assert widths == [pytest.approx(part.share * 1160, abs=0.1) for part in shares]
    assert shares_of(RunTimes(), 0.0) == []


def test_a_device_shows_seconds_per_result_of_each_kind() -> None:
    runs = [timed("bench", 10, 5), timed("bench", 30, 5), timed("check", 4, 4), timed("bench", 9, 9, device=2)]
    spent = device_times([*runs, timed("profile", 1, 0)], 1, NOW)
    assert spent.by_kind == [(JobKind.CHECK, 1, 1.0), (JobKind.BENCH, 2, 4.0)]
    assert spent.measuring_share == pytest.approx(16 / 45)
    assert spent.chart is not None
    root = ElementTree.fromstring(spent.chart)
    assert {group.get("class"): len(list(group)) for group in root.iter("g")} == {"bench": 2, "check": 1}
    nothing = device_times(runs, 3, NOW)
    assert (nothing.measuring_share, nothing.chart) == (None, None)


def test_pages_and_json_show_where_the_time_went(lab: Lab, client: TestClient) -> None:
    job = lab.submit("check", 0)
    run_id = lab.begin(job)
    with lab.database.session() as session:
        finding = Finding("v1", CASES[0], Status.OK)
        runs.finish_run(session, run_id, lab.outcome([finding]), times=RunTimes(oracle=0.5, warm_up=0.25))
    (run,) = client.get(f"/api/v1/jobs/{job}").json()["runs"]
    assert (run["times"]["oracle"], run["times"]["warm_up"]) == (0.5, 0.25)
    assert run["times"]["record"] > 0
    assert run["rest_seconds"] >= 0
    page = client.get(f"/jobs/{job}").text
    assert '<svg class="times"' in page
    assert '<span class="key warm-up"></span>' in page
    with lab.database.session() as session:
        (row,) = list_timed_runs(session, NOW)
    assert (row.device_id, row.kind, row.results) == (lab.device, "check", 1)
    assert '<svg class="per-result"' in client.get("/devices").text


def test_a_job_that_made_room_says_for_which(lab: Lab, client: TestClient) -> None:
    job, urgent = lab.submit("check", 0), lab.submit("check", 1)
    run_id = lab.begin(job)
    with lab.database.session() as session:
        runs.yield_run(session, run_id, urgent)
    assert client.get(f"/api/v1/jobs/{job}").json()["runs"][0]["yielded_to_job_id"] == urgent
    page = client.get(f"/jobs/{job}").text
    assert 'id="paused"' in page
    assert f'href="/jobs/{urgent}' in page
    lab.begin(job)
    assert 'id="paused"' not in client.get(f"/jobs/{job}").text


def test_a_run_without_times_has_no_bar(lab: Lab, client: TestClient) -> None:
    job = lab.check(0, {("v1", CASES[0]): Status.OK})
    assert client.get(f"/api/v1/jobs/{job}").json()["runs"][0]["times"] is None
    assert '<svg class="times"' not in client.get(f"/jobs/{job}").text
    assert '<svg class="per-result"' not in client.get("/devices").text
