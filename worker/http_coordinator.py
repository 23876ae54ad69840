"""Speaks to a server for a worker, with a key that opens nothing else.

Results travel as a results file, in pieces, so that a connection that breaks costs one of them.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import random
import shutil
from base64 import b64decode, b64encode
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
from warpwatch.git import CommitInfo
from warpwatch.worker import sandbox
from warpwatch.worker.coordinator import (
    Connect,
    LostRunError,
    RefusedRequestError,
    ServerDownError,
    ServerError,
    UnusableKeyError,
    pause_seconds,
    wait_out,
)
from warpwatch.worker.undelivered import StoredEnding, UndeliveredEndings

CLAIM_SECONDS = (25.0, 50.0)
"""How long one request waits for a job: at random, so that workers that started together do not ask together. Proxies
close one that is silent for longer than a minute."""
_TIMEOUT_SECONDS = 30.0
_LOG_CHARACTERS = 200_000
"""Of one request, whose body a server reads up to a megabyte of."""
_MESSAGE_CHARACTERS = 100_000
_MOST_FAULTS = 6
"""Answers 500 to one request, within about half a minute, until it counts as one that the server cannot answer. A
server that stops gives one to what waits there, so the first says nothing about the request."""
_LIMITS = httpx.Limits(keepalive_expiry=4.0)
"""A server closes a connection that was idle for five seconds."""
_log = logging.getLogger(__name__)


def connect_to_server(url: str, key: str, folder: Path) -> Connect:
    """Opens the server at `url` for a worker. folder: for what the server cannot be given while it is away."""
    return lambda stop_requested: HttpCoordinator(url, key, stop_requested, UndeliveredEndings(folder))


class ServerFaultError(ServerDownError):
    """The server met an error of its own."""


class HttpCoordinator:
    """Asks a server for jobs, and sends it what they found."""

    log_seconds = 2.0
    poll_seconds = 0.75
    lease_seconds: float
    renewal_seconds: float

    def __init__(self, url: str, key: str, stop_requested: Event, undelivered: UndeliveredEndings) -> None:
        self._stop_requested = stop_requested
        self._undelivered = undelivered
        self._is_claiming = False
        self._address = address = f"{url.rstrip('/')}/api/v1/worker"
        headers = {"Authorization": f"Bearer {key}"}
        # One for both, because reading the certificates takes longer than a request.
        tls = httpx.create_ssl_context()
        self._client = httpx.Client(
            base_url=address, headers=headers, timeout=_TIMEOUT_SECONDS, limits=_LIMITS, verify=tls
        )
        self._claims = partial(
            httpx.AsyncClient,
            base_url=address,
            headers=headers,
            timeout=httpx.Timeout(_TIMEOUT_SECONDS, read=CLAIM_SECONDS[1] + _TIMEOUT_SECONDS),
            limits=_LIMITS,
            verify=tls,
        )
        self._worker_id = self._last_run_id = self._inline_bytes = 0

    def register(self, worker: WorkerDescription) -> None:
        answer = self._patiently("POST", "registration", to_json(worker))
        self.lease_seconds = answer["lease_seconds"]
        self.renewal_seconds = self.lease_seconds / 4
        self._worker_id = answer["worker_id"]
        self._last_run_id = answer["last_run_id"]
        # A server of version 0.1 says nothing of it, and takes none.
        self._inline_bytes = answer.get("inline_bytes", 0)

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
        failures = 0
        while True:
            question = {"after_run_id": self._last_run_id, "wait_seconds": random.uniform(*CLAIM_SECONDS)}
            try:
                response = await client.post(f"{self._worker_id}/claim", json=question)
                return _as_job(_checked(response)["job"])
            except (ServerDownError, httpx.TransportError) as error:
                failures += 1
                pause = pause_seconds(failures, error)
                _log.warning("cannot ask for a job (%s); trying again in %.1f s", error, pause)
            await asyncio.sleep(pause)

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
        pieces = _pieces(text) or [""]
        for number, piece in enumerate(pieces, 1):
            shown = to_json(progress) if progress is not None and number == len(pieces) else None
            self._call("POST", f"{self._worker_id}/runs/{run_id}/log", {"text": piece, "progress": shown})

    def end_run(self, job: ClaimedJob, ending: RunEnding, outcome: Outcome | None, log: str = "") -> None:
        begin = perf_counter()
        ending = replace(ending, message=ending.message[:_MESSAGE_CHARACTERS])
        if outcome is not None and ending.kind != EndingKind.DONE and job.request.kind not in RESUMABLE:
            outcome = None
        stored = StoredEnding(self._address, self._worker_id, job.job_id, job.run_id, ending, _encodable(log))
        try:
            with _results_file(job, outcome) as path:
                self._deliver_or_keep(replace(stored, path=path), begin)
        except ServerError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever is wrong with the results, the run must end
            _log.warning("the results of job %d cannot be sent: %s", job.job_id, error)
            self._deliver_or_keep(replace(stored, ending=_without_results(ending, error)), begin)

    def _deliver_or_keep(self, stored: StoredEnding, begin: float) -> None:
        """Delivers the ending of a run. As long as the server is away, the ending is on the disk too."""
        try:
            self._deliver(stored, self._call, begin)
        except ServerDownError as error:
            _log.warning("%s; the ending of job %d is kept until the server is back", error, stored.job_id)
            try:
                self._undelivered.keep(stored)
            except OSError as full:
                _log.warning("the ending of job %d cannot be kept on the disk: %s", stored.job_id, full)
            try:
                self._deliver(stored, self._patiently, begin)
            except ServerDownError:
                _log.warning("the next worker of this data folder delivers the ending of job %d", stored.job_id)
                return
            except ServerError:
                self._undelivered.drop(stored.run_id)
                raise
            self._undelivered.drop(stored.run_id)

    def deliver_stored(self) -> None:
        for stored in self._undelivered.list(self._address):
            try:
                self._deliver(stored, self._patiently, perf_counter())
                _log.info("the ending of job %d, which an earlier worker left, is delivered", stored.job_id)
            except ServerDownError as error:
                # The worker was told to stop; the next one tries again.
                _log.warning("%s; the ending of job %d stays on the disk", error, stored.job_id)
                return
            except (LostRunError, RefusedRequestError) as error:
                _log.warning("the ending of job %d is dropped: %s", stored.job_id, error)
            self._undelivered.drop(stored.run_id)

    def _deliver(self, stored: StoredEnding, call: Callable[..., Any], begin: float) -> None:
        """Sends the rest of the log, the results, if there are any, and then how the run ended.

        begin: when its recording began.

        Results that the server refuses end the run without them.
        """
        address = f"{stored.worker_id}/runs/{stored.run_id}"
        with_log, results = self._inline(stored)
        if not with_log:
            for piece in _pieces(stored.log):
                call("POST", f"{address}/log", {"text": piece, "progress": None})
        body: dict[str, Any] = {"sha256": None} | ({"log": stored.log} if with_log and stored.log else {})
        try:
            if results is not None:
                body |= {"sha256": hashlib.sha256(results).hexdigest(), "results": b64encode(results).decode()}
            elif stored.path is not None:
                body["sha256"] = _send(f"{address}/results", stored.path, call)
            times = stored.ending.times.with_more(Activity.RECORD, perf_counter() - begin)
            call("POST", f"{address}/end", body | {"ending": to_json(replace(stored.ending, times=times))})
        except RefusedRequestError as error:
            if stored.path is None:
                raise
            _log.warning("the server refuses the results of job %d: %s", stored.job_id, error)
            ending = _without_results(stored.ending, error)
            call("POST", f"{address}/end", {"ending": to_json(ending), "sha256": None})

    def _inline(self, stored: StoredEnding) -> tuple[bool, bytes | None]:
        """Whether the log goes along with the ending, and the results if they do too."""
        log_bytes = len(json.dumps(stored.log))
        if log_bytes > self._inline_bytes:
            return False, None
        if stored.path is None or log_bytes + stored.path.stat().st_size * 4 // 3 > self._inline_bytes:
            return True, None
        return True, stored.path.read_bytes()

    def pause(self, seconds: float, reason: Reason) -> None:
        self._patiently("POST", f"{self._worker_id}/pause", {"seconds": seconds, "reason": reason})

    def resume(self) -> None:
        self._patiently("DELETE", f"{self._worker_id}/pause")

    def close(self) -> None:
        try:
            self._call("POST", f"{self._worker_id}/stop")
        except ServerError as error:
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
                    raise RefusedRequestError(str(error)) from error
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
    """The JSON of a response, None for a 204.

    Raises UnusableKeyError for a 401, LostRunError for a 409, ServerFaultError for a 500, ServerDownError for a 429 and
    other statuses above 500, otherwise RefusedRequestError.
    """
    if response.status_code == 204:
        return None
    if response.is_success:
        return response.json()
    if response.status_code >= 500 or response.status_code == 429:
        kind = ServerFaultError if response.status_code == 500 else ServerDownError
        # A date, which nothing of ours sends, counts as no time at all.
        asked = response.headers.get("Retry-After", "")
        raise kind(f"the server answers {response.status_code}", float(asked) if asked.isdecimal() else 0.0)
    try:
        problem = response.json()
        details = [problem["detail"], *(f"{row['field']} {row['message']}" for row in problem.get("errors", []))]
    except (ValueError, KeyError, TypeError):
        details = [f"the server answers {response.status_code}"]
    if response.status_code == 401:
        raise UnusableKeyError
    if response.status_code == 409:
        raise LostRunError("; ".join(details))
    raise RefusedRequestError("; ".join(details))


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


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _pieces(log: str) -> list[str]:
    text = _encodable(log)
    return [text[start : start + _LOG_CHARACTERS] for start in range(0, len(text), _LOG_CHARACTERS)]


def _send(address: str, path: Path, call: Callable[..., Any]) -> str:
    """Sends a results file; returns its digest. Every answer says where the next piece begins, so a piece whose answer
    was lost counts once."""
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        size = file.tell()
        start = 0
        while start < size:
            file.seek(start)
            start = call("PUT", f"{address}/{start}", content=file.read(CHUNK_BYTES))["bytes"]
    return sha256


def _without_results(ending: RunEnding, error: Exception) -> RunEnding:
    """How a run ends whose results cannot be sent or stored; what an interrupted one found is measured again."""
    if ending.kind != EndingKind.DONE:
        return ending
    message = f"the results cannot be stored: {type(error).__name__}: {error}"[:_MESSAGE_CHARACTERS]
    return RunEnding(EndingKind.FAILED, ending.times, message, reason=Reason.UNSTORABLE)


@contextmanager
def _results_file(job: ClaimedJob, outcome: Outcome | None) -> Iterator[Path | None]:
    """The outcome with its traces as a results file, as long as the block lasts; None without an outcome."""
    if outcome is None:
        yield None
        return
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
