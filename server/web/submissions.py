"""The form for a new run, the list of submissions, and one submission."""

from __future__ import annotations

import hashlib
import secrets
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import ValidationError
from starlette.datastructures import FormData

from warpwatch.contract.words import JobKind
from warpwatch.db.callbacks import list_callbacks
from warpwatch.db.forge import list_check_runs
from warpwatch.db.reads.code import list_operators, list_suites
from warpwatch.db.reads.devices import list_devices
from warpwatch.db.reads.query import Page
from warpwatch.db.reads.reports import read_report_facts
from warpwatch.db.reads.work import (
    JobFilter,
    JobRow,
    SubmissionRow,
    count_trials,
    list_jobs,
    list_submissions,
    read_submission,
)
from warpwatch.db.regressions import Verdicts, read_verdicts
from warpwatch.db.submissions import cancel_submission, retry_submission
from warpwatch.server.figures.tables import CSV_ANSWER, csv_response
from warpwatch.server.http.access import Asking, require_repository
from warpwatch.server.http.git_threads import in_git_thread
from warpwatch.server.http.problems import Problem, documented, not_found
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
from warpwatch.server.reports.build import build_report
from warpwatch.server.reports.model import KINDS, MEANINGS, Report
from warpwatch.server.web.choices import Text
from warpwatch.server.web.forms import form_errors
from warpwatch.server.web.jobs import unserved_devices
from warpwatch.server.web.render import PageScope, Scope, render
from warpwatch.server.web.render import query as address

router = APIRouter()
CHOICES = ("kinds", "operators")
"""Fields with several check boxes."""
LISTS = ("variants", "cases", "toolchains")
"""Text fields with one entry per line, or separated by blanks or semicolons; the key of a case contains commas."""
EMPTY: dict[str, Any] = {
    "commits": "",
    "base": "",
    "kinds": ["check", "bench", "profile"],
    "operators": [],
    "variants": "",
    "cases": "",
    "suite": "quick",
    "device": "all",
    "priority": "",
    "sanitize": "",
    "toolchains": "",
    "skip_unchanged": "",
    "profile.wait": "1",
    "profile.warm_up": "1",
    "profile.active": "2",
    "profile.repeat": "1",
    "profile.counters": "",
}
KIND_CARDS = (
    (JobKind.CHECK, "Check", "against a float64 reference"),
    (JobKind.BENCH, "Benchmark", "time per case, with its interval"),
    (JobKind.PROFILE, "Profile", "Chrome trace and kernel table"),
    (JobKind.COMPARE, "A/B", "interleaved, against a baseline"),
)
"""Kind, name and meaning, as the form shows them."""
PROFILE = "profile."
"""Prefix of the fields that make up SubmissionRequest.profile."""


@router.get("/submissions")
def submissions(page: PageScope, before: Before = None, trials: bool = False) -> Response:
    """Submissions, newest first; `trials=true` shows those that Warpwatch made to decide on a regression too."""
    repository_id = page.repository.id if page.repository else None
    rows = list_submissions(page.session, repository_id, before, trials=trials)
    filters = {"repository": page.repository and page.repository.name, "before": before, "trials": trials and "true"}
    last = rows.items[-1].id if rows.items and rows.next_before else 0
    return page.page(
        "submissions.html",
        json=address("/submissions", **filters),
        submissions=rows,
        before=before,
        trials=trials,
        hidden=0 if trials or repository_id is None else count_trials(page.session, repository_id, last, before),
    )


@router.get("/submissions/new")
def new(page: PageScope, request: Request) -> Response:
    """The form; every field is also a query parameter, so that a link can fill it in."""
    parameters = request.query_params
    return _form(
        page,
        {
            name: parameters.getlist(name) if name in CHOICES else parameters[name]
            for name in parameters
            if name in (*EMPTY, "repository")
        },
    )


async def form_of(request: Request) -> FormData:
    return await request.form()


