"""What is older than a repository keeps it goes; submissions and branches go when somebody deletes them."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text
from typer.testing import CliRunner

from tests.builders import CASES, Lab
from tests.server.test_code import problem
from tests.server.test_deletion import quick, row_counts
from tests.server.test_judge import compare_jobs, judge, rounds
from warpwatch.contract.words import BranchKind, RetentionKind
from warpwatch.db import keeping
from warpwatch.db.branches import NewBranch, replace_branches
from warpwatch.db.database import Database
from warpwatch.git import mirror_path, update_mirror
from warpwatch.server.judge import Judge
from warpwatch.server.threads.upkeep import RepositoryCleaner
from warpwatch.settings import Settings

V1 = ("v1", CASES[0])
RETENTION = "/api/v1/repositories/kernels/retention"
__all__ = ["judge", "quick"]
pytestmark = pytest.mark.usefixtures("quick")


def age(database: Database, days: int) -> None:
    """Everything there is was made so many days ago."""
    columns = ("all_points.measured_at", "traces.created_at", "run_logs.created_at", "builds.built_at")
    with database.session() as session:
        for table, column in (column.split(".") for column in columns):
            session.execute(text(f"UPDATE {table} SET {column} = {column} - interval '{days} days'"))


def log(lab: Lab, job: int, message: str) -> None:
    sql = "INSERT INTO run_logs (run_id, text) SELECT max(id), :text FROM runs WHERE job_id = :job"
    with lab.database.session() as session:
        session.execute(text(sql), {"job": job, "text": message})


@pytest.fixture
def filled(lab: Lab) -> Lab:
    """Two old benches and two old profiles with their logs and a build, and a young one of each."""
    for index in range(3):
        if index == 2:
            age(lab.database, 30)
        log(lab, lab.bench(index, {V1: 10_000.0}), "twelve bytes")
        lab.profile(index)
    with lab.database.session() as session:
        sql = """
        INSERT INTO builds (commit_id, operator_id, environment_id, status, key, cached, seconds, log, resources,
                            built_at)
        SELECT commit_id, operator_id, environment_id, 'ok', '', false, 1, 'a log', '[]', now() - interval '30 days'
        FROM all_results LIMIT 1
        """
        session.execute(text(sql))
    return lab


def kept(client: TestClient) -> dict[str, tuple[int, int]]:
    """(rows that the next round deletes, rows deleted so far) of each kind with a rule."""
    rows = client.get(RETENTION).json()["items"]
    return {row["kind"]: (row["due_rows"], row["deleted"]) for row in rows if row["days"] is not None}


def test_what_is_too_old_goes_and_the_rest_stays(
    client: TestClient, filled: Lab, settings: Settings, database: Database
) -> None:
    before = row_counts(database)
    overview = client.get("/api/v1/overview", params={"repository": "kernels", "device": "test-cpu"}).json()
    days = dict.fromkeys(("samples", "traces", "logs", "builds"), 7)
    preview = client.post(f"{RETENTION}/preview", json=days).json()["items"]
    assert kept(client) == {}, "a preview changes nothing"
    assert client.patch(RETENTION, json=days).status_code == 200
    expected = {"samples": 4, "traces": 2, "logs": 2, "builds": 1}
    assert {row["kind"]: row["due_rows"] for row in preview if row["days"]} == expected
    assert {row["kind"]: row["due_bytes"] for row in preview}["logs"] == 24
    assert kept(client) == {kind: (rows, 0) for kind, rows in expected.items()}

    RepositoryCleaner(settings, database).sweep()
    assert kept(client) == {kind: (0, rows) for kind, rows in expected.items()}
    after = row_counts(database)
    changed = {table: (before[table], after.get(table, 0)) for table in before if before[table] != after.get(table, 0)}
    assert changed == {
        "samples": (6, 2),
        "traces": (3, 1),
        "trace_chunks": (3, 1),
        "trace_kernels": (9, 3),
        "run_logs": (3, 1),
    }
    with database.session() as session:
        assert session.scalars(text("SELECT log FROM builds")).all() == [""]
    assert client.get("/api/v1/overview", params={"repository": "kernels", "device": "test-cpu"}).json() == overview
    for path in ("/jobs/1", "/jobs/2", f"/commits/{filled.shas[0]}?repository=kernels"):
        assert client.get(path).status_code == 200


def test_small_steps_end_where_they_should(
    client: TestClient, filled: Lab, settings: Settings, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another repository's rows lie between, and later rounds go on where earlier ones ended."""
    monkeypatch.setattr(keeping, "BATCH", dict.fromkeys(RetentionKind, 1))
    other = Lab(database, filled.source, filled.shas, filled.folder, name="other")
    other.bench(0, {V1: 10_000.0})
    age(database, 30)
    filled.bench(3, {V1: 10_000.0})
    client.patch(RETENTION, json={"samples": 7})
    RepositoryCleaner(settings, database).sweep()
    assert kept(client)["samples"] == (0, 6)
    assert row_counts(database)["samples"] == 4
    age(database, 30)
    RepositoryCleaner(settings, database).sweep()
    assert kept(client)["samples"] == (2, 6), "a rule is applied once an hour"
    with database.session() as session:
        session.execute(text("UPDATE retention_rules SET run_at = run_at - interval '2 hours'"))
    RepositoryCleaner(settings, database).sweep()
    assert kept(client)["samples"] == (0, 8)
    assert row_counts(database)["samples"] == 2
    client.patch(RETENTION, json={"samples": None})
    assert kept(client) == {}


