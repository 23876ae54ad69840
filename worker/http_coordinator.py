"""A worker without the database's address: it speaks to a server, with a key that opens nothing else.

Results travel as a results file, in pieces, so that a connection that breaks costs one of them.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import shutil
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from threading import Event
from time import perf_counter
from typing import Any

import httpx

from warpwatch import __version__
from warpwatch.bundle import BundleWriter
from warpwatch.contract.activities import Activity
from warpwatch.contract.claims import (
    CHUNK_BYTES,
    ClaimedJob,
    EndingKind,
    LeaseState,
    RunEnding,
    RunProgress,
    WorkerDescription,
)
from warpwatch.contract.codec import from_json, to_json
from warpwatch.contract.outcome import Outcome, PartialOutcome
from warpwatch.contract.spec import JobRequest, SourcePatch
from warpwatch.contract.words import RESUMABLE, Reason
from warpwatch.db.errors import EngineError, OutcomeError, StaleRunError
from warpwatch.git import CommitInfo
from warpwatch.worker import sandbox
from warpwatch.worker.coordinator import Connect, Coordinator, ServerDownError, UnusableKeyError, wait_out

CLAIM_SECONDS = (25.0, 50.0)
"""How long one request waits for a job: at random, so that workers that started together do not ask together. Proxies
close one that is silent for longer than a minute."""
_TIMEOUT_SECONDS = 30.0
_LONGEST_PAUSE_SECONDS = 5.0
_LOG_CHARACTERS = 200_000
"""Of one request, whose body a server reads up to a megabyte of."""
_MESSAGE_CHARACTERS = 100_000
_MOST_FAULTS = 30
"""Answers 500 to one request, a second apart, until it counts as one that the server cannot answer. A server that stops
gives one to what waits there, so the first says nothing about the request."""
_LIMITS = httpx.Limits(keepalive_expiry=4.0)
"""A server closes a connection that was idle for five seconds."""
_log = logging.getLogger(__name__)


def connect_to_server(url: str, key: str) -> Connect:
    """Registers a worker at the server at `url`."""

    def connect(worker: WorkerDescription, stop_requested: Event) -> Coordinator:
        return HttpCoordinator(url, key, worker, stop_requested)

    return connect


class ServerFaultError(ServerDownError):
    """The server met an error of its own."""


class HttpCoordinator:
    """Asks a server for jobs, and sends it what they found."""

    log_seconds = 2.0
    poll_seconds = 0.75

    def __init__(self, url: str, key: str, worker: WorkerDescription, stop_requested: Event) -> None:
        self._stop_requested = stop_requested
        self._is_claiming = False
        address = f"{url.rstrip('/')}/api/v1/worker"
        headers = {"Authorization": f"Bearer {key}"}
        self._client = httpx.Client(base_url=address, headers=headers, timeout=_TIMEOUT_SECONDS, limits=_LIMITS)
        self._claims = partial(
            httpx.AsyncClient,
            base_url=address,
            headers=headers,
            timeout=httpx.Timeout(_TIMEOUT_SECONDS, read=CLAIM_SECONDS[1] + _TIMEOUT_SECONDS),
            limits=_LIMITS,
        )
        answer = self._patiently("POST", "registration", to_json(worker))
        self.lease_seconds: float = answer["lease_seconds"]
        self.renewal_seconds = self.lease_seconds / 4
        self._worker_id: int = answer["worker_id"]
        self._last_run_id: int = answer["last_run_id"]

    async def serve(self, handle: Callable[[ClaimedJob], None], stop: asyncio.Event) -> None:
        """UnusableKeyError when the key is revoked."""
        async with self._claims() as client:
            stopping = asyncio.create_task(stop.wait())
            while not stop.is_set():
                self._is_claiming = True
                claiming = asyncio.create_task(self._claim(client))
                await asyncio.wait({claiming, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if not claiming.done():
                    # A job that is on its way goes back into the queue when the worker says that it stops.
                    claiming.cancel()
                    with suppress(asyncio.CancelledError):
                        await claiming
                    return
                self._is_claiming = False
                job = claiming.result()
                if job is not None:
                    self._last_run_id = job.run_id
                    await asyncio.to_thread(handle, job)

    async def _claim(self, client: httpx.AsyncClient) -> ClaimedJob | None:
        """The next job; None when none came in time. Outages, however long, are waited out."""
        pause = 0.1
        while True:
            question = {"after_run_id": self._last_run_id, "wait_seconds": random.uniform(*CLAIM_SECONDS)}
            try:
                response = await client.post(f"{self._worker_id}/claim", json=question)
                return _as_job(_checked(response)["job"])
            except (ServerDownError, httpx.TransportError) as error:
                _log.warning("cannot ask for a job (%s); trying again in %.1f s", error, pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def list_waiting(self, limit: int) -> list[JobRequest]:
        answer = self._call("GET", f"{self._worker_id}/waiting")
        return [from_json(JobRequest, request) for request in answer["requests"][:limit]]

    def watch_lease(
        self,
        run_id: int | None,
        *,
        renew: bool,  # noqa: ARG002 - it always does
        hold_seconds: float,
    ) -> LeaseState:
        """Always renews: the server holds the question until the run must stop, so one request does both."""
        if run_id is None and self._is_claiming:
            # The server knows that the worker lives: it waits there for a job.
            return LeaseState()
        question = {"run_id": run_id, "hold_seconds": min(hold_seconds, CLAIM_SECONDS[0])}
        return from_json(LeaseState, self._call("POST", f"{self._worker_id}/lease", question))

    def write_log(self, run_id: int, text: str, progress: RunProgress | None) -> None:
        pieces = [text[start : start + _LOG_CHARACTERS] for start in range(0, len(text), _LOG_CHARACTERS)] or [""]
        for piece in pieces:
            shown = to_json(progress) if progress is not None and piece is pieces[-1] else None
            body = {"text": piece.encode("utf-8", "replace").decode(), "progress": shown}
            self._call("POST", f"{self._worker_id}/runs/{run_id}/log", body)

    def end_run(self, job: ClaimedJob, ending: RunEnding, outcome: Outcome | None) -> None:
        begin = perf_counter()
        address = f"{self._worker_id}/runs/{job.run_id}"
        ending = replace(ending, message=ending.message[:_MESSAGE_CHARACTERS])
        if outcome is not None and ending.kind != EndingKind.DONE and job.request.kind not in RESUMABLE:
            outcome = None
        try:
            sha256 = None if outcome is None else self._send(address, job, outcome)
            times = ending.times.with_more(Activity.RECORD, perf_counter() - begin)
            self._end(address, replace(ending, times=times), sha256)
        except (StaleRunError, UnusableKeyError, ServerDownError):
            raise
        except Exception as error:  # noqa: BLE001 - whatever is wrong with the results, the run must end
            _log.warning("the results of job %d cannot be sent: %s", job.job_id, error)
            self._end(address, _without_results(ending, error), None)

    def _send(self, address: str, job: ClaimedJob, outcome: Outcome) -> str:
        """Sends the results file; returns its digest. Every answer says where the next piece begins, so a piece whose
        answer was lost counts once."""
        with _results_file(job, outcome) as path, path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            size = file.tell()
            start = 0
            while start < size:
                file.seek(start)
                answer = self._patiently("PUT", f"{address}/results/{start}", content=file.read(CHUNK_BYTES))
                start = answer["bytes"]
        return sha256

    def _end(self, address: str, ending: RunEnding, sha256: str | None) -> None:
        self._patiently("POST", f"{address}/end", {"ending": to_json(ending), "sha256": sha256})

    def pause(self, seconds: float, reason: Reason) -> None:
        self._patiently("POST", f"{self._worker_id}/pause", {"seconds": seconds, "reason": reason})

    def resume(self) -> None:
        self._patiently("DELETE", f"{self._worker_id}/pause")

    def close(self) -> None:
        try:
            self._call("POST", f"{self._worker_id}/stop")
        except EngineError as error:
            _log.warning("could not mark the worker as stopped: %s", error)
        self._client.close()

    def _patiently(
        self, method: str, path: str, body: dict[str, Any] | None = None, content: bytes | None = None
    ) -> Any:
        faults = 0

        def call() -> Any:
            nonlocal faults
            try:
                return self._call(method, path, body, content)
            except ServerFaultError as error:
                faults += 1
                if faults > _MOST_FAULTS:
                    raise OutcomeError(str(error)) from error
                raise

        return wait_out(call, self._stop_requested)

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None, content: bytes | None = None) -> Any:
        """The answer; ServerDownError when none comes, otherwise like `_checked`."""
        try:
            return _checked(self._client.request(method, path, json=body, content=content))
        except httpx.TransportError as error:
            raise ServerDownError(
                f"no answer from {self._client.base_url} ({type(error).__name__}: {error})"
            ) from error


def _checked(response: httpx.Response) -> Any:
    """What an answer says. UnusableKeyError for a 401, StaleRunError for a 409, OutcomeError for another refusal."""
    if response.status_code == 204:
        return None
    if response.is_success:
        return response.json()
    if response.status_code >= 500:
        kind = ServerFaultError if response.status_code == 500 else ServerDownError
        raise kind(f"the server answers {response.status_code}")
    try:
        problem = response.json()
        details = [problem["detail"], *(f"{row['field']} {row['message']}" for row in problem.get("errors", []))]
    except (ValueError, KeyError, TypeError):
        details = [f"the server answers {response.status_code}"]
    if response.status_code == 401:
        raise UnusableKeyError
    if response.status_code == 409:
        raise StaleRunError("; ".join(details))
    raise OutcomeError("; ".join(details))


def _as_job(claim: dict[str, Any] | None) -> ClaimedJob | None:
    if claim is None:
        return None
    request = dict(claim["request"])
    request.pop("patch", None)
    order = from_json(JobRequest, request)
    if claim["patch"] is not None:
        order = replace(order, patch=SourcePatch(claim["patch_base"], b64decode(claim["patch"])))
    partial_outcome = None if claim["partial"] is None else from_json(PartialOutcome, claim["partial"])
    # A server of the release before does not know it.
    trace_parent = claim.get("trace_parent")
    return ClaimedJob(claim["job_id"], claim["run_id"], claim["attempt"], order, partial_outcome, trace_parent)


def _without_results(ending: RunEnding, error: Exception) -> RunEnding:
    """How a run ends whose results cannot be sent or stored; what an interrupted one found is measured again."""
    if ending.kind != EndingKind.DONE:
        return ending
    message = f"the results cannot be stored: {type(error).__name__}: {error}"[:_MESSAGE_CHARACTERS]
    return RunEnding(EndingKind.FAILED, ending.times, message, reason=Reason.UNSTORABLE)


@contextmanager
def _results_file(job: ClaimedJob, outcome: Outcome) -> Iterator[Path]:
    """The outcome with its traces as a results file, as long as the block lasts."""
    request = replace(job.request, patch=None)
    now = datetime.now(UTC)
    # The server knows the commits.
    commits = [CommitInfo(sha, None, 1, "", now, "") for sha in (request.sha, request.base_sha) if sha is not None]
    folder = sandbox.make_temp()
    try:
        path = folder / "results.wwb"
        with BundleWriter(path, "", request.url, commits, __version__) as bundle:
            bundle.add(request, outcome, now, now)
        yield path
    finally:
        shutil.rmtree(folder, ignore_errors=True)
