"""Requests of workers, with their keys: jobs, leases, and the delivery of results."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, TypeVar

from anyio import to_thread
from fastapi import APIRouter, Depends, Path, Query, Request
from pydantic import Base64Bytes, BaseModel, ConfigDict, Field

from warpwatch import __version__
from warpwatch.bundle import FILE_LIMIT, BundleError
from warpwatch.contract.claims import (
    INLINE_BYTES,
    PROTOCOL_VERSION,
    ClaimedJob,
    LeaseState,
    RunEnding,
    RunProgress,
    WorkerDescription,
)
from warpwatch.contract.codec import to_json
from warpwatch.contract.environment import key_of
from warpwatch.contract.measurement import METRICS
from warpwatch.contract.spec import JobRequest
from warpwatch.contract.words import Reason
from warpwatch.db import leases, registry, runs
from warpwatch.db.errors import StaleRunError
from warpwatch.db.reads.query import Session
from warpwatch.db.worker_keys import KeyScope, add_chunk, register_with_key
from warpwatch.server.http.problems import FieldError, Problem, documented
from warpwatch.server.http.service import database_of, require_schema
from warpwatch.server.http.worker_keys import Id, Key, WorkerThreads, scope_of
from warpwatch.server.intake.worker_results import SentEnding, take_ending
from warpwatch.server.threads.live import Hub

api = APIRouter(prefix="/worker", tags=["worker"])
T = TypeVar("T")
MOST_WAITING = 50
MOST_SECONDS = 60.0
"""How long a request may be held, at most."""


class WorkerReply(BaseModel):
    """worker_id: part of every further address. last_run_id: of an earlier worker of the same name. inline_bytes: how
    much of log and results may come with the ending of a run."""

    worker_id: int
    name: str
    lease_seconds: float
    last_run_id: int
    inline_bytes: int = INLINE_BYTES


class ClaimQuestion(BaseModel):
    """after_run_id: the last run that reached the worker. One that began later is sent again."""

    model_config = ConfigDict(extra="forbid")
    after_run_id: int = Field(ge=0, le=2**62)
    wait_seconds: float = Field(1, ge=1, le=MOST_SECONDS)


class Claim(BaseModel):
    """request, partial: as in a results file; see warpwatch/contract. patch: in base64."""

    job_id: int
    run_id: int
    attempt: int
    request: dict[str, Any]
    patch: str | None
    patch_base: str | None
    partial: dict[str, Any] | None
    trace_parent: str | None = None


class ClaimReply(BaseModel):
    """job: null when none came in time; ask again."""

    job: Claim | None


class QueueReply(BaseModel):
    requests: list[dict[str, Any]]


class LeaseQuestion(BaseModel):
    """run_id: null for a worker without a job. hold_seconds: how long the answer may wait for the run to be stopped."""

    model_config = ConfigDict(extra="forbid")
    run_id: int | None = Field(None, ge=1, le=2**62)
    hold_seconds: float = Field(0, ge=0, le=MOST_SECONDS)


class LogChunk(BaseModel):
    model_config = ConfigDict(extra="forbid")
    text: str = ""
    progress: RunProgress | None = None


class PauseRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")
    seconds: float = Field(ge=0, le=86400)
    reason: Reason


class EndingRequest(BaseModel):
    """sha256: of the results file that was sent; null without results. results: the file itself, in base64, if it was
    not sent before. log: the end of the run's log."""

    model_config = ConfigDict(extra="forbid")
    ending: RunEnding
    sha256: str | None = Field(None, pattern="^[0-9a-f]{64}$")
    results: Base64Bytes | None = Field(None, max_length=INLINE_BYTES)
    log: str = Field("", max_length=INLINE_BYTES)


class ChunkReply(BaseModel):
    """Where the next piece begins."""

    bytes: int


class QueueCount(BaseModel):
    queued: int


async def _body(request: Request) -> bytes:
    return await request.body()


@api.post("/registration", responses=documented(401, 409, 422))
async def register(request: Request, key: Key, body: WorkerDescription) -> WorkerReply:
    """Register a worker that starts. Its name gets the name of its key in front."""

    def work(session: Session, use: KeyScope) -> tuple[str, int, int]:
        _check(body)
        named = replace(body, name=f"{use.key_name}/{body.name}")
        return named.name, *register_with_key(session, use, named)

    name, worker_id, last_run_id = await _work(request, work, key)
    lease_seconds = request.app.state.settings.lease_seconds
    return WorkerReply(worker_id=worker_id, name=name, lease_seconds=lease_seconds, last_run_id=last_run_id)