def test_the_traces_of_a_regression_stay(
    client: TestClient, filled: Lab, settings: Settings, database: Database
) -> None:
    sql = """
    INSERT INTO regressions (operator_id, device_id, base_commit_id, head_commit_id, direction, base_trace_id)
    SELECT operator_id, device_id, commit_id, (SELECT min(id) FROM commits WHERE id <> commit_id), 'slower', traces.id
    FROM traces JOIN all_results ON all_results.id = result_id ORDER BY traces.id LIMIT 1
    """
    with database.session() as session:
        session.execute(text(sql))
    client.patch(RETENTION, json={"traces": 7})
    assert kept(client)["traces"] == (1, 0)
    RepositoryCleaner(settings, database).sweep()
    assert row_counts(database)["traces"] == 2


def test_a_mirror_that_nothing_fetches_goes(
    client: TestClient, filled: Lab, settings: Settings, database: Database
) -> None:
    path = mirror_path(str(filled.source), settings.home)
    update_mirror(str(filled.source), settings.home, settings.destinations, 60)
    client.patch(RETENTION, json={"mirror": 7})
    RepositoryCleaner(settings, database).sweep()
    assert path.is_dir()
    old = time.time() - timedelta(days=8).total_seconds()
    for file in (path, *path.rglob("*")):
        os.utime(file, (old, old))
    with database.session() as session:
        session.execute(text("UPDATE retention_rules SET run_at = NULL"))
    RepositoryCleaner(settings, database).sweep()
    assert not path.exists()
    assert kept(client)["mirror"] == (0, 1)


def test_days_that_cannot_be_are_refused(client: TestClient, lab: Lab) -> None:
    for days in (0, -1, 40_000, "soon"):
        answer = problem(client.patch(RETENTION, json={"samples": days}), 422)
        assert answer["errors"][0]["field"] == "samples"
    problem(client.patch(RETENTION, json={"everything": 1}), 422)
    problem(client.get("/api/v1/repositories/nothing/retention"), 404)


def test_the_page_previews_and_saves(client: TestClient, filled: Lab) -> None:
    path = "/repositories/kernels/retention"
    assert f'action="{path}"' in client.get(path).text
    form = {"samples": "7", "traces": "", "logs": "x"}
    answer = client.post(path, data=form)
    assert (answer.status_code, 'aria-describedby="logs-error"' in answer.text) == (422, True)
    form["logs"] = "3"
    assert client.post(path, data=form | {"preview": "1"}).status_code == 200
    assert kept(client) == {}
    assert client.post(path, data=form, follow_redirects=False).status_code == 303
    assert kept(client) == {"samples": (4, 0), "logs": (2, 0)}
    assert 'value="7"' in client.get(path).text