@router.post("/submissions/new")
@in_git_thread(lambda arguments: arguments["form"].get("repository"))
def create_form(request: Request, settings: Config, form: Annotated[FormData, Depends(form_of)]) -> Response:
    """Submits; shows the form again with the input and a message per invalid field."""
    require_schema(request)
    entered = read_form(form)
    try:
        body = SubmissionRequest.model_validate({name: value for name, value in entered.items() if name != "nonce"})
        # git may have to fetch for minutes, so no transaction is open meanwhile.
        new_id = submit(database_of(request), settings, body, "form", _key(str(entered.get("nonce", "")), body))
    except (ValidationError, Problem) as error:
        errors = form_errors(error)
    else:
        return RedirectResponse(f"/submissions/{new_id}", 303)
    with database_of(request).session() as session:
        return _form(Scope(request, session), form_values(form), errors)


@router.get("/submissions/picker")
@in_git_thread(lambda arguments: arguments["repository"])
def picker(request: Request, settings: Config, repository: Text = None, branch: Text = None) -> Response:
    """A part of the form: branches and recent commits to choose from."""
    require_schema(request)
    try:
        options = list_options(settings, database_of(request), repository or "", branch)
    except Problem as problem:
        return render(request, "_picker.html", options=None, problem=problem, repository_name=repository)
    return render(request, "_picker.html", options=options, problem=None, repository_name=repository)


@router.post("/submissions/preview")
@in_git_thread(lambda arguments: arguments["form"].get("repository"))
def preview_form(request: Request, settings: Config, form: Annotated[FormData, Depends(form_of)]) -> Response:
    """A part of the form: what it would create_form as it is filled in now."""
    require_schema(request)
    entered = read_form(form)
    errors: dict[str, str] = {}
    result = None
    try:
        body = SubmissionRequest.model_validate({name: value for name, value in entered.items() if name != "nonce"})
        result = preview_submission(database_of(request), settings, body)
    except (ValidationError, Problem) as error:
        errors = form_errors(error)
    return render(request, "_preview.html", preview=result, errors=errors)


@router.get("/submissions/{submission_id}")
def submission(page: PageScope, settings: Config, submission_id: int, before: Before = None) -> Response:
    """One submission with its jobs."""
    row = read_submission(page.session, submission_id)
    if row is None:
        raise not_found("submission", submission_id)
    page.moved(row.repository)
    jobs = list_jobs(page.session, JobFilter(submission=submission_id), before, limit=200)
    total = sum(row.counts.values())
    ended = total - row.counts.get("queued", 0) - row.counts.get("running", 0)
    return page.page(
        "submission.html",
        json=f"/submissions/{submission_id}",
        submission=row,
        jobs=jobs,
        matrix=commit_matrix(jobs.items),
        matrix_kinds=[kind for kind in JobKind if any(job.kind == kind for job in jobs.items)],
        unserved=unserved_devices(list_devices(page.session, settings.lease_seconds)),
        before=before,
        total=total,
        ended=ended,
        report=report_on(page, submission_id),
        callbacks=list_callbacks(page.session, submission_id),
        check_runs=list_check_runs(page.session, submission_id),
        kinds=KINDS,
        meanings=MEANINGS,
    )


def commit_matrix(jobs: list[JobRow]) -> list[tuple[str, str, dict[str, list[JobRow]]]]:
    """(SHA, subject, jobs by kind) per commit, in the order of the jobs; jobs of one cell by operator and device."""
    rows: dict[str, tuple[str, str, dict[str, list[JobRow]]]] = {}
    for job in sorted(jobs, key=lambda job: (job.operator, job.device_key)):
        rows.setdefault(job.commit_sha, (job.commit_sha, job.commit_subject, {kind: [] for kind in JobKind}))
        rows[job.commit_sha][2][job.kind].append(job)
    order = {sha: place for place, sha in enumerate(dict.fromkeys(job.commit_sha for job in jobs))}
    return sorted(rows.values(), key=lambda row: order[row[0]])


def report_on(page: Scope, submission_id: int) -> Report | None:
    """The report on a submission so far."""
    facts = read_report_facts(page.session, submission_id)
    return build_report(facts, "") if facts is not None else None


