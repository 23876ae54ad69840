"""Alarms come with their cause, say what to do, and go with it."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from tests.apps import create_app
from tests.builders import CASES, GPU, Lab, catalogue
from tests.rewording import stored
from tests.worker.conftest import Diary
from tests.worker.test_gate import HOT, Device
from warpwatch.contract.codec import to_json
from warpwatch.contract.words import Status
from warpwatch.db import registry, runs
from warpwatch.db.reads.alarms import ELASTIC_SECONDS, PACE_LEAST_SECONDS
from warpwatch.db.reads.missing import BEFORE, MISSING_DAYS, VANISHED_DAYS
from warpwatch.db.submissions import cancel_job
from warpwatch.server.explanation.alarms import AlarmRow, list_alarms
from warpwatch.server.http.alarm_cache import KEPT_SECONDS, Alarms
from warpwatch.settings import Settings
from warpwatch.worker import gate
from warpwatch.worker.reporter import UnhealthyError

V1, V2 = ("v1", CASES[0]), ("v2", CASES[0])
LEASE = 15.0


def alarms(lab: Lab, after: timedelta = timedelta(0)) -> list[AlarmRow]:
    with lab.database.session() as session:
        return list_alarms(session, datetime.now(UTC) + after, LEASE, lab.repository)


def change(lab: Lab, sql: str, **values: Any) -> None:
    with lab.database.session() as session:
        session.execute(text(sql), values)


def measure(
    lab: Lab, *indices: int, operators: tuple[str, ...] = ("square", "cube"), cells: Mapping[Any, Any] | None = None
) -> None:
    lab.operators = ("square", "cube")
    for index in indices:
        for operator in operators:
            lab.bench(index, cells or {V1: 10_000.0, V2: 10_000.0}, operator=operator)


def ask_for_all(client: TestClient, lab: Lab, index: int) -> list[dict[str, Any]]:
    body = {"repository": "kernels", "commits": lab.shas[index], "kinds": ["bench"]}
    answer = client.post("/api/v1/submissions", json=body)
    assert answer.status_code == 201, answer.text
    rows: list[dict[str, Any]] = client.get("/api/v1/jobs", params={"submission": answer.json()["id"]}).json()["items"]
    return rows


def test_where_all_is_well_there_is_no_alarm(lab: Lab) -> None:
    measure(lab, 0, 1, 2, 3)
    lab.submit("bench", 4)
    assert alarms(lab) == []


def test_two_workers_on_one_device(lab: Lab) -> None:
    with lab.database.session() as session:
        device = registry.ensure_device(session, "test-gpu", "cuda", "Test GPU")
        for name, physical in (("here-1", "GPU-a"), ("here-2", "GPU-b")):
            registry.register_worker(session, name, device, "1", {"physical": physical})
    assert alarms(lab) == [], "two GPUs of one model"
    with lab.database.session() as session:
        second = registry.register_worker(session, "container-1", device, "1", {"physical": "GPU-a"})
    (alarm,) = alarms(lab)
    assert (alarm.kind, alarm.device_key) == ("shared_device", "test-gpu")
    with lab.database.session() as session:
        registry.stop_worker(session, second)
    assert alarms(lab) == []


def test_jobs_without_a_worker_for_longer_than_a_lease(client: TestClient, lab: Lab) -> None:
    job = lab.submit("bench", 0)
    change(lab, "UPDATE workers SET heartbeat_at = now() - interval '10 minutes'")
    change(lab, "UPDATE jobs SET created_at = now() - interval '10 seconds'")
    assert alarms(lab) == []
    change(lab, "UPDATE jobs SET created_at = now() - interval '20 seconds'")
    (found,) = alarms(lab)
    assert (found.kind, found.device_key, found.job_id) == ("stale_device", "test-cpu", job)
    assert found.message == "1 job waits for Test CPU, and no worker for it is alive"
    assert "`warpwatch worker --device cpu`" in found.remedy
    change(lab, "UPDATE devices SET is_elastic = true")
    assert alarms(lab) == [], "a scheduler may take a while to start a worker"
    assert [row.kind for row in alarms(lab, after=timedelta(seconds=ELASTIC_SECONDS))] == ["stale_device"]
    change(lab, "UPDATE devices SET is_elastic = false")
    change(lab, "UPDATE workers SET heartbeat_at = now()")
    assert alarms(lab) == []


def test_a_worker_that_works_and_gives_nothing(lab: Lab) -> None:
    lab.bench(0, {V1: 10_000.0})
    job = lab.submit("bench", 1)
    lab.begin(job)
    change(lab, "UPDATE jobs SET created_at = now() - interval '1 day'")
    change(lab, "UPDATE workers SET started_at = now() - interval '1 day', heartbeat_at = now() + interval '1 day'")
    late = timedelta(seconds=PACE_LEAST_SECONDS)
    assert alarms(lab, late * 0.9) == []
    (found,) = alarms(lab, late * 1.1)
    assert (found.kind, found.job_id, found.device_key) == ("stale_worker", job, "test-cpu")
    assert f"it is at job {job}" in found.message
    # One whose jobs take an hour is not late after eleven minutes.
    change(lab, "UPDATE runs SET started_at = started_at - interval '1 hour' WHERE state = 'done'")
    assert alarms(lab, late * 1.1) == []
    assert alarms(lab, timedelta(hours=6))[0].kind == "stale_worker"
    change(lab, "UPDATE jobs SET state = 'cancelled' WHERE state = 'running'")
    assert alarms(lab, timedelta(hours=6)) == []


def test_a_worker_without_work_is_not_late(lab: Lab) -> None:
    lab.bench(0, {V1: 10_000.0})
    change(lab, "UPDATE workers SET heartbeat_at = now() + interval '1 day'")
    assert alarms(lab, timedelta(hours=20)) == []


def test_an_unfit_device(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The alarm ends with the next good measurement."""
    monkeypatch.setattr(gate, "WAIT_SECONDS", 0)
    with pytest.raises(UnhealthyError, match="91 °C") as caught:
        gate.expect_healthy(Device(HOT), "cuda:0", None, Diary(), gate.LastCanary())
    lab.switch(GPU)
    job = lab.submit("bench", 0)
    run = lab.begin(job)
    with lab.database.session() as session:
        registry.set_trouble(session, lab.worker, str(caught.value))
        runs.fail_run(session, run, str(caught.value), retry=False, reason=caught.value.reason)
    (found,) = alarms(lab)
    assert (found.kind, found.device_key, found.job_id) == ("unfit", "test-gpu", job)
    assert found.message == f"Test GPU: {stored(str(caught.value))}; 1 job failed for it"
    with lab.database.session() as session:
        registry.set_trouble(session, lab.worker, "")
    assert [row.kind for row in alarms(lab)] == ["unfit"]
    lab.bench(1, {V1: 10_000.0})
    assert alarms(lab) == []


