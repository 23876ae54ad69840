"""Preview of a submission before the submission is sent: its commits and those that are left out, its jobs, device
minutes, and the commits to choose from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from warpwatch import git, git_branches
from warpwatch.contract.commit_ids import short_sha
from warpwatch.contract.words import JobKind
from warpwatch.db.database import Database
from warpwatch.db.reads.devices import DeviceRow
from warpwatch.db.schedules import read_costs
from warpwatch.git_branches import CommitSummary
from warpwatch.server.history.commits import CommitsRead, fetch_repository, read_mirror
from warpwatch.server.history.definitions import refresh_definitions
from warpwatch.server.history.sources import SourceCache
from warpwatch.server.http.problems import Problem
from warpwatch.server.intake.budget import CandidateJob, CostEstimates
from warpwatch.server.intake.planned_jobs import PlannedJob, SubmissionPlan, plan_jobs
from warpwatch.server.intake.submission_request import SubmissionRequest
from warpwatch.server.intake.submissions import base_of, plan_submission, repository_of
from warpwatch.settings import Settings

MOST_BRANCHES, MOST_COMMITS = 30, 30
MOST_LISTED = 20
"""Commits that are listed for each reason to leave some out; all of them are counted."""

MOST_NAMED = 5
"""Commits whose results count that a sentence names."""


class UnmeasuredReason(StrEnum):
    """Why a commit gets no job.

    range_start: it is A of `A..B`. merged_branch: a merge brought it, and stands for it. no_operator: it has none of
    the requested operators. unchanged: all of its operators have the sources of measured commits. requested: the same
    was asked of it before.
    """

    RANGE_START = "range_start"
    MERGED_BRANCH = "merged_branch"
    NO_OPERATOR = "no_operator"
    UNCHANGED = "unchanged"
    REQUESTED = "requested"


@dataclass(frozen=True, slots=True)
class UnmeasuredCommits:
    """Commits that get no job, all for one reason: how many, the first few of them, newest first, and a sentence that
    says why and what to do about it."""

    reason: UnmeasuredReason
    count: int
    commits: list[CommitSummary]
    message: str


@dataclass(frozen=True, slots=True)
class CommitPlan:
    """A commit that is measured: the number of its jobs, and its operators that are unchanged, each with the commit
    whose results count."""

    sha: str
    subject: str
    jobs: int
    unchanged: dict[str, str]


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """The jobs of one device. minutes: of those whose operator ran on the device before, by the median of its jobs of
    that kind and suite; None where none did. unknown_jobs: how many the minutes leave out. is_served: whether it has a
    worker, or gets one."""

    key: str
    name: str
    jobs: int
    minutes: float | None
    unknown_jobs: int
    is_served: bool


@dataclass(frozen=True, slots=True)
class SubmissionPreview:
    """The jobs that a submission would queue, in all and by kind. unchanged: jobs that it skips, because the operator
    has the sources of a measured commit. commits: those that are measured, in the order of the queue. left_out: other
    commits of the range."""

    jobs: int
    unchanged: int
    kinds: dict[str, int]
    operators: list[str]
    commits: list[CommitPlan]
    left_out: list[UnmeasuredCommits]
    devices: list[DevicePlan]


@dataclass(frozen=True, slots=True)
class BranchOption:
    """A branch to choose, with its newest commit."""

    name: str
    newest: CommitSummary


@dataclass(frozen=True, slots=True)
class CommitOptions:
    """Branches, the one with the newest commit first, and the recent commits of one of them."""

    branch: str
    branches: list[BranchOption]
    commits: list[CommitSummary]


def preview_submission(
    database: Database, settings: Settings, request: SubmissionRequest, cache: SourceCache | None = None
) -> SubmissionPreview:
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
    plan = plan_submission(database, settings, repository, read, request, cache)
    jobs = plan_jobs(plan, request)
    with database.session() as session:
        estimates = CostEstimates(read_costs(session), repository.id)
    queued = [job for job in jobs if job.unchanged_since is None]
    kinds = [job.kind for job in queued]
    return SubmissionPreview(
        jobs=len(queued),
        unchanged=len(jobs) - len(queued),
        kinds={kind: kinds.count(kind) for kind in JobKind if kind in kinds},
        operators=sorted({job.operator for job in queued}),
        commits=_plan_commits(jobs),
        left_out=_left_out(mirror, request, plan, jobs),
        devices=[_plan_device(device, queued, request.suite, estimates) for device in plan.devices],
    )


def _plan_commits(jobs: Iterable[PlannedJob]) -> list[CommitPlan]:
    """The commits with jobs that are queued."""
    by_commit: dict[str, list[PlannedJob]] = defaultdict(list)
    for job in jobs:
        by_commit[job.commit.sha].append(job)
    return [
        CommitPlan(
            sha,
            mine[0].commit.subject,
            sum(job.unchanged_since is None for job in mine),
            {job.operator: job.unchanged_since for job in mine if job.unchanged_since is not None},
        )
        for sha, mine in by_commit.items()
        if mine[0].unchanged_since is None
    ]


def _is_ancestor(mirror: Path, sha: str, newer: str) -> bool:
    try:
        return git.merge_base(mirror, sha, newer) == sha
    except git.UnknownRefError:
        return False


def _left_out(
    mirror: Path, request: SubmissionRequest, plan: SubmissionPlan, jobs: Iterable[PlannedJob]
) -> list[UnmeasuredCommits]:
    """The commits of the range that get no job, by reason."""
    groups = []
    start, end = git.range_ends(mirror, request.commits)
    line = [commit.sha for commit in plan.history.commits]
    # Who writes A^..B knows, and A of another branch would not be measured by that either.
    is_known = start is None or request.commits.partition("..")[0].endswith("^")
    if start is not None and not is_known and _is_ancestor(mirror, start, end):
        (first,) = git_branches.summarize(mirror, [start])
        what = "the first commit of the history" if git.describe(mirror, start).parent_sha is None else "this commit"
        message = f"A range A..B begins after A. Write {start[:12]}^..B to measure {what} as well."
        groups.append(UnmeasuredCommits(UnmeasuredReason.RANGE_START, 1, [first], message))
    if ".." in request.commits:
        count, merged = git_branches.merged_commits(mirror, start, line, MOST_LISTED)
        message = "Each merge commit stands for the branch that it brought. A bisection looks inside the branch."
        groups.append(UnmeasuredCommits(UnmeasuredReason.MERGED_BRANCH, count, merged, message))
    since: dict[str, set[str | None]] = defaultdict(set)
    for job in jobs:
        since[job.commit.sha].add(job.unchanged_since)
    jobless = [sha for sha in reversed(line) if sha not in since]
    without = [sha for sha in jobless if not {*plan.history.operators[sha]} & {*plan.choice.operators}]
    message = "None of the requested operators, or no package that they measure."
    groups.append(_group(mirror, UnmeasuredReason.NO_OPERATOR, without, message))
    unchanged = [sha for sha in reversed(line) if sha in since and None not in since[sha]]
    held = [
        short_sha(sha) for sha in dict.fromkeys(sha for item in unchanged for sha in sorted(filter(None, since[item])))
    ]
    names = ", ".join(held[:MOST_NAMED]) + (" …" if len(held) > MOST_NAMED else "")
    message = f"The results of {names} count, where all operators have the same sources."
    groups.append(_group(mirror, UnmeasuredReason.UNCHANGED, unchanged, message))
    message = "The same was asked of these commits before, and is not measured twice."
    requested = [sha for sha in jobless if sha not in set(without)]
    groups.append(_group(mirror, UnmeasuredReason.REQUESTED, requested, message))
    return [group for group in groups if group.count]


def _group(mirror: Path, reason: UnmeasuredReason, shas: Sequence[str], message: str) -> UnmeasuredCommits:
    return UnmeasuredCommits(reason, len(shas), git_branches.summarize(mirror, shas[:MOST_LISTED]), message)


def _plan_device(device: DeviceRow, queued: Iterable[PlannedJob], suite: str, estimates: CostEstimates) -> DevicePlan:
    mine = [job for job in queued if job.device.id == device.id]
    seconds = [estimates.known(CandidateJob(job.commit.sha, job.operator, device.id, job.kind, suite)) for job in mine]
    known = [value for value in seconds if value is not None]
    return DevicePlan(
        key=device.key,
        name=device.name,
        jobs=len(mine),
        minutes=round(sum(known) / 60, 1) if known else None,
        unknown_jobs=len(mine) - len(known),
        is_served=bool(device.workers or device.is_elastic),
    )


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
