"""The overview: trends over the newest commits, the parts that are fetched later, and its size with many operators."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from tests.builders import CASES, CPU, Lab
from tests.waiting import wait_until
from warpwatch.contract.words import Status
from warpwatch.db import runs
from warpwatch.db import trends as trends_module
from warpwatch.db.reads.lines import ALL_COMMITS
from warpwatch.db.trends import TrendGrid, list_running, read_queue, read_trends
from warpwatch.server import app as application
from warpwatch.server.web import render

V1, V2 = ("v1", CASES[0]), ("v2", CASES[0])


def trends(lab: Lab, limit: int = 30) -> TrendGrid:
    with lab.database.session() as s:
        return read_trends(s, lab.repository, lab.device, "hot", ALL_COMMITS, limit=limit)


def changes(grid: TrendGrid, operator: str = "square") -> list[float | None]:
    keyed = {cell.commit_id: cell for cell in grid.cells if cell.operator == operator}
    return [
        keyed[commit.id].change and round(keyed[commit.id].change or 0, 6) if commit.id in keyed else -1.0
        for commit in grid.commits
    ]


def test_a_change_is_the_geometric_mean_over_the_series_of_an_operator(lab: Lab) -> None:
    lab.operators = ("square", "cube")
    lab.bench(0, {V1: 100.0, V2: 100.0})
    lab.bench(2, {V1: 400.0, V2: 100.0})
    lab.bench(3, {V1: 400.0})
    lab.bench(3, {("v1", CASES[0]): 50.0}, operator="cube")
    grid = trends(lab)
    assert [commit.sha for commit in grid.commits] == [lab.shas[0], lab.shas[2], lab.shas[3]]
    assert changes(grid) == [None, 2.0, 1.0]
    assert changes(grid, "cube") == [-1.0, -1.0, None]
    last = [cell for cell in grid.cells if cell.operator == "square" and cell.commit_id == grid.commits[1].id]
    assert last[0].compared == 2


def test_a_change_is_never_said_of_two_environments(lab: Lab) -> None:
    lab.bench(0, {V1: 100.0})
    lab.environment = replace(CPU, key="d" * 64)
    lab.bench(1, {V1: 200.0})
    lab.bench(2, {V1: 220.0})
    assert changes(trends(lab)) == [None, None, 1.1]


def test_the_oldest_commit_shown_is_compared_with_the_one_before(lab: Lab) -> None:
    for index, median in enumerate((100.0, 150.0, 300.0)):
        lab.bench(index, {V1: median})
    grid = trends(lab, limit=2)
    assert [commit.sha for commit in grid.commits] == lab.shas[1:3]
    assert changes(grid) == [1.5, 2.0]


def test_the_newest_repetition_of_a_commit_counts(lab: Lab) -> None:
    lab.bench(0, {V1: 100.0})
    lab.bench(1, {V1: 500.0})
    lab.bench(1, {V1: 110.0})
    assert changes(trends(lab)) == [None, 1.1]


def test_the_cases_of_an_operator_are_a_part_of_their_own(lab: Lab, client: TestClient) -> None:
    lab.bench(0, {V1: 100.0, V2: 50.0})
    lab.check(0, {V1: Status.OK, V2: Status.WRONG})
    page = client.get("/overview")
    assert page.status_code == 200
    assert "data-cell" not in page.text
    part = client.get("/overview/cases/square")
    assert part.text.count("data-cell=") == 2
    assert "<html" not in part.text
    assert client.get("/overview/cases/nothing").status_code == 404


def test_progress_is_told_before_the_first_result_and_says_when_one_came(lab: Lab, client: TestClient) -> None:
    first, _ = lab.submit("bench", 0), lab.submit("bench", 1)
    page = client.get("/overview").text
    assert 'hx-get="/overview/progress' in page
    run = lab.begin(first)
    with lab.database.session() as s:
        queue = read_queue(s, lab.repository)
        assert (queue.queued, queue.running, queue.ended) == (1, 1, 0)
        assert [job.id for job in list_running(s, lab.repository)] == [first]
    seen = queue.newest_run
    assert "hx-trigger" not in client.get(f"/overview/progress?seen={seen}").headers
    with lab.database.session() as s:
        runs.finish_run(s, run, lab.outcome([]))
    answer = client.get(f"/overview/progress?seen={seen}")
    assert answer.headers["hx-trigger"] == "warpwatch:results"
    with lab.database.session() as s:
        assert read_queue(s, lab.repository).newest_run == run


def test_progress_names_the_run_of_the_running_job(lab: Lab, client: TestClient) -> None:
    """A run of a person comes before trials of Warpwatch, which say what they decide."""
    lab.bench(0, {V1: 100.0})
    lab.bench(1, {V1: 150.0})
    number, trial = lab.confirm(0, 1)
    assert "waiting</span> <a" in (shown := client.get("/overview/progress").text)
    assert f">confirming square #{number}</a>" in shown
    own = lab.submit("bench", 2)
    shown = client.get("/overview/progress").text
    assert ">run 4</a>" in shown
    assert "confirming" not in shown
    lab.begin(trial)
    shown = client.get("/overview/progress").text
    assert re.search(r'waiting</span> <a [^>]*href="/runs/4[^>]*>run 4</a>', shown)
    assert f">confirming square #{number}</a>" in shown.partition("<ul")[2]
    lab.begin(own)
    shown = client.get("/overview/progress").text
    assert re.search(r'measuring</span> <a [^>]*href="/runs/4[^>]*>run 4</a>', shown)
    assert "Test CPU free <time" in shown


def test_the_overview_of_many_operators_is_light(lab: Lab, client: TestClient) -> None:
    operators = 22
    names = lab.operators = tuple(f"operator_{number}" for number in range(operators))
    for index in range(6):
        for name in names:
            lab.bench(index, {V1: 10_000.0 * (1.9 if index == 5 else 1)}, operator=name)
    text = client.get("/overview").text
    assert text.count("data-operator=") == operators
    assert "data-statement" not in text, "no trial has decided anything"
    assert len(text) < 60_000
    # The heat map comes when it is asked for: each operator shifted at the newest commit.
    heat_map = client.get("/overview/shifts", params={"repository": "kernels"}).text
    assert heat_map.count('data-statement="shift"') == operators
    # Six commits are measured; thirty have five times as many tiles.
    assert len(heat_map) < 150_000 / 5


def test_older_commits_are_sampled_for_the_sparkline(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    for index, median in enumerate((100.0, 150.0, 300.0, 300.0, 330.0, 330.0)):
        lab.bench(index, {V1: median})
    with lab.database.session() as s:
        whole = read_trends(s, lab.repository, lab.device, "hot", ALL_COMMITS, limit=2, whole=True)
    assert [commit.sha for commit in whole.commits] == lab.shas[:6]
    assert changes(whole) == [None, 1.5, 2.0, 1.0, 1.1, 1.0]
    monkeypatch.setattr(trends_module, "_OLDER_COMMITS", trends_module._OLDER_COMMITS.replace("30.0", "2.0"))
    with lab.database.session() as s:
        sampled = read_trends(s, lab.repository, lab.device, "hot", ALL_COMMITS, limit=2, whole=True)
    assert [commit.sha for commit in sampled.commits] == [lab.shas[0], lab.shas[2], *lab.shas[3:6]]
    assert changes(sampled) == [None, 3.0, 1.0, 1.1, 1.0]
    assert [commit.sha for commit in trends(lab, limit=2).commits] == lab.shas[4:6]


def test_a_server_compiles_its_pages_before_they_are_visited(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    # Servers of other tests leave it out.
    monkeypatch.setattr(application, "compile_templates", render.compile_templates)
    render.environment.cache_clear()
    with TestClient(app):
        pages = render.environment().list_templates(["html"])
        wait_until(lambda: len(render.environment().cache or ()) >= len(pages))
    compiled = {name for _, name in render.environment().cache or ()}
    assert compiled == set(pages)
