"""The room Runs: its list, one run, and the addresses that it took over."""

from __future__ import annotations

import re

import pytest
from fastapi.testclient import TestClient

from tests.builders import CASES, Lab
from warpwatch.contract.words import Status

CELL = ("v1", CASES[0])


def shown_runs(page: str) -> list[int]:
    return [int(number) for number in re.findall(r'<li data-run="(\d+)"', page)]


def test_the_list_begins_with_what_is_active(client: TestClient, lab: Lab) -> None:
    lab.check(0, {CELL: Status.OK})
    assert shown_runs(client.get("/runs").text) == [1], "without active runs, all of them"
    assert "Nothing is running or waiting" in client.get("/runs?state=active").text
    lab.submit("bench", 1)
    assert shown_runs(client.get("/runs").text) == [2]
    page = client.get("/runs?state=all").text
    assert shown_runs(page) == [2, 1]
    assert "Active (1)" in page
    assert 'class="gantt"' in page
    lab.submit("bench", 1, origin="judge")
    page = client.get("/runs?state=all").text
    assert (shown_runs(page), "and 1 of Warpwatch's own" in page) == ([2, 1], True), (
        "nobody asked for a repeated reading"
    )


def test_the_list_is_paged(client: TestClient, lab: Lab) -> None:
    for _ in range(27):
        lab.submit("check", 0)
    page = client.get("/runs?state=all").text
    assert shown_runs(page) == list(range(27, 2, -1))
    (older,) = re.findall(r'rel="next" href="([^"]+)"', page)
    assert shown_runs(client.get(older.replace("&amp;", "&")).text) == [2, 1]


def test_a_run_of_several_jobs_opens_to_its_commits_by_kind(client: TestClient, lab: Lab) -> None:
    body = {"repository": "kernels", "commits": "main~4..main", "kinds": ["check", "bench"], "operators": ["square"]}
    number = client.post("/api/v1/submissions", json=body | {"device": "cpu"}).json()["id"]
    lab.finish(1, lab.outcome([lab._timed(*CELL, Status.WRONG, 0.0)]))
    page = client.get("/runs").text
    assert f'hx-get="/runs/{number}/jobs?repository=kernels"' in page
    part = client.get(f"/runs/{number}/jobs").text
    assert "<html" not in part
    assert re.findall(r'<th scope="col">([^<]+)</th>', part) == ["Commit", "check", "bench"]
    assert sorted(re.findall(r'class="dot ([a-z_]+)"', part)) == ["findings", *["queued"] * 7]
    shown = re.findall(r'<th scope="row"><a[^>]*>([0-9a-f]{8})', part)
    assert shown == [sha[:8] for sha in lab.shas[:-5:-1]], "the newest commit first, in whatever order they run"
    assert 'hx-trigger="every 3s"' in part
    assert client.get("/runs/99/jobs").status_code == 404


def test_jobs_are_grouped_by_run_and_active_ones_come_first(client: TestClient, lab: Lab) -> None:
    lab.check(0, {CELL: Status.OK})
    body = {"repository": "kernels", "commits": "main", "kinds": ["check", "bench"], "operators": ["square"]}
    client.post("/api/v1/submissions", json=body | {"device": "cpu"})
    page = client.get("/runs/jobs").text
    assert re.findall(r">Run (\d+)</a>", page) == ["2"]
    assert re.findall(r'<th scope="row"><a href="/jobs/(\d+)', page) == ["3", "2"]
    assert re.findall(r">Run (\d+)</a>", client.get("/runs/jobs?state=all").text) == ["2", "1"]
    assert re.findall(r">Run (\d+)</a>", client.get("/runs/jobs?state=done").text) == ["1"]


def test_jobs_of_a_run_are_folded_by_outcome(client: TestClient, lab: Lab) -> None:
    body = {"repository": "kernels", "commits": "main~2..main", "kinds": ["check", "bench"], "operators": ["square"]}
    client.post("/api/v1/submissions", json=body | {"device": "cpu"})
    for job, status in ((1, Status.WRONG), (2, Status.OK), (3, Status.OK)):
        lab.finish(job, lab.outcome([lab._timed(*CELL, status if status != Status.OK else 1000.0, 0.002)]))
    page = client.get("/runs/1").text
    folded = re.findall(r'<details class="after" id="jobs-([a-z_]+)"( open)?><summary>([^<]+)</summary>', page)
    assert folded == [
        ("findings", " open", "1 job: findings"),
        ("ok", "", "2 jobs: ok"),
        ("queued", "", "1 job: waiting"),
    ]
    assert "Expected end" in page
    (sibling,) = re.findall(r'<link rel="alternate" type="application/json" href="([^"]+)">', page)
    assert client.get(sibling).json()["id"] == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("/submissions?trials=true", "/runs?trials=true"),
        ("/submissions/new?commits=main", "/runs/new?commits=main"),
        ("/submissions/7", "/runs/7"),
        ("/jobs?state=queued", "/runs/jobs?state=queued"),
        ("/traces?operator=square", "/runs/traces?operator=square"),
        ("/traces/survey?operator=square", "/runs/traces?view=launches&operator=square"),
        ("/judgements", "/runs/judgements"),
        ("/branches?repository=kernels", "/commits?tab=branches&repository=kernels"),
    ],
)
def test_old_addresses_lead_to_the_room(client: TestClient, old: str, new: str) -> None:
    answer = client.get(old, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (308, new)


def test_every_page_measures_again_under_one_name(client: TestClient, lab: Lab) -> None:
    job = lab.check(0, {CELL: Status.OK})
    lab.bench(0, {CELL: 1000.0})
    pages = [client.get(path).text for path in (f"/jobs/{job}", f"/commits/{lab.shas[0]}", "/history/1")]
    assert all("Measure again" in page for page in pages)
    for page in [*pages, client.get("/runs/traces").text, client.get("/kernels/square").text]:
        assert not re.search("Run again|Measure its head|Profile a commit|Run A/B", page)
