"""From a suspicion to the commit, over real git histories, by trials whose answers are simulated with noise."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from tests.builders import Lab
from tests.server.simulated import V1, V2, V3, Machine, Truth, write_history
from warpwatch import git
from warpwatch.contract.words import Status
from warpwatch.db.database import Database
from warpwatch.server.judge import Judge
from warpwatch.server.verdicts import suspicion
from warpwatch.server.verdicts.thresholds import THRESHOLDS
from warpwatch.settings import Settings

OPERATOR = "kernels/square.py"


Build = Callable[..., Machine]


@pytest.fixture
def build(client: TestClient, settings: Settings, database: Database, tmp_path: Path) -> Build:
    """Makes a machine for a history in which all commits, or those named, touch the operator."""

    def make(truth: Truth, commits: int = 8, touching: Iterable[int] | None = None) -> Machine:
        source = tmp_path / "history" / "kernels"
        shas = write_history(source, dict.fromkeys(range(commits) if touching is None else touching, OPERATOR), commits)
        git.update_mirror(str(source), settings.home)
        return Machine(client, Lab(database, source, shas, tmp_path), Judge(settings, database), truth)

    return make


def ends(worker: Machine, *numbers: int, check: bool = False) -> None:
    """Commits measured in this order, everything that follows from it included."""
    for number in numbers:
        if check:
            worker.check(number)
        worker.bench(number)
        worker.work()


@pytest.mark.nightly
def test_forty_commits(build: Build) -> None:
    """Every fifth commit is measured; three changes for the worse, one for the better and one breakage are found at
    their commits."""
    worker = build(
        Truth(
            times={V1: {7: 1.30, 26: 0.80}, V2: {13: 1.08}, V3: {22: 1.03}},
            broken={V2: (33, Status.WRONG)},
            unbuildable=frozenset({12}),
        ),
        commits=40,
    )
    ends(worker, *range(0, 40, 5), 39, check=True)
    assert worker.found() == {
        ("slower", 6, 7),
        ("slower", 11, 13),
        ("slower", 21, 22),
        ("faster", 25, 26),
        ("broken", 32, 33),
    }
    assert worker.rows("suspected") == worker.rows("unsure") == []
    assert all(row["settled_at"] for row in worker.rows() + worker.rows("dismissed"))
    faster, slower = (
        next(worker.notes(row["id"]) for row in worker.rows() if row["head_sha"] == worker.lab.shas[number])
        for number in (26, 7)
    )
    assert re.match(r"Commit \w{8}: −2\d\.\d %, ", faster[-1]), "a commit that made v1 faster is no culprit"
    assert re.match(r"Culprit \w{8}: \+3\d\.\d %, ", slower[-1])


def test_two_changes_in_one_range_are_both_found(build: Build) -> None:
    worker = build(Truth(times={V1: {2: 1.10, 5: 1.25}, V2: {4: 1.30}}))
    ends(worker, 0, 7)
    assert worker.found() == {("slower", 1, 2), ("slower", 3, 4), ("slower", 4, 5)}
    ratios = {row["head_sha"]: row["ratio"] for row in worker.rows()}
    assert ratios[worker.lab.shas[2]] == pytest.approx(1.10, abs=0.02)
    assert ratios[worker.lab.shas[5]] == pytest.approx(1.25, abs=0.02)


def test_only_commits_with_other_sources_are_measured(build: Build) -> None:
    worker = build(Truth(times={V1: {5: 1.3}}), touching=[0, 5])
    ends(worker, 0, 7)
    assert worker.found() == {("slower", 4, 5)}
    assert worker.done == {"compare": 2}, "one that confirms the range, and one that proves the pair"
    (row,) = worker.rows()
    assert "6 of 7 commits skipped (sources unchanged)" in worker.notes(row["id"])[-1]


def test_an_import_that_nobody_saw_is_found_all_the_same(build: Build) -> None:
    """By its sources only commit 5 can be guilty, yet it was commit 2."""
    worker = build(Truth(times={V1: {2: 1.3}}), touching=[0, 5])
    ends(worker, 0, 7)
    assert worker.found() == {("slower", 1, 2)}


def test_two_searches_that_end_at_one_commit_are_one_change(build: Build) -> None:
    worker = build(Truth(times={V1: {3: 1.3}, V2: {3: 1.2}}))
    worker.cells = (V1, V2)
    worker.bench(0)
    worker.cells = (V1,)
    worker.bench(5)
    worker.cells = (V2,)
    worker.bench(6)
    worker.work()
    (event,) = [row for row in worker.rows() if row["state"] == "new"]
    assert (event["base_sha"], event["head_sha"], event["series"]) == (worker.lab.shas[2], worker.lab.shas[3], 2)
    (merged,) = [row for row in worker.rows() if row["state"] == "invalid"]
    assert worker.notes(merged["id"])[-1] == f"the same change as regression {event['id']}"
    assert f"regression {merged['id']}, of a wider range" in worker.notes(event["id"])[-1]


def test_series_left_out_at_first_are_tried_at_the_commit_that_was_found(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suspicion, "MAX_PAIRS", 1)
    monkeypatch.setattr(suspicion, "_unseen", lambda window: [])
    worker = build(Truth(times={V1: {5: 1.5}, V2: {5: 1.4}, V3: {7: 1.3}}), commits=12)
    ends(worker, 0, 1, 2, 3, 8)
    assert worker.found() == {("slower", 4, 5)}
    searched = worker.done.total()
    ends(worker, 9)
    (row,) = [row for row in worker.rows() if row["state"] == "new"]
    assert row["series"] == 2
    assert worker.done.total() - searched == 1, "no second search"
    ends(worker, 10, 11)
    assert worker.found() == {("slower", 4, 5), ("slower", 6, 7)}, "what did not happen there is looked for as usual"


def test_what_is_unsure_is_tried_once_more_and_stays_unsure(build: Build) -> None:
    worker = build(Truth(times={V1: {3: 1.2}}))
    worker.within = 0.9
    ends(worker, 0, 5)
    (row,) = worker.rows("unsure")
    assert row["settled_at"]
    assert worker.done == {"compare": 2}
    detail = worker.client.get(f"/api/v1/regressions/{row['id']}").json()
    assert [(trial["purpose"], trial["answer"]) for trial in detail["trials"]] == [
        ("confirm", "unsure"),
        ("retry", "unsure"),
    ]
    rounds = [
        worker.client.get(f"/api/v1/jobs/{trial['job_id']}").json()["spec"]["rounds"] for trial in detail["trials"]
    ]
    assert rounds == [THRESHOLDS["cpu"].rounds, THRESHOLDS["cpu"].more_rounds]


def test_a_cancelled_step_ends_the_search_until_a_person_has_it_tried_again(build: Build) -> None:
    worker = build(Truth(times={V1: {3: 1.3}}))
    worker.cells = (V1,)
    ends(worker, 0)
    worker.bench(7)
    worker.answer(worker.waiting()[0])
    worker.judge.sweep()
    (step,) = worker.waiting()
    worker.client.post(f"/api/v1/jobs/{step['id']}/cancel")
    worker.judge.sweep()
    (row,) = worker.rows()
    assert (row["base_sha"], row["head_sha"]) == (worker.lab.shas[0], worker.lab.shas[7])
    assert row["settled_at"]
    assert "Trials in between were inconclusive" in worker.notes(row["id"])[-1]
    worker.client.post(f"/api/v1/jobs/{step['id']}/retry")
    worker.work()
    assert worker.found() == {("slower", 2, 3)}


def test_commits_that_a_trial_brings_are_on_their_branch_at_once(build: Build) -> None:
    worker = build(Truth(times={V1: {5: 1.30}}))
    with worker.lab.database.session() as session:
        session.execute(text("DELETE FROM commits WHERE ordinal BETWEEN 2 AND 7"))
    worker.bench(0)
    worker.bench(7)
    worker.answer(worker.waiting()[0])
    worker.judge.sweep()
    with worker.lab.database.session() as session:
        assert session.execute(text("SELECT count(*) FROM commits")).scalar_one() > 2
        off = "SELECT count(*) FROM commits WHERE id NOT IN (SELECT commit_id FROM branch_commits)"
        assert session.execute(text(off)).scalar_one() == 0
