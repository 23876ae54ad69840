"""Jobs wait between attempts, outages are no attempts, and a job that takes its workers along ends as a crash."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import select, text

from tests.db.conftest import CATALOGUE, ENVIRONMENT, PEAKS, World
from warpwatch.contract.words import OUTAGES, JobState, Reason
from warpwatch.db import registry, runs, submissions
from warpwatch.db.models import JobRecord, ResultRecord, RunRecord, VariantRecord
from warpwatch.db.reads.alarms import list_paused_workers
from warpwatch.db.reads.devices import list_workers


def begin(world: World, job_id: int) -> int:
    with world.database.session() as s:
        claim = runs.begin_run(s, job_id, world.worker)
    assert claim is not None
    return claim.run_id


def fail(world: World, job_id: int, **options: Any) -> JobRecord:
    run_id = begin(world, job_id)
    with world.database.session() as s:
        runs.fail_run(s, run_id, "it failed", **options)
    return world.look(job_id)


def pause_of(world: World, job_id: int) -> float:
    """Seconds until the job may run again, by the database's clock."""
    with world.database.session() as s:
        seconds = text("SELECT extract(epoch FROM not_before - clock_timestamp())::float FROM jobs WHERE id = :id")
        return float(s.scalars(seconds, {"id": job_id}).one())


def test_attempts_have_growing_pauses_between_them(world: World) -> None:
    job_id = world.job()
    pauses = []
    for _ in range(2):
        assert fail(world, job_id, retry=True, reason=Reason.INTERNAL_ERROR).state == JobState.QUEUED
        pauses.append(pause_of(world, job_id))
    assert 0 < pauses[0] <= runs.FIRST_PAUSE_SECONDS < pauses[1] <= 2 * runs.FIRST_PAUSE_SECONDS
    assert fail(world, job_id, retry=True).state == JobState.FAILED


@pytest.mark.parametrize("reason", sorted(OUTAGES))
def test_an_outage_is_no_attempt(world: World, reason: Reason) -> None:
    job_id = world.job()
    for count in range(1, 9):
        job = fail(world, job_id, retry=True, reason=reason)
        assert (job.state, job.reason, job.outages, job.max_attempts - job.attempt) == ("queued", reason, count, 3)
    assert pause_of(world, job_id) <= runs.LONGEST_PAUSE_SECONDS
    with world.database.session() as s:
        s.execute(text("UPDATE jobs SET outages = :most"), {"most": runs.MAX_OUTAGES})
    assert fail(world, job_id, retry=True, reason=reason).state == JobState.FAILED


def test_a_person_who_retries_does_not_wait(world: World) -> None:
    job_id = world.job()
    for _ in range(3):
        fail(world, job_id, retry=True)
    with world.database.session() as s:
        submissions.retry_job(s, job_id)
    job = world.look(job_id)
    assert (job.not_before, job.outages) == (None, 0)


def describe_worker(world: World) -> None:
    """What a worker writes when it starts, and what an earlier job of the commit recorded."""
    with world.database.session() as s:
        environment_id, _ = registry.ensure_environment(s, ENVIRONMENT, PEAKS)
        registry.register_worker(s, "node-1-cpu", world.device, "0.1.0", {"environment_id": environment_id})
        registry.record_catalogue(s, world.commits[0], CATALOGUE)


def lose(world: World, job_id: int, cell: tuple[str, str] | None) -> JobRecord:
    run_id = begin(world, job_id)
    with world.database.session() as s:
        runs.set_progress(s, run_id, 1, 4, "at work", cell)
        runs.lose_run(s, run_id, "silent")
    return world.look(job_id)


def test_a_job_that_took_its_workers_along_ends_as_the_crash_of_its_kernel(world: World) -> None:
    describe_worker(world)
    job_id = world.job("check")
    for expected in (JobState.QUEUED, JobState.QUEUED, JobState.FAILED):
        job = lose(world, job_id, ("v1", "n=32 f32 fwd"))
        assert (job.state, job.reason) == (expected, Reason.WORKER_LOST)
    with world.database.session() as s:
        (result,) = s.scalars(select(ResultRecord)).all()
        last = s.scalars(select(RunRecord).order_by(RunRecord.attempt.desc())).first()
        assert last is not None
        assert (result.status, result.run_id, result.commit_id) == ("crashed", last.id, world.commits[0])
        assert s.get_one(VariantRecord, result.variant_id).name == "v1"


@pytest.mark.parametrize("cell", [None, ("v1", "a case that nobody knows")])
def test_without_a_known_case_the_job_fails_alone(world: World, cell: tuple[str, str] | None) -> None:
    describe_worker(world)
    job_id = world.job("check")
    assert [lose(world, job_id, cell).state for _ in range(3)][-1] == JobState.FAILED
    with world.database.session() as s:
        assert s.scalars(select(ResultRecord)).all() == []


def test_a_worker_that_pauses_is_shown_and_resumes(world: World) -> None:
    def look() -> tuple[str, str | None, list[str]]:
        with world.database.session() as s:
            registry.worker_heartbeat(s, world.worker)
            now: datetime = s.scalars(text("SELECT clock_timestamp()")).one()
            (worker,) = list_workers(s)
            return worker.state, worker.pause_reason, [row.worker for row in list_paused_workers(s, now, 15)]

    assert look() == ("alive", None, [])
    with world.database.session() as s:
        registry.pause_worker(s, world.worker, 60, Reason.DISK_FULL)
    assert look() == ("paused", "disk_full", ["node-1-cpu"])
    with world.database.session() as s:
        registry.resume_worker(s, world.worker)
    assert look() == ("alive", None, [])
