"""Gives queued jobs to the workers that wait for them over HTTP.

However many workers wait for a device, one task of this process asks the database for its next job: when somebody
announces that jobs are queued, and now and then, because some become due without a word. It also says for all of them
that they live.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable
from typing import Any

from warpwatch.contract.claims import ClaimedJob
from warpwatch.db import runs
from warpwatch.db.database import Database
from warpwatch.db.errors import EngineError, StaleRunError
from warpwatch.db.registry import workers_heartbeat

POLL_SECONDS = 0.5
_OUTAGE_SECONDS = 1.0
_log = logging.getLogger(__name__)


class _Line:
    """The workers that wait for one device, the one that has waited longest first."""

    def __init__(self, device_id: int) -> None:
        self.device_id = device_id
        self.next_beat = 0.0
        self.waiting: dict[int, asyncio.Future[ClaimedJob | None]] = {}
        self.changed = asyncio.Event()
        self.task: asyncio.Task[None] | None = None


class Dispatcher:
    """Lives on the event loop of the server."""

    def __init__(self, database: Database, lease_seconds: float) -> None:
        self._database = database
        self._beat_seconds = lease_seconds / 5
        self._lines: dict[str, _Line] = {}
        self._is_closing = False

    async def claim(
        self, device_id: int, device_key: str, worker_id: int, seconds: float, gone: Awaitable[object]
    ) -> ClaimedJob | None:
        """The next job of the device, now a run of the worker; None when none came within `seconds`, or when the same
        worker asks anew.

        gone: ends when the worker hangs up; then it gets no job.
        """
        line = self._lines.setdefault(device_key, _Line(device_id))
        claim: asyncio.Future[ClaimedJob | None] = asyncio.get_running_loop().create_future()
        earlier = line.waiting.pop(worker_id, None)
        if earlier is not None and not earlier.done():
            earlier.set_result(None)
        if self._is_closing:
            return None
        line.waiting[worker_id] = claim
        line.changed.set()
        if line.task is None or line.task.done():
            line.task = asyncio.create_task(self._serve(device_key, line))
        hang_up = asyncio.ensure_future(gone)
        ends: set[asyncio.Future[Any]] = {claim, hang_up}
        try:
            await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            return claim.result() if claim.done() else None
        finally:
            hang_up.cancel()
            claim.cancel()
            if line.waiting.get(worker_id) is claim:
                del line.waiting[worker_id]

    def notice(self, device_key: str | None) -> None:
        """Jobs were queued for the device; None: perhaps for any."""
        for key in self._lines if device_key is None else [device_key]:
            if key in self._lines:
                self._lines[key].changed.set()

    def close(self) -> None:
        """Sends every waiting worker away without a job."""
        self._is_closing = True
        for line in self._lines.values():
            for claim in line.waiting.values():
                if not claim.done():
                    claim.set_result(None)
            line.waiting.clear()
            line.changed.set()

    async def _serve(self, device_key: str, line: _Line) -> None:
        """Gives jobs away as long as somebody waits for them."""
        while line.waiting:
            line.changed.clear()
            worker_id, claim = next(iter(line.waiting.items()))
            try:
                await self._beat(line)
                job = await asyncio.to_thread(self._take, line.device_id, worker_id)
            except EngineError as error:
                _log.warning("the workers of %s wait: %s", device_key, error)
                await asyncio.sleep(_OUTAGE_SECONDS)
                continue
            except Exception:  # noqa: BLE001 - the task must outlive what nobody foresaw, or its workers wait for ever.
                _log.exception("the workers of %s wait because of an internal error", device_key)
                await asyncio.sleep(_OUTAGE_SECONDS)
                continue
            if job is None:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(line.changed.wait(), POLL_SECONDS)
            elif claim.done():
                await asyncio.to_thread(self._give_back, job)
            else:
                line.waiting.pop(worker_id, None)
                claim.set_result(job)

    async def _beat(self, line: _Line) -> None:
        """Renews the leases of the workers that wait, all at once."""
        now = asyncio.get_running_loop().time()
        if now >= line.next_beat:
            line.next_beat = now + self._beat_seconds
            await asyncio.to_thread(self._renew, list(line.waiting))

    def _renew(self, worker_ids: list[int]) -> None:
        with self._database.session(single=True) as session:
            workers_heartbeat(session, worker_ids)

    def _take(self, device_id: int, worker_id: int) -> ClaimedJob | None:
        with self._database.session() as session:
            return runs.claim_next(session, device_id, worker_id)

    def _give_back(self, job: ClaimedJob) -> None:
        """Its worker hung up meanwhile."""
        try:
            with self._database.session() as session:
                runs.release_run(session, job.run_id)
        except StaleRunError:
            return
        except EngineError as error:
            _log.warning("job %d waits until its lease has run out: %s", job.job_id, error)
