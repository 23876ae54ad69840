"""Schedules: what each kind measures, within its budget, once however many servers there are.

Time is given, never waited for.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from tests.builders import CASES, GPU, Lab, commit, make_repository, run_git
from tests.server.test_code import problem
from warpwatch.db.database import Database
from warpwatch.server.intake.scheduled_run import run_schedule
from warpwatch.server.threads.scheduler import Scheduler
from warpwatch.settings import Settings

V1 = ("v1", CASES[0])
DAY = timedelta(days=1)


@pytest.fixture
def now() -> datetime:
    """A moment after everything that the test does by the database's own clock."""
    return datetime.now(UTC) + timedelta(minutes=5)


def add(client: TestClient, kind: str, **fields: Any) -> int:
    body = {
        "repository": "kernels",
        "name": f"our {kind}",
        "kind": kind,
        "cron": "* * * * *",
        "operators": ["square"],
        **fields,
    }
    answer = client.post("/api/v1/schedules", json=body)
    assert answer.status_code == 201, answer.text
    number: int = answer.json()["id"]
    return number


def show(client: TestClient, schedule: int) -> dict[str, Any]:
    row: dict[str, Any] = client.get(f"/api/v1/schedules/{schedule}").json()
    return row


def made(client: TestClient) -> list[tuple[str, str, str]]:
    """(kind, operator, commit) of every waiting job, oldest first."""
    rows = client.get("/api/v1/jobs", params={"state": "queued", "limit": 200}).json()["items"]
    return [(row["kind"], row["operator"], row["commit_sha"]) for row in rows[::-1]]


def took(lab: Lab, seconds: float, ended: datetime | None = None) -> None:
    """Every run there is took so long."""
    with lab.database.session() as session:
        sql = (
            "UPDATE runs SET finished_at = coalesce(:ended, finished_at), "
            "started_at = coalesce(:ended, finished_at) - make_interval(secs => :seconds)"
        )
        session.execute(text(sql), {"seconds": seconds, "ended": ended})
        same = "started_at = runs.started_at, finished_at = runs.finished_at"
        session.execute(text(f"UPDATE jobs SET {same} FROM runs WHERE runs.job_id = jobs.id AND jobs.state = 'done'"))


def measure_all(client: TestClient, lab: Lab, indices: dict[str, int] | None = None) -> None:
    """Do every waiting bench job."""
    for row in client.get("/api/v1/jobs", params={"state": "queued", "limit": 200}).json()["items"][::-1]:
        lab.finish(row["id"], lab.outcome([lab._timed(*V1, 10_000.0, 0.002)]))


@pytest.mark.words
def test_the_nightly_suite_measures_the_newest_commit_once(
    client: TestClient, lab: Lab, settings: Settings, now: datetime
) -> None:
    schedule = add(client, "suite", operators=[], cron="0 2 * * *")
    assert run_schedule(lab.database, settings, schedule, now + DAY)
    head = lab.shas[-1]
    assert sorted(made(client)) == [
        (kind, operator, head) for kind in ("bench", "check") for operator in ("cube", "square")
    ]
    row = show(client, schedule)
    assert row["message"].startswith(
        f"submission {row['submission_id']}: 4 jobs at 1 commit, about 4.0 of 60 device minutes"
    )
    submission = client.get(f"/api/v1/submissions/{row['submission_id']}").json()
    assert (submission["origin"], submission["request"]["schedule"]) == ("schedule", "our suite")
    assert datetime.fromisoformat(row["last_at"]) == now + DAY
    assert now + DAY < datetime.fromisoformat(row["next_at"]) <= now + 2 * DAY

    run_schedule(lab.database, settings, schedule, now + 3 * DAY)
    assert len(made(client)) == 4
    assert show(client, schedule)["message"] == "nothing to do: the newest commit was already submitted"


