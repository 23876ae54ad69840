"""Asking for measurements, and following them."""

from __future__ import annotations

import hashlib
import secrets
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import ValidationError
from starlette.datastructures import FormData

from warpwatch.db.reads.callbacks import list_callbacks
from warpwatch.db.reads.code import list_operators, list_suites
from warpwatch.db.reads.devices import list_devices
from warpwatch.db.reads.reports import read_report_facts
from warpwatch.db.reads.work import JobFilter, list_jobs, list_submissions, read_submission
from warpwatch.db.submissions import cancel_submission, retry_submission
from warpwatch.server.http.problems import Problem, not_found
from warpwatch.server.http.service import Before, Config, database_of, require_schema
from warpwatch.server.intake.submission_request import ORDER, SubmissionRequest
from warpwatch.server.intake.submissions import submit
from warpwatch.server.pages.render import Page, Scope
from warpwatch.server.pages.render import query as address
from warpwatch.server.reports.build import build_report
from warpwatch.server.reports.model import KINDS, MEANINGS, Report

router = APIRouter()
CHOICES = ("kinds", "operators")
"""Fields of several check boxes."""
LISTS = ("variants", "cases")
"""Fields written as text, one entry per line or separated by blanks or semicolons; a case's key contains commas."""
EMPTY: dict[str, Any] = {
    "commits": "",
    "base": "",
    "kinds": ["check", "bench"],
    "operators": [],
    "variants": "",
    "cases": "",
    "suite": "quick",
    "device": "all",
    "priority": "0",
    "sanitize": "",
    "skip_unchanged": "",
    "profile.wait": "1",
    "profile.warm_up": "1",
    "profile.active": "2",
    "profile.repeat": "1",
    "profile.counters": "",
}
PROFILE = "profile."
"""What the names of the fields begin with that make up SubmissionRequest.profile."""


@router.get("/submissions")
def submissions(page: Page, before: Before = None) -> Response:
    """What was asked for, newest first."""
    found = list_submissions(page.session, page.repository.id if page.repository else None, before)
    filters = {"repository": page.repository and page.repository.name, "before": before}
    return page.page("submissions.html", json=address("/submissions", **filters), submissions=found, before=before)


@router.get("/submissions/new")
def new(page: Page, request: Request) -> Response:
    """The form; a link may fill it in: every field is also a query parameter."""
    asked = request.query_params
    return _form(
        page,
        {
            name: asked.getlist(name) if name in CHOICES else asked[name]
            for name in asked
            if name in (*EMPTY, "repository")
        },
    )


async def form_of(request: Request) -> FormData:
    return await request.form()


@router.post("/submissions/new")
def create(request: Request, settings: Config, form: Annotated[FormData, Depends(form_of)]) -> Response:
    """Submits; or shows the form again, with what was entered and a message by each field at fault."""
    require_schema(request)
    entered = read_form(form)
    try:
        wanted = SubmissionRequest.model_validate({name: value for name, value in entered.items() if name != "nonce"})
        # git may have to fetch for minutes, so no transaction is open meanwhile.
        made = submit(database_of(request), settings, wanted, "form", _key(str(entered.get("nonce", "")), wanted))
    except ValidationError as error:
        errors = {str(found["loc"][0]): found["msg"] for found in error.errors()}
    except Problem as problem:
        if not problem.errors:
            raise
        errors = {
            found.field.partition("[")[0]: f"{found.message}; {found.remedy}".rstrip("; ") for found in problem.errors
        }
    else:
        return RedirectResponse(f"/submissions/{made}", 303)
    with database_of(request).session() as session:
        return _form(Scope(request, session), form_values(form), errors)


@router.get("/submissions/{submission_id}")
def submission(page: Page, submission_id: int, before: Before = None) -> Response:
    """One submission with its jobs."""
    found = read_submission(page.session, submission_id)
    if found is None:
        raise not_found("submission", submission_id)
    page.moved(found.repository)
    jobs = list_jobs(page.session, JobFilter(submission=submission_id), before, limit=200)
    total = sum(found.counts.values())
    ended = total - found.counts.get("queued", 0) - found.counts.get("running", 0)
    return page.page(
        "submission.html",
        json=f"/submissions/{submission_id}",
        submission=found,
        jobs=jobs,
        before=before,
        total=total,
        ended=ended,
        report=report_on(page, submission_id),
        callbacks=list_callbacks(page.session, submission_id),
        kinds=KINDS,
        meanings=MEANINGS,
    )


def report_on(page: Scope, submission_id: int) -> Report | None:
    """What a submission came to so far."""
    facts = read_report_facts(page.session, submission_id)
    return build_report(facts, "") if facts is not None else None


@router.post("/submissions/{submission_id}/cancel")
def cancel(page: Page, submission_id: int) -> Response:
    cancel_submission(page.session, submission_id)
    return RedirectResponse(f"/submissions/{submission_id}", 303)


@router.post("/submissions/{submission_id}/retry")
def retry(page: Page, submission_id: int) -> Response:
    retry_submission(page.session, submission_id)
    return RedirectResponse(f"/submissions/{submission_id}", 303)


def read_form(form: FormData) -> dict[str, Any]:
    """What SubmissionRequest is made from: texts, lists of texts, and nothing where a field was left empty."""
    entered: dict[str, Any] = {name: form.getlist(name) for name in CHOICES if name in form}
    for name, value in form_values(form).items():
        if name in LISTS:
            entered[name] = str(value).replace(";", " ").split()
        elif name not in CHOICES and str(value).strip():
            entered[name] = value
    profile = {name.removeprefix(PROFILE): entered.pop(name) for name in list(entered) if name.startswith(PROFILE)}
    return {"kinds": [], **entered, **({"profile": profile} if profile else {})}


def form_values(form: FormData) -> dict[str, Any]:
    """What was entered, to be shown again."""
    return {name: form.getlist(name) if name in CHOICES else form[name] for name in form}


def _key(nonce: str, wanted: SubmissionRequest) -> str | None:
    """The same form sent twice, by a double click say, is one submission; sent again after a change it is another."""
    return hashlib.sha256(f"{nonce} {wanted.model_dump_json()}".encode()).hexdigest() if nonce else None


def _form(page: Scope, entered: dict[str, Any], errors: dict[str, str] | None = None) -> Response:
    chosen = next((row for row in page.repositories if row.name == entered.get("repository")), page.repository)
    page.repository = chosen
    return page.page(
        "submission_new.html",
        status=422 if errors else 200,
        entered=EMPTY | {"nonce": secrets.token_hex(8)} | entered,
        errors=errors or {},
        kinds=ORDER,
        operators=list_operators(page.session, chosen.id) if chosen else [],
        suites=(list_suites(page.session, chosen.id) if chosen else []) or ["quick", "full"],
        devices=list_devices(page.session),
    )
