"""Runs: what devices do now, the list of runs, and one run with its jobs. Over REST a run is a submission."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response
from fastapi.responses import RedirectResponse

from warpwatch.contract.words import JobKind
from warpwatch.db.awaited_files import list_awaited_files
from warpwatch.db.callbacks import list_callbacks
from warpwatch.db.forge import list_check_runs
from warpwatch.db.reads.reports import read_report_facts
from warpwatch.db.reads.work import (
    JobFilter,
    JobRow,
    SubmissionRow,
    count_open_runs,
    count_trials,
    list_jobs,
    list_ordinals,
    list_submissions,
    read_submission,
)
from warpwatch.db.submissions import cancel_submission, retry_submission
from warpwatch.server.http.problems import not_found
from warpwatch.server.http.service import Before, Config, refuse_example
from warpwatch.server.reports.build import build_report
from warpwatch.server.reports.model import MEANINGS, Report
from warpwatch.server.reports.words import finding_name, fold
from warpwatch.server.web.lanes import read_lanes
from warpwatch.server.web.render import PageScope, Scope, query

router = APIRouter()
ON_A_PAGE = 25
"""Runs of a page of the list."""
MOST_JOBS = 200
"""Jobs of a run on one page."""


@router.get("/runs")
def runs(
    page: PageScope,
    settings: Config,
    state: Annotated[Literal["active", "all", ""] | None, Query()] = None,
    before: Before = None,
    trials: bool = False,
) -> Response:
    """Devices and what they do, and the runs of the repository, newest first.

    state: by default those that are active, or all where none is. `trials=true` shows those that Warpwatch made to
    decide on a regression too.
    """
    if page.repository is None:
        return page.page("welcome.html")
    session, repository = page.session, page.repository
    active = count_open_runs(session, repository.id)
    is_open = state == "active" or (not state and active > 0 and before is None)
    rows = list_submissions(session, repository.id, before, ON_A_PAGE, trials=trials or is_open, is_open=is_open)
    last = rows.items[-1].id if rows.items and rows.next_before else 0
    filters = {"state": state, "trials": trials and "true"}
    return page.page(
        "runs.html",
        json=query("/submissions", repository=repository.name, before=before, trials=trials and "true"),
        runs=rows,
        lanes=read_lanes(session, settings.lease_seconds),
        active=active,
        is_open=is_open,
        filters=filters,
        before=before,
        trials=trials,
        awaited=list_awaited_files(session, repository.id) if before is None else [],
        hidden=0 if trials or is_open else count_trials(session, repository.id, last, before),
    )


@router.get("/runs/{submission_id}")
def run(page: PageScope, settings: Config, submission_id: int, before: Before = None) -> Response:
    """One run with its report and its jobs."""
    row = _find(page, submission_id)
    jobs = list_jobs(page.session, JobFilter(submission=submission_id), before, limit=MOST_JOBS)
    is_open = row.state in ("queued", "running")
    lanes = read_lanes(page.session, settings.lease_seconds)
    report = report_on(page, submission_id)
    return page.page(
        "run.html",
        json=f"/submissions/{submission_id}",
        run=row,
        jobs=jobs,
        matrix=commit_matrix(jobs.items, list_ordinals(page.session, submission_id)),
        unserved=lanes.unserved,
        expected_end=lanes.expected_end(job.id for job in jobs.items if job.outcome is None) if is_open else None,
        before=before,
        total=sum(row.counts.values()),
        ended=sum(row.counts.values()) - row.counts.get("queued", 0) - row.counts.get("running", 0),
        report=report,
        findings=fold(report.rows) if report is not None else [],
        callbacks=list_callbacks(page.session, submission_id),
        check_runs=list_check_runs(page.session, submission_id),
        finding_name=finding_name,
        meanings=MEANINGS,
    )


@router.get("/runs/{submission_id}/jobs")
def matrix(page: PageScope, submission_id: int) -> Response:
    """A part of the list of runs, fetched when a run is opened: its commits by kind."""
    row = _find(page, submission_id)
    jobs = list_jobs(page.session, JobFilter(submission=submission_id), limit=MOST_JOBS)
    ordinals = list_ordinals(page.session, submission_id)
    return page.page("_matrix.html", run=row, jobs=jobs, matrix=commit_matrix(jobs.items, ordinals))


@dataclass(frozen=True, slots=True)
class CommitMatrix:
    """Jobs by commit and kind. kinds: those that any commit has."""

    kinds: list[JobKind]
    rows: list[MatrixRow]


@dataclass(frozen=True, slots=True)
class MatrixRow:
    """The jobs of one commit by kind, each by operator and device."""

    sha: str
    subject: str
    jobs: dict[JobKind, list[JobRow]]


def commit_matrix(jobs: Sequence[JobRow], ordinals: Mapping[str, int]) -> CommitMatrix:
    """A row per commit, the newest first: a range is measured in another order. ordinals: of the commits, by id."""
    kinds = [kind for kind in JobKind if any(job.kind == kind for job in jobs)]
    rows = {job.commit_sha: MatrixRow(job.commit_sha, job.commit_subject, {kind: [] for kind in kinds}) for job in jobs}
    for job in sorted(jobs, key=lambda job: (job.operator, job.device_key)):
        rows[job.commit_sha].jobs[JobKind(job.kind)].append(job)
    return CommitMatrix(kinds, sorted(rows.values(), key=lambda row: -ordinals.get(row.sha, 0)))


def _find(page: Scope, submission_id: int) -> SubmissionRow:
    row = read_submission(page.session, submission_id)
    if row is None:
        raise not_found("run", submission_id)
    page.moved(row.repository)
    return row


def report_on(page: Scope, submission_id: int) -> Report | None:
    """The report on a run so far."""
    facts = read_report_facts(page.session, submission_id)
    return build_report(facts, "") if facts is not None else None


@router.post("/runs/{submission_id}/cancel")
def cancel_form(page: PageScope, submission_id: int) -> Response:
    cancel_submission(page.session, submission_id)
    return RedirectResponse(f"/runs/{submission_id}", 303)


@router.post("/runs/{submission_id}/retry")
def retry_form(page: PageScope, submission_id: int) -> Response:
    refuse_example(page.session, _find(page, submission_id).repository)
    retry_submission(page.session, submission_id)
    return RedirectResponse(f"/runs/{submission_id}", 303)