@pytest.mark.words
def test_only_what_fits_into_the_budget_is_asked_for(
    client: TestClient, lab: Lab, settings: Settings, now: datetime
) -> None:
    """Jobs of square took 90 s: two of them fit into three minutes, and what they took counts until a day later."""
    lab.bench(0, {V1: 10_000.0})
    lab.bench(1, {V1: 10_000.0})
    took(lab, 90)
    schedule = add(client, "backfill", budget_minutes=3)
    run_schedule(lab.database, settings, schedule, now)
    assert made(client) == [("bench", "square", lab.shas[5]), ("bench", "square", lab.shas[3])]
    row = show(client, schedule)
    assert row["message"].endswith("2 jobs at 2 commits, about 3.0 of 3 device minutes; 2 jobs for later runs")

    run_schedule(lab.database, settings, schedule, now + timedelta(minutes=2))
    assert len(made(client)) == 2
    assert show(client, schedule)["message"].startswith(
        "waiting for budget: 0.0 of 3 device minutes used in the last 24 hours, 3.0 more"
    )

    measure_all(client, lab)
    took(lab, 90, ended=now)
    run_schedule(lab.database, settings, schedule, now + timedelta(hours=23))
    assert made(client) == []
    assert show(client, schedule)["message"] == "waiting for budget: 3.0 of 3 device minutes used in the last 24 hours"

    run_schedule(lab.database, settings, schedule, now + timedelta(hours=25))
    assert {sha for _, _, sha in made(client)} == {lab.shas[2], lab.shas[4]}


def test_the_page_says_what_is_spent(client: TestClient, lab: Lab, settings: Settings) -> None:
    lab.bench(0, {V1: 10_000.0})
    schedule = add(client, "suite", kinds=["bench"])
    client.post(f"/api/v1/schedules/{schedule}/run")
    measure_all(client, lab)
    took(lab, 90)
    assert show(client, schedule)["spent_minutes"] == pytest.approx(1.5)


@pytest.mark.words
def test_a_job_larger_than_the_whole_budget_is_said(
    client: TestClient, lab: Lab, settings: Settings, now: datetime
) -> None:
    lab.bench(0, {V1: 10_000.0})
    took(lab, 600)
    schedule = add(client, "suite", kinds=["bench"], budget_minutes=9)
    run_schedule(lab.database, settings, schedule, now)
    assert made(client) == []
    assert show(client, schedule)["message"] == (
        "nothing fits: bench of square takes about 10.0 device minutes, more than the whole budget of 9; "
        "increase the budget"
    )


def test_two_servers_take_a_turn_once(client: TestClient, lab: Lab, settings: Settings, now: datetime) -> None:
    schedules = [add(client, "suite", name=f"number {number}", kinds=["bench"]) for number in range(3)]
    databases = [Database(settings.database_url or "") for _ in range(3)]
    try:
        with ThreadPoolExecutor(3) as pool:
            servers = [Scheduler(settings, database) for database in databases]
            taken = list(pool.map(lambda server: server.sweep(now), servers))
    finally:
        for database in databases:
            database.close()
    assert sum(taken) == len(schedules)
    with lab.database.session() as session:
        by_schedule = session.execute(text("SELECT schedule_id, count(*) FROM submissions GROUP BY 1")).all()
    assert all(count == 1 for _, count in by_schedule)
    assert all(show(client, schedule)["last_at"] for schedule in schedules)