def test_an_operator_that_got_no_times_where_others_did(client: TestClient, lab: Lab) -> None:
    measure(lab, *range(BEFORE))
    waiting = ask_for_all(client, lab, BEFORE)
    by_operator = {row["operator"]: row["id"] for row in waiting}
    lab.finish(by_operator["cube"], lab.outcome([lab._timed(*V1, 10_000.0, 0.002), lab._timed(*V2, 10_000.0, 0.002)]))
    assert alarms(lab) == [], "a job that waits is not missing"
    run = lab.begin(by_operator["square"])
    with lab.database.session() as session:
        runs.fail_run(session, run, "no compiler", retry=False)
    (found,) = alarms(lab)
    assert (found.kind, found.operator, found.commit_sha) == ("missing", "square", lab.shas[BEFORE])
    assert found.job_id == by_operator["square"]
    assert found.message.endswith(f"job {found.job_id} failed: {stored('no compiler')}")
    assert f"`warpwatch retry --job {found.job_id}`" in found.remedy
    measure(lab, BEFORE, operators=("square",))
    assert alarms(lab) == []


def test_what_was_left_out_or_cancelled_is_not_missing(client: TestClient, lab: Lab) -> None:
    measure(lab, *range(BEFORE))
    jobs = {row["operator"]: row["id"] for row in ask_for_all(client, lab, BEFORE)}
    lab.finish(jobs["cube"], lab.outcome([lab._timed(*V1, 10_000.0, 0.002), lab._timed(*V2, 10_000.0, 0.002)]))
    with lab.database.session() as session:
        cancel_job(session, jobs["square"])
    assert alarms(lab) == []
    change(
        lab,
        "UPDATE jobs SET state = 'done', attempt = 0, reason = 'unchanged' WHERE id = :id",
        id=jobs["square"],
    )
    assert alarms(lab) == []