def test_a_deleted_submission_leaves_nothing(
    client: TestClient, lab: Lab, settings: Settings, database: Database
) -> None:
    before = row_counts(database)
    lab.bench(0, {V1: 10_000.0})
    lab.profile(0)
    lab.submit("bench", 1)
    numbers = [row["id"] for row in client.get("/api/v1/submissions").json()["items"]]
    assert len(numbers) == 3
    for number in numbers:
        assert client.delete(f"/api/v1/submissions/{number}").status_code == 204
        problem(client.get(f"/api/v1/submissions/{number}"), 404)
    assert client.get("/api/v1/submissions").json()["items"] == []
    RepositoryCleaner(settings, database).sweep()
    left = {table for table, count in row_counts(database).items() if count > before.get(table, 0)}
    assert left <= {"operators", "variants", "cases", "series"}
    problem(client.delete("/api/v1/submissions/1"), 404)


def test_what_a_verdict_rests_on_is_not_deleted(client: TestClient, lab: Lab, judge: Judge) -> None:
    lab.bench(0, {V1: 10_000.0})
    lab.bench(1, {V1: 13_000.0})
    judge.sweep()
    (comparison,) = compare_jobs(client)
    lab.compare(comparison["id"], {V1: rounds(1.3)})
    judge.sweep()
    problem(client.delete(f"/api/v1/submissions/{comparison['submission_id']}"), 409)


def test_a_deleted_branch_takes_its_own_commits(
    client: TestClient, lab: Lab, settings: Settings, database: Database
) -> None:
    for index in range(4):
        lab.bench(index, {V1: 10_000.0})
    shared, own = lab.shas[:2], lab.shas[2:4]
    main = NewBranch("main", BranchKind.BRANCH, True, shared[1], places={sha: n for n, sha in enumerate(shared, 1)})
    places = {sha: place for place, sha in enumerate(own, 3)}
    side = NewBranch("side/x", BranchKind.BRANCH, False, own[1], 2, shared[1], shared[1], None, places)
    with database.session() as session:
        replace_branches(session, lab.repository, [main, side], {}, key="1", earlier_key=None)
    where: dict[str, Any] = {"repository": "kernels", "name": "main"}
    problem(client.delete("/api/v1/branches", params=where), 409)
    problem(client.delete("/api/v1/branches", params=where | {"name": "none"}), 404)
    assert client.delete("/api/v1/branches", params=where | {"name": "side/x"}).status_code == 204
    RepositoryCleaner(settings, database).sweep()
    with database.session() as session:
        assert set(session.scalars(text("SELECT sha FROM commits"))).isdisjoint(own)
        assert set(session.scalars(text("SELECT name FROM branches"))) == {"main"}
    after = row_counts(database)
    assert (after["all_results"], after["submissions"], after.get("deletions", 0)) == (2, 2, 0)


def test_the_commands(served: Settings, filled: Lab, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    from warpwatch.cli.app import app

    monkeypatch.setenv("WARPWATCH_URL", served.server_url)

    def run(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, arguments)
        return result.exit_code, result.output

    with database.session() as session:
        # The served server applies rules by itself, but not one that was just applied.
        session.execute(
            text("INSERT INTO retention_rules (repository_id, kind, days, run_at) VALUES (1, 'logs', 7, now())")
        )
    code, output = run("retention", "--repository", "kernels", "--preview", "--keep", "samples=7")
    assert code == 0, output
    assert "samples\t7 days\t4 rows" in output
    assert "logs\t7 days\t2 rows" in output
    assert run("retention", "--repository", "kernels", "--keep", "logs=never")[0] == 0
    assert run("retention", "--repository", "kernels", "--keep", "logs=soon")[0] != 0
    assert run("submission", "delete", "1", "--yes")[0] == 0
    assert run("submission", "delete", "4711", "--yes")[0] != 0
    assert run("branch", "delete", "nothing", "--repository", "kernels", "--yes")[0] != 0
