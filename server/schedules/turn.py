"""One turn of a schedule: read what is known, read git with no transaction open, then make the jobs and move the clock
in one.

A turn is taken once however many servers see that it is due: whoever commits first has moved the clock, and the others'
plans are void.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from warpwatch import git
from warpwatch.db.database import Database
from warpwatch.db.reads.code import find_repository
from warpwatch.db.reads.measured import JobSlot
from warpwatch.db.reads.query import Session
from warpwatch.db.reads.rows import DeviceRow, RepositoryRow, ScheduleRow
from warpwatch.db.reads.schedules import (
    RequestedJob,
    list_open,
    list_readings,
    list_requested,
    read_costs,
    read_schedule,
)
from warpwatch.db.registry import ensure_operators
from warpwatch.db.schedules import end_turn, lock_turn
from warpwatch.db.submissions import NewJob, NewSubmission, create_submission
from warpwatch.server.history.commits import CommitHistory, with_operators, write_down
from warpwatch.server.history.sources import Earlier, SourceCache
from warpwatch.server.http.problems import FieldError
from warpwatch.server.intake.catalogue import OperatorSelection, select_operators
from warpwatch.server.intake.submission_request import Kind, SubmissionRequest
from warpwatch.server.intake.submissions import job_spec
from warpwatch.server.intake.targets import choose_devices
from warpwatch.server.schedules.budget import BudgetFit, CandidateJob, CostEstimates, fit_budget
from warpwatch.server.schedules.candidates import (
    Line,
    MeasuredCommits,
    list_backfill_candidates,
    list_rerun_candidates,
    list_suite_candidates,
)
from warpwatch.server.schedules.cron import next_after
from warpwatch.settings import Settings

DEPTH = {"suite": 50, "rerun": 200, "backfill": 1000}
"""Newest commits of the watched branch that a kind of schedule looks at."""
MOST_JOBS = 500
"""Jobs that one turn makes."""
RETRY = timedelta(minutes=10)
"""How soon a turn is tried again that could not be taken for want of a worker or of the repository."""


class NothingToDo(Exception):  # noqa: N818 - it is no fault, but why a turn does nothing.
    """Why a turn makes no jobs; the message is for people. passing: it may be over long before the next turn."""

    def __init__(self, message: str, *, passing: bool = False) -> None:
        super().__init__(message)
        self.passing = passing


@dataclass(frozen=True, slots=True)
class _Start:
    """What a turn begins with. left_seconds: of its budget, waiting jobs of its own taken off."""

    schedule: ScheduleRow
    repository: RepositoryRow
    devices: list[DeviceRow]
    costs: CostEstimates
    left_seconds: float

    @property
    def budget_seconds(self) -> float:
        return self.schedule.budget_minutes * 60.0

    def request(self, sha: str) -> SubmissionRequest:
        """The same as a person would ask for at a commit."""
        asked = self.schedule.request
        names = ("kinds", "operators", "suite", "device", "priority")
        return SubmissionRequest(repository=self.repository.name, commits=sha, **{name: asked[name] for name in names})


@dataclass(frozen=True, slots=True)
class _Plan:
    """The jobs of a turn, ready to be made."""

    start: _Start
    fit: BudgetFit
    history: CommitHistory
    choice: OperatorSelection


def run_schedule(
    database: Database,
    settings: Settings,
    schedule_id: int,
    now: datetime,
    *,
    due: bool = True,
    cache: SourceCache | None = None,
) -> bool:
    """Takes the turn of a schedule and writes down what came of it; False when another server took it, or it is not due
    any more.

    due: False for a turn that a person asked for, which leaves the next one where it is.
    """
    with database.session() as session:
        schedule = read_schedule(session, schedule_id, now)
    if schedule is None or (due and (schedule.next_at is None or schedule.next_at > now)):
        return False
    next_at = next_after(schedule.cron, now) if due else schedule.next_at
    plan, message = None, ""
    try:
        plan = _plan(database, settings, schedule, now, cache or SourceCache())
    except NothingToDo as obstacle:
        message = str(obstacle)
        if obstacle.passing and next_at is not None:
            next_at = min(next_at, now + RETRY)
    with database.session() as session:
        if not lock_turn(session, schedule.id, schedule.last_at, schedule.next_at):
            return False
        if plan is not None:
            message = _carry_out(session, plan)
        end_turn(session, schedule.id, now, next_at, message)
    return True


def _plan(database: Database, settings: Settings, schedule: ScheduleRow, now: datetime, cache: SourceCache) -> _Plan:
    with database.session() as session:
        start = _start(session, settings, schedule, now)
    mirror, history = _read_history(settings, start)
    head = history.commits[-1]
    with database.session() as session:
        choice, errors = select_operators(session, start.repository.id, _at(history, head.sha), start.request(head.sha))
        if errors:
            raise NothingToDo(f"nothing to do: {_told(errors)}")
        measured = _measured(session, start, history, choice)
        readings = list_readings(session, start.repository.id) if schedule.kind == "rerun" else []
        unchanged = _Unchanged(session, start, mirror, head, choice)
    # Sources may have to be read at a thousand commits, so no transaction is open meanwhile.
    if schedule.kind == "suite":
        wishes = list_suite_candidates(measured, unchanged.since)
    elif schedule.kind == "rerun":
        wishes = list_rerun_candidates(measured, readings)
    else:
        wishes = list_backfill_candidates(measured, cache.of(mirror).of)
    return _Plan(start, _fit(start, wishes), history, choice)


class _Unchanged:
    """Tells whether the newest commit's numbers are those of an earlier one, where the schedule leaves such work out."""

    def __init__(
        self, session: Session, start: _Start, mirror: Path, head: git.CommitInfo, choice: OperatorSelection
    ) -> None:
        asked = start.schedule.kind == "suite" and start.schedule.request["skip_unchanged"]
        self._earlier = Earlier(session, mirror, head) if asked else None
        self._request, self._sha, self._choice = start.request(head.sha), head.sha, choice
        self._devices = {device.id: device for device in start.devices}
        self._operators = ensure_operators(session, start.repository.id, choice.operators) if asked else {}

    def since(self, line: Line, kind: Kind) -> str | None:
        """The commit whose numbers these are; None when they are to be measured."""
        if self._earlier is None:
            return None
        operator, device_id = line
        spec = job_spec(self._choice, self._request, kind, operator, self._devices[device_id])
        return self._earlier.unchanged_since(
            JobSlot(self._operators[operator], device_id, kind), operator, self._sha, spec
        )