def _check(worker: WorkerDescription) -> None:
    """Problem for a worker that cannot be registered."""
    if worker.protocol != PROTOCOL_VERSION:
        older = "worker" if worker.protocol < PROTOCOL_VERSION else "server"
        versions = f"Warpwatch {worker.version[:40]} with protocol {worker.protocol}"
        own = f"Warpwatch {__version__} with protocol {PROTOCOL_VERSION}"
        raise Problem(409, f"the {older} is too old: the worker is {versions}, the server {own}; update the {older}")
    environment = worker.environment
    if environment.device_kind not in METRICS:
        raise _wrong("environment.device_kind", f"{environment.device_kind[:40]!r} is no kind", "use cpu or cuda")
    if environment.key != key_of(environment.facts):
        raise _wrong("environment.key", "is not the digest of the facts", "send the worker's own")


@api.get("/queue", responses=documented(401, 422))
async def count_queued(
    request: Request, key: Key, device: Annotated[str, Query(max_length=200, description="Key of a device.")]
) -> QueueCount:
    """How many jobs wait for a device, for whoever starts workers by it."""
    return QueueCount(queued=await _work(request, lambda session, _: runs.count_waiting(session, device), key))


@api.post("/{worker_id}/claim", responses=documented(401, 404, 422))
async def claim(request: Request, key: Key, worker_id: Id, body: ClaimQuestion) -> ClaimReply:
    """Wait for the next job of the worker's device, and begin a run of it."""

    def find(session: Session, use: KeyScope) -> tuple[KeyScope, ClaimedJob | None]:
        return use, runs.find_owned(session, worker_id, after=body.after_run_id)

    use, job = await _work(request, find, key, worker_id)
    if job is None and use.device_id is not None and use.device_key is not None:
        hub: Hub = request.app.state.hub
        gone = _hung_up(request)
        job = await hub.dispatcher.claim(use.device_id, use.device_key, worker_id, body.wait_seconds, gone)
    return ClaimReply(job=None if job is None else _as_claim(job))


@api.get("/{worker_id}/waiting", responses=documented(401, 404, 422))
async def list_waiting(request: Request, key: Key, worker_id: Id) -> QueueReply:
    """The jobs that the workers of the device take next, so that they build for them ahead."""

    def work(session: Session, use: KeyScope) -> list[JobRequest]:
        return runs.list_waiting(session, use.device_id or 0, MOST_WAITING)

    requests = await _work(request, work, key, worker_id)
    return QueueReply(requests=[_plain(job) for job in requests if job.patch is None])


@api.post("/{worker_id}/lease", responses=documented(401, 404, 422))
async def renew_lease(request: Request, key: Key, worker_id: Id, body: LeaseQuestion) -> LeaseState:
    """Renew the leases of the worker and its run. The answer comes early when the run must stop or make room."""
    run_id = body.run_id
    lease_seconds: float = request.app.state.settings.lease_seconds

    def renew(session: Session, use: KeyScope) -> tuple[LeaseState, int | None, str]:
        if run_id is not None and use.job_id is None:
            registry.worker_heartbeat(session, worker_id)
            return LeaseState(is_lost=True), None, ""
        return leases.renew(session, worker_id, run_id, lease_seconds), use.job_id, use.device_key or ""

    state, job_id, device_key = await _work(request, renew, key, worker_id, run_id, must_own=False)
    if run_id is None or job_id is None or body.hold_seconds == 0 or state != LeaseState():
        return state
    read = partial(_read_lease, run_id, lease_seconds)
    hub: Hub = request.app.state.hub
    with hub.follow_lease(job_id, device_key) as changed, suppress(TimeoutError):
        async with asyncio.timeout(body.hold_seconds):
            # Most jobs that are queued for the device are not more urgent than this one.
            while state == LeaseState() and not hub.is_closing:
                await changed.wait()
                changed.clear()
                state = await _work(request, read, key, worker_id)
    return state


def _read_lease(run_id: int, lease_seconds: float, session: Session, _: KeyScope) -> LeaseState:
    return leases.read_lease(session, run_id, lease_seconds)


@api.post("/{worker_id}/pause", status_code=204, responses=documented(401, 404, 422))
async def pause(request: Request, key: Key, worker_id: Id, body: PauseRequest) -> None:
    """Say that the worker takes no job for a while, and why."""
    await _work(request, lambda s, _: registry.pause_worker(s, worker_id, body.seconds, body.reason), key, worker_id)


@api.delete("/{worker_id}/pause", status_code=204, responses=documented(401, 404, 422))
async def resume(request: Request, key: Key, worker_id: Id) -> None:
    """Say that the worker takes jobs again."""
    await _work(request, lambda session, _: registry.resume_worker(session, worker_id), key, worker_id)


