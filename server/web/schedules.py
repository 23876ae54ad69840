"""Schedules: recurring runs, the device time they used, and a form to add one."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import ValidationError
from starlette.datastructures import FormData

from warpwatch.db.reads.code import RepositoryRow, find_repository, list_operators, list_suites
from warpwatch.db.reads.devices import list_devices
from warpwatch.db.reads.query import Page, Session
from warpwatch.db.schedules import ScheduleRow, list_schedules, read_schedule, remove_schedule
from warpwatch.server.figures.tables import CSV_ANSWER, csv_response
from warpwatch.server.http.git_threads import in_git_thread
from warpwatch.server.http.problems import FieldError, Problem, documented, not_found
from warpwatch.server.http.service import Before, Config, Db, Limit, database_of, repository_or_404, require_schema
from warpwatch.server.intake.cron import EXAMPLE
from warpwatch.server.intake.schedule_requests import REFUSED, ScheduleChange, ScheduleRequest, change, create
from warpwatch.server.intake.scheduled_run import run_schedule
from warpwatch.server.web.forms import form_errors, form_of
from warpwatch.server.web.render import PageScope, Scope, query
from warpwatch.server.web.tabs import RepositoryTab, repository_tab

router = APIRouter()
EMPTY: dict[str, Any] = {
    "name": "",
    "kind": "suite",
    "every": "night",
    "hour": "2",
    "cron": EXAMPLE,
    "budget_minutes": "60",
    "operators": [],
    "suite": "quick",
    "device": "all",
    "skip_unchanged": "",
}
HOURS = [(str(hour), f"{hour:02}:00") for hour in range(24)]
KINDS = {
    "suite": "the whole suite at the newest commit of the watched branch",
    "rerun": "a measured commit again, to learn run-to-run noise",
    "backfill": "unmeasured commits, the widest gap first",
}


@router.post("/schedules")
def add(page: PageScope, form: Annotated[FormData, Depends(form_of)]) -> Response:
    """Adds a schedule; shows the form again with the input and a message per invalid field."""
    entered: dict[str, Any] = {name: value for name, value in form.items() if str(value).strip()}
    entered["operators"] = form.getlist("operators")
    try:
        body = ScheduleRequest.model_validate(_with_cron(entered))
        create(page.session, _repository(page, body.repository), body, datetime.now(UTC))
    except (ValidationError, Problem) as error:
        errors = form_errors(error)
    else:
        return RedirectResponse(repository_tab(body.repository, RepositoryTab.SCHEDULES), 303)
    return show(page, entered, errors)


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
def enable(page: PageScope, schedule_id: int) -> Response:
    return _switch(page, schedule_id, is_enabled=True)


@router.post("/schedules/{schedule_id}/disable")
def disable(page: PageScope, schedule_id: int) -> Response:
    return _switch(page, schedule_id, is_enabled=False)


@router.post("/schedules/{schedule_id}/remove")
def remove(page: PageScope, schedule_id: int) -> Response:
    schedule = _find(page, schedule_id)
    remove_schedule(page.session, schedule_id)
    return _back(schedule)


def _switch(page: PageScope, schedule_id: int, *, is_enabled: bool) -> Response:
    schedule = _find(page, schedule_id)
    body = ScheduleChange(enabled=is_enabled)
    change(page.session, repository_or_404(page.session, schedule.repository), schedule, body, datetime.now(UTC))
    return _back(schedule)


def _find(page: PageScope, schedule_id: int) -> ScheduleRow:
    schedule = read_schedule(page.session, schedule_id, datetime.now(UTC))
    if schedule is None:
        raise not_found("schedule", schedule_id)
    return schedule


def _back(schedule: ScheduleRow) -> Response:
    address = repository_tab(schedule.repository, RepositoryTab.SCHEDULES)
    return RedirectResponse(f"{address}#schedule-{schedule.id}", 303)


def _repository(page: PageScope, name: str) -> RepositoryRow:
    page.repository = repository_or_404(page.session, name)
    return page.repository


def _with_cron(entered: dict[str, Any]) -> dict[str, Any]:
    """The fields of a request: what was chosen in place of a cron expression as that expression."""
    fields = {name: value for name, value in entered.items() if name not in ("every", "hour")}
    every = entered.get("every", "custom")
    if every == "hour":
        fields["cron"] = "0 * * * *"
    elif every == "night":
        fields["cron"] = f"0 {entered.get('hour', '')} * * *"
    return fields


def show(
    page: Scope,
    entered: dict[str, Any] | None = None,
    errors: dict[str, str] | None = None,
    before: int | None = None,
) -> Response:
    """Every schedule of the repository, newest first, and the form."""
    assert page.repository is not None
    repository = page.repository
    address = query("/schedules", repository=repository.name, before=before)
    return page.page(
        "settings/schedules.html",
        json=address,
        csv=f"/api/v1{address.replace('/schedules', '/schedules.csv', 1)}",
        status=422 if errors else 200,
        found=list_schedules(page.session, datetime.now(UTC), repository.id, before),
        before=before,
        entered=EMPTY | (entered or {}),
        errors=errors or {},
        kinds=KINDS,
        hours=HOURS,
        operators=list_operators(page.session, repository.id),
        suites=list_suites(page.session, repository.id) or ["quick", "full"],
        devices=list_devices(page.session),
    )


api = APIRouter(tags=["schedules"])


@api.get("/schedules", responses=documented(404, 422))
def get_schedules(
    session: Db, repository: str | None = None, before: Before = None, limit: Limit = 50
) -> Page[ScheduleRow]:
    """Schedules, newest first, with the budget used in the last 24 hours."""
    repository_id = None if repository is None else repository_or_404(session, repository).id
    return list_schedules(session, datetime.now(UTC), repository_id, before, limit)


@api.get("/schedules.csv", responses=documented(404, 422) | CSV_ANSWER, response_class=Response)
def get_schedules_csv(
    session: Db, repository: str | None = None, before: Before = None, limit: Limit = 200
) -> Response:
    """The same list as CSV."""
    return csv_response(ScheduleRow, get_schedules(session, repository, before, limit).items, "schedules")


@api.post("/schedules", status_code=201, responses=documented(422))
def create_schedule(session: Db, body: ScheduleRequest, response: Response) -> ScheduleRow:
    """Add a recurring run. It first runs at the next time of its cron expression."""
    now = datetime.now(UTC)
    schedule_id = create(session, named_repository(session, body.repository), body, now)
    response.headers["Location"] = f"/api/v1/schedules/{schedule_id}"
    return find(session, schedule_id)


@api.get("/schedules/{schedule_id}", responses=documented(404, 422))
def get_schedule(session: Db, schedule_id: int) -> ScheduleRow:
    """One schedule."""
    return find(session, schedule_id)


@api.patch("/schedules/{schedule_id}", responses=documented(404, 422))
def change_schedule(session: Db, schedule_id: int, body: ScheduleChange) -> ScheduleRow:
    """Change the given fields, enable or disable. Repository, name and kind of a schedule are fixed."""
    schedule = find(session, schedule_id)
    change(session, repository_or_404(session, schedule.repository), schedule, body, datetime.now(UTC))
    return find(session, schedule_id)


@api.delete("/schedules/{schedule_id}", status_code=204, responses=documented(404, 422))
def delete_schedule(session: Db, schedule_id: int) -> None:
    """Delete a schedule. Its submissions stay."""
    remove_schedule(session, find(session, schedule_id).id)


@api.post("/schedules/{schedule_id}/run", responses=documented(404, 409, 422))
@in_git_thread(lambda arguments: arguments["schedule_id"])
def run_now(request: Request, schedule_id: int, settings: Config) -> ScheduleRow:
    """Run the schedule now, within its budget; `message` holds the outcome. The next due time does not change."""
    require_schema(request)
    database = database_of(request)
    with database.session() as session:
        find(session, schedule_id)
    # git may have to fetch for minutes, so no transaction is open meanwhile.
    if not run_schedule(database, settings, schedule_id, datetime.now(UTC), due=False, cache=request.app.state.sources):
        raise Problem(409, f"schedule {schedule_id} is running already; read its message, or retry later")
    with database.session() as session:
        return find(session, schedule_id)


def find(session: Session, schedule_id: int) -> ScheduleRow:
    schedule = read_schedule(session, schedule_id, datetime.now(UTC))
    if schedule is None:
        raise not_found("schedule", schedule_id, "schedules are listed at /api/v1/schedules")
    return schedule


def named_repository(session: Session, name: str) -> RepositoryRow:
    """The repository that a body names; 422 for an unknown name, because it is a field and not the address."""
    repository = find_repository(session, name)
    if repository is None:
        remedy = "register it with `warpwatch repository add NAME URL`"
        raise Problem(
            422, REFUSED, [FieldError(field="repository", message=f"there is no repository {name!r}", remedy=remedy)]
        )
    return repository
