"""Running jobs make room for more urgent ones, keep what they found, and go on."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select, text

from tests.db.conftest import ENVIRONMENT, World, outcome, timed
from warpwatch.contract.claims import ClaimedJob
from warpwatch.contract.outcome import Comparison, Finding, PartialOutcome
from warpwatch.contract.words import RESUMABLE, JobState, RunState, Status
from warpwatch.db import registry, runs, submissions
from warpwatch.db.errors import StaleRunError
from warpwatch.db.models import JobRecord, PartialOutcomeRecord, RunRecord
from warpwatch.db.reads.work import read_job
from warpwatch.db.urgent import find_urgent

LEASE = 15.0
PARTIAL = PartialOutcome(
    ENVIRONMENT.key,
    [timed("v1", "n=16 f32 fwd"), Finding("v1", "n=32 f32 fwd", Status.CRASHED)],
    [
        Comparison(
            "v1", "n=16 f32 fwd", "graph", "2", Status.OK, base_ns=[1.0], head_ns=[2.0], again=[1.0], waited=[1.1]
        )
    ],
)


def begin(world: World, job_id: int, worker: int | None = None) -> ClaimedJob:
    with world.database.session() as s:
        claim = runs.begin_run(s, job_id, worker or world.worker)
    assert claim is not None
    return claim


def urgent(world: World, run_id: int) -> int | None:
    with world.database.session() as s:
        return find_urgent(s, run_id, sorted(RESUMABLE), LEASE)


def yield_to(world: World, run_id: int, urgent_job_id: int, partial: PartialOutcome | None = PARTIAL) -> None:
    with world.database.session() as s:
        runs.yield_run(s, run_id, urgent_job_id, partial)


def stored(world: World) -> list[int]:
    """Jobs of which something is kept."""
    with world.database.session() as s:
        return list(s.scalars(select(PartialOutcomeRecord.job_id)))


def test_a_run_makes_room_for_higher_priority_alone(world: World) -> None:
    run = begin(world, world.job()).run_id
    assert urgent(world, run) is None
    world.job(priority=0)
    world.job(priority=-5)
    assert urgent(world, run) is None
    first, higher = world.job(priority=1), world.job(priority=2)
    assert urgent(world, run) == higher
    with world.database.session() as s:
        s.get_one(JobRecord, higher).not_before = datetime.now(UTC) + timedelta(hours=1)
    assert urgent(world, run) == first, "the other one may not run yet"
    with world.database.session() as s:
        submissions.cancel_job(s, first)
    assert urgent(world, run) is None


def test_an_idle_worker_takes_the_urgent_job_instead(world: World) -> None:
    run = begin(world, world.job()).run_id
    world.job(priority=1)
    with world.database.session() as s:
        idle = registry.register_worker(s, "node-2-cpu", world.device, "0.1.0", {})
    assert urgent(world, run) is None
    second = world.job(priority=1)
    assert urgent(world, run) == second
    with world.database.session() as s:
        registry.stop_worker(s, idle)
    assert urgent(world, run) is not None


def test_of_several_runs_only_as_many_make_room_as_are_needed(world: World) -> None:
    with world.database.session() as s:
        workers = [registry.register_worker(s, f"node-{n}-cpu", world.device, "0.1.0", {}) for n in (2, 3)]
    older, newer = world.job(), world.job()
    profile = world.job("profile")
    runs_of = {
        job: begin(world, job, worker).run_id
        for job, worker in zip((older, newer, profile), (world.worker, *workers), strict=True)
    }
    first = world.job(priority=1)
    assert [urgent(world, runs_of[job]) for job in (older, newer)] == [None, first], "a profile makes no room"
    second = world.job(priority=1)
    assert [urgent(world, runs_of[job]) for job in (older, newer)] == [second, first]


def test_a_yield_is_no_attempt_and_the_next_run_goes_on(world: World) -> None:
    job_id, urgent_id = world.job(), world.job(priority=1)
    for attempt in range(1, 2 * runs.ATTEMPTS):
        claim = begin(world, job_id)
        assert claim.attempt == attempt
        assert claim.partial == (PARTIAL if attempt > 1 else None)
        yield_to(world, claim.run_id, urgent_id)
        job = world.look(job_id)
        assert (job.state, job.not_before) == (JobState.QUEUED, None)
    with world.database.session() as s:
        detail = read_job(s, job_id)
    assert detail is not None
    assert (detail.runs[-1].state, detail.runs[-1].yielded_to_job_id) == (RunState.YIELDED, urgent_id)


def test_what_is_kept_outlives_a_lost_run_and_ends_with_the_job(world: World) -> None:
    job_id, urgent_id = world.job(), world.job(priority=1)
    yield_to(world, begin(world, job_id).run_id, urgent_id)
    lost = begin(world, job_id).run_id
    with world.database.session() as s:
        runs.lose_run(s, lost, "silent")
    yield_to(world, begin(world, job_id).run_id, urgent_id, None)
    claim = begin(world, job_id)
    assert claim.partial == PARTIAL
    with world.database.session() as s:
        runs.finish_run(s, claim.run_id, outcome())
    assert stored(world) == []
    assert world.look(job_id).state == JobState.DONE


@pytest.mark.parametrize("is_running", [False, True])
def test_a_cancelled_job_is_measured_anew_when_it_is_retried(world: World, is_running: bool) -> None:
    job_id = world.job()
    yield_to(world, begin(world, job_id).run_id, world.job(priority=1))
    run = begin(world, job_id).run_id if is_running else None
    with world.database.session() as s:
        submissions.cancel_job(s, job_id)
    assert stored(world) == []
    if run is not None:
        with pytest.raises(StaleRunError):
            yield_to(world, run, 1)
    with world.database.session() as s:
        submissions.retry_job(s, job_id)
    assert begin(world, job_id).partial is None


def test_a_run_that_lost_its_job_keeps_nothing(world: World) -> None:
    job_id = world.job()
    run = begin(world, job_id).run_id
    with world.database.session() as s:
        runs.lose_run(s, run, "silent")
    with pytest.raises(StaleRunError):
        yield_to(world, run, 1)
    assert stored(world) == []
    with world.database.session() as s:
        assert s.get_one(RunRecord, run).yielded_to_job_id is None


def test_a_stopped_worker_hands_back_what_it_found(world: World) -> None:
    job_id = world.job()
    run = begin(world, job_id).run_id
    with world.database.session() as s:
        runs.release_run(s, run, PARTIAL)
    assert begin(world, job_id).partial == PARTIAL


def test_what_a_later_version_cannot_read_is_measured_again(world: World) -> None:
    job_id = world.job()
    yield_to(world, begin(world, job_id).run_id, 1, replace(PARTIAL, findings=PARTIAL.findings[:1]))
    with world.database.session() as s:
        s.execute(text("UPDATE partial_outcomes SET findings = '[{\"variant\": 1}]'"))
    assert begin(world, job_id).partial is None