@router.post("/submissions/{submission_id}/cancel")
def cancel_form(page: PageScope, submission_id: int) -> Response:
    cancel_submission(page.session, submission_id)
    return RedirectResponse(f"/submissions/{submission_id}", 303)


@router.post("/submissions/{submission_id}/retry")
def retry_form(page: PageScope, submission_id: int) -> Response:
    row = read_submission(page.session, submission_id)
    if row is None:
        raise not_found("submission", submission_id)
    refuse_example(page.session, row.repository)
    retry_submission(page.session, submission_id)
    return RedirectResponse(f"/submissions/{submission_id}", 303)


def read_form(form: FormData) -> dict[str, Any]:
    """The input as SubmissionRequest takes it; empty fields are left out."""
    entered: dict[str, Any] = {name: form.getlist(name) for name in CHOICES if name in form}
    for name, value in form_values(form).items():
        if name in LISTS:
            entered[name] = str(value).replace(";", " ").split()
        elif name not in CHOICES and str(value).strip():
            entered[name] = value
    profile = {name.removeprefix(PROFILE): entered.pop(name) for name in list(entered) if name.startswith(PROFILE)}
    return {"kinds": [], **entered, **({"profile": profile} if profile else {})}


def form_values(form: FormData) -> dict[str, Any]:
    """The input, to be shown again."""
    return {name: form.getlist(name) if name in CHOICES else form[name] for name in form}


def _key(nonce: str, body: SubmissionRequest) -> str | None:
    """An idempotency key: a double click makes one submission, the form sent again after a change makes another."""
    return hashlib.sha256(f"{nonce} {body.model_dump_json()}".encode()).hexdigest() if nonce else None


def _form(page: Scope, entered: dict[str, Any], errors: dict[str, str] | None = None) -> Response:
    measurable = [row for row in page.repositories if not row.is_example]
    chosen = next((row for row in page.repositories if row.name == entered.get("repository")), page.repository)
    page.repository = chosen
    errors = errors or {}
    folded = (
        "operators",
        "variants",
        "cases",
        "suite",
        "priority",
        "sanitize",
        "toolchains",
        "skip_unchanged",
        "profile",
    )
    # A link that fills in a folded field shows it.
    is_open = any(name in errors or entered.get(name, EMPTY.get(name)) != EMPTY.get(name) for name in folded)
    return page.page(
        "submission_new.html",
        status=422 if errors else 200,
        entered=EMPTY | {"nonce": secrets.token_hex(8)} | entered,
        errors=errors,
        kinds=KIND_CARDS,
        measurable=measurable,
        is_open=is_open,
        operators=list_operators(page.session, chosen.id) if chosen else [],
        suites=(list_suites(page.session, chosen.id) if chosen else []) or ["quick", "full"],
        devices=list_devices(page.session),
    )


api = APIRouter(tags=["submissions"])
IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1, max_length=200, description="Repeating a request with the same key creates no second submission."
    ),
]
Trials = Annotated[bool, Query(description="Include what Warpwatch submitted to decide on regressions.")]


@api.post("/submissions", status_code=201, responses=documented(403, 409, 422, 502, 507))
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
    submission_id = submit(database, settings, body, origin, idempotency_key)
    response.headers["Location"] = f"/api/v1/submissions/{submission_id}"
    with database.session() as session:
        return get_submission(session, submission_id)


@api.post("/submissions/preview", responses=documented(403, 404, 422, 502))
@in_git_thread(lambda arguments: arguments["body"].repository)
def preview(request: Request, body: SubmissionRequest, settings: Config, caller: Asking) -> SubmissionPreview:
    """The jobs and device minutes of a submission, without creating it. An invalid field rejects the whole request."""
    require_schema(request)
    require_repository(caller, body.repository)
    return preview_submission(database_of(request), settings, body)


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


@api.get("/submissions/{submission_id}", responses=documented(404, 422))
def get_submission(session: Db, submission_id: int) -> SubmissionRow:
    """One submission; its jobs are listed at /jobs?submission=…"""
    submission = read_submission(session, submission_id)
    if submission is None:
        raise not_found("submission", submission_id)
    return submission


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
