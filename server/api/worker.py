"""What a worker without the database's address asks for, with its key: jobs, leases, and a place for its results.

A key opens nothing else, and nothing else opens this. A request whose answer was lost may be sent again.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any, TypeVar

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool

from warpwatch.bundle import FILE_LIMIT, BundleError
from warpwatch.contract.claims import (
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
from warpwatch.db.result_chunks import add_chunk, received_bytes
from warpwatch.db.worker_keys import register_with_key
from warpwatch.server.http.problems import FieldError, Problem, documented
from warpwatch.server.http.service import Config, Db, database_of, require_schema
from warpwatch.server.http.worker_keys import Id, Key, OfKey, OfWorker, key_use, run_use, use_of, worker_use
from warpwatch.server.intake.worker_results import take_ending
from warpwatch.server.threads.live import Hub

router = APIRouter(prefix="/worker", tags=["worker"])
T = TypeVar("T")
MOST_SECONDS = 60.0
"""How long a request may be held, at most."""
_READERS = CapacityLimiter(4)
"""Results files that are read at once: each takes memory, and the interpreter reads one at a time anyway."""


class WorkerReply(BaseModel):
    """worker_id: part of every further address. last_run_id: of an earlier worker of the same name."""

    worker_id: int
    name: str
    lease_seconds: float
    last_run_id: int


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
    """sha256: of the results file that was sent; null without results."""

    model_config = ConfigDict(extra="forbid")
    ending: RunEnding
    sha256: str | None = Field(None, pattern="^[0-9a-f]{64}$")


class ChunkReply(BaseModel):
    """Where the next piece begins."""

    bytes: int


class QueueCount(BaseModel):
    queued: int


async def _body(request: Request) -> bytes:
    return await request.body()


@router.post("/registration", responses=documented(401, 409, 422))
def register(session: Db, use: OfKey, settings: Config, body: WorkerDescription) -> WorkerReply:
    """Register a worker that starts. Its name gets the name of its key in front."""
    if body.protocol != PROTOCOL_VERSION:
        raise Problem(
            409, f"this server speaks version {PROTOCOL_VERSION} with workers; install its version of Warpwatch"
        )
    environment = body.environment
    if environment.device_kind not in METRICS:
        raise _wrong("environment.device_kind", f"{environment.device_kind[:40]!r} is no kind", "use cpu or cuda")
    if environment.key != key_of(environment.facts):
        raise _wrong("environment.key", "is not the digest of the facts", "send the worker's own")
    named = replace(body, name=f"{use.key_name}/{body.name}")
    worker_id, last_run_id = register_with_key(session, use, named)
    return WorkerReply(
        worker_id=worker_id, name=named.name, lease_seconds=settings.lease_seconds, last_run_id=last_run_id
    )


@router.get("/queue", dependencies=[Depends(key_use)], responses=documented(401, 422))
def count_queued(
    session: Db, device: Annotated[str, Query(max_length=200, description="Key of a device.")]
) -> QueueCount:
    """How many jobs wait for a device, for whoever starts workers by it."""
    return QueueCount(queued=runs.count_waiting(session, device))


@router.post("/{worker_id}/claim", responses=documented(401, 404, 422))
async def claim(request: Request, key: Key, worker_id: Id, body: ClaimQuestion) -> ClaimReply:
    """Wait for the next job of the worker's device, and begin a run of it."""

    def look(session: Session) -> tuple[int, str, ClaimedJob | None]:
        use = use_of(session, key, worker_id)
        assert use.device_id is not None
        assert use.device_key is not None
        return use.device_id, use.device_key, runs.find_owned(session, worker_id, after=body.after_run_id)

    device_id, device_key, job = await _in_session(request, look)
    if job is None:
        hub: Hub = request.app.state.hub
        gone = _hung_up(request)
        job = await hub.dispatcher.claim(device_id, device_key, worker_id, body.wait_seconds, gone)
    return ClaimReply(job=None if job is None else _as_claim(job))


@router.get("/{worker_id}/waiting", responses=documented(401, 404, 422))
def list_waiting(session: Db, use: OfWorker, limit: Annotated[int, Query(ge=1, le=100)] = 16) -> QueueReply:
    """The jobs that the workers of the device take next, so that they build for them ahead."""
    assert use.device_id is not None
    requests = runs.list_waiting(session, use.device_id, limit)
    return QueueReply(requests=[_plain(request) for request in requests if request.patch is None])


