"""The job queue, and one job with its live log."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from math import log
from statistics import median
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Form, Query, Response
from fastapi.responses import RedirectResponse

from warpwatch.contract.codec import from_json
from warpwatch.contract.measurement import Curves
from warpwatch.contract.outcome import Comparison
from warpwatch.contract.spec import JobSpec
from warpwatch.contract.words import JobKind, JobState, Status
from warpwatch.db.reads.code import list_operators
from warpwatch.db.reads.decisions import ComparedSeries
from warpwatch.db.reads.devices import DeviceRow, list_devices, list_workers
from warpwatch.db.reads.occupancy import list_device_runs, list_queued
from warpwatch.db.reads.patches import read_outcome
from warpwatch.db.reads.schedules import read_costs
from warpwatch.db.reads.work import JobFilter, ResultView, list_jobs, read_job, read_log
from warpwatch.db.strike_out import strike_out, undo_strike_out
from warpwatch.db.submissions import cancel_job, retry_job
from warpwatch.server.figures.break_even import break_even
from warpwatch.server.figures.formats import kind_name
from warpwatch.server.figures.gantt import PAST, gantt_svg, plan_rows
from warpwatch.server.figures.result_curves import curves_svg
from warpwatch.server.figures.run_times import shares_of, times_svg
from warpwatch.server.http.problems import not_found
from warpwatch.server.http.service import Before, Config, refuse_example
from warpwatch.server.intake.budget import CostEstimates
from warpwatch.server.pages.choices import Text
from warpwatch.server.pages.render import Page, query
from warpwatch.server.verdicts.held import PairVerdict, classify

router = APIRouter()
LOG_PIECES = 5000


@router.get("/jobs")
def jobs(
    page: Page,
    settings: Config,
    state: Annotated[JobState | None, Query()] = None,
    kind: Annotated[JobKind | Literal[""] | None, Query()] = None,
    operator: Text = None,
    device: Text = None,
    before: Before = None,
) -> Response:
    """The queue of all repositories, or of one operator of the page's repository."""
    repository = page.repository if operator else None
    job_filter = JobFilter(state, kind or None, repository.id if repository else None, operator or None, device or None)
    filters = {"state": state, "kind": kind, "operator": operator, "device": device}
    addressed = filters | {"repository": repository.name if repository else None, "before": before}
    devices = list_devices(page.session, settings.lease_seconds)
    workers = list_workers(page.session, settings.lease_seconds)
    now = datetime.now(UTC)
    runs, queued = list_device_runs(page.session, now - PAST), list_queued(page.session)
    rows = plan_rows(devices, runs, queued, CostEstimates(read_costs(page.session)), now)
    return page.page(
        "jobs.html",
        gantt=gantt_svg(rows, now),
        gantt_rows=rows,
        json=query("/jobs", **addressed),
        csv=query("/api/v1/jobs.csv", **addressed),
        jobs=list_jobs(page.session, job_filter, before),
        filters=filters,
        before=before,
        kinds=[(kind, kind_name(kind)) for kind in JobKind],
        operators=[row.name for row in list_operators(page.session, page.repository.id)] if page.repository else [],
        devices=devices,
        unserved=unserved_devices(devices),
        has_worker=any(worker.state == "alive" for worker in workers),
    )


@router.get("/jobs/{job_id}")
def job(page: Page, settings: Config, job_id: int, run: Annotated[int | None, Query()] = None) -> Response:
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
    """One series of an A/B job: the median round of both sides, and the verdict on the rounds."""

    row: ComparedSeries
    verdict: PairVerdict
    base_ns: float | None
    head_ns: float | None


def _patch_series(row: dict[str, Any]) -> ComparedSeries:
    """What a job of a patch compared, which is no series: 0 stands for its id."""
    of = from_json(Comparison, row)
    return ComparedSeries(0, of.case, of.variant, of.metric, of.status, of.message, of.reason, of.base_ns, of.head_ns)


def compared_rows(compared: list[ComparedSeries], device_kind: str, *, is_trial: bool) -> list[ComparedLine]:
    """What an A/B job compared, the largest change first."""
    among = sum(row.status == "ok" for row in compared)
    lines = [
        ComparedLine(
            row,
            classify(row.base_ns, row.head_ns, device_kind, among, row.reason, is_trial=is_trial),
            median(row.base_ns) if row.base_ns else None,
            median(row.head_ns) if row.head_ns else None,
        )
        for row in compared
    ]
    return sorted(lines, key=lambda line: -abs(log(line.verdict.ratio)) if line.verdict.ratio else 0.0)


def unserved_devices(devices: Iterable[DeviceRow]) -> dict[str, str]:
    """Key → name of the devices without a living worker or a scheduler; jobs of these wait until a person starts a
    worker."""
    return {device.key: device.name for device in devices if not (device.workers or device.is_elastic)}


@router.post("/jobs/{job_id}/cancel")
def cancel(page: Page, job_id: int) -> Response:
    cancel_job(page.session, job_id)
    return RedirectResponse(f"/jobs/{job_id}", 303)


@router.post("/jobs/{job_id}/retry")
def retry(page: Page, job_id: int) -> Response:
    detail = read_job(page.session, job_id)
    if detail is None:
        raise not_found("job", job_id)
    refuse_example(page.session, detail.repository)
    retry_job(page.session, job_id)
    return RedirectResponse(f"/jobs/{job_id}", 303)


@router.post("/jobs/{job_id}/strike-out")
def strike_out_results(
    page: Page, job_id: int, reason: Annotated[str, Form(max_length=500, pattern=r"\S")]
) -> Response:
    strike_out(page.session, job_id, reason.strip())
    return RedirectResponse(f"/jobs/{job_id}", 303)


@router.post("/jobs/{job_id}/strike-out/undo")
def undo_strike_out_of_results(page: Page, job_id: int) -> Response:
    undo_strike_out(page.session, job_id)
    return RedirectResponse(f"/jobs/{job_id}", 303)
