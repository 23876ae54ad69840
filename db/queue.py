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
from datetime import datetime
from typing import Any

from procrastinate import App, SyncPsycopgConnector
from procrastinate.connector import BaseAsyncConnector
from procrastinate.exceptions import NoResult
from procrastinate.jobs import DeleteJobCondition
from procrastinate.types import JSONDict
from procrastinate.worker import Worker as ProcrastinateWorker
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb
from sqlalchemy import select, text
from sqlalchemy.orm import Session

from warpwatch.db.database import Database
from warpwatch.db.live import announce
from warpwatch.db.models import DeviceRecord, JobRecord

TASK = "run_job"
POLL_SECONDS = 0.5
"""How long a job may wait for an idle worker. To be notified instead, each worker would need a connection that it uses
for nothing else."""
_LONGEST_PAUSE_SECONDS = 5.0
_HEARTBEAT_SECONDS = 60.0
_STALLED_SECONDS = 600.0
"""Procrastinate's own view of its workers, which nothing of ours reads."""
_ABORT_SECONDS = 3600.0
"""Jobs are cancelled in our own rows, never by procrastinate."""
_log = logging.getLogger(__name__)

# Never opened: every ticket is written on the connection of the caller's own transaction.
_writer = App(connector=SyncPsycopgConnector())


def enqueue(s: Session, job_ids: Iterable[int]) -> None:
    """Writes a ticket for each job within the transaction of `s`; workers find it once that commits and the job's
    time has come."""
    statement = select(JobRecord.id, JobRecord.priority, JobRecord.not_before, DeviceRecord.key).join(
        DeviceRecord, JobRecord.device_id == DeviceRecord.id
    )
    batches: dict[tuple[str, int, datetime | None], list[int]] = defaultdict(list)
    for job_id, priority, not_before, device_key in s.execute(
        statement.where(JobRecord.id.in_(list(job_ids))).order_by(JobRecord.id)
    ):
        batches[device_key, priority, not_before].append(job_id)
    for device_key in {device_key for device_key, _, _ in batches}:
        announce(s, "queued", device_key=device_key)
    connection = s.connection().connection.driver_connection
    tickets: list[int] = []
    for (device_key, priority, not_before), batch in batches.items():
        deferrer = _writer.configure_task(
            TASK, queue=device_key, priority=priority, schedule_at=not_before, connection=connection
        )
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


async def run_worker(database: Database, queue: str, handler: Callable[[int], None], stop: asyncio.Event) -> None:
    """Calls `handler(job_id)`, in a thread, for one job of `queue` after the other, until `stop` is set.

    A handler that runs when `stop` is set is waited for; tell it by other means. An exception of the handler is logged.
    Outages of the database, however long, are waited out; a handler that runs meanwhile is left alone.
    """
    pause = 0.1
    while not stop.is_set():
        try:
            await _run_procrastinate(database, queue, handler, stop)
            pause = 0.1
        except Exception as error:  # noqa: BLE001 - whatever stopped the queue's worker, the next try may work
            _log.warning("the queue stopped (%s: %s); trying again in %.1f s", type(error).__name__, error, pause)
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


class _Worker(ProcrastinateWorker):
    """Procrastinate's worker, without its cron.

    With no cron tasks that side task ends at once and takes the watch over the other side tasks with it. Without it,
    the first side task that fails stops the worker, and `run_worker` starts a new one. Pinned to procrastinate 3.10 by
    tests/db/test_queue.py.
    """

    def _start_side_tasks(self) -> list[asyncio.Task[Any]]:
        tasks: list[asyncio.Task[Any]] = super()._start_side_tasks()
        for task in tasks:
            if task.get_name() == "deferrer":
                task.cancel()
        return [task for task in tasks if task.get_name() != "deferrer"]

    def _log_extra(self, *_: object, **__: object) -> JSONDict:
        """Nothing: procrastinate describes a job five times for each that it runs, for a log that nobody reads."""
        return {}


class _Connector(BaseAsyncConnector):
    """Runs procrastinate's statements on the connections of a Database, so that a worker has one pool and no second."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def open_async(self, pool: object = None) -> None:
        """The Database opens its connections by itself."""

    async def close_async(self) -> None:
        """The Database belongs to the caller."""

    async def execute_query_async(self, query: str, **arguments: Any) -> None:
        await asyncio.to_thread(self._execute, query, arguments)

    async def execute_query_one_async(self, query: str, **arguments: Any) -> dict[str, Any]:
        rows = await asyncio.to_thread(self._execute, query, arguments)
        if not rows:
            raise NoResult
        return rows[0]

    async def execute_query_all_async(self, query: str, **arguments: Any) -> list[dict[str, Any]]:
        return await asyncio.to_thread(self._execute, query, arguments)

    def _execute(self, query: str, arguments: dict[str, Any]) -> list[dict[str, Any]]:
        values = {name: Jsonb(value) if isinstance(value, dict) else value for name, value in arguments.items()}
        with self._database.session(single=True) as s:
            connection: Any = s.connection().connection.driver_connection
            with connection.cursor(row_factory=dict_row) as cursor:
                cursor.execute(query, values)
                return cursor.fetchall() if cursor.description else []


async def _run_procrastinate(
    database: Database, queue: str, handler: Callable[[int], None], stop: asyncio.Event
) -> None:
    app = App(connector=_Connector(database))

    @app.task(name=TASK)
    async def run_job(job_id: int) -> None:
        await asyncio.to_thread(handler, job_id)

    async with app.open_async():
        worker = _Worker(
            app=app,
            queues=[queue],
            name=queue,
            concurrency=1,
            fetch_job_polling_interval=POLL_SECONDS,
            abort_job_polling_interval=_ABORT_SECONDS,
            update_heartbeat_interval=_HEARTBEAT_SECONDS,
            stalled_worker_timeout=_STALLED_SECONDS,
            listen_notify=False,
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
