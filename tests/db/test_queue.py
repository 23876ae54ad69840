"""The queue delivers at least once, in order of priority, one job at a time per device, through outages."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from procrastinate.worker import Worker as ProcrastinateWorker
from sqlalchemy import text

from tests.conftest import FAST_AND_FORGETFUL
from tests.db.conftest import World, make_world, outcome
from warpwatch.contract.spec import JobSpec
from warpwatch.contract.words import JobState
from warpwatch.db import embedded, migrate, queue, runs, submissions
from warpwatch.db.database import Database
from warpwatch.db.errors import EngineError


@contextlib.asynccontextmanager
async def working(database: Database, handler: Callable[[int], None]) -> AsyncIterator[asyncio.Event]:
    """A worker of the test device; stopped, and waited for, at the end."""
    stop = asyncio.Event()
    task = asyncio.create_task(queue.run_worker(database, "test-cpu", handler, stop))
    try:
        yield stop
    finally:
        stop.set()
        await asyncio.wait_for(task, 30)


async def until(condition: Callable[[], bool], seconds: float = 30) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)


def complete(world: World, job_id: int) -> bool:
    """What a worker does with a ticket, in short; whether the job was its own."""
    with world.database.session() as s:
        order = runs.begin_run(s, job_id, world.worker)
    if order is None:
        return False
    with world.database.session() as s:
        runs.finish_run(s, order.run_id, outcome())
    return True


def test_a_submission_that_is_rolled_back_leaves_nothing(world: World, counted: Callable[[str], int]) -> None:
    new = submissions.NewJob("bench", world.commits[0], world.operator, world.device, JobSpec())
    with contextlib.suppress(RuntimeError), world.database.session() as s:
        submissions.create_submission(s, submissions.NewSubmission(world.repository, {}, [new]))
        raise RuntimeError
    assert counted("submissions") == counted("jobs") == counted("procrastinate_jobs") == 0


def test_jobs_come_one_at_a_time_the_most_urgent_first(world: World, counted: Callable[[str], int]) -> None:
    jobs = [world.job(priority=priority) for priority in (0, 5, -5, 5)]
    done: list[int] = []
    active: list[int] = []

    def handle(job_id: int) -> None:
        active.append(job_id)
        assert active == [job_id]
        time.sleep(0.02)
        complete(world, job_id)
        done.append(job_id)
        active.remove(job_id)

    async def scenario() -> None:
        async with working(world.database, handle):
            await until(lambda: len(done) == 4)

    asyncio.run(scenario())
    assert done == [jobs[1], jobs[3], jobs[0], jobs[2]]
    assert {world.look(job).state for job in jobs} == {JobState.DONE}
    assert counted("procrastinate_jobs") == 0


def test_a_worker_uses_the_connections_of_its_database_and_no_others(world: World) -> None:
    mine = Database(world.database.url, pool_size=1, max_overflow=0)
    done: list[int] = []
    counted: list[int] = []
    others = text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )

    async def scenario() -> None:
        with world.database.session() as s:
            before = s.scalars(others).one()
        async with working(mine, done.append):
            for expected in range(1, 4):
                await asyncio.to_thread(world.job)
                await until(lambda expected=expected: len(done) == expected)  # type: ignore[misc]
            with world.database.session() as s:
                counted.append(s.scalars(others).one() - before)

    asyncio.run(scenario())
    mine.close()
    assert counted == [1]


def test_a_cancelled_job_is_not_delivered(world: World) -> None:
    cancelled, kept = world.job(), world.job()
    with world.database.session() as s:
        submissions.cancel_job(s, cancelled)
    done: list[int] = []

    async def scenario() -> None:
        async with working(world.database, done.append):
            await until(lambda: bool(done))

    asyncio.run(scenario())
    assert done == [kept]


def test_a_second_ticket_for_a_job_does_nothing(world: World, counted: Callable[[str], int]) -> None:
    job_id = world.job()
    with world.database.session() as s:
        queue.enqueue(s, [job_id])
    owned: list[bool] = []

    async def scenario() -> None:
        async with working(world.database, lambda job: owned.append(complete(world, job))):
            await until(lambda: len(owned) == 2)

    asyncio.run(scenario())
    assert owned == [True, False]
    assert counted("runs") == 1


def test_stopping_waits_for_the_handler(world: World) -> None:
    world.job()
    waiting = world.job()
    started, finished = threading.Event(), threading.Event()

    def handle(job_id: int) -> None:
        started.set()
        time.sleep(0.5)
        complete(world, job_id)
        finished.set()

    async def scenario() -> None:
        async with working(world.database, handle) as stop:
            await until(started.is_set)
            stop.set()

    asyncio.run(scenario())
    assert finished.is_set()
    assert world.look(waiting).state == JobState.QUEUED


def test_a_handler_that_raises_does_not_end_the_worker(world: World) -> None:
    seen: list[int] = []

    def handle(job_id: int) -> None:
        seen.append(job_id)
        raise ZeroDivisionError

    async def scenario() -> None:
        async with working(world.database, handle):
            for expected in (1, 2):
                await asyncio.to_thread(world.job)
                await until(lambda expected=expected: len(seen) == expected)  # type: ignore[misc]

    asyncio.run(scenario())
    assert len(set(seen)) == 2


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


def test_workers_survive_an_outage(own_server: tuple[Path, World]) -> None:
    home, world = own_server
    first = world.job()
    handled: list[int] = []
    busy, outage_over = threading.Event(), threading.Event()

    def handle(job_id: int) -> None:
        handled.append(job_id)
        if job_id == first:
            busy.set()
            outage_over.wait()
        complete(world, job_id)

    async def outage(seconds: float) -> None:
        await asyncio.to_thread(embedded.stop, home)
        await asyncio.sleep(seconds)
        await asyncio.to_thread(embedded.start, home, options=FAST_AND_FORGETFUL)

    async def new_jobs_are_handled() -> None:
        before = len(handled)
        async with asyncio.timeout(30):
            while len(handled) == before:
                await asyncio.to_thread(world.job)
                await asyncio.sleep(0.5)

    async def scenario() -> None:
        async with working(world.database, handle):
            # Once in the middle of a job, once while idle.
            await until(busy.is_set)
            await outage(4)
            outage_over.set()
            await until(lambda: world.look(first).state == JobState.DONE)
            await new_jobs_are_handled()
            await outage(4)
            await new_jobs_are_handled()

    asyncio.run(scenario())
    assert len(set(handled)) == len(handled)


def test_everyone_is_told_when_the_database_is_down(own_server: tuple[Path, World]) -> None:
    home, world = own_server
    embedded.stop(home)
    with pytest.raises(EngineError, match="cannot reach PostgreSQL"):
        world.look(1)
    embedded.start(home, options=FAST_AND_FORGETFUL)
    assert world.look(world.job()).state == JobState.QUEUED


def test_what_we_rely_on_inside_procrastinate_is_there() -> None:
    assert version("procrastinate").startswith("3.10.")
    assert callable(ProcrastinateWorker._start_side_tasks)


def test_the_worker_watches_over_all_its_side_tasks(world: World) -> None:
    names: list[set[str]] = []

    async def scenario() -> None:
        async with working(world.database, lambda job_id: None):
            await until(lambda: "side_tasks_monitor" in {task.get_name() for task in asyncio.all_tasks()})
            names.append({task.get_name() for task in asyncio.all_tasks()})

    asyncio.run(scenario())
    assert {"update_heartbeats", "poll_jobs_to_abort", "side_tasks_monitor"} <= names[0]


def test_tickets_are_found_by_their_job(world: World) -> None:
    jobs = [world.job() for _ in range(3)]
    with world.database.session() as s:
        pairs = s.execute(
            text(
                "SELECT jobs.id, (p.args->>'job_id')::bigint FROM jobs JOIN procrastinate_jobs p ON p.id = jobs.ticket"
            )
        ).all()
    assert sorted(tuple(pair) for pair in pairs) == [(job, job) for job in jobs]