def _start(session: Session, settings: Settings, schedule: ScheduleRow, now: datetime) -> _Start:
    repository = find_repository(session, schedule.repository)
    assert repository is not None
    devices, errors = choose_devices(session, schedule.request["device"], settings.lease_seconds)
    if errors:
        raise NothingToDo(f"waits: {_told(errors)}", passing=True)
    living = [device for device in devices if device.workers]
    if not living:
        names = ", ".join(device.key for device in devices)
        raise NothingToDo(f"waits: no worker for {names} is alive; start one with `warpwatch worker`", passing=True)
    costs = CostEstimates(read_costs(session))
    owed = costs.owed(list_open(session, schedule.id, now))
    left = schedule.budget_minutes * 60 - schedule.spent_minutes * 60 - owed
    if left <= 0:
        waiting = f" and {owed / 60:.1f} more are waiting or running" if owed else ""
        spent = f"{schedule.spent_minutes:.1f} of {schedule.budget_minutes} device minutes of the last 24 hours are spent{waiting}"
        raise NothingToDo(f"waits: {spent}")
    return _Start(schedule, repository, living, costs, left)


def _read_history(settings: Settings, start: _Start) -> tuple[Path, CommitHistory]:
    """The newest commits of the watched branch, fetched just now."""
    repository = start.repository
    try:
        mirror = git.update_mirror(repository.url, settings.home)
    except git.GitError as error:
        raise NothingToDo(f"waits: repository {repository.name!r} cannot be fetched: {error}", passing=True) from error
    try:
        shas = git.last_commits(mirror, repository.branch or "HEAD", DEPTH[start.schedule.kind])
    except git.UnknownRefError:
        wanted = f"branch {repository.branch!r}" if repository.branch else "commit"
        raise NothingToDo(
            f"nothing to do: repository {repository.name!r} has no {wanted}; push it, or watch another branch"
        ) from None
    return mirror, with_operators(mirror, git.describe_many(mirror, shas))