@router.post("/{worker_id}/lease", responses=documented(401, 404, 422))
async def renew_lease(request: Request, settings: Config, key: Key, worker_id: Id, body: LeaseQuestion) -> LeaseState:
    """Renew the leases of the worker and its run. The answer comes early when the run must stop."""
    run_id = body.run_id

    def renew(session: Session) -> tuple[LeaseState, int | None]:
        try:
            use = use_of(session, key, worker_id, run_id)
        except StaleRunError:
            registry.worker_heartbeat(session, worker_id)
            return LeaseState(is_lost=True), None
        return leases.renew(session, worker_id, run_id, settings.lease_seconds), use.job_id

    state, job_id = await _in_session(request, renew)
    if run_id is None or job_id is None or body.hold_seconds == 0 or state != LeaseState():
        return state
    hub: Hub = request.app.state.hub
    with hub.follow_lease(job_id) as changed, suppress(TimeoutError):
        await asyncio.wait_for(changed.wait(), body.hold_seconds)
    if not changed.is_set():
        return state
    return await _in_session(request, lambda session: leases.read_lease(session, run_id, settings.lease_seconds))


@router.post(
    "/{worker_id}/pause", status_code=204, dependencies=[Depends(worker_use)], responses=documented(401, 404, 422)
)
def pause(session: Db, worker_id: Id, body: PauseRequest) -> None:
    """Say that the worker takes no job for a while, and why."""
    registry.pause_worker(session, worker_id, body.seconds, body.reason)


@router.delete(
    "/{worker_id}/pause", status_code=204, dependencies=[Depends(worker_use)], responses=documented(401, 404, 422)
)
def resume(session: Db, worker_id: Id) -> None:
    """Say that the worker takes jobs again."""
    registry.resume_worker(session, worker_id)


@router.post(
    "/{worker_id}/stop", status_code=204, dependencies=[Depends(worker_use)], responses=documented(401, 404, 422)
)
def stop(session: Db, worker_id: Id) -> None:
    """Say that the worker stops. A run that it still has goes back into the queue at once."""
    while (job := runs.find_owned(session, worker_id)) is not None:
        runs.release_run(session, job.run_id)
    registry.stop_worker(session, worker_id)


@router.post(
    "/{worker_id}/runs/{run_id}/log",
    status_code=204,
    dependencies=[Depends(run_use)],
    responses=documented(401, 404, 409, 422),
)
def write_log(session: Db, run_id: Id, body: LogChunk) -> None:
    """Add to the log of a run, and replace its progress; 409 when it has ended."""
    leases.write_log(session, run_id, body.text, body.progress)


@router.get(
    "/{worker_id}/runs/{run_id}/results", dependencies=[Depends(run_use)], responses=documented(401, 404, 409, 422)
)
def get_received(session: Db, run_id: Id) -> ChunkReply:
    """How much of the run's results file is here, so that a worker goes on there after its connection broke."""
    return ChunkReply(bytes=received_bytes(session, run_id))


_BINARY: dict[str, Any] = {
    "requestBody": {
        "description": "A piece of the results file.",
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


@router.put(
    "/{worker_id}/runs/{run_id}/results",
    dependencies=[Depends(run_use)],
    responses=documented(401, 404, 409, 413, 422),
    openapi_extra=_BINARY,
)
def put_piece(
    session: Db,
    worker_id: Id,
    run_id: Id,
    data: Annotated[bytes, Depends(_body)],
    start: Annotated[int, Query(ge=0, le=2**62, description="Position of the first byte.")],
) -> ChunkReply:
    """Send the next piece of the run's results file; the answer says where the one after it begins.

    409 when the run owns its job no more.
    """
    if runs.find_owned(session, worker_id, run_id=run_id) is None:
        raise StaleRunError
    if start + len(data) > FILE_LIMIT:
        raise Problem(413, f"a results file has at most {FILE_LIMIT >> 30} GiB; measure fewer cases in one job")
    return ChunkReply(bytes=add_chunk(session, run_id, start, data))


@router.post("/{worker_id}/runs/{run_id}/end", status_code=204, responses=documented(401, 404, 409, 422))
async def end(request: Request, key: Key, worker_id: Id, run_id: Id, body: EndingRequest) -> Response:
    """End a run, with the results that were sent; they are checked like a results file from anywhere. 409 when the run
    owns its job no more, 422 for results that cannot be used; then nothing is written."""

    def look(session: Session) -> str:
        return str(use_of(session, key, worker_id, run_id).device_key)

    device_key = await _in_session(request, look)
    arguments = (database_of(request), worker_id, device_key, run_id, body.ending, body.sha256)
    try:
        if body.sha256 is None:
            await run_in_threadpool(take_ending, *arguments)
        else:
            await to_thread.run_sync(take_ending, *arguments, limiter=_READERS)
    except BundleError as error:
        raise _wrong("sha256", str(error), "send the results file as the worker wrote it") from error
    return Response(status_code=204)


async def _in_session(request: Request, action: Callable[[Session], T]) -> T:
    """The result of `action` in one transaction, for endpoints that hold no connection while they wait."""

    def run() -> T:
        require_schema(request)
        with database_of(request).session() as session:
            return action(session)

    return await run_in_threadpool(run)


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
    )


def _plain(request: JobRequest) -> dict[str, Any]:
    return to_json(replace(request, patch=None))


def _wrong(field: str, message: str, remedy: str) -> Problem:
    return Problem(422, "some fields are not valid", [FieldError(field=field, message=message, remedy=remedy)])
