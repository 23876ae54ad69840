"""Jobs: the queue, one job, its log and live events; cancel and retry."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import BaseModel, ConfigDict, Field

from warpwatch.contract.words import JobKind, JobState
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
from warpwatch.db.strike_out import strike_out, undo_strike_out
from warpwatch.db.submissions import cancel_job, retry_job
from warpwatch.server.api.code import RepositoryName
from warpwatch.server.figures.tables import CSV_ANSWER, csv_response
from warpwatch.server.http.problems import documented, not_found
from warpwatch.server.http.service import Before, Db, Limit, refuse_example, repository_or_404
from warpwatch.server.threads.live import follow_job

router = APIRouter(tags=["jobs"])
Name = Annotated[str | None, Query(max_length=200)]


def job_filter(
    session: Db,
    state: JobState | None = None,
    kind: JobKind | None = None,
    repository: RepositoryName | None = None,
    operator: Name = None,
    device: Name = None,
    submission: Annotated[int | None, Query(ge=1, le=2**62)] = None,
) -> JobFilter:
    repository_id = None if repository is None else repository_or_404(session, repository).id
    return JobFilter(state, kind, repository_id, operator, device, submission)


class StrikeOut(BaseModel):
    """Why the results of a job do not count."""

    model_config = ConfigDict(extra="forbid")
    reason: str = Field(min_length=1, max_length=500, pattern=r"\S", examples=["another program used the GPU"])


Filter = Annotated[JobFilter, Depends(job_filter)]


@router.get("/jobs", responses=documented(404, 422))
def get_jobs(session: Db, job_filter: Filter, before: Before = None, limit: Limit = 50) -> Page[JobRow]:
    """Jobs that match all given filters, newest first. position: queued jobs ahead on the same device."""
    return list_jobs(session, job_filter, before, limit)


@router.get("/jobs.csv", responses=documented(404, 422) | CSV_ANSWER, response_class=Response)
def get_jobs_csv(session: Db, job_filter: Filter, before: Before = None, limit: Limit = 200) -> Response:
    """The same list as CSV."""
    return csv_response(JobRow, list_jobs(session, job_filter, before, limit).items, "jobs")


@router.get("/jobs/{job_id}", responses=documented(404, 422))
def get_job(session: Db, job_id: int) -> JobDetail:
    """One job with its attempts, the newest results, and a command that reproduces it."""
    detail = read_job(session, job_id)
    if detail is None:
        raise not_found("job", job_id)
    return detail


def status_or_404(session: Db, job_id: int) -> JobStatusRow:
    status = read_job_status(session, job_id)
    if status is None:
        raise not_found("job", job_id)
    return status


StatusOfJob = Annotated[JobStatusRow, Depends(status_or_404)]


@router.get("/jobs/{job_id}/log", responses=documented(404, 422))
def get_log(
    session: Db,
    status: StatusOfJob,
    run: Annotated[int | None, Query(description="Id of an attempt; default: the newest.")] = None,
    after: Annotated[int, Query(ge=0, description="Return log pieces after this id.")] = 0,
    limit: Annotated[int, Query(ge=1, le=5000)] = 1000,
) -> Page[LogLine]:
    """The log of an attempt, in order."""
    if run is not None and run not in {row.id for row in get_job(session, status.job_id).runs}:
        raise not_found("run", run, f"job {status.job_id} has no such attempt")
    run_id = run if run is not None else status.run_id
    return Page([] if run_id is None else read_log(session, run_id, after, limit), None)


@router.get("/jobs/{job_id}/events", responses=documented(404, 422), response_class=EventSourceResponse)
async def get_events(
    request: Request, status: StatusOfJob, last_event_id: Annotated[int, Header(ge=0)] = 0
) -> AsyncIterator[ServerSentEvent]:
    """Live events of the newest attempt: `log`, `progress`, `state`, and `end` when the job has finished.

    Send the id of a log event as Last-Event-ID to continue the log after it.
    """
    async for event in follow_job(request.app, status.job_id, last_event_id):
        yield event


@router.post("/jobs/{job_id}/cancel", responses=documented(404, 422))
def cancel(session: Db, job_id: int) -> JobDetail:
    """Cancel the job. A running job stops within two seconds, a finished one stays as it is."""
    cancel_job(session, job_id)
    return get_job(session, job_id)


@router.post("/jobs/{job_id}/retry", responses=documented(404, 409, 422))
def retry(session: Db, job_id: int) -> JobDetail:
    """Queue a finished job again; 409 while it is queued or running."""
    refuse_example(session, get_job(session, job_id).repository)
    retry_job(session, job_id)
    return get_job(session, job_id)


@router.post("/jobs/{job_id}/strike-out", responses=documented(404, 409, 422))
def strike_out_results(session: Db, job_id: int, body: StrikeOut) -> JobDetail:
    """Strike out the results of an ended job.

    They vanish from history, verdicts, badges and reports, and stay at the job. A verdict that a struck-out comparison
    decided is open again, and the comparison is queued again.
    """
    strike_out(session, job_id, body.reason.strip())
    return get_job(session, job_id)


@router.delete("/jobs/{job_id}/strike-out", responses=documented(404, 409, 422))
def undo_strike_out_of_results(session: Db, job_id: int) -> JobDetail:
    """Let the results of a job count again."""
    undo_strike_out(session, job_id)
    return get_job(session, job_id)
