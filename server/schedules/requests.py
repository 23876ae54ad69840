"""What people ask of a schedule, checked field by field."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from warpwatch.db.reads.code import RepositoryRow, list_operators, list_suites
from warpwatch.db.reads.devices import list_devices
from warpwatch.db.reads.query import Session
from warpwatch.db.reads.schedules import ScheduleRow
from warpwatch.db.schedules import NewSchedule, change_schedule, create_schedule
from warpwatch.server.http.problems import FieldError, Problem
from warpwatch.server.intake.catalogue import unknown_names
from warpwatch.server.intake.submission_request import ORDER, Kind
from warpwatch.server.intake.targets import KINDS as DEVICE_KINDS
from warpwatch.server.schedules.cron import EXAMPLE, CronError, next_after

ScheduleKind = Literal["suite", "rerun", "backfill"]
WORK: dict[str, list[Kind]] = {"suite": ["check", "bench"], "rerun": ["bench"], "backfill": ["bench"]}
"""Kinds of jobs that a kind of schedule makes unless it is told otherwise."""
MAX_BUDGET = 1_000_000
REFUSED = "nothing was changed; see `errors`"

Cron = Annotated[
    str, Field(min_length=1, max_length=100, description="minute hour day month weekday, in UTC.", examples=[EXAMPLE])
]
Budget = Annotated[
    int, Field(ge=1, le=MAX_BUDGET, description="Device minutes that it may take in any 24 hours, over all devices.")
]
Kinds = Annotated[list[Literal["check", "bench", "profile"]], Field(max_length=3)]
Operators = Annotated[list[str], Field(max_length=200)]
Suite = Annotated[str, Field(min_length=1, max_length=50)]
DeviceName = Annotated[str, Field(min_length=1, max_length=200)]
Priority = Annotated[int, Field(ge=-10, le=10)]


class ScheduleRequest(BaseModel):
    """Work that nobody has to ask for.

    Empty operators mean all of them, empty kinds what the kind of schedule usually makes.
    """

    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True)
    repository: str = Field(min_length=1, max_length=100)
    name: str = Field(min_length=1, max_length=100)
    kind: ScheduleKind = Field(
        description="suite: all of the watched branch's newest commit. rerun: a measured commit once more, so that noise is learned. "
        "backfill: commits that histories lack, the widest gap first."
    )
    cron: Cron = EXAMPLE
    budget_minutes: Budget = 60
    enabled: bool = True
    operators: Operators = []
    kinds: Kinds = []
    suite: Suite = "quick"
    device: DeviceName = "all"
    priority: Priority = Field(default=-5, description="Below that of what people ask for.")
    skip_unchanged: bool = Field(
        default=False, description="For suite: leave out operators whose sources were measured before."
    )


class ScheduleChange(BaseModel):
    """What is to be different; what is left out stays."""

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


_ASKED = ("operators", "kinds", "suite", "device", "priority", "skip_unchanged")
"""Fields that say what is measured, kept together as the schedule's request."""


def create(session: Session, repository: RepositoryRow, wanted: ScheduleRequest, now: datetime) -> int:
    """The id of the new schedule; Problem names every field at fault."""
    asked = _asked(wanted.kind, wanted.model_dump(include=set(_ASKED)))
    due, errors = _due(wanted.cron, now)
    errors += _check(session, repository, wanted.kind, asked)
    if errors:
        raise Problem(422, REFUSED, errors)
    new = NewSchedule(
        repository_id=repository.id,
        name=wanted.name,
        kind=wanted.kind,
        cron=wanted.cron,
        request=asked,
        budget_minutes=wanted.budget_minutes,
        next_at=due if wanted.enabled else None,
    )
    made = create_schedule(session, new)
    if made is None:
        error = FieldError(
            field="name", message=f"{repository.name} has a schedule {wanted.name!r}", remedy="choose another name"
        )
        raise Problem(422, REFUSED, [error])
    return made


def change(
    session: Session, repository: RepositoryRow, schedule: ScheduleRow, wanted: ScheduleChange, now: datetime
) -> None:
    """Changes what is named; Problem names every field at fault."""
    fields = wanted.model_dump(exclude_none=True)
    asked = _asked(schedule.kind, schedule.request | {name: fields[name] for name in _ASKED if name in fields})
    cron = fields.get("cron", schedule.cron)
    due, errors = _due(cron, now)
    errors += _check(session, repository, schedule.kind, asked)
    if errors:
        raise Problem(422, REFUSED, errors)
    stays_due = schedule.next_at is not None and cron == schedule.cron
    enabled = fields.get("enabled", schedule.is_enabled)
    change_schedule(
        session,
        schedule.id,
        cron=cron,
        request=asked,
        budget_minutes=fields.get("budget_minutes", schedule.budget_minutes),
        next_at=(schedule.next_at if stays_due else due) if enabled else None,
    )


def _asked(kind: str, asked: dict[str, Any]) -> dict[str, Any]:
    """With the kinds of jobs that are made, in the order in which they are."""
    return asked | {"kinds": [name for name in ORDER if name in (asked["kinds"] or WORK[kind])]}


def _due(cron: str, now: datetime) -> tuple[datetime | None, list[FieldError]]:
    try:
        return next_after(cron, now), []
    except CronError as error:
        remedy = f"write minute hour day month weekday in UTC, such as {EXAMPLE!r} for every night at two"
        return None, [FieldError(field="cron", message=str(error), remedy=remedy)]


def _check(session: Session, repository: RepositoryRow, kind: str, asked: dict[str, Any]) -> list[FieldError]:
    errors = []
    devices = [device.key for device in list_devices(session)]
    if asked["device"] not in ("all", *DEVICE_KINDS, *devices):
        remedy = f"use one of: {', '.join(['all', *DEVICE_KINDS, *devices])}"
        errors.append(FieldError(field="device", message=f"there is no device {asked['device']!r}", remedy=remedy))
    # Of a repository that nothing was measured of, nobody knows yet what it has.
    operators = [operator.name for operator in list_operators(session, repository.id)]
    suites = list_suites(session, repository.id)
    errors += unknown_names("operators", "operator", asked["operators"], operators) if operators else []
    errors += unknown_names("suite", "suite", [asked["suite"]], suites) if suites else []
    if kind == "rerun" and asked["kinds"] != ["bench"]:
        errors.append(
            FieldError(field="kinds", message="a rerun measures times alone", remedy="leave it out, or say bench")
        )
    return errors
