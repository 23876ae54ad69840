"""Preview of a submission before the submission is sent: jobs, device minutes, and the commits to choose from."""

from __future__ import annotations

from dataclasses import dataclass

from warpwatch import git, git_branches
from warpwatch.contract.words import JobKind
from warpwatch.db.database import Database
from warpwatch.db.reads.devices import DeviceRow
from warpwatch.db.reads.query import Session
from warpwatch.db.schedules import read_costs
from warpwatch.server.history.commits import CommitsRead, fetch_repository, read_mirror
from warpwatch.server.history.definitions import refresh_definitions
from warpwatch.server.http.problems import Problem
from warpwatch.server.intake.budget import CandidateJob, CostEstimates
from warpwatch.server.intake.submission_request import SubmissionRequest
from warpwatch.server.intake.submissions import (
    ChangedCode,
    SubmissionPlan,
    base_of,
    held_operators,
    plan_submission,
    repository_of,
    requested_jobs,
)
from warpwatch.settings import Settings

MOST_BRANCHES, MOST_COMMITS = 30, 30


@dataclass(frozen=True, slots=True)
class SubmissionPreview:
    """jobs: at most, because operators whose sources did not change may be skipped. minutes: estimated device time of
    all jobs together, from the median of earlier jobs. unserved: names of devices without a worker."""

    jobs: int
    minutes: float
    commits: list[str]
    operators: list[str]
    kinds: dict[str, int]
    devices: list[str]
    unserved: list[str]


@dataclass(frozen=True, slots=True)
class BranchOption:
    """A branch to choose, with its newest commit."""

    name: str
    newest: git_branches.CommitSummary


@dataclass(frozen=True, slots=True)
class CommitOptions:
    """Branches, the one with the newest commit first, and the recent commits of one of them."""

    branch: str
    branches: list[BranchOption]
    commits: list[git_branches.CommitSummary]


def preview_submission(database: Database, settings: Settings, request: SubmissionRequest) -> SubmissionPreview:
    """Previews the jobs that the request would create; Problem names every field at fault."""
    with database.session() as session:
        repository = repository_of(session, request.repository)
    repository = refresh_definitions(database, settings, repository)
    mirror = git.mirror_path(repository.url, settings.home)
    read: CommitsRead | None = None
    if mirror.is_dir():
        read = read_mirror(mirror, repository, request.commits, base_of(request), request.branch)
    if read is None or read[2]:
        # Somebody may just have pushed what the mirror does not know. No transaction is open while git fetches.
        mirror = fetch_repository(settings, repository)
        read = read_mirror(mirror, repository, request.commits, base_of(request), request.branch)
    with database.session() as session:
        plan = plan_submission(session, settings, repository, read, request)
        return _preview(session, plan, request)


def _preview(session: Session, plan: SubmissionPlan, request: SubmissionRequest) -> SubmissionPreview:
    jobs = [
        CandidateJob(info.sha, operator, device.id, kind, request.suite)
        for info, operator, kind, device in requested_jobs(plan, request)
    ]
    head = plan.history.commits[0].sha
    jobs += [
        CandidateJob(head, operator, device.id, JobKind.COMPARE, request.suite)
        for operator, changed in held_operators(plan, request)
        for device in plan.devices
        if _compares(plan, operator, changed, device)
    ]
    estimates = CostEstimates(read_costs(session))
    kinds = [job.kind for job in jobs]
    return SubmissionPreview(
        jobs=len(jobs),
        minutes=round(sum(map(estimates.of, jobs)) / 60, 1),
        commits=[info.sha for info in plan.history.commits],
        operators=sorted({job.operator for job in jobs}),
        kinds={kind: kinds.count(kind) for kind in JobKind if kind in kinds},
        devices=[device.name for device in plan.devices],
        unserved=[device.name for device in plan.devices if not (device.workers or device.is_elastic)],
    )


def _compares(plan: SubmissionPlan, operator: str, changed: ChangedCode, device: DeviceRow) -> bool:
    """Whether any variant has other code than at the baseline; all count until a worker has read them."""
    names = plan.choice.catalogued_names(operator, device.kind)
    return bool(changed) and (names is None or any(map(changed.includes, names.variants)))


def list_options(settings: Settings, database: Database, repository: str, branch: str | None = None) -> CommitOptions:
    """Branches and recent commits of a repository; Problem when git cannot fetch it."""
    with database.session() as session:
        row = repository_of(session, repository)
    mirror = git.mirror_path(row.url, settings.home)
    if not mirror.is_dir():
        mirror = fetch_repository(settings, row)
    branches = [BranchOption(name, newest) for name, newest in git_branches.list_branches(mirror, MOST_BRANCHES)]
    chosen = branch or row.branch or "HEAD"
    try:
        commits = git_branches.list_recent(mirror, f"refs/heads/{chosen}" if branch else chosen, MOST_COMMITS)
    except git.UnknownRefError as error:
        raise Problem(404, f"there is no branch {chosen!r}; choose one of the list") from error
    return CommitOptions(chosen, branches, commits)
