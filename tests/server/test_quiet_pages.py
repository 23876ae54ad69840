"""Pages show what matters and leave out what does not."""

from __future__ import annotations

import re

import pytest
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


FOUND = {
    Status.OK: ("ok", "good"),
    Status.WRONG: ("findings", "bad"),
    Status.CRASHED: ("could_not_run", "warn"),
    Status.BUILD_FAILED: ("could_not_run", "warn"),
    Status.UNSUPPORTED: ("not_run", ""),
}


@pytest.mark.parametrize(("status", "told"), FOUND.items())
def test_runs_and_jobs_are_coloured_by_outcome(
    client: TestClient, lab: Lab, status: Status, told: tuple[str, str]
) -> None:
    """A job that is done and found something wrong is green nowhere: not in the lists, not on its page, no square."""
    job = lab.check(0, {CELL: status, ("v2", CASES[0]): Status.OK if status != Status.UNSUPPORTED else status})
    outcome, tone = told
    for path in ("/runs", "/runs/1", "/runs/jobs?state=all", f"/jobs/{job}"):
        page = client.get(path).text
        badges = re.findall(r'<span class="badge ?([a-z]*)" data-outcome="([a-z_]+)">', page)
        assert set(badges) <= {(tone, outcome)}, path
        assert badges or path == "/runs/1"
        assert ">done</span>" not in page, path
    for path in ("/runs/1", "/runs/1/jobs"):
        squares = re.findall(r'<a tabindex="-1" class="dot ([a-z_]+)"', client.get(path).text)
        assert squares == [outcome], path
    assert re.findall(r'<rect class="([a-z_]+)"', client.get("/runs/1").text) == [outcome]
    assert client.get("/api/v1/jobs").json()["items"][0]["outcome"] == outcome
    assert client.get("/api/v1/submissions/1").json()["outcomes"] == {outcome: 1}


def test_a_comparison_is_not_green_before_it_is_judged(client: TestClient, lab: Lab) -> None:
    job = lab.submit("compare", 1, base=0, pairs=[CELL])
    assert client.get("/api/v1/submissions/1").json()["outcomes"] == {"queued": 1}
    lab.compare(job, {CELL: ([1000.0] * 12, [1500.0] * 12)})
    assert client.get("/api/v1/jobs").json()["items"][0]["outcome"] == "compared"
    assert 'class="badge good"' not in client.get("/runs").text


def test_a_cancelled_job_was_not_run(client: TestClient, lab: Lab) -> None:
    job = lab.submit("check", 0)
    assert client.get("/api/v1/jobs").json()["items"][0]["outcome"] is None
    client.post(f"/jobs/{job}/cancel")
    assert client.get("/api/v1/jobs").json()["items"][0]["outcome"] == "not_run"
