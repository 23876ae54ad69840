"""Schedules: recurring runs."""

from __future__ import annotations

from datetime import UTC, datetime

from fastapi import APIRouter, Request, Response

from warpwatch.db.reads.code import RepositoryRow, find_repository
from warpwatch.db.reads.query import Page, Session
from warpwatch.db.reads.schedules import ScheduleRow, list_schedules, read_schedule
from warpwatch.db.schedules import remove_schedule
from warpwatch.server.figures.tables import CSV_ANSWER, csv_response
from warpwatch.server.http.git_threads import in_git_thread
from warpwatch.server.http.problems import FieldError, Problem, documented, not_found
from warpwatch.server.http.service import Before, Config, Db, Limit, database_of, repository_or_404, require_schema
from warpwatch.server.intake.schedule_requests import REFUSED, ScheduleChange, ScheduleRequest, change, create
from warpwatch.server.intake.scheduled_run import run_schedule

router = APIRouter(tags=["schedules"])


@router.get("/schedules", responses=documented(404, 422))
def get_schedules(
    session: Db, repository: str | None = None, before: Before = None, limit: Limit = 50
) -> Page[ScheduleRow]:
    """Schedules, newest first, with the budget used in the last 24 hours."""
    repository_id = None if repository is None else repository_or_404(session, repository).id
    return list_schedules(session, datetime.now(UTC), repository_id, before, limit)


@router.get("/schedules.csv", responses=documented(404, 422) | CSV_ANSWER, response_class=Response)
def get_schedules_csv(
    session: Db, repository: str | None = None, before: Before = None, limit: Limit = 200
) -> Response:
    """The same list as CSV."""
    return csv_response(ScheduleRow, get_schedules(session, repository, before, limit).items, "schedules")


@router.post("/schedules", status_code=201, responses=documented(422))
def create_schedule(session: Db, body: ScheduleRequest, response: Response) -> ScheduleRow:
    """Add a recurring run. It first runs at the next time of its cron expression."""
    now = datetime.now(UTC)
    schedule_id = create(session, named_repository(session, body.repository), body, now)
    response.headers["Location"] = f"/api/v1/schedules/{schedule_id}"
    return find(session, schedule_id)


@router.get("/schedules/{schedule_id}", responses=documented(404, 422))
def get_schedule(session: Db, schedule_id: int) -> ScheduleRow:
    """One schedule."""
    return find(session, schedule_id)


@router.patch("/schedules/{schedule_id}", responses=documented(404, 422))
def change_schedule(session: Db, schedule_id: int, body: ScheduleChange) -> ScheduleRow:
    """Change the given fields, enable or disable. Repository, name and kind of a schedule are fixed."""
    schedule = find(session, schedule_id)
    change(session, repository_or_404(session, schedule.repository), schedule, body, datetime.now(UTC))
    return find(session, schedule_id)


@router.delete("/schedules/{schedule_id}", status_code=204, responses=documented(404, 422))
def delete_schedule(session: Db, schedule_id: int) -> None:
    """Delete a schedule. Its submissions stay."""
    remove_schedule(session, find(session, schedule_id).id)


@router.post("/schedules/{schedule_id}/run", responses=documented(404, 409, 422))
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
