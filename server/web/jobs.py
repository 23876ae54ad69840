"""The list of jobs, and one job with its live log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from itertools import groupby
from math import log
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Form, Header, Query, Request, Response
from fastapi.responses import RedirectResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import BaseModel, ConfigDict, Field

from warpwatch.contract.codec import from_json
from warpwatch.contract.measurement import Curves
from warpwatch.contract.outcome import Comparison
from warpwatch.contract.rounds import times_of_rounds
from warpwatch.contract.spec import JobSpec
from warpwatch.contract.words import JobKind, JobState, Status
from warpwatch.db.patches import read_outcome
from warpwatch.db.reads.code import list_operators
from warpwatch.db.reads.decisions import ComparedSeries
from warpwatch.db.reads.devices import list_devices
from warpwatch.db.reads.query import Page
from warpwatch.db.reads.work import (
    JobDetail,
    JobFilter,
    JobRow,
    JobStatusRow,
    LogLine,
    ResultView,
    list_jobs,
    read_job,
    read_job_status,
    read_log,
)
from warpwatch.db.strike_out import strike_out, undo_strike_out
from warpwatch.db.submissions import cancel_job, retry_job
from warpwatch.server.figures.result_curves import break_even, curves_svg
from warpwatch.server.figures.run_times import shares_of, times_svg
from warpwatch.server.figures.tables import CSV_ANSWER, csv_response
from warpwatch.server.http.problems import documented, not_found
from warpwatch.server.http.service import Before, Config, Db, Limit, refuse_example, repository_or_404
from warpwatch.server.reports.formats import kind_name
from warpwatch.server.threads.live import follow_job
from warpwatch.server.verdicts.held import PairVerdict, classify
from warpwatch.server.verdicts.thresholds import kind_of_time
from warpwatch.server.web.choices import Text
from warpwatch.server.web.code import RepositoryName
from warpwatch.server.web.lanes import read_lanes, unserved_devices
from warpwatch.server.web.render import PageScope, query

router = APIRouter()
LOG_PIECES = 5000


@router.get("/runs/jobs")
def jobs(
    page: PageScope,
    settings: Config,
    state: Annotated[JobState | Literal["active", "all", ""] | None, Query()] = None,
    kind: Annotated[JobKind | Literal[""] | None, Query()] = None,
    operator: Text = None,
    device: Text = None,
    before: Before = None,
) -> Response:
    """Jobs of all repositories, or of one operator of the page's repository, grouped by run.

    state: by default those that wait or run, or all that match another filter.
    """
    repository = page.repository if operator else None
    state = state or ("all" if operator or kind or device else "active")
    job_filter = JobFilter(
        state=JobState(state) if state not in ("active", "all") else None,
        kind=kind or None,
        repository_id=repository.id if repository else None,
        operator=operator or None,
        device=device or None,
        is_open=state == "active",
    )
    filters = {"kind": kind, "operator": operator, "device": device}
    addressed = {**filters, "state": job_filter.state, "repository": repository.name if repository else None}
    lanes = read_lanes(page.session, settings.lease_seconds)
    rows = list_jobs(page.session, job_filter, before)
    return page.page(
        "jobs.html",
        lanes=lanes,
        json=query("/jobs", **addressed, before=before),
        csv=query("/api/v1/jobs.csv", **addressed, before=before),
        jobs=rows,
        runs=[(number, list(group)) for number, group in groupby(rows.items, key=lambda job: job.submission_id)],
        state=state,
        filters=filters,
        before=before,
        kinds=[(kind, kind_name(kind)) for kind in JobKind],
        operators=[row.name for row in list_operators(page.session, page.repository.id)] if page.repository else [],
        unserved=lanes.unserved,
    )


@router.get("/jobs/{job_id}")
def job(page: PageScope, settings: Config, job_id: int, run: Annotated[int | None, Query()] = None) -> Response:
    """One job with the live log of its newest attempt, or the stored log of the attempt `run`."""
    detail = read_job(page.session, job_id)
    if detail is None:
        raise not_found("job", job_id)
    page.moved(detail.repository)
    shown = next((row for row in detail.runs if row.id == run), detail.runs[-1] if detail.runs else None)
    is_newest = shown is None or shown is detail.runs[-1]
    patched = read_outcome(page.session, job_id)
    outcome = (patched.outcome if patched is not None else None) or {}
    log = read_log(page.session, shown.id, limit=LOG_PIECES) if shown else []
    return page.page(
        "job.html",
        json=f"/jobs/{job_id}",
        detail=detail,
        spec=JobSpec.from_stored(detail.spec),
        results=grouped_results(detail.results),
        break_even=break_even(detail.results),
        curves=_curves(detail.results),
        compared=compared_rows(
            detail.decision.compared + [_patch_series(row) for row in outcome.get("comparisons", ())],
            detail.device_kind,
            is_trial=detail.decision.regression is not None,
        ),
        is_patch=patched is not None,
        patch_findings=outcome.get("findings", []),
        job=detail.job,
        unserved=unserved_devices(list_devices(page.session, settings.lease_seconds)),
        shown=shown,
        times=shares_of(shown.times, shown.rest_seconds or 0.0) if shown and shown.times else [],
        times_svg=times_svg,
        log=log,
        last_log_id=log[-1].id if log else 0,
        is_live=is_newest and detail.job.state in ("queued", "running"),
    )


def _curves(results: Iterable[ResultView]) -> dict[int, str]:
    """The picture of each result that has curves, by result id."""
    drawn = {row.id: row.details["curves"] for row in results if row.details.get("curves")}
    return {number: curves_svg(from_json(Curves, curves)) for number, curves in drawn.items()}


def grouped_results(results: Iterable[ResultView]) -> list[tuple[ResultView, list[str]]]:
    """Every result with its cases. A build failure stands for all cases of its variant; any other result has one."""
    groups: dict[tuple[object, ...], tuple[ResultView, list[str]]] = {}
    for row in results:
        is_build = row.status in (Status.BUILD_FAILED, Status.MISSING_DEPENDENCY)
        key = (row.variant, row.kind, row.message) if is_build else (row.id,)
        groups.setdefault(key, (row, []))[1].append(row.case)
    return list(groups.values())


@dataclass(frozen=True, slots=True)
class ComparedLine:
    """One series of an A/B job: the times of both sides, and the verdict on the rounds."""

    row: ComparedSeries
    verdict: PairVerdict
    base_ns: float | None
    head_ns: float | None


def _patch_series(row: dict[str, Any]) -> ComparedSeries:
    """Series of a patch job. A patch has no stored series, so the series id is 0."""
    of = from_json(Comparison, row)
    rounds = of.base_ns, of.head_ns
    return ComparedSeries(0, of.case, of.variant, of.metric, of.status, of.message, of.reason, *rounds, of.protocol)


def compared_rows(compared: list[ComparedSeries], device_kind: str, *, is_trial: bool) -> list[ComparedLine]:
    """Rows of an A/B job, the largest change first."""
    among = sum(row.status == "ok" for row in compared)
    lines = [
        ComparedLine(
            row,
            classify(
                row.base_ns,
                row.head_ns,
                kind_of_time(device_kind, row.metric, row.protocol),
                among,
                row.reason,
                is_trial=is_trial,
            ),
            *times_of_rounds(row.base_ns, row.head_ns),
        )
        for row in compared
    ]
    return sorted(lines, key=lambda line: -abs(log(line.verdict.ratio)) if line.verdict.ratio else 0.0)


@router.post("/jobs/{job_id}/cancel")
def cancel_form(page: PageScope, job_id: int) -> Response:
    cancel_job(page.session, job_id)
    return RedirectResponse(f"/jobs/{job_id}", 303)


@router.post("/jobs/{job_id}/retry")
def retry_form(page: PageScope, job_id: int) -> Response:
    detail = read_job(page.session, job_id)
    if detail is None:
        raise not_found("job", job_id)
    refuse_example(page.session, detail.repository)
    retry_job(page.session, job_id)
    return RedirectResponse(f"/jobs/{job_id}", 303)


@router.post("/jobs/{job_id}/strike-out")
def strike_out_results_form(
    page: PageScope, job_id: int, reason: Annotated[str, Form(max_length=500, pattern=r"\S")]
) -> Response:
    strike_out(page.session, job_id, reason.strip())
    return RedirectResponse(f"/jobs/{job_id}", 303)


@router.post("/jobs/{job_id}/strike-out/undo")
def undo_strike_out_of_results_form(page: PageScope, job_id: int) -> Response:
    undo_strike_out(page.session, job_id)
    return RedirectResponse(f"/jobs/{job_id}", 303)


api = APIRouter(tags=["jobs"])
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


@api.get("/jobs", responses=documented(404, 422))
def get_jobs(session: Db, job_filter: Filter, before: Before = None, limit: Limit = 50) -> Page[JobRow]:
    """Jobs that match all given filters, newest first. position: queued jobs ahead on the same device."""
    return list_jobs(session, job_filter, before, limit)


@api.get("/jobs.csv", responses=documented(404, 422) | CSV_ANSWER, response_class=Response)
def get_jobs_csv(session: Db, job_filter: Filter, before: Before = None, limit: Limit = 200) -> Response:
    """The same list as CSV."""
    return csv_response(JobRow, list_jobs(session, job_filter, before, limit).items, "jobs")


@api.get("/jobs/{job_id}", responses=documented(404, 422))
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


@api.get("/jobs/{job_id}/log", responses=documented(404, 422))
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


@api.get("/jobs/{job_id}/events", responses=documented(404, 422), response_class=EventSourceResponse)
async def get_events(
    request: Request, status: StatusOfJob, last_event_id: Annotated[int, Header(ge=0)] = 0
) -> AsyncIterator[ServerSentEvent]:
    """Live events of the newest attempt: `log`, `progress`, `state`, and `end` when the job has finished.

    Send the id of a log event as Last-Event-ID to continue the log after it.
    """
    async for event in follow_job(request.app, status.job_id, last_event_id):
        yield event


@api.post("/jobs/{job_id}/cancel", responses=documented(404, 422))
def cancel(session: Db, job_id: int) -> JobDetail:
    """Cancel the job. A running job stops within two seconds, a finished one stays as it is."""
    cancel_job(session, job_id)
    return get_job(session, job_id)


@api.post("/jobs/{job_id}/retry", responses=documented(404, 409, 422))
def retry(session: Db, job_id: int) -> JobDetail:
    """Queue a finished job again; 409 while it is queued or running."""
    refuse_example(session, get_job(session, job_id).repository)
    retry_job(session, job_id)
    return get_job(session, job_id)


@api.post("/jobs/{job_id}/strike-out", responses=documented(404, 409, 422))
def strike_out_results(session: Db, job_id: int, body: StrikeOut) -> JobDetail:
    """Strike out the results of an ended job.

    They vanish from history, verdicts, badges and reports, and stay at the job. A verdict that a struck-out comparison
    decided is open again, and the comparison is queued again.
    """
    strike_out(session, job_id, body.reason.strip())
    return get_job(session, job_id)


@api.delete("/jobs/{job_id}/strike-out", responses=documented(404, 409, 422))
def undo_strike_out_of_results(session: Db, job_id: int) -> JobDetail:
    """Let the results of a job count again."""
    undo_strike_out(session, job_id)
    return get_job(session, job_id)
