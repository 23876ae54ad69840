"""Counts and trends that are kept are those that a query would find, and are forgotten when results change."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from tests.builders import CASES, Lab
from warpwatch.contract.words import Status
from warpwatch.db.database import Database
from warpwatch.db.reads.lines import ALL_COMMITS
from warpwatch.db.trends import TrendGrid, read_trends
from warpwatch.server.threads.upkeep import TallyKeeper

API = "/api/v1"
V1, V2 = ("v1", CASES[0]), ("v2", CASES[0])


@pytest.fixture
def keeper(database: Database) -> TallyKeeper:
    return TallyKeeper(database)


def lists(client: TestClient) -> Any:
    commits = client.get(f"{API}/commits", params={"repository": "kernels"}).json()["items"]
    submissions = client.get(f"{API}/submissions").json()["items"]
    return [commits, [row["results"] for row in submissions]]


def kept(database: Database) -> tuple[int, int]:
    """How many commits and how many ended runs are counted."""
    with database.session() as session:
        return (
            session.scalar(text("SELECT count(*) FROM commits WHERE counts IS NOT NULL")) or 0,
            session.scalar(text("SELECT count(*) FROM runs WHERE statuses IS NOT NULL")) or 0,
        )


def test_what_is_kept_is_what_would_be_counted(
    client: TestClient, lab: Lab, database: Database, keeper: TallyKeeper
) -> None:
    lab.bench(0, {V1: 10_000.0, V2: Status.CRASHED})
    lab.check(0, {V1: Status.OK, V2: Status.WRONG})
    lab.check(0, {V1: Status.WRONG, V2: Status.OK})
    lab.bench(1, {V1: 10_000.0})
    counted = lists(client)
    assert kept(database) == (0, 0)
    keeper.sweep()
    assert kept(database) == (6, 4)
    assert lists(client) == counted
    with database.session() as session:
        points = {"kept": '{"points": 77}', "statuses": '{"ok": 88}'}
        session.execute(text("UPDATE commits SET counts = counts || CAST(:kept AS jsonb) WHERE ordinal = 1"), points)
        session.execute(text("UPDATE runs SET statuses = CAST(:statuses AS jsonb) WHERE id = 4"), points)
    changed = lists(client)
    assert changed[0][-1]["points"] == 77, "the list shows what is kept"
    assert changed[1][0] == {"ok": 88}


def test_new_results_are_counted(client: TestClient, lab: Lab, database: Database, keeper: TallyKeeper) -> None:
    lab.bench(0, {V1: 10_000.0})
    keeper.sweep()
    job = lab.check(0, {V1: Status.WRONG})
    (*_, first), _ = lists(client)
    assert (first["points"], first["wrong"]) == (1, 1)
    keeper.sweep()
    assert client.post(f"{API}/jobs/{job}/strike-out", json={"reason": "hot"}).status_code == 200
    (*_, first), (struck, _) = lists(client)
    assert (first["points"], first["wrong"]) == (1, 0)
    assert struck == {}
    keeper.sweep()
    assert lists(client)[0][-1] == first


def test_a_commit_with_open_jobs_is_not_counted(lab: Lab, database: Database, keeper: TallyKeeper) -> None:
    """The run that is under way may write at any moment, and finds nothing to forget."""
    job = lab.submit("bench", 0)
    compare = lab.submit("compare", 2, base=1)
    lab.begin(compare)
    keeper.sweep()
    assert kept(database) == (3, 0)
    lab.finish(job, lab.outcome([]))
    keeper.sweep()
    assert kept(database) == (4, 1)


def trends(lab: Lab, suite: str | None = None) -> TrendGrid:
    with lab.database.session() as s:
        return read_trends(s, lab.repository, lab.device, "hot", ALL_COMMITS, suite)


def kept_trends(database: Database) -> int:
    with database.session() as session:
        return session.scalar(text("SELECT count(*) FROM trends")) or 0


def test_trends_that_are_kept_are_those_that_would_be_compared(
    lab: Lab, database: Database, keeper: TallyKeeper
) -> None:
    lab.operators = ("square", "cube")
    for index, median in enumerate((100.0, 150.0, 300.0)):
        lab.bench(index, {V1: median, V2: 100.0})
    lab.bench(1, {V1: 50.0}, operator="cube")
    compared = trends(lab)
    assert [cell.operator for cell in compared.cells] == ["cube", "square", "square", "square"]
    keeper.sweep()
    assert kept_trends(database) == 2
    assert trends(lab) == compared
    with database.session() as session:
        session.execute(text("UPDATE trends SET cells = jsonb_set(cells, '{0,1}', '7')"))
    assert [cell.change for cell in trends(lab).cells].count(7) == 2, "the overview shows what is kept"
    assert trends(lab, suite="quick") == compared, "of a suite nothing is kept"


def test_new_results_are_compared(client: TestClient, lab: Lab, database: Database, keeper: TallyKeeper) -> None:
    lab.bench(0, {V1: 100.0})
    lab.bench(1, {V1: 200.0})
    keeper.sweep()
    job = lab.bench(1, {V1: 300.0})
    assert kept_trends(database) == 0
    assert [cell.change for cell in trends(lab).cells if cell.change] == [pytest.approx(3.0)]
    keeper.sweep()
    assert kept_trends(database) == 1
    assert client.post(f"{API}/jobs/{job}/strike-out", json={"reason": "hot"}).status_code == 200
    assert [cell.change for cell in trends(lab).cells if cell.change] == [pytest.approx(2.0)]


def test_an_operator_whose_results_are_being_written_is_not_compared(
    lab: Lab, database: Database, keeper: TallyKeeper
) -> None:
    lab.bench(0, {V1: 100.0})
    with database.session() as session:
        # The lock that a row of results takes, because it refers to its operator.
        session.execute(text("SELECT id FROM operators FOR KEY SHARE"))
        keeper.sweep()
        assert kept_trends(database) == 0
    keeper.sweep()
    assert kept_trends(database) == 1
