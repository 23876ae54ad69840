"""The form for a new run, with what it would measure."""

from __future__ import annotations

import hashlib
import secrets
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import ValidationError
from starlette.datastructures import FormData

from warpwatch.contract.words import JobKind
from warpwatch.db.reads.code import list_operators, list_suites
from warpwatch.db.reads.devices import list_devices
from warpwatch.server.http.git_threads import in_git_thread
from warpwatch.server.http.problems import Problem
from warpwatch.server.http.service import Config, database_of, require_schema
from warpwatch.server.intake.preview import list_options, preview_submission
from warpwatch.server.intake.submission_request import SubmissionRequest
from warpwatch.server.intake.submissions import submit
from warpwatch.server.web.choices import Text
from warpwatch.server.web.forms import form_errors, form_of
from warpwatch.server.web.render import PageScope, Scope, render

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


@router.get("/runs/new")
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


@router.post("/runs/new")
@in_git_thread(lambda arguments: arguments["form"].get("repository"))
def create_form(request: Request, settings: Config, form: Annotated[FormData, Depends(form_of)]) -> Response:
    """Submits; shows the form again with the input and a message per invalid field."""
    require_schema(request)
    entered = read_form(form)
    try:
        body = SubmissionRequest.model_validate({name: value for name, value in entered.items() if name != "nonce"})
        # git may have to fetch for minutes, so no transaction is open meanwhile.
        key = _key(str(entered.get("nonce", "")), body)
        new_id = submit(database_of(request), settings, body, "form", key, request.app.state.sources)
    except (ValidationError, Problem) as error:
        errors = form_errors(error)
    else:
        return RedirectResponse(f"/runs/{new_id}", 303)
    with database_of(request).session() as session:
        return _form(Scope(request, session), form_values(form), errors)


@router.get("/runs/picker")
@in_git_thread(lambda arguments: arguments["repository"])
def picker(request: Request, settings: Config, repository: Text = None, branch: Text = None) -> Response:
    """A part of the form: branches and recent commits to choose from."""
    require_schema(request)
    try:
        options = list_options(settings, database_of(request), repository or "", branch)
    except Problem as problem:
        return render(request, "_picker.html", options=None, problem=problem, repository_name=repository)
    return render(request, "_picker.html", options=options, problem=None, repository_name=repository)


@router.post("/runs/preview")
@in_git_thread(lambda arguments: arguments["form"].get("repository"))
def preview_form(request: Request, settings: Config, form: Annotated[FormData, Depends(form_of)]) -> Response:
    """A part of the form: the jobs of the run as it is filled in now."""
    require_schema(request)
    entered = read_form(form)
    errors: dict[str, str] = {}
    result = None
    try:
        body = SubmissionRequest.model_validate({name: value for name, value in entered.items() if name != "nonce"})
        result = preview_submission(database_of(request), settings, body, request.app.state.sources)
    except (ValidationError, Problem) as error:
        errors = form_errors(error)
    return render(request, "_preview.html", preview=result, errors=errors)


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
    folded = EMPTY.keys() - {"commits", "base", "kinds", "device"}
    # A link that fills in a folded field shows it.
    is_open = any(name in errors or entered.get(name, EMPTY[name]) != EMPTY[name] for name in folded)
    return page.page(
        "run_new.html",
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
