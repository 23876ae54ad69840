"""One run of a schedule: reads the database, reads git without an open transaction, then creates the jobs and sets the
next due time in one transaction.

Several servers may see that a schedule is due; the first to commit sets the next due time, and the others drop their
plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

from warpwatch import git
from warpwatch.contract.words import JobKind
from warpwatch.db.database import Database
from warpwatch.db.reads.code import RepositoryRow, find_repository
from warpwatch.db.reads.devices import DeviceRow
from warpwatch.db.reads.measured import JobSlot
from warpwatch.db.reads.query import Session
from warpwatch.db.registry import ensure_operators, record_commits
from warpwatch.db.schedules import (
    RequestedJob,
    ScheduleRow,
    end_turn,
    list_open,
    list_readings,
    list_requested,
    lock_turn,
    read_costs,
    read_schedule,
)
from warpwatch.db.submissions import NewJob, NewSubmission, create_submission
from warpwatch.server.history.branches import follow_branches
from warpwatch.server.history.commits import CommitHistory, with_operators
from warpwatch.server.history.definitions import refresh_definitions
from warpwatch.server.history.sources import Earlier, SourceCache, line_before
from warpwatch.server.http.problems import FieldError, Problem
from warpwatch.server.intake.budget import BudgetFit, CandidateJob, CostEstimates, fit_budget
from warpwatch.server.intake.candidates import (
    Line,
    MeasuredCommits,
    list_backfill_candidates,
    list_rerun_candidates,
    list_suite_candidates,
)
from warpwatch.server.intake.catalogue import OperatorSelection, select_operators
from warpwatch.server.intake.cron import next_after
from warpwatch.server.intake.planned_jobs import job_spec
from warpwatch.server.intake.space import require_space
from warpwatch.server.intake.submission_request import SubmissionRequest
from warpwatch.server.intake.targets import choose_devices
from warpwatch.settings import Settings
from warpwatch.sources import Sources

DEPTH = {"suite": 50, "rerun": 200, "backfill": 1000}
"""The number of newest commits of the watched branch that each kind of schedule considers."""
MOST_JOBS = 500
"""The most jobs that one run creates."""
RETRY = timedelta(minutes=10)
"""The delay before a run is retried that failed because no worker was online or the repository was unavailable."""


class NothingToDo(Exception):  # noqa: N818 - not an error.
    """Why a run of a schedule creates no jobs; the message is for people. passing: retry before the next run."""

    def __init__(self, message: str, *, passing: bool = False) -> None:
        super().__init__(message)
        self.passing = passing


@dataclass(frozen=True, slots=True)
class _TurnStart:
    """The input of a run. left_seconds: the rest of its budget, without its own queued jobs."""

    schedule: ScheduleRow
    repository: RepositoryRow
    devices: list[DeviceRow]
    costs: CostEstimates
    left_seconds: float

    @property
    def budget_seconds(self) -> float:
        return self.schedule.budget_minutes * 60.0

    def request(self, sha: str) -> SubmissionRequest:
        """The request of the schedule at a commit."""
        fields = self.schedule.request
        names = ("kinds", "operators", "suite", "device", "priority", "skip_unchanged")
        return SubmissionRequest(repository=self.repository.name, commits=sha, **{name: fields[name] for name in names})


@dataclass(frozen=True, slots=True)
class _TurnPlan:
    """The jobs of a run, ready to be created."""

    start: _TurnStart
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
    """Runs a schedule and stores the outcome; False when another server ran it, or it is not due any more.

    due: False for a run that a person started, which leaves the next due time unchanged.
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
    if plan is not None:
        follow_branches(database, settings, plan.start.repository.id)
    return True


def _plan(
    database: Database, settings: Settings, schedule: ScheduleRow, now: datetime, cache: SourceCache
) -> _TurnPlan:
    try:
        require_space(database, settings)
    except Problem as problem:
        raise NothingToDo(f"waiting: {problem.detail}", passing=True) from problem
    with database.session() as session:
        start = _start(session, settings, schedule, now)
    try:
        start = replace(start, repository=refresh_definitions(database, settings, start.repository))
    except Problem as problem:
        raise NothingToDo(f"waiting: {_join_errors(problem.errors)}", passing=True) from problem
    mirror, history = _read_history(settings, start)
    head = history.commits[-1]
    line = line_before(mirror, head.sha)
    with database.session() as session:
        choice, errors = select_operators(session, start.repository.id, _at(history, head.sha), start.request(head.sha))
        if errors:
            raise NothingToDo(f"nothing to do: {_join_errors(errors)}")
        measured = _measured(session, start, history, choice)
        readings = list_readings(session, start.repository.id) if schedule.kind == "rerun" else []
        unchanged = _Unchanged(session, start, mirror, head, choice, line, cache)
    # Sources may have to be read at a thousand commits, so no transaction is open meanwhile.
    measured = replace(measured, requested=_same_definition(measured.requested, start.repository, mirror, cache))
    if schedule.kind == "suite":
        candidates = list_suite_candidates(measured, unchanged.since)
    elif schedule.kind == "rerun":
        candidates = list_rerun_candidates(measured, readings)
    else:
        candidates = list_backfill_candidates(measured, cache.of(mirror, start.repository.definitions).of)
    return _TurnPlan(start, _fit(start, candidates), history, choice)