def test_a_plan_is_void_when_another_server_took_the_turn(
    client: TestClient, lab: Lab, settings: Settings, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one takes it while this one reads git."""
    schedule = add(client, "suite", kinds=["bench"])
    from warpwatch import git

    fetch = git.update_mirror
    overtaken: list[Any] = []

    def slowly(url: str, home: Path, *rest: Any) -> Path:
        if not overtaken:
            overtaken.append(True)
            assert run_schedule(lab.database, settings, schedule, now)
        return fetch(url, home, *rest)

    monkeypatch.setattr(git, "update_mirror", slowly)
    assert not run_schedule(lab.database, settings, schedule, now)
    assert len(made(client)) == 1


def test_missed_times_are_made_up_for_once(client: TestClient, lab: Lab, settings: Settings, now: datetime) -> None:
    schedule = add(client, "suite", kinds=["bench"], cron="0 * * * *")
    later = now + 30 * DAY
    server = Scheduler(settings, lab.database)
    assert server.sweep(later) == 1
    assert server.sweep(later) == 0
    assert later < datetime.fromisoformat(show(client, schedule)["next_at"]) <= later + timedelta(hours=1)
    assert len(made(client)) == 1


@pytest.mark.words
def test_backfill_halves_the_widest_gap_until_there_is_none(
    client: TestClient, database: Database, settings: Settings, tmp_path: Path, now: datetime
) -> None:
    """Square changes at every even commit only: between the first and the last of nine, three commits are worth
    measuring."""
    path = tmp_path / "uneven"
    shas = make_repository(path, commits=1, operators=("square", "cube"))
    shas += [commit(path, f"Edit {n}", ("square", "cube") if n % 2 == 0 else ("cube",)) for n in range(1, 9)]
    lab = Lab(database, path, shas, tmp_path, name="uneven")
    lab.bench(0, {V1: 10_000.0})
    lab.bench(8, {V1: 10_000.0})
    took(lab, 60)
    schedule = add(client, "backfill", repository="uneven", budget_minutes=1)
    order = []
    for turn in range(5):
        run_schedule(database, settings, schedule, now + turn * 2 * DAY)
        order += [shas.index(sha) for _, _, sha in made(client)]
        measure_all(client, lab)
        took(lab, 60, ended=now + turn * 2 * DAY)
    assert order == [4, 6, 2]
    assert show(client, schedule)["message"] == "nothing to do: no history has a gap"


def test_a_hole_is_asked_for_once(client: TestClient, lab: Lab, settings: Settings, now: datetime) -> None:
    """Jobs that wait fill their hole; one that failed is for people to look at."""
    lab.bench(0, {V1: 10_000.0})
    schedule = add(client, "backfill", budget_minutes=600)
    run_schedule(lab.database, settings, schedule, now)
    assert len(made(client)) == 5
    run_schedule(lab.database, settings, schedule, now + DAY)
    assert len(made(client)) == 5


def test_rerun_takes_what_was_repeated_least(client: TestClient, lab: Lab, settings: Settings, now: datetime) -> None:
    lab.operators = ("square", "cube")
    for index, noise in ((3, 1.0), (4, 1.0), (4, 1.5)):
        lab.bench(index, {V1: 10_000.0 * noise})
    lab.bench(4, {V1: 10_000.0}, operator="cube")
    took(lab, 60)
    schedule = add(client, "rerun", operators=[], budget_minutes=1)
    run_schedule(lab.database, settings, schedule, now)
    assert made(client) == [("bench", "cube", lab.shas[4])]
    measure_all(client, lab)
    took(lab, 30, ended=now)
    add(client, "rerun", operators=["square"], name="square alone")
    run_schedule(lab.database, settings, schedule + 1, now)
    assert made(client) == [("bench", "square", lab.shas[3])]


def test_rerun_then_takes_what_is_noisiest(client: TestClient, lab: Lab, settings: Settings, now: datetime) -> None:
    lab.operators = ("square", "cube")
    for noise in (1.0, 1.4, 0.8, 1.2, 1.0):
        lab.bench(5, {V1: 10_000.0 * noise}, operator="cube")
        lab.bench(5, {V1: 10_000.0})
    took(lab, 60)
    schedule = add(client, "rerun", operators=[], budget_minutes=1)
    run_schedule(lab.database, settings, schedule, now)
    assert made(client) == [("bench", "cube", lab.shas[5])]


def test_repeats_of_another_environment_teach_nothing(
    client: TestClient, lab: Lab, settings: Settings, now: datetime
) -> None:
    from dataclasses import replace

    for _ in range(3):
        lab.bench(1, {V1: 10_000.0})
    with lab.database.session() as session:
        lab.use(session, replace(lab.environment, key="d" * 64))
    for _ in range(2):
        lab.bench(5, {V1: 10_000.0})
    lab.submit("bench", 1)
    schedule = add(client, "rerun")
    run_schedule(lab.database, settings, schedule, now)
    assert made(client) == [("bench", "square", lab.shas[1]), ("bench", "square", lab.shas[5])]


@pytest.mark.words
def test_what_did_not_change_is_left_out_of_the_suite(
    client: TestClient, database: Database, settings: Settings, tmp_path: Path, now: datetime
) -> None:
    path = tmp_path / "uneven"
    shas = [*make_repository(path, commits=2, operators=("square", "cube")), commit(path, "Change cube", ("cube",))]
    lab = Lab(database, path, shas, tmp_path, name="uneven", operators=("square", "cube"))
    request = {"repository": "uneven", "commits": shas[1], "kinds": ["bench"]}
    assert client.post("/api/v1/submissions", json=request).status_code == 201
    measure_all(client, lab)
    schedule = add(client, "suite", repository="uneven", operators=[], kinds=["bench"], skip_unchanged=True)
    run_schedule(database, settings, schedule, now)
    assert made(client) == [("bench", "cube", shas[2])]
    assert "1 job skipped as unchanged" in show(client, schedule)["message"]


@pytest.mark.words
def test_why_nothing_happens_is_said(client: TestClient, lab: Lab, settings: Settings, now: datetime) -> None:
    suite, rerun = add(client, "suite"), add(client, "rerun")
    with lab.database.session() as session:
        session.execute(text("UPDATE workers SET stopped_at = now()"))
    run_schedule(lab.database, settings, suite, now)
    row = show(client, suite)
    assert row["message"].startswith("waiting: no worker for test-cpu; start a worker with `warpwatch worker")
    assert datetime.fromisoformat(row["next_at"]) - now <= timedelta(minutes=10)

    lab.switch(GPU)
    run_schedule(lab.database, settings, rerun, now)
    assert show(client, rerun)["message"] == "nothing to do: no commit of the watched branch has a measurement"
    with lab.database.session() as session:
        session.execute(text("UPDATE repositories SET branch = 'release'"))
    run_schedule(lab.database, settings, suite, now + DAY)
    assert "has no branch 'release'" in show(client, suite)["message"]
    with lab.database.session() as session:
        session.execute(text("UPDATE repositories SET url = '/nowhere'"))
    run_schedule(lab.database, settings, suite, now + 2 * DAY)
    row = show(client, suite)
    assert "cannot be fetched" in row["message"]
    assert datetime.fromisoformat(row["next_at"]) <= now + 2 * DAY + timedelta(minutes=10)
    assert made(client) == []


def test_the_watched_branch_is_what_counts(
    client: TestClient, lab: Lab, settings: Settings, now: datetime, tmp_path: Path
) -> None:
    run_git(tmp_path, "clone", "--quiet", str(lab.source), "fork")
    run_git(tmp_path / "fork", "checkout", "--quiet", "-b", "release", lab.shas[2])
    with lab.database.session() as session:
        session.execute(text("UPDATE repositories SET branch = 'release', url = :url"), {"url": str(tmp_path / "fork")})
    schedule = add(client, "suite", kinds=["bench"])
    run_schedule(lab.database, settings, schedule, now)
    assert made(client) == [("bench", "square", lab.shas[2])]


@pytest.mark.words
def test_a_fault_of_ours_moves_the_clock(
    client: TestClient, lab: Lab, settings: Settings, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, fine = add(client, "rerun"), add(client, "suite", kinds=["bench"])

    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("warpwatch.server.intake.scheduled_run.list_rerun_candidates", fail)
    assert Scheduler(settings, lab.database).sweep(now) == 2
    assert "an error that it does not know" in show(client, broken)["message"]
    assert len(made(client)) == 1
    assert Scheduler(settings, lab.database).sweep(now) == 0
    assert show(client, fine)["submission_id"]


@pytest.mark.words
def test_the_server_takes_turns_by_itself(served: Settings, lab: Lab) -> None:
    import json
    import time
    import urllib.request

    body = {"repository": "kernels", "name": "soon", "kind": "suite", "operators": ["square"], "kinds": ["bench"]}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{served.server_url}/api/v1/schedules", json.dumps(body).encode(), headers)
    urllib.request.urlopen(request).close()
    with lab.database.session() as session:
        session.execute(text("UPDATE schedules SET next_at = now() - interval '1 hour'"))
    message = ""
    for _ in range(300):
        with lab.database.session() as session:
            message = session.execute(text("SELECT message FROM schedules")).scalar_one()
        if message:
            break
        time.sleep(0.1)
    assert message.startswith("submission 1: 1 job")


def test_a_schedule_is_changed_disabled_and_removed(
    client: TestClient, lab: Lab, settings: Settings, now: datetime
) -> None:
    schedule = add(client, "suite", cron="0 2 * * *")
    answer = client.patch(
        f"/api/v1/schedules/{schedule}", json={"enabled": False, "budget_minutes": 7, "suite": "full"}
    )
    assert answer.status_code == 200, answer.text
    row = answer.json()
    assert (row["is_enabled"], row["next_at"], row["budget_minutes"], row["request"]["suite"]) == (
        False,
        None,
        7,
        "full",
    )
    assert row["request"]["operators"] == ["square"]
    assert not run_schedule(lab.database, settings, schedule, now + DAY)
    assert Scheduler(settings, lab.database).sweep(now + DAY) == 0
    row = client.patch(f"/api/v1/schedules/{schedule}", json={"enabled": True, "cron": "30 3 * * *"}).json()
    assert row["next_at"].endswith("03:30:00Z")
    assert client.delete(f"/api/v1/schedules/{schedule}").status_code == 204
    assert client.get(f"/api/v1/schedules/{schedule}").status_code == 404
    assert client.delete(f"/api/v1/schedules/{schedule}").status_code == 404


@pytest.mark.words
def test_a_person_may_take_a_turn_at_once(client: TestClient, lab: Lab) -> None:
    schedule = add(client, "suite", cron="0 2 * * *", enabled=False, kinds=["bench"])
    row = client.post(f"/api/v1/schedules/{schedule}/run").json()
    assert row["message"].startswith("submission 1: 1 job at 1 commit")
    assert (row["is_enabled"], row["next_at"]) == (False, None)
    assert made(client) == [("bench", "square", lab.shas[-1])]


@pytest.mark.parametrize(
    ("fields", "field", "remedy"),
    [
        ({"cron": "every night"}, "cron", "'0 2 * * *'"),
        ({"cron": "61 * * * *"}, "cron", "'0 2 * * *'"),
        ({"cron": "0 0 31 2 *"}, "cron", "'0 2 * * *'"),
        ({"device": "abacus"}, "device", "choose from: all, cpu, cuda, test-cpu"),
        ({"budget_minutes": -5}, "budget_minutes", "use at least 1"),
        ({"operators": ["sqare"]}, "operators", "did you mean: square"),
        ({"suite": "huge"}, "suite", "did you mean"),
        ({"kind": "hourly"}, "kind", "'suite', 'rerun' or 'backfill'"),
        ({"repository": "nowhere"}, "repository", "warpwatch repository add"),
        ({"kind": "rerun", "kinds": ["check"]}, "kinds", "use bench"),
        ({"name": "taken"}, "name", "another name"),
    ],
)
def test_what_cannot_be_used_is_named_with_the_remedy(
    client: TestClient, lab: Lab, fields: dict[str, Any], field: str, remedy: str
) -> None:
    lab.bench(0, {V1: 10_000.0})
    add(client, "suite", name="taken")
    body = {"repository": "kernels", "name": "new", "kind": "suite", **fields}
    answer = client.post("/api/v1/schedules", json=body)
    (error,) = problem(answer, 422)["errors"]
    assert error["field"] == field
    assert remedy in error["remedy"]
    assert len(client.get("/api/v1/schedules").json()["items"]) == 1


def test_the_list_comes_in_pages_and_as_csv(client: TestClient, lab: Lab) -> None:
    ids = [add(client, "suite", name=f"number {number}") for number in range(3)]
    page = client.get("/api/v1/schedules", params={"repository": "kernels", "limit": 2}).json()
    assert [row["id"] for row in page["items"]] == ids[:0:-1]
    rest = client.get("/api/v1/schedules", params={"limit": 2, "before": page["next_before"]}).json()
    assert ([row["id"] for row in rest["items"]], rest["next_before"]) == (ids[:1], None)
    lines = client.get("/api/v1/schedules.csv").text.splitlines()
    assert lines[0].startswith("id,repository,name,kind,cron")
    assert len(lines) == 4
    assert client.get("/api/v1/schedules", params={"repository": "nowhere"}).status_code == 404