def test_who_asks_for_one_operator_does_not_miss_the_others(client: TestClient, lab: Lab) -> None:
    measure(lab, *range(BEFORE))
    measure(lab, BEFORE, operators=("cube",))
    assert alarms(lab) == []


def test_an_operator_that_left_the_catalogue(client: TestClient, lab: Lab) -> None:
    measure(lab, *range(BEFORE))
    measure(lab, BEFORE, operators=("cube",))
    change(
        lab,
        "UPDATE commits SET catalogue = CAST(:c AS jsonb) WHERE sha = :sha",
        c=json.dumps(to_json(catalogue(("cube",)))),
        sha=lab.shas[BEFORE],
    )
    (found,) = alarms(lab)
    assert (found.kind, found.operator) == ("vanished", "square")
    assert found.message == (
        f"square is not in the catalogue of {lab.shas[BEFORE][:8]} any more; "
        f"it was last measured on Test CPU at {lab.shas[BEFORE - 1][:8]}"
    )
    assert alarms(lab, timedelta(days=VANISHED_DAYS + 1)) == [], "what is gone for long was meant to go"


def test_an_operator_that_was_asked_for_and_got_no_job(client: TestClient, lab: Lab) -> None:
    measure(lab, *range(BEFORE))
    jobs = {row["operator"]: row["id"] for row in ask_for_all(client, lab, BEFORE)}
    lab.finish(jobs["cube"], lab.outcome([lab._timed(*V1, 10_000.0, 0.002), lab._timed(*V2, 10_000.0, 0.002)]))
    change(lab, "DELETE FROM jobs WHERE id = :id", id=jobs["square"])
    (found,) = alarms(lab)
    assert (found.kind, found.operator, found.variant) == ("missing", "square", "")
    assert (
        f"`warpwatch submit --repository kernels --commit {lab.shas[BEFORE][:12]} --kinds bench --operators square"
        in found.remedy
    )
    assert alarms(lab, timedelta(days=MISSING_DAYS + 1)) == []
    # A schedule may have left it for a later turn.
    change(
        lab,
        "INSERT INTO schedules (repository_id, name, kind, cron, request, budget_minutes) "
        "VALUES (:r, 's', 'suite', '', '{}', 1)",
        r=lab.repository,
    )
    change(lab, "UPDATE submissions SET schedule_id = (SELECT id FROM schedules)")
    assert alarms(lab) == []


def test_a_cell_without_a_word(lab: Lab) -> None:
    measure(lab, *range(BEFORE), operators=("square",), cells={V1: 1e4, V2: 1e4, ("v2", CASES[1]): 1e4})
    measure(lab, BEFORE, operators=("square",), cells={V1: 1e4})
    (found,) = alarms(lab)
    assert (found.kind, found.variant, found.cases) == ("missing", "v2", [CASES[1], CASES[0]])
    assert found.message.startswith(f"v2 of square has no result for 2 cases at {lab.shas[BEFORE][:8]} on Test CPU")
    assert "--operators square --variants v2 --suite quick --device test-cpu`" in found.remedy


def test_a_status_is_a_word(lab: Lab) -> None:
    measure(lab, *range(BEFORE), operators=("square",))
    measure(lab, BEFORE, operators=("square",), cells={V1: 1e4, V2: Status.CRASHED})
    assert alarms(lab) == []


def test_a_history_too_short_misses_nothing(lab: Lab) -> None:
    measure(lab, *range(BEFORE - 1), operators=("square",))
    measure(lab, BEFORE, operators=("square",), cells={V1: 1e4})
    assert alarms(lab) == []
    measure(lab, BEFORE + 1, operators=("cube",))
    left = json.dumps(to_json(catalogue(("cube",))))
    change(lab, "UPDATE commits SET catalogue = CAST(:c AS jsonb) WHERE sha = :sha", c=left, sha=lab.shas[BEFORE + 1])
    change(lab, "DELETE FROM results WHERE commit_id = :id", id=lab.commits[lab.shas[BEFORE]])
    assert alarms(lab) == []


