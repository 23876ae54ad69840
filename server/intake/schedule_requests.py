"""Requests to add or change a schedule, and their validation."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from warpwatch.contract.priorities import ORDINARY, SCHEDULED
from warpwatch.contract.words import JobKind, ScheduleKind
from warpwatch.db.reads.code import RepositoryRow, list_operators, list_suites
from warpwatch.db.reads.devices import list_devices
from warpwatch.db.reads.query import Session
from warpwatch.db.schedules import NewSchedule, ScheduleRow, change_schedule, create_schedule
from warpwatch.server.http.problems import FieldError, Problem
from warpwatch.server.intake.catalogue import unknown_names
from warpwatch.server.intake.cron import EXAMPLE, CronError, next_after
from warpwatch.server.intake.submission_request import ORDER
from warpwatch.server.intake.targets import KINDS as DEVICE_KINDS

WORK: dict[str, list[JobKind]] = {
    ScheduleKind.SUITE: [JobKind.CHECK, JobKind.BENCH],
    ScheduleKind.RERUN: [JobKind.BENCH],
    ScheduleKind.BACKFILL: [JobKind.BENCH],
}
"""The kinds of jobs of each kind of schedule, by default."""
MAX_BUDGET = 1_000_000
REFUSED = "not saved: some fields are not valid"

Cron = Annotated[
    str, Field(min_length=1, max_length=100, description="minute hour day month weekday, in UTC.", examples=[EXAMPLE])
]
Budget = Annotated[int, Field(ge=1, le=MAX_BUDGET, description="Device minutes per 24 hours, over all devices.")]
Kinds = Annotated[list[Literal["check", "bench", "profile"]], Field(max_length=3)]
Operators = Annotated[list[str], Field(max_length=200)]
Suite = Annotated[str, Field(min_length=1, max_length=50)]
DeviceName = Annotated[str, Field(min_length=1, max_length=200)]
Priority = Annotated[int, Field(ge=-10, le=10)]


class ScheduleRequest(BaseModel):
    """A recurring run.

    Empty operators mean all operators, empty kinds the default kinds of the schedule.
    """

    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True)
    repository: str = Field(min_length=1, max_length=100)
    name: str = Field(min_length=1, max_length=100)
    kind: ScheduleKind = Field(
        description="suite: the whole suite at the newest commit of the watched branch. rerun: a measured commit "
        "again, to learn run-to-run noise. backfill: unmeasured commits, the widest gap first."
    )
    cron: Cron = EXAMPLE
    budget_minutes: Budget = 60
    enabled: bool = True
    operators: Operators = []
    kinds: Kinds = []
    suite: Suite = "quick"
    device: DeviceName = "all"
    priority: Priority = Field(default=SCHEDULED, description=f"Below the default of submissions, {ORDINARY} or more.")
    skip_unchanged: bool = Field(
        default=False, description="Kind suite only: skip operators whose sources did not change."
    )


class ScheduleChange(BaseModel):
    """The fields to change; omitted fields stay as they are."""

    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True)
    cron: Cron | None = None
    budget_minutes: Budget | None = None
    enabled: bool | None = None
    operators: Operators | None = None
    kinds: Kinds | None = None
    suite: Suite | None = None
    device: DeviceName | None = None
    priority: Priority | None = None
    skip_unchanged: bool | None = None


_REQUEST_FIELDS = ("operators", "kinds", "suite", "device", "priority", "skip_unchanged")
"""The fields that are stored together as the request of the schedule."""


def create(session: Session, repository: RepositoryRow, body: ScheduleRequest, now: datetime) -> int:
    """The id of the new schedule; Problem names every field at fault."""
    request = _with_kinds(body.kind, body.model_dump(include=set(_REQUEST_FIELDS)))
    due, errors = _due(body.cron, now)
    errors += _check(session, repository, body.kind, request)
    if errors:
        raise Problem(422, REFUSED, errors)
    new = NewSchedule(
        repository_id=repository.id,
        name=body.name,
        kind=body.kind,
        cron=body.cron,
        request=request,
        budget_minutes=body.budget_minutes,
        next_at=due if body.enabled else None,
    )
    schedule_id = create_schedule(session, new)
    if schedule_id is None:
        error = FieldError(
            field="name",
            message=f"{repository.name} already has a schedule {body.name!r}",
            remedy="choose another name",
        )
        raise Problem(422, REFUSED, [error])
    return schedule_id


def change(
    session: Session, repository: RepositoryRow, schedule: ScheduleRow, body: ScheduleChange, now: datetime
) -> None:
    """Changes the given fields; Problem names every field at fault."""
    fields = body.model_dump(exclude_none=True)
    request = _with_kinds(
        schedule.kind, schedule.request | {name: fields[name] for name in _REQUEST_FIELDS if name in fields}
    )
    cron = fields.get("cron", schedule.cron)
    due, errors = _due(cron, now)
    errors += _check(session, repository, schedule.kind, request)
    if errors:
        raise Problem(422, REFUSED, errors)
    stays_due = schedule.next_at is not None and cron == schedule.cron
    enabled = fields.get("enabled", schedule.is_enabled)
    change_schedule(
        session,
        schedule.id,
        cron=cron,
        request=request,
        budget_minutes=fields.get("budget_minutes", schedule.budget_minutes),
        next_at=(schedule.next_at if stays_due else due) if enabled else None,
    )


def _with_kinds(kind: str, request: dict[str, Any]) -> dict[str, Any]:
    """The request with the kinds of jobs it creates, in the order in which they run."""
    return request | {"kinds": [name for name in ORDER if name in (request["kinds"] or WORK[kind])]}


def _due(cron: str, now: datetime) -> tuple[datetime | None, list[FieldError]]:
    try:
        return next_after(cron, now), []
    except CronError as error:
        remedy = f"enter minute hour day month weekday in UTC, such as {EXAMPLE!r} for 02:00 every night"
        return None, [FieldError(field="cron", message=str(error), remedy=remedy)]


def _check(session: Session, repository: RepositoryRow, kind: str, request: dict[str, Any]) -> list[FieldError]:
    errors = []
    devices = [device.key for device in list_devices(session)]
    if request["device"] not in ("all", *DEVICE_KINDS, *devices):
        remedy = f"choose from: {', '.join(['all', *DEVICE_KINDS, *devices])}"
        errors.append(FieldError(field="device", message=f"there is no device {request['device']!r}", remedy=remedy))
    # Before the first measurement of a repository its operators and suites are unknown.
    operators = [operator.name for operator in list_operators(session, repository.id)]
    suites = list_suites(session, repository.id)
    errors += unknown_names("operators", "operator", request["operators"], operators) if operators else []
    errors += unknown_names("suite", "suite", [request["suite"]], suites) if suites else []
    if kind == "rerun" and request["kinds"] != ["bench"]:
        errors.append(
            FieldError(field="kinds", message="kind rerun supports bench only", remedy="leave it out, or use bench")
        )
    return errors