class _Unchanged:
    """Finds an earlier commit with the same sources as the newest, where the schedule skips unchanged operators."""

    def __init__(
        self,
        session: Session,
        start: _TurnStart,
        mirror: Path,
        head: git.CommitInfo,
        choice: OperatorSelection,
        line: list[str],
        cache: SourceCache,
    ) -> None:
        skips = start.schedule.kind == "suite" and start.schedule.request["skip_unchanged"]
        self._earlier = Earlier(session, start.repository, mirror, head, line, cache) if skips else None
        self._request, self._sha, self._choice = start.request(head.sha), head.sha, choice
        self._devices = {device.id: device for device in start.devices}

    def since(self, line: Line, kind: JobKind) -> str | None:
        """The earlier commit with the same sources; None when the operator has to be measured."""
        if self._earlier is None:
            return None
        operator, device_id = line
        spec = job_spec(self._choice, self._request, kind, operator, self._devices[device_id])
        return self._earlier.unchanged_since(JobSlot(operator, device_id, kind), self._sha, spec)


def _start(session: Session, settings: Settings, schedule: ScheduleRow, now: datetime) -> _TurnStart:
    repository = find_repository(session, schedule.repository)
    assert repository is not None
    devices, errors = choose_devices(session, schedule.request["device"], settings.lease_seconds)
    if errors:
        raise NothingToDo(f"waiting: {_join_errors(errors)}", passing=True)
    served = [device for device in devices if device.workers or device.is_elastic]
    if not served:
        names = ", ".join(device.key for device in devices)
        raise NothingToDo(f"waiting: no worker for {names}; start a worker with `warpwatch worker`", passing=True)
    costs = CostEstimates(read_costs(session), repository.id)
    reserved = costs.reserved_seconds(list_open(session, schedule.id, now))
    left_seconds = schedule.budget_minutes * 60 - schedule.spent_minutes * 60 - reserved
    if left_seconds <= 0:
        queued = f", {reserved / 60:.1f} more queued or running" if reserved else ""
        used = f"{schedule.spent_minutes:.1f} of {schedule.budget_minutes} device minutes used in the last 24 hours"
        raise NothingToDo(f"waiting for budget: {used}{queued}")
    return _TurnStart(schedule, repository, served, costs, left_seconds)


def _read_history(settings: Settings, start: _TurnStart) -> tuple[Path, CommitHistory]:
    """Fetches the repository and reads the newest commits of the watched branch."""
    repository = start.repository
    try:
        mirror = git.update_mirror(repository.url, settings.home, settings.destinations)
    except git.GitError as error:
        raise NothingToDo(
            f"waiting: repository {repository.name!r} cannot be fetched: {error}", passing=True
        ) from error
    try:
        shas = git.last_commits(mirror, repository.branch or "HEAD", DEPTH[start.schedule.kind])
    except git.UnknownRefError:
        missing = f"branch {repository.branch!r}" if repository.branch else "commit"
        raise NothingToDo(
            f"nothing to do: repository {repository.name!r} has no {missing}; push it, or watch another branch"
        ) from None
    return mirror, with_operators(mirror, git.describe_many(mirror, shas), Sources(mirror, repository.definitions))


def _at(history: CommitHistory, sha: str) -> CommitHistory:
    commits = [commit for commit in history.commits if commit.sha == sha]
    return CommitHistory(commits, {sha: history.operators[sha]}, history.folder)


