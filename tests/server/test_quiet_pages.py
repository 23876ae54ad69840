"""Pages show what matters and leave out what does not."""

from __future__ import annotations

import re

import pytest
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