def test_a_variant_that_left_the_catalogue(lab: Lab) -> None:
    measure(lab, *range(BEFORE), operators=("square",))
    job = lab.submit("bench", BEFORE)
    lab.finish(job, replace(lab.outcome([lab._timed(*V1, 1e4, 0.002)]), catalogue=catalogue(("square",), ("v1",))))
    (found,) = alarms(lab)
    assert (found.kind, found.variant, found.cases) == ("vanished", "v2", [CASES[0]])
    assert found.message.startswith("v2 of square is not in the catalogue of")


def test_a_part_that_was_asked_for_hides_nothing_and_misses_nothing(lab: Lab) -> None:
    """A submission of one variant at a newer commit says nothing of the others."""
    measure(lab, *range(BEFORE + 1), operators=("square",))
    job = lab.submit("bench", BEFORE + 1, variants=["v1"])
    lab.finish(job, lab.outcome([lab._timed(*V1, 1e4, 0.002)]))
    assert alarms(lab) == []


def test_another_repository_misses_its_own(client: TestClient, lab: Lab) -> None:
    measure(lab, *range(BEFORE), operators=("square",))
    measure(lab, BEFORE, operators=("square",), cells={V1: 1e4})
    with lab.database.session() as session:
        other = registry.ensure_repository(session, "other", "/elsewhere")
        assert list_alarms(session, datetime.now(UTC), LEASE, other) == []
        assert len(list_alarms(session, datetime.now(UTC), LEASE)) == 1
    assert client.get("/api/v1/alarms", params={"repository": "other"}).json()["items"] == []
    (row,) = client.get("/api/v1/alarms", params={"repository": "kernels", "kind": "missing"}).json()["items"]
    assert (row["operator"], row["repository"]) == ("square", "kernels")
    assert client.get("/api/v1/alarms", params={"kind": "unfit"}).json()["items"] == []
    lines = client.get("/api/v1/alarms.csv").text.splitlines()
    assert (lines[0].split(",")[0], len(lines)) == ("kind", 2)
    assert client.get("/api/v1/alarms", params={"kind": "loud"}).status_code == 422
    assert client.get("/api/v1/alarms", params={"repository": "nowhere"}).status_code == 404


def test_no_work_is_taken_without_space(lab: Lab, settings: Settings) -> None:
    """Neither from people nor from schedules, while the disk or the database is above its budget."""
    for full in (replace(settings, disk_reserve_bytes=2**60), replace(settings, database_bytes=1)):
        with TestClient(create_app(full, lab.database, judge=False), base_url="http://127.0.0.1:8321") as client:
            body = {"repository": "kernels", "commits": lab.shas[0], "operators": ["square"]}
            assert client.post("/api/v1/submissions", json=body).status_code == 507
            schedule = {"repository": "kernels", "name": full.home.name, "kind": "suite", "operators": ["square"]}
            client.post("/api/v1/schedules", json=schedule)
            client.post("/api/v1/schedules/1/run")
            assert client.get("/api/v1/jobs").json()["items"] == []
            (alarm,) = client.get("/api/v1/alarms").json()["items"]
            assert (alarm["kind"], bool(alarm["remedy"])) == ("no_space", True)
            assert alarm["message"].split(";")[0] in html.unescape(client.get("/alarms").text)


def test_the_count_is_kept_for_a_while(lab: Lab, settings: Settings) -> None:
    moment = [0.0]
    counted = Alarms(replace(settings, lease_seconds=LEASE), clock=lambda: moment[0])
    with lab.database.session() as session:
        assert counted.count(session, lab.repository) == 0
    lab.submit("bench", 0)
    change(lab, "UPDATE workers SET stopped_at = now(), heartbeat_at = now() - interval '1 hour'")
    change(lab, "UPDATE jobs SET created_at = now() - interval '1 hour'")
    with lab.database.session() as session:
        assert counted.count(session, lab.repository) == 0
        moment[0] = KEPT_SECONDS + 1
        assert counted.count(session, lab.repository) == 1


def _json(value: Any) -> str:

    return json.dumps(value)
