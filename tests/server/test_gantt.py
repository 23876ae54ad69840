"""When devices were busy and what waits for them, as pictures and as pages."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from tests.builders import CASES, Lab
from warpwatch.contract.words import Purpose, Status
from warpwatch.db.reads.devices import DeviceRow
from warpwatch.db.reads.occupancy import DeviceRun, QueuedJob, list_device_runs, list_queued
from warpwatch.db.schedules import JobCost
from warpwatch.server.figures.gantt import busy_seconds, gantt_svg, plan_rows, strip_svg
from warpwatch.server.intake.budget import CostEstimates

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
DEVICE = DeviceRow(1, "gpu", "cuda", "A <b>GPU</b> & more", 1, 0, 0, 1)
COSTS = CostEstimates([JobCost("bench", 1, None, None, None, 120.0)])


def ran(job: int, start: float, end: float | None, state: str = "done") -> DeviceRun:
    """A run of a job; minutes from NOW."""
    finished = None if end is None else NOW + timedelta(minutes=end)
    return DeviceRun(job, 1, "bench", "kron", "a" * 40, state, "quick", NOW + timedelta(minutes=start), finished)


def waits(job: int) -> QueuedJob:
    return QueuedJob(job, 1, "bench", "kron", "b" * 40, "quick")


def test_waiting_jobs_follow_the_running_one() -> None:
    (row,) = plan_rows([DEVICE], [ran(1, -9, -5), ran(2, -1, None, "running")], [waits(3), waits(4)], COSTS, NOW)
    minutes = [
        ((block.start - NOW).total_seconds() / 60, (block.end - NOW).total_seconds() / 60) for block in row.blocks
    ]
    assert minutes == [(-9, -5), (-1, 1), (1, 3), (3, 5)]
    assert row.end == NOW + timedelta(minutes=5)


def test_nothing_is_estimated_without_a_worker() -> None:
    idle = DeviceRow(1, "gpu", "cuda", "GPU", 0, 1, 0, 1)
    assert plan_rows([idle], [], [waits(3)], COSTS, NOW) == []
    (row,) = plan_rows([idle], [ran(1, -9, -5)], [waits(3)], COSTS, NOW)
    assert row.end is None


def test_the_chart_has_a_block_per_job_and_names_are_harmless() -> None:
    rows = plan_rows([DEVICE], [ran(1, -9, -5, "failed"), ran(2, -1, None, "running")], [waits(3)], COSTS, NOW)
    picture = gantt_svg(rows, NOW)
    assert picture is not None
    root = ElementTree.fromstring(picture)
    assert [group.get("class") for group in root.iter("g")] == ["bench failed", "bench running", "bench queued"]
    assert [link.get("href") for link in root.iter("a")] == ["/jobs/1", "/jobs/2", "/jobs/3"]
    assert "1 running, 1 queued, 1 failed" in (root.get("aria-label") or "")
    assert gantt_svg([], NOW) is None
    (row,) = plan_rows(
        [DEVICE], [ran(1, -9, -7, "yielded"), ran(2, -7, -5, "cancelled"), ran(3, -5, -3, "lost")], [], COSTS, NOW
    )
    states = [block.state for block in row.blocks]
    assert states == ["yielded", "cancelled", "failed"], "a job that made room for another has not failed"
    assert "Job 1, made room for another: bench kron" in (gantt_svg([row], NOW) or "")


def test_a_thousand_jobs_make_no_heavy_page() -> None:
    rows = plan_rows(
        [DEVICE], [ran(n, -n / 3, -n / 3 + 0.3) for n in range(1, 1000)], map(waits, range(1000, 2000)), COSTS, NOW
    )
    picture = gantt_svg(rows, NOW)
    assert picture is not None
    assert len(picture) < 80_000
    assert re.search(r">[+−]\d+:\d\d h</text>", picture), "hours are never rounded"


@pytest.mark.parametrize(
    ("runs", "minutes"),
    [([], 0), ([ran(1, -30, -10), ran(2, -20, -5)], 25), ([ran(1, -3000, -1430)], 10), ([ran(1, -15, None)], 15)],
)
def test_busy_time_counts_once_and_within_the_day(runs: list[DeviceRun], minutes: float) -> None:
    assert busy_seconds(runs, 1, NOW) == minutes * 60
    assert ElementTree.fromstring(strip_svg(runs, 1, NOW)).get("role") == "img"


def test_pages_show_jobs_by_device_and_by_commit(client: TestClient, lab: Lab) -> None:
    lab.check(0, {("v1", CASES[0]): Status.OK})
    queued = [lab.submit("bench", index) for index in (1, 2)]
    with lab.database.session() as session:
        now = datetime.now(UTC)
        assert [run.state for run in list_device_runs(session, now - timedelta(hours=1))] == ["done"]
        assert list_device_runs(session, now + timedelta(hours=1)) == []
        assert [job.job_id for job in list_queued(session)] == queued
        session.execute(text("UPDATE jobs SET priority = 5 WHERE id = :id"), {"id": queued[1]})
        assert [job.job_id for job in list_queued(session)] == queued[::-1]
    page = client.get("/runs/jobs?state=all").text
    assert 'class="gantt"' in page
    assert f'href="/jobs/{queued[0]}" tabindex="-1"' in page
    assert 'class="strip"' in client.get("/devices").text
    body = {"repository": "kernels", "commits": "main~2..main", "kinds": ["check", "bench"], "operators": ["square"]}
    number = client.post("/api/v1/submissions", json=body).json()["id"]
    page = client.get(f"/runs/{number}").text
    assert page.count('class="dot queued"') == 4
    assert 'class="segments"' in page


def test_the_list_of_submissions_leaves_out_what_warpwatch_submitted(client: TestClient, lab: Lab) -> None:
    lab.bench(0, {("v1", CASES[0]): 1000.0})
    lab.bench(1, {("v1", CASES[0]): 1500.0})
    lab.confirm(0, 1, purpose=Purpose.BISECT)
    everything = client.get("/api/v1/submissions").json()["items"]
    assert [row["id"] for row in client.get("/api/v1/submissions?trials=false").json()["items"]] == [2, 1]
    trial = everything[0]["trial"]
    assert (trial["purpose"], trial["operator"], trial["head_sha"]) == ("bisect", "square", lab.shas[1])
    assert [row["trial"] for row in everything[1:]] == [None, None]
    shown = client.get("/runs?state=all").text
    assert "/runs/3" not in shown
    assert "trials=true" in shown
    assert "/runs/3" in client.get("/runs?state=all&trials=true").text
