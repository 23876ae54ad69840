"""The queue: procrastinate on the same database.

Its jobs are tickets: they bring a job's number to a worker of its device, at least once, perhaps twice. What counts is
in our own rows: `begin_run` gives a job to one run only, and a ticket whose job is not waiting any more ends at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from procrastinate import App, PsycopgConnector, SyncPsycopgConnector
from procrastinate.jobs import DeleteJobCondition
from procrastinate.types import JSONDict
from procrastinate.worker import Worker as ProcrastinateWorker
from psycopg import AsyncConnection
from sqlalchemy import select, text
from sqlalchemy.orm import Session

from warpwatch.db.database import CONNECTION, libpq_url
from warpwatch.db.models import DeviceRecord, JobRecord

TASK = "run_job"
POLL_SECONDS = 2.0
_LONGEST_PAUSE_SECONDS = 5.0
_POOL_SECONDS = 5.0
_log = logging.getLogger(__name__)

# Never opened: every ticket is written on the connection of the caller's own transaction.
_writer = App(connector=SyncPsycopgConnector())


def enqueue(s: Session, job_ids: Iterable[int]) -> None:
    """Writes a ticket for each job within the transaction of `s`; workers hear of it when that commits."""
    statement = select(JobRecord.id, JobRecord.priority, DeviceRecord.key).join(
        DeviceRecord, JobRecord.device_id == DeviceRecord.id
    )
    batches: dict[tuple[str, int], list[int]] = defaultdict(list)
    for job_id, priority, device_key in s.execute(
        statement.where(JobRecord.id.in_(list(job_ids))).order_by(JobRecord.id)
    ):
        batches[device_key, priority].append(job_id)
    connection = s.connection().connection.driver_connection
    tickets: list[int] = []
    for (device_key, priority), batch in batches.items():
        deferrer = _writer.configure_task(TASK, queue=device_key, priority=priority, connection=connection)
        arguments: list[JSONDict] = [{"job_id": job_id} for job_id in batch]
        tickets += deferrer.batch_defer(*arguments)
    s.execute(
        text(
            "UPDATE jobs SET ticket = p.id FROM procrastinate_jobs p "
            "WHERE p.id = ANY(:tickets) AND jobs.id = (p.args->>'job_id')::bigint"
        ),
        {"tickets": tickets},
    )


def withdraw(s: Session, tickets: Sequence[int | None]) -> None:
    """Takes tickets back, also those that a dead worker still holds: nobody retries them."""
    s.execute(
        text("DELETE FROM procrastinate_jobs WHERE id = ANY(:tickets)"),
        {"tickets": [t for t in tickets if t is not None]},
    )


def hurry(s: Session, ticket: int | None, priority: int) -> None:
    """Gives a ticket that still waits another priority."""
    s.execute(
        text("UPDATE procrastinate_jobs SET priority = :priority WHERE id = :ticket AND status = 'todo'"),
        {"ticket": ticket, "priority": priority},
    )


async def run_worker(url: str, queue: str, handler: Callable[[int], None], stop: asyncio.Event) -> None:
    """Calls `handler(job_id)`, in a thread, for one job of `queue` after the other, until `stop` is set.

    A handler that runs when `stop` is set is waited for; tell it by other means. An exception of the handler is logged.
    Outages of the database, however long, are waited out; a handler that runs meanwhile is left alone.
    """
    pause = 0.1
    while not stop.is_set():
        try:
            await _run_procrastinate(url, queue, handler, stop)
            pause = 0.1
        except Exception as error:  # noqa: BLE001 - whatever stopped the queue's worker, the next try may work
            _log.warning("the queue stopped (%s: %s); trying again in %.1f s", type(error).__name__, error, pause)
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


class _Worker(ProcrastinateWorker):
    """Procrastinate's worker, without its cron.

    With no cron tasks that side task ends at once and takes the watch over the other side tasks with it: after an
    outage the worker would fetch on, deaf to notifications. Without it, the first side task that fails stops the
    worker, and `run_worker` starts a new one. Pinned to procrastinate 3.10 by tests/db/test_queue.py.
    """

    def _start_side_tasks(self) -> list[asyncio.Task[Any]]:
        tasks: list[asyncio.Task[Any]] = super()._start_side_tasks()
        for task in tasks:
            if task.get_name() == "deferrer":
                task.cancel()
        return [task for task in tasks if task.get_name() != "deferrer"]


async def _run_procrastinate(url: str, queue: str, handler: Callable[[int], None], stop: asyncio.Event) -> None:
    connector = PsycopgConnector(
        conninfo=libpq_url(url),
        min_size=1,
        max_size=3,
        timeout=_POOL_SECONDS,
        kwargs=CONNECTION,
    )
    app = App(connector=connector)

    @app.task(name=TASK)
    async def run_job(job_id: int) -> None:
        await asyncio.to_thread(handler, job_id)

    # Opening the pool would wait half a minute for a server that is down, deaf to `stop`.
    await (await AsyncConnection.connect(libpq_url(url), **CONNECTION)).close()
    async with app.open_async():
        worker = _Worker(
            app=app,
            queues=[queue],
            name=queue,
            concurrency=1,
            fetch_job_polling_interval=POLL_SECONDS,
            listen_notify=True,
            # Our own rows are the history; a ticket that was used is of no use to anybody.
            delete_jobs=DeleteJobCondition.ALWAYS,
            install_signal_handlers=False,
        )
        stopper = asyncio.create_task(_stop_when_set(worker, stop))
        try:
            await worker.run()  # type: ignore[no-untyped-call]  # procrastinate leaves it out
        finally:
            stopper.cancel()


async def _stop_when_set(worker: ProcrastinateWorker, stop: asyncio.Event) -> None:
    await stop.wait()
    worker.stop()  # type: ignore[no-untyped-call]
