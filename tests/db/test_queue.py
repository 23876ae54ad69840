"""The rows of the jobs are the queue: each is claimed by one worker, in order of priority, and found by an index."""

from __future__ import annotations

import contextlib
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from tests.conftest import FAST_AND_FORGETFUL
from tests.db.conftest import World, make_world, outcome
from warpwatch.contract.claims import ClaimedJob
from warpwatch.contract.spec import JobSpec
from warpwatch.contract.words import JobState, Reason
from warpwatch.db import embedded, migrate, registry, runs, submissions
from warpwatch.db.database import Database
from warpwatch.db.errors import EngineError

MANY = 100_000


def claim(world: World) -> ClaimedJob | None:
    with world.database.session() as s:
        return runs.claim_next(s, world.device, world.worker)


def claim_all(world: World) -> list[int]:
    """The ids of all jobs that may run now, in the order in which they are given away."""
    return [job.job_id for job in iter(lambda: claim(world), None)]


def test_a_submission_that_is_rolled_back_leaves_nothing(world: World, counted: Callable[[str], int]) -> None:
    new = submissions.NewJob("bench", world.commits[0], world.operator, world.device, JobSpec())
    with contextlib.suppress(RuntimeError), world.database.session() as s:
        submissions.create_submission(s, submissions.NewSubmission(world.repository, {}, [new]))
        raise RuntimeError
    assert counted("submissions") == counted("jobs") == 0


def test_the_most_urgent_job_comes_first_and_the_oldest_of_a_priority(world: World) -> None:
    jobs = [world.job(priority=priority) for priority in (0, 5, -5, 5)]
    assert claim_all(world) == [jobs[1], jobs[3], jobs[0], jobs[2]]
    assert {world.look(job).state for job in jobs} == {JobState.RUNNING}


def test_a_job_of_another_device_is_not_claimed(world: World) -> None:
    world.job()
    with world.database.session() as s:
        other = registry.ensure_device(s, "other-cpu", "cpu", "Other CPU")
        assert runs.claim_next(s, other, world.worker) is None


def test_a_cancelled_job_is_not_claimed(world: World) -> None:
    cancelled, kept = world.job(), world.job()
    with world.database.session() as s:
        submissions.cancel_job(s, cancelled)
    assert claim_all(world) == [kept]


def test_a_job_is_not_claimed_before_its_time(world: World) -> None:
    failing, ready = world.job(priority=1), world.job()
    first = claim(world)
    assert first is not None
    with world.database.session() as s:
        runs.fail_run(s, first.run_id, "it failed", retry=True, reason=Reason.DISK_FULL)
    assert claim_all(world) == [ready]
    with world.database.session() as s:
        s.execute(text("UPDATE jobs SET not_before = now() WHERE id = :id"), {"id": failing})
    assert claim_all(world) == [failing]


def test_workers_that_claim_at_once_get_different_jobs_and_do_not_wait(world: World) -> None:
    jobs = [world.job() for _ in range(40)]
    claimed: list[int] = []
    barrier = threading.Barrier(4)

    def work() -> None:
        barrier.wait()
        while (job := claim(world)) is not None:
            claimed.append(job.job_id)

    with world.database.session() as s:
        # A claim that has not committed yet holds its job and nobody up.
        held = runs.claim_next(s, world.device, world.worker)
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert held is not None
    assert sorted([held.job_id, *claimed]) == jobs


def test_a_claim_among_many_jobs_reads_few_rows(world: World) -> None:
    """The index holds the order of the queue, so a claim neither reads nor sorts what waits behind its job."""
    first = world.job(priority=1)
    with world.database.session() as s:
        s.execute(
            text(
                "INSERT INTO jobs (submission_id, kind, commit_id, operator_id, device_id, spec) SELECT submission_id, "
                "kind, commit_id, operator_id, device_id, spec FROM jobs, generate_series(1, :many)"
            ),
            {"many": MANY},
        )
        s.execute(text("ANALYZE jobs"))
    statement = f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF) {runs._CLAIM_NEXT.element}"
    with world.database.session() as s:
        lines = s.scalars(text(statement), {"device_id": world.device, "worker_id": world.worker}).all()
        s.rollback()
    plan = "\n".join(lines).partition("CTE next")[2].partition("CTE job")[0]
    assert "Index Scan using ix_jobs_open" in plan
    assert "Sort" not in plan
    assert "Seq Scan on jobs" not in plan
    scan = re.search(r"Index Scan using ix_jobs_open.*rows=([\d.]+) loops", plan)
    assert scan is not None
    assert float(scan[1]) == 1
    job = claim(world)
    assert job is not None
    assert job.job_id == first


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, World]]:
    """A server that a test may stop, if it starts it again, with a world on it."""
    home = tmp_path_factory.mktemp("queue")
    url = embedded.start(home, options=FAST_AND_FORGETFUL)
    migrate.upgrade(url)
    database = Database(url)
    yield home, make_world(database)
    database.close()
    embedded.stop(home)
    shutil.rmtree(embedded.data_folder(home))


def test_the_queue_outlives_an_outage(own_server: tuple[Path, World]) -> None:
    """A claim whose transaction the outage cut off has given nothing away; one that committed is found again."""
    home, world = own_server
    jobs = [world.job() for _ in range(2)]
    begun = claim(world)
    assert begun is not None

    def claim_in_vain() -> None:
        with world.database.session() as s:
            assert runs.claim_next(s, world.device, world.worker) is not None
            embedded.stop(home)

    with pytest.raises(EngineError):
        claim_in_vain()
    with pytest.raises(EngineError, match="cannot reach PostgreSQL"):
        claim(world)
    embedded.start(home, options=FAST_AND_FORGETFUL)
    with world.database.session() as s:
        assert runs.find_owned(s, world.worker) == begun
        runs.finish_run(s, begun.run_id, outcome())
    assert claim_all(world) == [jobs[1]]
