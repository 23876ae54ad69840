"""Validates a request, resolves its commits through git and creates the jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from warpwatch.contract.spec import USUAL_PLAN, JobSpec, ProfilePlan
from warpwatch.contract.words import JobKind
from warpwatch.db.database import Database
from warpwatch.db.forge import PENDING, queue_check_run
from warpwatch.db.patches import PatchRow, touch_patch
from warpwatch.db.reads.code import RepositoryRow, find_repository, list_repositories
from warpwatch.db.reads.devices import DeviceRow
from warpwatch.db.reads.measured import JobSlot
from warpwatch.db.reads.query import Session
from warpwatch.db.reads.work import find_submission
from warpwatch.db.registry import ensure_operators
from warpwatch.db.submissions import NewJob, NewSubmission, create_submission
from warpwatch.git import CommitInfo, mirror_path
from warpwatch.server.history.branches import follow_branches
from warpwatch.server.history.commits import CommitHistory, CommitsRead, read_commits, write_down
from warpwatch.server.history.definitions import refresh_definitions
from warpwatch.server.history.sources import Earlier, line_before
from warpwatch.server.http.problems import FieldError, Problem
from warpwatch.server.intake.catalogue import OperatorSelection, select_operators
from warpwatch.server.intake.patch_requests import find_submitted_patch, restore_patch
from warpwatch.server.intake.space import require_space
from warpwatch.server.intake.submission_request import ORDER, SubmissionRequest
from warpwatch.server.intake.targets import choose_devices
from warpwatch.server.reports.status import tell_pending
from warpwatch.server.verdicts.thresholds import stop_rule
from warpwatch.settings import Settings
from warpwatch.sources import Sources

MAX_JOBS = 20_000
REFUSED = "not submitted: some fields are not valid"


@dataclass(frozen=True, slots=True)
class SubmissionPlan:
    """The validated input of a submission."""

    repository: RepositoryRow
    history: CommitHistory
    base: CommitHistory | None
    choice: OperatorSelection
    devices: list[DeviceRow]
    mirror: Path
    line: Sequence[str]
    """Earlier commits whose results may count, where unchanged operators are skipped."""
    patch: PatchRow | None = None
    """Patch that makes the commit, if the commit is a working tree that a user sent."""

    def is_held(self, request: SubmissionRequest) -> bool:
        """Whether the commit is compared with a baseline where sources differ, and its commit status is reported."""
        return self.base is not None and "compare" not in request.kinds


def submit(
    database: Database, settings: Settings, request: SubmissionRequest, origin: str, idempotency_key: str | None = None
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
    mirror, commits = mirror_path(repository.url, settings.home), read[0].commits
    line = line_before(mirror, commits[0].sha) if request.skip_unchanged and commits else []
    with database.session() as session:
        plan = plan_submission(session, settings, repository, read, request, line)
        new_id = _create(session, plan, request, origin, idempotency_key)
        if plan.is_held(request):
            tell_pending(session, settings.server_url, repository, new_id, plan.history.commits[0].sha)
            queue_check_run(session, repository.id, new_id, PENDING)
    follow_branches(database, settings, repository.id)
    return new_id


def plan_submission(
    session: Session,
    settings: Settings,
    repository: RepositoryRow,
    read: CommitsRead,
    request: SubmissionRequest,
    line: Sequence[str] = (),
) -> SubmissionPlan:
    """Plans the measurements of the request; Problem names every field at fault.

    line: the commits before the first commit along first parents, where unchanged operators are skipped.
    """
    history, base, errors = read
    choice, wrong = select_operators(session, repository.id, history, request)
    devices, missing = choose_devices(session, request.device, settings.lease_seconds)
    patch, patch_errors = find_submitted_patch(session, repository.id, history, base, request)
    errors = (
        errors
        + patch_errors
        + _sanitizer_errors(request)
        + _toolchain_errors(request)
        + _own_base_errors(history, base, request)
        + wrong
        + missing
    )
    if errors:
        raise Problem(422, REFUSED, errors)
    mirror = mirror_path(repository.url, settings.home)
    return SubmissionPlan(repository, history, base, choice, devices, mirror, line, patch)


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


def _sanitizer_errors(request: SubmissionRequest) -> list[FieldError]:
    if request.sanitize is None or request.kinds == ["check"]:
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


def _own_base_errors(
    history: CommitHistory, base: CommitHistory | None, request: SubmissionRequest
) -> list[FieldError]:
    """An A/B run of a commit against itself shows the noise; as a baseline the commit itself is useless."""
    if base is None or base.commits != history.commits or "compare" in request.kinds:
        return []
    return [
        FieldError(
            field="base",
            message="the baseline is the commit itself",
            remedy="use `parent`, or kind compare to see the noise",
        )
    ]


def _create(session: Session, plan: SubmissionPlan, request: SubmissionRequest, origin: str, key: str | None) -> int:
    infos = [*plan.history.commits, *(plan.base.commits if plan.base else [])]
    commits = write_down(session, plan.repository.id, infos)
    if plan.patch is not None:
        touch_patch(session, plan.patch.id)
    operators = ensure_operators(session, plan.repository.id, plan.choice.operators)
    earlier = None
    if request.skip_unchanged:
        definitions = plan.repository.definitions
        earlier = Earlier(session, plan.mirror, plan.history.commits[0], plan.line, definitions)
    jobs = []
    for info, operator, kind, device in requested_jobs(plan, request):
        spec = job_spec(plan.choice, request, kind, operator, device)
        place = JobSlot(operators[operator], device.id, kind)
        jobs.append(
            NewJob(
                kind=kind,
                commit_id=commits[info.sha],
                operator_id=operators[operator],
                device_id=device.id,
                spec=spec,
                base_commit_id=commits[plan.base.commits[0].sha] if kind == "compare" and plan.base else None,
                unchanged_since=earlier.unchanged_since(place, operator, info.sha, spec)
                if earlier and kind != "compare"
                else None,
            )
        )
    jobs += _held_jobs(plan, request, commits, operators) if plan.is_held(request) else []
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


def _held_jobs(
    plan: SubmissionPlan, request: SubmissionRequest, commits: dict[str, int], operators: dict[str, int]
) -> list[NewJob]:
    """Comparisons with the baseline for every operator of both commits; unchanged sources need no measurement."""
    if plan.base is None:
        return []
    head, base = plan.history.commits[0].sha, plan.base.commits[0].sha
    jobs = []
    for operator, changed in held_operators(plan, request):
        for device in plan.devices:
            spec = job_spec(plan.choice, request, JobKind.COMPARE, operator, device)
            if spec.pairs is not None and changed:
                # The others are made from the same at both commits, so rounds of them could only mislead.
                spec = replace(spec, pairs=[pair for pair in spec.pairs if changed.includes(pair[0])])
            job = NewJob(
                JobKind.COMPARE,
                commits[head],
                operators[operator],
                device.id,
                spec,
                commits[base],
                base if not changed else None,
            )
            if spec.pairs is None and changed:
                # No worker has read its variants yet, so the base is benched alone and history shows the difference.
                spec = job_spec(plan.choice, request, JobKind.BENCH, operator, device)
                job = NewJob(JobKind.BENCH, commits[base], operators[operator], device.id, spec)
            if not changed or spec.pairs != []:
                jobs.append(job)
    return jobs


@dataclass(frozen=True, slots=True)
class ChangedCode:
    """Variants of an operator whose code may differ between two commits; None stands for all. False where its sources
    are the same."""

    is_changed: bool
    variants: frozenset[str] | None = None

    def __bool__(self) -> bool:
        return self.is_changed

    def includes(self, variant: str) -> bool:
        return self.is_changed and (self.variants is None or variant in self.variants)


def held_operators(plan: SubmissionPlan, request: SubmissionRequest) -> list[tuple[str, ChangedCode]]:
    """Operators of both commits that are compared with the baseline, and what of them differs."""
    if plan.base is None or "bench" not in request.kinds or not plan.is_held(request):
        return []
    head, base = plan.history.commits[0].sha, plan.base.commits[0].sha
    sources = Sources(plan.mirror, plan.repository.definitions)
    shared = [
        name
        for name in plan.choice.operators
        if name in plan.base.operators[base] and name in plan.history.operators[head]
    ]
    return [(name, _changed_code(sources, plan.choice, name, base, head)) for name in shared]


def _changed_code(sources: Sources, choice: OperatorSelection, operator: str, base: str, head: str) -> ChangedCode:
    before, after, entry = sources.parts(base, operator), sources.parts(head, operator), choice.entries[operator]
    if before is None or after is None or before == after:
        return ChangedCode(before != after)
    changed = sources.changed_variants(base, head, operator) if before[0] != after[0] else frozenset[str]()
    if entry is None or changed is None:
        return ChangedCode(True)
    native = {variant["name"] for variant in entry["variants"] if variant["native"] and before[1] != after[1]}
    return ChangedCode(True, changed | native)


def requested_jobs(
    plan: SubmissionPlan, request: SubmissionRequest
) -> Iterator[tuple[CommitInfo, str, JobKind, DeviceRow]]:
    for info in plan.history.commits:
        for operator in plan.choice.operators:
            if operator in plan.history.operators[info.sha]:
                for kind in ORDER:
                    if kind in request.kinds:
                        yield from ((info, operator, kind, device) for device in plan.devices)


def job_spec(
    choice: OperatorSelection, request: SubmissionRequest, kind: JobKind, operator: str, device: DeviceRow
) -> JobSpec:
    """The specification of one job of the request."""
    catalogued = choice.catalogued_names(operator, device.kind)
    if catalogued is not None and not request.cases:
        catalogued = replace(catalogued, cases=catalogued.cases[: request.case_limit])
    is_compare = kind == JobKind.COMPARE
    has_profile = is_compare or kind == JobKind.PROFILE
    return JobSpec(
        suite=request.suite,
        variants=request.variants or None,
        cases=choice.cases_of(operator) or None,
        case_limit=request.case_limit,
        seed=request.seed,
        budget_ns=None if request.budget_ms is None else request.budget_ms * 1_000_000,
        sanitize=request.sanitize,
        known=catalogued,
        profile=ProfilePlan(**request.profile.model_dump()) if has_profile else USUAL_PLAN,
        pairs=[(variant, case) for case in catalogued.cases for variant in catalogued.variants]
        if is_compare and catalogued
        else None,
        stop=stop_rule(device.kind, is_suspected=False) if is_compare else None,
        toolchains=(request.toolchains[0], request.toolchains[1]) if is_compare and request.toolchains else None,
    )
