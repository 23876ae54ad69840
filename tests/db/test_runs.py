"""The life of a run, and the fence: what a run that lost its job may not do."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
from sqlalchemy import text

from tests.db.conftest import ENVIRONMENT, World, outcome
from tests.rewording import stored
from warpwatch.contract.activities import RunTimes
from warpwatch.contract.claims import ClaimedJob
from warpwatch.contract.spec import JobRequest, JobSpec
from warpwatch.contract.words import JobKind, JobState, RunState
from warpwatch.db import live, runs, submissions
from warpwatch.db.errors import OutcomeError, StaleRunError, StateError
from warpwatch.db.leases import Reaper
from warpwatch.db.models import JobRecord, PointRecord, RunRecord
from warpwatch.db.reads.work import read_job

RESULT_TABLES = ["results", "points", "samples", "series", "builds", "environments", "traces", "comparisons"]


class Clock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def begin(world: World, job_id: int) -> ClaimedJob:
    with world.database.session() as s:
        order = runs.begin_run(s, job_id, world.worker)
    assert order is not None
    return order


def finish(world: World, run_id: int, median: float = 1000.0) -> None:
    with world.database.session() as s:
        runs.finish_run(s, run_id, outcome(median))


def sweep(world: World, reaper: Reaper, clock: Clock, seconds: float) -> list[int]:
    """Sweeps five times per lease for so long, as a process does; the jobs given back."""
    given_back: list[int] = []
    for _ in range(round(seconds / 3)):
        clock.now += 3
        with world.database.session() as s:
            given_back += reaper.sweep(s)
    return given_back


def test_a_run_knows_everything_the_worker_needs(world: World) -> None:
    order = begin(world, world.job("compare", commit=1, base=0))
    expected = JobRequest(JobKind.COMPARE, "/srv/example", "b" * 40, "kron", JobSpec(), "a" * 40)
    assert (order.request, order.attempt) == (expected, 1)


def test_a_run_keeps_what_it_spent_its_time_on(world: World) -> None:
    job_id = world.job()
    run_id = begin(world, job_id).run_id
    with world.database.session() as s:
        runs.finish_run(s, run_id, outcome(), times=RunTimes(samples=0.25, record=0.5))
    with world.database.session() as s:
        detail = read_job(s, job_id)
    assert detail is not None
    (run,) = detail.runs
    assert run.times is not None
    assert run.times.samples == 0.25
    assert run.times.record > 0.5, "writing the results counts too"
    assert run.finished_at is not None
    wall = (run.finished_at - run.started_at).total_seconds()
    assert run.rest_seconds == max(0.0, wall - run.times.total)


def test_a_job_is_given_to_one_run_only(world: World) -> None:
    job_id = world.job()
    begin(world, job_id)
    with world.database.session() as s:
        assert runs.begin_run(s, job_id, world.worker) is None


def test_two_workers_that_claim_at_once_get_one_run(world: World) -> None:
    job_id = world.job()
    barrier, claims = threading.Barrier(4), []

    def claim() -> None:
        barrier.wait()
        with world.database.session() as s:
            claims.append(runs.begin_run(s, job_id, world.worker))

    threads = [threading.Thread(target=claim) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([claim for claim in claims if claim is not None]) == 1


def test_finishing_records_and_ends_the_job(world: World, counted: Callable[[str], int]) -> None:
    order = begin(world, world.job())
    finish(world, order.run_id)
    assert world.look(order.job_id).state == JobState.DONE
    assert counted("results") == counted("points") == counted("samples") == 2


def test_a_run_is_recorded_once(world: World, counted: Callable[[str], int]) -> None:
    order = begin(world, world.job())
    finish(world, order.run_id)
    with pytest.raises(StaleRunError):
        finish(world, order.run_id)
    assert counted("points") == 2


def test_finishing_twice_at_once_records_once(world: World, counted: Callable[[str], int]) -> None:
    order = begin(world, world.job())
    barrier, refused = threading.Barrier(2), []

    def finish_once() -> None:
        barrier.wait()
        try:
            finish(world, order.run_id)
        except StaleRunError as error:
            refused.append(error)

    threads = [threading.Thread(target=finish_once) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 1
    assert counted("results") == 2


def test_finishing_waits_for_whoever_looks_at_the_job_just_now(world: World) -> None:
    order = begin(world, world.job())
    finishing = threading.Thread(target=finish, args=[world, order.run_id])
    with world.database.session() as s:
        runs.set_progress(s, order.run_id, 1, 2, "v1")
        finishing.start()
        finishing.join(0.5)
        assert finishing.is_alive()
    finishing.join()
    assert world.look(order.job_id).state == JobState.DONE


def test_a_run_that_ended_owns_nothing(world: World) -> None:
    order = begin(world, world.job())
    with world.database.session() as s:
        s.get_one(RunRecord, order.run_id).state = RunState.LOST
    with pytest.raises(StaleRunError):
        finish(world, order.run_id)
    with pytest.raises(StaleRunError), world.database.session() as s:
        runs.lock_owned_run(s, order.run_id + 99)


def test_measuring_a_commit_again_adds_a_later_point(world: World) -> None:
    for median in (1000.0, 2000.0):
        finish(world, begin(world, world.job()).run_id, median)
    with world.database.session() as s:
        medians = s.query(PointRecord.median_ns).order_by(PointRecord.series_id, PointRecord.id).all()
    assert [m for (m,) in medians] == [1000.0, 2000.0, 1000.0, 2000.0]


def test_a_paused_worker_that_wakes_up_after_its_lease_writes_nothing(
    world: World, counted: Callable[[str], int]
) -> None:
    clock = Clock()
    reaper = Reaper(15, clock=clock)
    stale = begin(world, world.job())
    assert sweep(world, reaper, clock, 21) == [stale.job_id]
    fresh = begin(world, stale.job_id)
    assert fresh.attempt == stale.attempt + 1
    with world.database.session() as s:
        assert runs.heartbeat(s, stale.run_id) == "lost"
        assert runs.heartbeat(s, fresh.run_id) == "continue"
    before = {table: counted(table) for table in [*RESULT_TABLES, "run_logs"]}
    for write in (
        lambda s: runs.finish_run(s, stale.run_id, outcome()),
        lambda s: runs.fail_run(s, stale.run_id, "woke up", retry=True),
        lambda s: runs.release_run(s, stale.run_id),
        lambda s: runs.append_log(s, stale.run_id, "woke up"),
        lambda s: runs.set_progress(s, stale.run_id, 1, 2, "woke up"),
    ):
        with pytest.raises(StaleRunError), world.database.session() as s:
            write(s)
    assert {table: counted(table) for table in before} == before
    assert world.look(stale.job_id).state == JobState.RUNNING
    finish(world, fresh.run_id)
    assert counted("results") == 2


def test_a_worker_that_lives_keeps_its_job(world: World) -> None:
    clock = Clock()
    reaper = Reaper(15, clock=clock)
    order = begin(world, world.job())
    for _ in range(20):
        assert sweep(world, reaper, clock, 3) == []
        with world.database.session() as s:
            assert runs.heartbeat(s, order.run_id) == "continue"


def test_an_outage_costs_nobody_his_job(world: World) -> None:
    clock = Clock()
    reaper = Reaper(15, clock=clock)
    order = begin(world, world.job())
    sweep(world, reaper, clock, 9)
    # A minute in which nobody could reach the database: neither the worker nor the reaper.
    clock.now += 60
    assert sweep(world, reaper, clock, 12) == []
    assert world.look(order.job_id).state == JobState.RUNNING
    assert sweep(world, reaper, clock, 9) == [order.job_id]


def test_a_job_fails_when_its_last_run_is_lost(world: World) -> None:
    clock = Clock()
    reaper = Reaper(15, clock=clock)
    job_id = world.job()
    for _ in range(runs.ATTEMPTS):
        begin(world, job_id)
        assert sweep(world, reaper, clock, 21) == [job_id]
    job = world.look(job_id)
    assert (job.state, job.attempt) == (JobState.FAILED, 3)
    assert job.message


def test_a_cancelled_job_tells_its_worker_and_takes_no_results(world: World, counted: Callable[[str], int]) -> None:
    order = begin(world, world.job())
    with world.database.session() as s:
        assert submissions.cancel_job(s, order.job_id)
    assert world.look(order.job_id).state == JobState.CANCELLED
    with world.database.session() as s:
        assert runs.heartbeat(s, order.run_id) == "cancel"
        runs.append_log(s, order.run_id, "stopping\n")
    with pytest.raises(StaleRunError):
        finish(world, order.run_id)
    with world.database.session() as s:
        runs.cancelled_run(s, order.run_id)
        assert runs.heartbeat(s, order.run_id) == "lost"
        assert s.get_one(RunRecord, order.run_id).state == RunState.CANCELLED
        assert not submissions.cancel_job(s, order.job_id)
    assert counted("results") == 0


def test_a_job_cancelled_and_retried_at_once_does_not_belong_to_its_old_run(world: World) -> None:
    order = begin(world, world.job())
    with world.database.session() as s:
        submissions.cancel_job(s, order.job_id)
    with world.database.session() as s:
        submissions.retry_job(s, order.job_id)
    with world.database.session() as s:
        assert runs.heartbeat(s, order.run_id) == "lost"
        assert s.get_one(RunRecord, order.run_id).state == RunState.CANCELLED
    with pytest.raises(StaleRunError):
        finish(world, order.run_id)
    finish(world, begin(world, order.job_id).run_id)


def test_a_dead_worker_of_a_cancelled_job_brings_nothing_back(world: World) -> None:
    clock = Clock()
    order = begin(world, world.job())
    with world.database.session() as s:
        submissions.cancel_job(s, order.job_id)
    sweep(world, Reaper(15, clock=clock), clock, 21)
    with world.database.session() as s:
        assert s.get_one(RunRecord, order.run_id).state == RunState.LOST
    assert world.look(order.job_id).state == JobState.CANCELLED


def test_handing_a_job_back_costs_no_attempt(world: World) -> None:
    job_id = world.job()
    for _ in range(5):
        order = begin(world, job_id)
        with world.database.session() as s:
            runs.release_run(s, order.run_id)
        assert world.look(job_id).state == JobState.QUEUED
    order = begin(world, job_id)
    with world.database.session() as s:
        runs.fail_run(s, order.run_id, "no compiler", retry=True)
    assert world.look(job_id).state == JobState.QUEUED


def test_a_failure_is_retried_only_as_often_as_allowed(world: World) -> None:
    job_id = world.job()
    for expected in (JobState.QUEUED, JobState.QUEUED, JobState.FAILED):
        order = begin(world, job_id)
        with world.database.session() as s:
            runs.fail_run(s, order.run_id, "no compiler", retry=True)
        assert world.look(job_id).state == expected
    assert world.look(job_id).message == stored("no compiler")
    with world.database.session() as s:
        submissions.retry_job(s, job_id)
    job = world.look(job_id)
    assert (job.state, job.max_attempts, job.message) == (JobState.QUEUED, 6, "")


def test_a_failure_that_a_retry_cannot_mend_is_final(world: World) -> None:
    order = begin(world, world.job())
    with world.database.session() as s:
        runs.fail_run(s, order.run_id, "unknown contract 7", retry=False)
    assert world.look(order.job_id).state == JobState.FAILED


def test_a_waiting_job_cannot_be_retried(world: World) -> None:
    job_id = world.job()
    with pytest.raises(StateError, match="still queued"), world.database.session() as s:
        submissions.retry_job(s, job_id)


def test_an_outcome_of_another_device_is_refused_whole(world: World, counted: Callable[[str], int]) -> None:
    order = begin(world, world.job())
    strange = outcome(environment=replace(ENVIRONMENT, key="f" * 64, device_key="other"))
    with pytest.raises(OutcomeError, match="for the device test-cpu"), world.database.session() as s:
        runs.finish_run(s, order.run_id, strange)
    assert world.look(order.job_id).state == JobState.RUNNING
    assert counted("environments") == counted("results") == 0


def test_logs_survive_what_programs_print(world: World) -> None:
    order = begin(world, world.job())
    with world.database.session() as s:
        runs.append_log(s, order.run_id, "a\0b \udcff\n")
        assert s.scalars(text("SELECT text FROM run_logs")).all() == ["a\ufffdb ?\n"]


def test_progress_is_shown_while_the_run_owns_the_job(world: World) -> None:
    order = begin(world, world.job())
    with world.database.session() as s:
        runs.set_progress(s, order.run_id, 1, 4, "v1")
    assert world.look(order.job_id).progress == {"done": 1, "total": 4, "text": "v1", "cell": None}
    finish(world, order.run_id)
    assert world.look(order.job_id).progress is None


def test_heartbeats_go_on_while_results_are_being_written(world: World) -> None:
    order = begin(world, world.job())
    with world.database.session() as writing:
        runs.lock_owned_run(writing, order.run_id)
        with world.database.session() as s:
            s.execute(text("SET LOCAL lock_timeout = '2s'"))
            assert runs.heartbeat(s, order.run_id) == "continue"


def test_a_run_that_is_writing_its_results_is_not_taken_away(world: World) -> None:
    order = begin(world, world.job())
    with world.database.session() as writing:
        runs.finish_run(writing, order.run_id, outcome())
        with world.database.session() as s:
            assert runs.lose_run(s, order.run_id, "silent") is None
    assert world.look(order.job_id).state == JobState.DONE


def test_changes_are_announced(world: World) -> None:
    async def hear() -> list[dict[str, object]]:
        heard = []
        async with asyncio.timeout(10):
            async with contextlib.aclosing(live.listen(world.database.url)) as events:  # type: ignore[type-var]
                async for event in events:
                    heard.append(event)
                    if event["type"] == "connected":
                        await asyncio.to_thread(lambda: finish(world, begin(world, world.job()).run_id))
                    if len(heard) == 5:
                        return heard
        return heard

    heard = asyncio.run(hear())
    assert [event["type"] for event in heard] == ["connected", "queued", "state", "state", "state"]
    assert heard[0]["job"] is None
    with world.database.session() as s:
        job = s.query(JobRecord).one()
    assert heard[-1] == {"type": "state", "job": job.id, "submission": job.submission_id, "device": None}


def test_waiting_jobs_are_listed_in_the_order_of_the_queue(world: World) -> None:
    running, first, urgent = world.job("bench"), world.job("check", commit=1), world.job("profile", priority=5)
    with world.database.session() as s:
        runs.begin_run(s, running, world.worker)
    with world.database.session() as s:
        waiting = runs.list_waiting(s, world.device, 5)
        assert [(request.kind, request.sha[0]) for request in waiting] == [("profile", "a"), ("check", "b")]
        assert runs.list_waiting(s, world.device, 1) == waiting[:1]
        assert runs.list_waiting(s, world.device + 1, 5) == []
    assert first < urgent