def _at(history: CommitHistory, sha: str) -> CommitHistory:
    commits = [commit for commit in history.commits if commit.sha == sha]
    return CommitHistory(commits, {sha: history.operators[sha]}, history.folder)


def _measured(session: Session, start: _Start, history: CommitHistory, choice: OperatorSelection) -> MeasuredCommits:
    shas = [commit.sha for commit in history.commits]
    kinds, suite = start.schedule.request["kinds"], start.schedule.request["suite"]
    asked = list_requested(session, start.repository.id, shas, kinds)
    operators = {sha: [name for name in history.operators[sha] if name in choice.operators] for sha in shas}
    whole = [job for job in asked if _is_whole(job, suite)]
    return MeasuredCommits(shas, operators, [device.id for device in start.devices], kinds, suite, whole)


def _is_whole(job: RequestedJob, suite: str) -> bool:
    """Whether the job is about all of the suite."""
    return job.spec.suite == suite and job.spec.is_whole_suite() and job.spec.sanitize is None


def _fit(start: _Start, wishes: Sequence[CandidateJob]) -> BudgetFit:
    if not wishes:
        raise NothingToDo(f"nothing to do: {_NOTHING[start.schedule.kind]}")
    found = fit_budget(wishes, start.costs, start.left_seconds, start.budget_seconds, MOST_JOBS)
    if found.fitting:
        return found
    dearest = max(found.too_large or wishes, key=start.costs.of)
    need = f"{dearest.kind} of {dearest.operator} takes about {start.costs.of(dearest) / 60:.1f} device minutes"
    if found.too_large and not found.waiting:
        raise NothingToDo(
            f"nothing fits: {need}, more than the whole budget of {start.schedule.budget_minutes}; raise it"
        )
    raise NothingToDo(
        f"waits: {start.left_seconds / 60:.1f} device minutes are left of the budget of {start.schedule.budget_minutes}, and {need}"
    )


_NOTHING = {
    "suite": "the newest commit was asked for already",
    "rerun": "no commit of the watched branch was measured yet",
    "backfill": "no history has a hole",
}


def _carry_out(session: Session, plan: _Plan) -> str:
    """Makes the jobs; what to say of it."""
    schedule, wishes = plan.start.schedule, plan.fit.fitting
    chosen = {wish.sha for wish in wishes}
    infos = [commit for commit in plan.history.commits if commit.sha in chosen]
    commits = write_down(session, plan.start.repository.id, infos)
    operators = ensure_operators(session, plan.start.repository.id, sorted({wish.operator for wish in wishes}))
    request = plan.start.request(infos[0].sha if len(infos) == 1 else f"{len(infos)} commits")
    devices = {device.id: device for device in plan.start.devices}
    jobs = [
        NewJob(
            kind=wish.kind,
            commit_id=commits[wish.sha],
            operator_id=operators[wish.operator],
            device_id=wish.device_id,
            spec=job_spec(plan.choice, request, wish.kind, wish.operator, devices[wish.device_id]),
            unchanged_since=wish.unchanged_since,
        )
        for wish in wishes
    ]
    new = NewSubmission(
        repository_id=plan.start.repository.id,
        request=request.model_dump() | {"schedule": schedule.name},
        jobs=jobs,
        origin="schedule",
        priority=request.priority,
        schedule_id=schedule.id,
    )
    return _summary(create_submission(session, new), plan)


def _summary(submission_id: int, plan: _Plan) -> str:
    found, schedule = plan.fit, plan.start.schedule
    unchanged = sum(wish.unchanged_since is not None for wish in found.fitting)
    commits = len({wish.sha for wish in found.fitting})
    parts = [
        f"submission {submission_id}: {_count(len(found.fitting) - unchanged, 'job')} at {_count(commits, 'commit')}, "
        f"about {found.seconds / 60:.1f} of {schedule.budget_minutes} device minutes",
        f"{_count(unchanged, 'job')} left out as unchanged" if unchanged else "",
        f"{_count(found.waiting, 'job')} for later turns" if found.waiting else "",
        f"{_count(len(found.too_large), 'job')} larger than the whole budget" if found.too_large else "",
    ]
    return "; ".join(part for part in parts if part)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _told(errors: Sequence[FieldError]) -> str:
    return "; ".join(f"{error.message}; {error.remedy}".rstrip("; ") for error in errors)
