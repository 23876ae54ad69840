"""Counts that are kept are those that a query would count, and are forgotten when results change."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from tests.builders import CASES, Lab
from warpwatch.contract.words import Status
from warpwatch.db.database import Database
from warpwatch.server.threads.tallies import TallyKeeper

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
