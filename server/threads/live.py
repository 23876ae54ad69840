"""Live events of a job: one LISTEN connection per process tells every open page when to look again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from typing import Any

from fastapi import FastAPI
from fastapi.sse import ServerSentEvent
from starlette.concurrency import run_in_threadpool

from warpwatch.db.database import Database
from warpwatch.db.errors import EngineError
from warpwatch.db.live import listen
from warpwatch.db.reads.work import JobStatusRow, LogLine, read_job_status, read_log
from warpwatch.server.threads.dispatcher import Dispatcher

ENDED = ("done", "failed", "cancelled")
LOOK_AGAIN_SECONDS = 5.0
"""A queued job's position changes without a word about that job, and words are lost while the database is away."""
PIECES = 500
_log = logging.getLogger(__name__)


class Hub:
    """Wakes whoever follows a job when something about it was announced."""

    def __init__(self, database: Database, lease_seconds: float) -> None:
        self._url = database.url
        self._followers: dict[int, set[asyncio.Event]] = defaultdict(set)
        self._leases: dict[int | str, set[asyncio.Event]] = defaultdict(set)
        self.dispatcher = Dispatcher(database, lease_seconds)
        self._task: asyncio.Task[None] | None = None
        self.is_closing = False

    def start(self) -> None:
        """Listen from now on, on the running event loop."""
        self._task = asyncio.create_task(self._listen())

    def close(self) -> None:
        """End every stream. A server that is asked to stop waits for its streams first, so this comes before `stop`."""
        self.is_closing = True
        self.dispatcher.close()
        _set_all(self._followers, None)
        _set_all(self._leases, None)

    async def stop(self) -> None:
        """End every stream and the connection."""
        self.close()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def follow(self, job_id: int) -> AbstractContextManager[asyncio.Event]:
        """An event that is set whenever the job may have changed."""
        return self._following(self._followers, job_id)

    def follow_lease(self, job_id: int, device_key: str) -> AbstractContextManager[asyncio.Event]:
        """An event that is set whenever the job may have been cancelled or taken from its run, or a more urgent job may
        wait for its device."""
        return self._following(self._leases, job_id, device_key)

    @contextmanager
    def _following(self, followers: dict[Any, set[asyncio.Event]], *keys: int | str) -> Iterator[asyncio.Event]:
        changed = asyncio.Event()
        if self.is_closing:
            # Whoever asks after `close` would keep the server from stopping.
            changed.set()
        for key in keys:
            followers[key].add(changed)
        try:
            yield changed
        finally:
            for key in keys:
                followers[key].discard(changed)
                if not followers[key]:
                    del followers[key]

    async def _listen(self) -> None:
        async for announced in listen(self._url):
            kind, job_id = announced["type"], announced["job"]
            if kind in ("queued", "connected"):
                self.dispatcher.notice(announced.get("device"))
                _set_all(self._leases, announced.get("device"))
            else:
                _set_all(self._followers, job_id)
            if kind == "connected":
                _set_all(self._followers, None)
            elif kind == "state" and job_id is not None:
                _set_all(self._leases, job_id)


def _set_all(followers: dict[Any, set[asyncio.Event]], key: int | str | None) -> None:
    """Wakes the followers of a job or device; None: of all."""
    for followed in [key] if key is not None else list(followers):
        for event in followers.get(followed, ()):
            event.set()


async def follow_job(app: FastAPI, job_id: int, after: int) -> AsyncIterator[ServerSentEvent]:
    """`state`, `progress` and `log` events from the log piece `after` on, then `end` when the job has ended."""
    database: Database = app.state.database
    hub: Hub = app.state.hub
    told: dict[str, Any] = {}
    with hub.follow(job_id) as changed:
        while not hub.is_closing:
            changed.clear()
            try:
                pulse, pieces = await run_in_threadpool(_look, database, job_id, after)
            except EngineError as error:
                _log.info("job %d is not followed for now: %s", job_id, error)
                await asyncio.sleep(1)
                continue
            if pulse is None:
                return
            for event in _news(pulse, told):
                yield event
            for piece in pieces:
                after = piece.id
                data = {"run": pulse.run_id, "text": piece.text, "created_at": piece.created_at}
                yield ServerSentEvent(event="log", id=str(piece.id), data=data)
            if pulse.state in ENDED and not pieces:
                yield ServerSentEvent(event="end", data={"state": pulse.state, "message": pulse.message})
                return
            if not pieces:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), LOOK_AGAIN_SECONDS)


def _look(database: Database, job_id: int, after: int) -> tuple[JobStatusRow | None, list[LogLine]]:
    with database.session() as session:
        pulse = read_job_status(session, job_id)
        if pulse is None or pulse.run_id is None:
            return pulse, []
        return pulse, read_log(session, pulse.run_id, after, PIECES)


def _news(pulse: JobStatusRow, told: dict[str, Any]) -> Iterator[ServerSentEvent]:
    """Events for the parts of a job's status that differ from `told`, the parts sent before."""
    state = asdict(pulse)
    progress = state.pop("progress")
    if told.get("state") != state:
        told["state"] = state
        yield ServerSentEvent(event="state", data=state)
    if progress is not None and told.get("progress") != progress:
        told["progress"] = progress
        yield ServerSentEvent(event="progress", data=progress)
