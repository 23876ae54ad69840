"""Schedules: recurring runs, the device time they used, and a form to add one."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import ValidationError
from starlette.datastructures import FormData

from warpwatch.db.reads.code import RepositoryRow, list_operators, list_suites
from warpwatch.db.reads.devices import list_devices
from warpwatch.db.reads.schedules import ScheduleRow, list_schedules, read_schedule
from warpwatch.db.schedules import remove_schedule
from warpwatch.server.http.git_threads import in_git_thread
from warpwatch.server.http.problems import Problem, not_found
from warpwatch.server.http.service import Before, Config, database_of, repository_or_404, require_schema
from warpwatch.server.intake.cron import EXAMPLE
from warpwatch.server.intake.schedule_requests import ScheduleChange, ScheduleRequest, change, create
from warpwatch.server.intake.scheduled_run import run_schedule
from warpwatch.server.pages.forms import form_errors
from warpwatch.server.pages.render import Page, query
from warpwatch.server.pages.submissions import form_of

router = APIRouter()
EMPTY: dict[str, Any] = {
    "name": "",
    "kind": "suite",
    "cron": EXAMPLE,
    "budget_minutes": "60",
    "operators": [],
    "suite": "quick",
    "device": "all",
    "skip_unchanged": "",
}
KINDS = {
    "suite": "the whole suite at the newest commit of the watched branch",
    "rerun": "a measured commit again, to learn run-to-run noise",
    "backfill": "unmeasured commits, the widest gap first",
}


@router.get("/schedules")
def schedules(page: Page, before: Before = None) -> Response:
    """Every schedule of the repository, newest first, and the form."""
    return _show(page, before=before)


@router.post("/schedules")
def add(page: Page, form: Annotated[FormData, Depends(form_of)]) -> Response:
    """Adds a schedule; shows the form again with the input and a message per invalid field."""
    entered: dict[str, Any] = {name: value for name, value in form.items() if str(value).strip()}
    entered["operators"] = form.getlist("operators")
    try:
        body = ScheduleRequest.model_validate(entered)
        create(page.session, _repository(page, body.repository), body, datetime.now(UTC))
    except (ValidationError, Problem) as error:
        errors = form_errors(error)
    else:
        return RedirectResponse(query("/schedules", repository=body.repository), 303)
    return _show(page, entered, errors)


@router.post("/schedules/{schedule_id}/run")
@in_git_thread(lambda arguments: arguments["schedule_id"])
def run(request: Request, schedule_id: int, settings: Config) -> Response:
    """Runs the schedule now; the list shows the outcome."""
    require_schema(request)
    database, now = database_of(request), datetime.now(UTC)
    with database.session() as session:
        schedule = read_schedule(session, schedule_id, now)
    if schedule is None:
        raise not_found("schedule", schedule_id)
    # git may have to fetch for minutes, so no transaction is open meanwhile. If a run of the schedule is in progress
    # already, there is nothing more to do.
    run_schedule(database, settings, schedule_id, now, due=False, cache=request.app.state.sources)
    return _back(schedule)


@router.post("/schedules/{schedule_id}/enable")
def enable(page: Page, schedule_id: int) -> Response:
    return _switch(page, schedule_id, is_enabled=True)


@router.post("/schedules/{schedule_id}/disable")
def disable(page: Page, schedule_id: int) -> Response:
    return _switch(page, schedule_id, is_enabled=False)


@router.post("/schedules/{schedule_id}/remove")
def remove(page: Page, schedule_id: int) -> Response:
    schedule = _find(page, schedule_id)
    remove_schedule(page.session, schedule_id)
    return _back(schedule)


def _switch(page: Page, schedule_id: int, *, is_enabled: bool) -> Response:
    schedule = _find(page, schedule_id)
    body = ScheduleChange(enabled=is_enabled)
    change(page.session, repository_or_404(page.session, schedule.repository), schedule, body, datetime.now(UTC))
    return _back(schedule)


def _find(page: Page, schedule_id: int) -> ScheduleRow:
    schedule = read_schedule(page.session, schedule_id, datetime.now(UTC))
    if schedule is None:
        raise not_found("schedule", schedule_id)
    return schedule


def _back(schedule: ScheduleRow) -> Response:
    return RedirectResponse(query("/schedules", repository=schedule.repository) + f"#schedule-{schedule.id}", 303)


def _repository(page: Page, name: str) -> RepositoryRow:
    page.repository = repository_or_404(page.session, name)
    return page.repository


def _show(
    page: Page, entered: dict[str, Any] | None = None, errors: dict[str, str] | None = None, before: int | None = None
) -> Response:
    if page.repository is None:
        return page.page("welcome.html")
    repository = page.repository
    address = query("/schedules", repository=repository.name, before=before)
    return page.page(
        "schedules.html",
        json=address,
        csv=f"/api/v1{address.replace('/schedules', '/schedules.csv', 1)}",
        status=422 if errors else 200,
        found=list_schedules(page.session, datetime.now(UTC), repository.id, before),
        before=before,
        entered=EMPTY | (entered or {}),
        errors=errors or {},
        kinds=KINDS,
        operators=list_operators(page.session, repository.id),
        suites=list_suites(page.session, repository.id) or ["quick", "full"],
        devices=list_devices(page.session),
    )
