"""Validates a request, resolves its commits through git and creates the jobs."""

from __future__ import annotations

from collections.abc import Sequence

from warpwatch.contract.spec import SANITIZERS, named_environment
from warpwatch.db.database import Database
from warpwatch.db.forge import PENDING, queue_check_run
from warpwatch.db.patches import touch_patch
from warpwatch.db.reads.code import RepositoryRow, find_repository, list_repositories
from warpwatch.db.reads.devices import DeviceRow, list_toolchains
from warpwatch.db.reads.query import Session
from warpwatch.db.reads.work import find_submission
from warpwatch.db.registry import ensure_operators, record_commits
from warpwatch.db.submissions import NewJob, NewSubmission, create_submission
from warpwatch.git import mirror_path
from warpwatch.server.history.branches import follow_branches
from warpwatch.server.history.commits import CommitHistory, CommitsRead, read_commits
from warpwatch.server.history.definitions import refresh_definitions
from warpwatch.server.history.sources import Earlier, SourceCache, line_before
from warpwatch.server.http.problems import FieldError, Problem
from warpwatch.server.intake.catalogue import select_operators, unknown_names
from warpwatch.server.intake.patch_requests import find_submitted_patch, restore_patch
from warpwatch.server.intake.planned_jobs import PlannedJob, SubmissionPlan, plan_jobs
from warpwatch.server.intake.space import require_space
from warpwatch.server.intake.submission_request import SubmissionRequest
from warpwatch.server.intake.targets import choose_devices
from warpwatch.server.reports.status import tell_pending
from warpwatch.settings import Settings

MAX_JOBS = 20_000
REFUSED = "not submitted: some fields are not valid"


def submit(
    database: Database,
    settings: Settings,
    request: SubmissionRequest,
    origin: str,
    idempotency_key: str | None = None,
    cache: SourceCache | None = None,
) -> int:
    """The id of the new submission, or of the submission with the same key; Problem names every field at fault."""
    with database.session() as session:
        earlier = _earlier(session, request, idempotency_key)
        repository = repository_of(session, request.repository)
    if earlier is not None:
        return earlier
    require_space(database, settings)
    # git may have to fetch for minutes, so no transaction is open meanwhile.
    repository = refresh_definitions(database, settings, repository)
    restore_patch(database, settings, repository, request.commits)
    read = read_commits(settings, repository, request.commits, base_of(request), request.branch)
    plan = plan_submission(database, settings, repository, read, request, cache)
    jobs = plan_jobs(plan, request)
    with database.session() as session:
        new_id = store_submission(session, plan, jobs, request, origin, idempotency_key)
        if plan.is_held(request):
            tell_pending(session, settings.server_url, repository, new_id, plan.history.commits[0].sha)
            queue_check_run(session, repository.id, new_id, PENDING)
    follow_branches(database, settings, repository.id)
    return new_id


def plan_submission(
    database: Database,
    settings: Settings,
    repository: RepositoryRow,
    read: CommitsRead,
    request: SubmissionRequest,
    cache: SourceCache | None = None,
) -> SubmissionPlan:
    """Plans the measurements of the request; Problem names every field at fault. cache: of sources read before."""
    history, base, errors = read
    mirror, commits = mirror_path(repository.url, settings.home), history.commits
    line = line_before(mirror, commits[0].sha) if request.skip_unchanged and commits else []
    with database.session() as session:
        choice, wrong = select_operators(session, repository.id, history, request)
        devices, missing = choose_devices(session, request.device, settings.lease_seconds)
        patch, patch_errors = find_submitted_patch(session, repository.id, history, base, request)
        errors = (
            errors
            + patch_errors
            + _sanitizer_errors(request, {device.kind for device in devices})
            + (_toolchain_errors(request) or _unknown_toolchains(session, request, devices))
            + _own_base_errors(history, base, request)
            + wrong
            + missing
        )
        if errors:
            raise Problem(422, REFUSED, errors)
        # Who sends a working tree wants all of it measured, whatever is the same as before.
        skips = request.skip_unchanged and patch is None
        # Who asks for one commit again wants another reading of it; a range is filled up.
        shas = [commit.sha for commit in commits] if ".." in request.commits else []
        earlier = Earlier(session, repository, mirror, commits[0], line, cache, shas) if skips else None
    return SubmissionPlan(repository, history, base, choice, devices, mirror, earlier, patch)


def _earlier(session: Session, request: SubmissionRequest, key: str | None) -> int | None:
    earlier = find_submission(session, key) if key is not None else None
    if earlier is None:
        return None
    # Fields that were added later have their defaults in earlier requests.
    if SubmissionRequest.model_validate(earlier.request) != request:
        raise Problem(
            409,
            f"the idempotency key belongs to submission {earlier.id}, which has a different request; use a new key",
        )
    return earlier.id