def _measured(
    session: Session, start: _TurnStart, history: CommitHistory, choice: OperatorSelection
) -> MeasuredCommits:
    shas = [commit.sha for commit in history.commits]
    kinds, suite = start.schedule.request["kinds"], start.schedule.request["suite"]
    requested = list_requested(session, start.repository.id, shas, kinds)
    operators = {sha: [name for name in history.operators[sha] if name in choice.operators] for sha in shas}
    whole = [
        job for job in requested if job.spec.suite == suite and job.spec.is_whole_suite() and job.spec.sanitize is None
    ]
    return MeasuredCommits(shas, operators, [device.id for device in start.devices], kinds, suite, whole)


def _same_definition(
    jobs: Sequence[RequestedJob], repository: RepositoryRow, mirror: Path, cache: SourceCache
) -> list[RequestedJob]:
    """The jobs whose operator is defined today as it was for them: what was measured by another definition counts as
    not measured."""
    newest = repository.definitions

    def definition(job: RequestedJob, version: str) -> str | None:
        return cache.of(mirror, newest and replace(newest, sha=version)).definition(job.sha, job.operator)

    if newest is None:
        return list(jobs)
    return [
        job
        for job in jobs
        if job.definitions_sha is not None and definition(job, job.definitions_sha) == definition(job, newest.sha)
    ]


def _fit(start: _TurnStart, candidates: Sequence[CandidateJob]) -> BudgetFit:
    if not candidates:
        raise NothingToDo(f"nothing to do: {_NOTHING[start.schedule.kind]}")
    fit = fit_budget(candidates, start.costs, start.left_seconds, start.budget_seconds, MOST_JOBS)
    if fit.fitting:
        return fit
    largest = max(fit.too_large or candidates, key=start.costs.of)
    need = f"{largest.kind} of {largest.operator} takes about {start.costs.of(largest) / 60:.1f} device minutes"
    if fit.too_large and not fit.waiting:
        raise NothingToDo(
            f"nothing fits: {need}, more than the whole budget of {start.schedule.budget_minutes}; increase the budget"
        )
    raise NothingToDo(
        f"waiting for budget: {start.left_seconds / 60:.1f} of {start.schedule.budget_minutes} device minutes left, "
        f"{need}"
    )


_NOTHING = {
    "suite": "the newest commit was already submitted",
    "rerun": "no commit of the watched branch has a measurement",
    "backfill": "no history has a gap",
}


def _carry_out(session: Session, plan: _TurnPlan) -> str:
    """Creates the jobs; returns the message of the run."""
    schedule, candidates = plan.start.schedule, plan.fit.fitting
    chosen = {candidate.sha for candidate in candidates}
    infos = [commit for commit in plan.history.commits if commit.sha in chosen]
    commits = record_commits(session, plan.start.repository.id, infos)
    operators = ensure_operators(
        session, plan.start.repository.id, sorted({candidate.operator for candidate in candidates})
    )
    request = plan.start.request(infos[0].sha if len(infos) == 1 else f"{len(infos)} commits")
    devices = {device.id: device for device in plan.start.devices}
    jobs = [
        NewJob(
            kind=candidate.kind,
            commit_id=commits[candidate.sha],
            operator_id=operators[candidate.operator],
            device_id=candidate.device_id,
            spec=job_spec(plan.choice, request, candidate.kind, candidate.operator, devices[candidate.device_id]),
            unchanged_since=candidate.unchanged_since,
        )
        for candidate in candidates
    ]
    new = NewSubmission(
        repository_id=plan.start.repository.id,
        request=request.model_dump() | {"schedule": schedule.name},
        jobs=jobs,
        origin="schedule",
        priority=request.effective_priority,
        schedule_id=schedule.id,
        definitions_sha=plan.start.repository.definitions_sha,
    )
    return _summary(create_submission(session, new), plan)


def _summary(submission_id: int, plan: _TurnPlan) -> str:
    fit, schedule = plan.fit, plan.start.schedule
    unchanged = sum(candidate.unchanged_since is not None for candidate in fit.fitting)
    commits = len({candidate.sha for candidate in fit.fitting})
    parts = [
        f"submission {submission_id}: {_count(len(fit.fitting) - unchanged, 'job')} at {_count(commits, 'commit')}, "
        f"about {fit.seconds / 60:.1f} of {schedule.budget_minutes} device minutes",
        f"{_count(unchanged, 'job')} skipped as unchanged" if unchanged else "",
        f"{_count(fit.waiting, 'job')} for later runs" if fit.waiting else "",
        f"{_count(len(fit.too_large), 'job')} above the whole budget" if fit.too_large else "",
    ]
    return "; ".join(part for part in parts if part)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _join_errors(errors: Sequence[FieldError]) -> str:
    return "; ".join(f"{error.message}; {error.remedy}".rstrip("; ") for error in errors)
