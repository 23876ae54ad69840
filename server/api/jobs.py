"""Jobs: the queue, one job, its log, its live events; cancel and retry."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent

from warpwatch.contract.words import JobKind
from warpwatch.db.reads.query import Page
from warpwatch.db.reads.work import (
    JobDetail,
    JobFilter,
    JobRow,
    JobStatusRow,
    LogLine,
    list_jobs,
    read_job,
    read_job_status,
    read_log,
)
from warpwatch.db.submissions import cancel_job, retry_job
from warpwatch.server.api.code import RepositoryName
from warpwatch.server.figures.tables import CSV_ANSWER, csv_response
from warpwatch.server.http.problems import documented, not_found
from warpwatch.server.http.service import Before, Db, Limit, repository_or_404
from warpwatch.server.threads.live import follow_job

router = APIRouter(tags=["jobs"])
State = Literal["queued", "running", "done", "failed", "cancelled"]
Name = Annotated[str | None, Query(max_length=200)]


def wanted(
    session: Db,
    state: State | None = None,
    kind: JobKind | None = None,
    repository: RepositoryName | None = None,
    operator: Name = None,
    device: Name = None,
    submission: Annotated[int | None, Query(ge=1, le=2**62)] = None,
) -> JobFilter:
    repository_id = None if repository is None else repository_or_404(session, repository).id
    return JobFilter(state, kind, repository_id, operator, device, submission)


Wanted = Annotated[JobFilter, Depends(wanted)]


@router.get("/jobs", responses=documented(404, 422))
def get_jobs(session: Db, wanted: Wanted, before: Before = None, limit: Limit = 50) -> Page[JobRow]:
    """Jobs that match every filter given, newest first; a queued one says how many come before it on its device."""
    return list_jobs(session, wanted, before, limit)


@router.get("/jobs.csv", responses=documented(404, 422) | CSV_ANSWER, response_class=Response)
def get_jobs_csv(session: Db, wanted: Wanted, before: Before = None, limit: Limit = 200) -> Response:
    """The same list as CSV."""
    return csv_response(JobRow, list_jobs(session, wanted, before, limit).items, "jobs")


@router.get("/jobs/{job_id}", responses=documented(404, 422))
def get_job(session: Db, job_id: int) -> JobDetail:
    """One job with its attempts, the results of the newest that recorded any, and a command that does it again."""
    found = read_job(session, job_id)
    if found is None:
        raise not_found("job", job_id)
    return found


def pulse_or_404(session: Db, job_id: int) -> JobStatusRow:
    found = read_job_status(session, job_id)
    if found is None:
        raise not_found("job", job_id)
    return found


Pulse = Annotated[JobStatusRow, Depends(pulse_or_404)]


@router.get("/jobs/{job_id}/log", responses=documented(404, 422))
def get_log(
    session: Db,
    pulse: Pulse,
    run: Annotated[int | None, Query(description="An attempt's id; by default the newest.")] = None,
    after: Annotated[int, Query(ge=0, description="Id of the last piece already known.")] = 0,
    limit: Annotated[int, Query(ge=1, le=5000)] = 1000,
) -> Page[LogLine]:
    """Pieces of an attempt's log, in order."""
    if run is not None and run not in {known.id for known in get_job(session, pulse.job_id).runs}:
        raise not_found("run", run, f"job {pulse.job_id} has none of that id")
    run_id = run if run is not None else pulse.run_id
    return Page([] if run_id is None else read_log(session, run_id, after, limit), None)


@router.get("/jobs/{job_id}/events", responses=documented(404, 422), response_class=EventSourceResponse)
async def get_events(
    request: Request, pulse: Pulse, last_event_id: Annotated[int, Header(ge=0)] = 0
) -> AsyncIterator[ServerSentEvent]:
    """The newest attempt, live: `log`, `progress` and `state` events, and `end` when the job has ended.

    The id of a log event is the piece's; sent back as Last-Event-ID, the log goes on behind it.
    """
    async for event in follow_job(request.app, pulse.job_id, last_event_id):
        yield event


@router.post("/jobs/{job_id}/cancel", responses=documented(404, 422))
def cancel(session: Db, job_id: int) -> JobDetail:
    """Cancel the job; a running one stops within two seconds, one that has ended stays as it is."""
    cancel_job(session, job_id)
    return get_job(session, job_id)


@router.post("/jobs/{job_id}/retry", responses=documented(404, 409, 422))
def retry(session: Db, job_id: int) -> JobDetail:
    """Put an ended job back into the queue; 409 while it has not ended."""
    retry_job(session, job_id)
    return get_job(session, job_id)
