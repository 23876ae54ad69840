"""Submissions over REST: a person's run is a submission there."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response

from warpwatch.db.reads.query import Page
from warpwatch.db.reads.work import JobFilter, SubmissionRow, list_jobs, list_submissions, read_submission
from warpwatch.db.regressions import Verdicts, read_verdicts
from warpwatch.db.submissions import cancel_submission, retry_submission
from warpwatch.server.figures.tables import CSV_ANSWER, csv_response
from warpwatch.server.http.access import Asking, require_repository
from warpwatch.server.http.brief import briefly, documented_brief
from warpwatch.server.http.git_threads import in_git_thread
from warpwatch.server.http.problems import documented, not_found
from warpwatch.server.http.service import (
    Before,
    Config,
    Db,
    Limit,
    database_of,
    refuse_example,
    repository_or_404,
    require_schema,
)
from warpwatch.server.intake.preview import CommitOptions, SubmissionPreview, list_options, preview_submission
from warpwatch.server.intake.submission_request import SubmissionRequest
from warpwatch.server.intake.submissions import submit
from warpwatch.server.web.brief import brief_submission
from warpwatch.server.web.lanes import read_lanes

api = APIRouter(tags=["submissions"])
MOST_OPEN = 1000
"""Jobs that wait or run from which the end of a submission is estimated."""
IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1, max_length=200, description="Repeating a request with the same key creates no second submission."
    ),
]
Trials = Annotated[bool, Query(description="Include what Warpwatch submitted to decide on regressions.")]


@api.post("/submissions", status_code=201, responses=documented(403, 409, 422, 502, 507) | documented_brief(201))
@briefly(brief_submission)
@in_git_thread(lambda arguments: arguments["body"].repository)
def create(
    request: Request,
    body: SubmissionRequest,
    settings: Config,
    caller: Asking,
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> SubmissionRow:
    """Create one job per commit, operator, kind and device. An invalid field rejects the whole request."""
    require_schema(request)
    require_repository(caller, body.repository)
    database = database_of(request)
    origin = "cli" if request.headers.get("x-warpwatch-origin") == "cli" else "api"
    submission_id = submit(database, settings, body, origin, idempotency_key, request.app.state.sources)
    response.headers["Location"] = f"/api/v1/submissions/{submission_id}"
    with database.session() as session:
        return get_submission(session, submission_id)


@api.post("/submissions/preview", responses=documented(403, 404, 422, 502))
@in_git_thread(lambda arguments: arguments["body"].repository)
def preview(request: Request, body: SubmissionRequest, settings: Config, caller: Asking) -> SubmissionPreview:
    """The commits, jobs and device minutes of a submission, without creating it. An invalid field rejects the whole
    request."""
    require_schema(request)
    require_repository(caller, body.repository)
    return preview_submission(database_of(request), settings, body, request.app.state.sources)


@api.get("/repositories/{name}/commits", responses=documented(404, 422, 502))
@in_git_thread(lambda arguments: arguments["name"])
def get_options(
    request: Request, name: str, settings: Config, branch: Annotated[str | None, Query(max_length=200)] = None
) -> CommitOptions:
    """The branches of a repository and the recent commits of one, to choose from; default: the watched branch."""
    require_schema(request)
    return list_options(settings, database_of(request), name, branch)


@api.get("/submissions", responses=documented(404, 422))
def get_submissions(
    session: Db, repository: str | None = None, trials: Trials = True, before: Before = None, limit: Limit = 50
) -> Page[SubmissionRow]:
    """Submissions, newest first, with jobs per state and results per status."""
    repository_id = None if repository is None else repository_or_404(session, repository).id
    return list_submissions(session, repository_id, before, limit, trials=trials)


@api.get("/submissions.csv", responses=documented(404, 422) | CSV_ANSWER, response_class=Response)
def get_submissions_csv(
    session: Db, repository: str | None = None, trials: Trials = True, before: Before = None, limit: Limit = 200
) -> Response:
    """The same list as CSV."""
    return csv_response(SubmissionRow, get_submissions(session, repository, trials, before, limit).items, "submissions")


@api.get("/submissions/{submission_id}", responses=documented(404, 422) | documented_brief())
@briefly(brief_submission)
def get_submission(session: Db, submission_id: int) -> SubmissionRow:
    """One submission; its jobs are listed at /jobs?submission=…"""
    submission = read_submission(session, submission_id)
    if submission is None:
        raise not_found("submission", submission_id)
    return submission


@dataclass(frozen=True, slots=True)
class SubmissionProgress:
    """Jobs of a submission that have ended, that run and in all, and when the last is expected to end.

    ahead: jobs that its device takes before the first of those that wait; None where none waits. expected_end: from
    what earlier jobs took; None once all have ended, and where one waits for a device without a worker.
    """

    ended: int
    running: int
    total: int
    ahead: int | None
    expected_end: datetime | None


@api.get("/submissions/{submission_id}/progress", responses=documented(404, 422))
def get_progress(session: Db, settings: Config, submission_id: int) -> SubmissionProgress:
    """How far a submission is, its place in line, and when it is expected to end."""
    counts = get_submission(session, submission_id).counts
    waits, runs = counts.get("queued", 0), counts.get("running", 0)
    open_jobs = list_jobs(session, JobFilter(submission=submission_id, is_open=True), limit=MOST_OPEN).items
    positions = [job.position for job in open_jobs if job.position is not None]
    is_known = 0 < waits + runs <= MOST_OPEN
    lanes = read_lanes(session, settings.lease_seconds) if is_known else None
    return SubmissionProgress(
        ended=sum(counts.values()) - waits - runs,
        running=runs,
        total=sum(counts.values()),
        ahead=min(positions, default=None),
        expected_end=lanes.expected_end(job.id for job in open_jobs) if lanes is not None else None,
    )


@api.get("/submissions/{submission_id}/verdicts", responses=documented(404, 422))
def get_verdicts(session: Db, submission_id: int) -> Verdicts:
    """Confirmed changes at the commits of the submission, and the number of pending verdicts."""
    get_submission(session, submission_id)
    return read_verdicts(session, submission_id)


@api.post("/submissions/{submission_id}/cancel", responses=documented(404, 422))
def cancel(session: Db, submission_id: int) -> SubmissionRow:
    """Cancel all unfinished jobs; running jobs stop within two seconds."""
    get_submission(session, submission_id)
    cancel_submission(session, submission_id)
    return get_submission(session, submission_id)


@api.post("/submissions/{submission_id}/retry", responses=documented(404, 409, 422))
def retry(session: Db, submission_id: int) -> SubmissionRow:
    """Queue all failed and cancelled jobs again."""
    get_submission(session, submission_id)
    refuse_example(session, get_submission(session, submission_id).repository)
    retry_submission(session, submission_id)
    return get_submission(session, submission_id)