@api.post("/{worker_id}/stop", status_code=204, responses=documented(401, 404, 422))
async def stop(request: Request, key: Key, worker_id: Id) -> None:
    """Say that the worker stops. A run that it still has goes back into the queue at once."""

    def work(session: Session, _: KeyScope) -> None:
        while (job := runs.find_owned(session, worker_id)) is not None:
            runs.release_run(session, job.run_id)
        registry.stop_worker(session, worker_id)

    await _work(request, work, key, worker_id)


@api.post("/{worker_id}/runs/{run_id}/log", status_code=204, responses=documented(401, 404, 409, 413, 422))
async def write_log(request: Request, key: Key, worker_id: Id, run_id: Id, body: LogChunk) -> None:
    """Add to the log of a run, and replace its progress; 409 when it has ended."""

    def work(session: Session, _: KeyScope) -> None:
        leases.write_log(session, run_id, body.text, body.progress)

    await _work(request, work, key, worker_id, run_id)


_BINARY: dict[str, Any] = {
    "requestBody": {
        "description": "A piece of the results file.",
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


@api.put(
    "/{worker_id}/runs/{run_id}/results/{start}",
    responses=documented(401, 404, 409, 413, 422),
    openapi_extra=_BINARY,
)
async def put_piece(
    request: Request,
    key: Key,
    worker_id: Id,
    run_id: Id,
    data: Annotated[bytes, Depends(_body)],
    start: Annotated[int, Path(ge=0, le=2**62, description="Position of the first byte.")],
) -> ChunkReply:
    """Send the next piece of the run's results file; the answer says where the one after it begins.

    409 when the run owns its job no more.
    """

    def work(session: Session, _: KeyScope) -> int:
        if runs.find_owned(session, worker_id, run_id=run_id) is None:
            raise StaleRunError
        if start + len(data) > FILE_LIMIT:
            raise Problem(413, f"a results file has at most {FILE_LIMIT >> 30} GiB; measure fewer cases in one job")
        return add_chunk(session, run_id, start, data)

    return ChunkReply(bytes=await _work(request, work, key, worker_id, run_id))


@api.post("/{worker_id}/runs/{run_id}/end", status_code=204, responses=documented(401, 404, 409, 413, 422))
async def end(request: Request, key: Key, worker_id: Id, run_id: Id, body: EndingRequest) -> None:
    """End a run, with the results that were sent; they are checked like a results file from anywhere. 409 when the run
    owns its job no more, 422 for results that cannot be used; then nothing is written."""
    use = await _work(request, lambda _, use: use, key, worker_id, run_id)
    sent = SentEnding(body.ending, body.sha256, body.results, body.log)
    arguments = (database_of(request), worker_id, use.device_key or "", run_id, sent)
    threads: WorkerThreads = request.app.state.worker_threads
    try:
        limiter = threads.readers if body.sha256 is not None else threads.requests
        await to_thread.run_sync(take_ending, *arguments, limiter=limiter)
    except BundleError as error:
        raise _wrong("sha256", str(error), "send the results file as the worker wrote it") from error


async def _work(
    request: Request,
    action: Callable[[Session, KeyScope], T],
    key: str,
    worker_id: int | None = None,
    run_id: int | None = None,
    *,
    must_own: bool = True,
) -> T:
    """The result of `action` in one transaction, for whoever shows a key that is valid for the worker and the run.

    must_own: whether StaleRunError is raised for a run that is not the worker's.
    """

    def run() -> T:
        require_schema(request)
        with database_of(request).session() as session:
            return action(session, scope_of(session, key, worker_id, run_id, must_own=must_own))

    # One step in a thread of its own pool. A request of several steps, each in a thread that others wait for, holds its
    # connection meanwhile, and forty of them wait for one another.
    threads: WorkerThreads = request.app.state.worker_threads
    return await to_thread.run_sync(run, limiter=threads.requests)


async def _hung_up(request: Request) -> None:
    """Returns when the client has gone: the body was read, so nothing else can come."""
    while (await request.receive())["type"] != "http.disconnect":
        continue


def _as_claim(job: ClaimedJob) -> Claim:
    patch = job.request.patch
    return Claim(
        job_id=job.job_id,
        run_id=job.run_id,
        attempt=job.attempt,
        request=_plain(job.request),
        patch=b64encode(patch.content).decode() if patch is not None else None,
        patch_base=patch.base_sha if patch is not None else None,
        partial=to_json(job.partial) if job.partial is not None else None,
        trace_parent=job.trace_parent,
    )


def _plain(request: JobRequest) -> dict[str, Any]:
    return to_json(replace(request, patch=None))


def _wrong(field: str, message: str, remedy: str) -> Problem:
    return Problem(422, "some fields are not valid", [FieldError(field=field, message=message, remedy=remedy)])