def repository_of(session: Session, name: str) -> RepositoryRow:
    repository = find_repository(session, name)
    if repository is None:
        names = ", ".join(row.name for row in list_repositories(session)) or "none yet"
        remedy = f"registered: {names}; add a repository with `warpwatch repository add NAME URL`"
        error = FieldError(field="repository", message=f"there is no repository {name!r}", remedy=remedy)
        raise Problem(422, REFUSED, [error])
    if repository.is_example:
        remedy = "choose a repository of yours, or register one"
        error = FieldError(field="repository", message="example data cannot be measured here", remedy=remedy)
        raise Problem(422, REFUSED, [error])
    return repository


def base_of(request: SubmissionRequest) -> str | None:
    """The requested baseline, with toolchains the commit itself by default; None without one."""
    if not request.base and request.toolchains:
        return request.commits
    if not request.base and "compare" in request.kinds:
        error = FieldError(
            field="base", message="A/B needs a baseline", remedy="choose a commit, `parent` or `merge-base`"
        )
        raise Problem(422, REFUSED, [error])
    return request.base or None


def _sanitizer_errors(request: SubmissionRequest, device_kinds: set[str]) -> list[FieldError]:
    if request.sanitize is None:
        return []
    kind = SANITIZERS[request.sanitize]
    if request.kinds == ["check"] and device_kinds and kind not in device_kinds:
        owner = "GPU" if kind == "cuda" else "CPU"
        fitting = [name for name, other in SANITIZERS.items() if other in device_kinds]
        return [
            FieldError(
                field="sanitize",
                message=f"{request.sanitize} checks code of a {owner}, and the run has none",
                remedy=f"use {' or '.join(fitting)}, or choose another device",
            )
        ]
    if request.kinds == ["check"]:
        return []
    return [
        FieldError(
            field="sanitize",
            message="a sanitizer works with kind check only, because it slows kernels down",
            remedy="choose kind check only, or no sanitizer",
        )
    ]


def _toolchain_errors(request: SubmissionRequest) -> list[FieldError]:
    if not request.toolchains or (len(request.toolchains) == 2 and request.kinds == ["compare"]):
        return []
    return [
        FieldError(
            field="toolchains",
            message="toolchains are compared two by two, with kind compare only",
            remedy="name two, the older one first, and choose kind compare",
        )
    ]


def _unknown_toolchains(session: Session, request: SubmissionRequest, devices: Sequence[DeviceRow]) -> list[FieldError]:
    """Toolchains that the workers of one of the devices do not have. The service itself names environments."""
    names = [name for name in dict.fromkeys(request.toolchains) if named_environment(name) is None]
    offered = list_toolchains(session, [device.id for device in devices]) if names else {}
    errors = [
        error
        for device in devices
        if device.id in offered
        for error in unknown_names("toolchains", f"toolchain on {device.name} called", names, offered[device.id])
    ]
    advice = "; a new one stands in the worker.toml of each worker, which is then started again"
    return [error.model_copy(update={"remedy": error.remedy + advice}) for error in errors]


def _own_base_errors(
    history: CommitHistory, base: CommitHistory | None, request: SubmissionRequest
) -> list[FieldError]:
    """An A/B run of a commit against itself shows the noise; as a baseline the commit itself is useless."""
    # Commits that git does not know are nobody's baseline.
    if base is None or not base.commits or base.commits != history.commits:
        return []
    if "compare" in request.kinds or not request.base:
        return []
    return [
        FieldError(
            field="base",
            message="the baseline is the commit itself",
            remedy="use `parent`, or kind compare to see the noise",
        )
    ]


def store_submission(
    session: Session,
    plan: SubmissionPlan,
    planned: Sequence[PlannedJob],
    request: SubmissionRequest,
    origin: str,
    key: str | None,
) -> int:
    """Writes the submission and its jobs; the id of the submission."""
    infos = [*plan.history.commits, *(plan.base.commits if plan.base else [])]
    commits = record_commits(session, plan.repository.id, infos)
    if plan.patch is not None:
        touch_patch(session, plan.patch.id)
    operators = ensure_operators(session, plan.repository.id, plan.choice.operators)
    jobs = [
        NewJob(
            kind=job.kind,
            commit_id=commits[job.commit.sha],
            operator_id=operators[job.operator],
            device_id=job.device.id,
            spec=job.spec,
            base_commit_id=commits[job.base.sha] if job.base is not None else None,
            unchanged_since=job.unchanged_since,
        )
        for job in planned
    ]
    if len(jobs) > MAX_JOBS:
        error = FieldError(
            field="commits",
            message=f"the request creates {len(jobs)} jobs",
            remedy=f"submit at most {MAX_JOBS} at once",
        )
        raise Problem(422, REFUSED, [error])
    return create_submission(
        session,
        NewSubmission(
            repository_id=plan.repository.id,
            request=request.model_dump(),
            jobs=jobs,
            origin=origin,
            priority=request.effective_priority,
            idempotency_key=key,
            base_commit_id=commits[plan.base.commits[0].sha] if plan.base and plan.is_held(request) else None,
            definitions_sha=plan.repository.definitions_sha,
        ),
    )
