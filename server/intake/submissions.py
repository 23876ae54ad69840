"""Creates submissions: checks every field, resolves commits through git, and creates the jobs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from warpwatch.contract.spec import USUAL_PLAN, JobSpec, ProfilePlan
from warpwatch.db.database import Database
from warpwatch.db.reads.code import find_repository, list_repositories
from warpwatch.db.reads.measured import JobSlot
from warpwatch.db.reads.query import Session
from warpwatch.db.reads.rows import DeviceRow, RepositoryRow
from warpwatch.db.reads.work import find_submission
from warpwatch.db.registry import ensure_operators
from warpwatch.db.submissions import NewJob, NewSubmission, create_submission
from warpwatch.git import CommitInfo, mirror_path
from warpwatch.server.history.commits import CommitHistory, read_commits, write_down
from warpwatch.server.history.sources import Earlier, Sources
from warpwatch.server.http.problems import FieldError, Problem
from warpwatch.server.intake.catalogue import OperatorSelection, select_operators
from warpwatch.server.intake.submission_request import ORDER, Kind, SubmissionRequest
from warpwatch.server.intake.targets import choose_devices
from warpwatch.server.threads.callbacks import tell_pending
from warpwatch.settings import Settings

MAX_JOBS = 20_000


@dataclass(frozen=True, slots=True)
class SubmissionPlan:
    """Everything a submission needs, validated."""

    repository: RepositoryRow
    history: CommitHistory
    base: CommitHistory | None
    choice: OperatorSelection
    devices: list[DeviceRow]
    mirror: Path

    def is_held(self, request: SubmissionRequest) -> bool:
        """Whether the commit is held against a base: compared with it where sources differ, and its fate told to
        whoever asked."""
        return self.base is not None and "compare" not in request.kinds


def submit(
    database: Database, settings: Settings, request: SubmissionRequest, origin: str, idempotency_key: str | None = None
) -> int:
    """The id of the new submission, or of the one with the same key; Problem names every field that is wrong."""
    with database.session() as session:
        earlier = _earlier(session, request, idempotency_key)
        repository = _repository(session, request.repository)
    if earlier is not None:
        return earlier
    # git may have to fetch for minutes, so no transaction is open meanwhile.
    history, base, errors = read_commits(settings, repository, request.commits, _base_of(request), request.branch)
    errors = errors + _sanitizer_errors(request) + _own_base_errors(history, base, request)
    with database.session() as session:
        choice, wrong = select_operators(session, repository.id, history, request)
        devices, missing = choose_devices(session, request.device, settings.lease_seconds, patient=origin == "webhook")
        errors = errors + wrong + missing
        if errors:
            raise Problem(422, "nothing was submitted; see `errors`", errors)
        plan = SubmissionPlan(repository, history, base, choice, devices, mirror_path(repository.url, settings.home))
        made = _create(session, plan, request, origin, idempotency_key)
        if plan.is_held(request):
            tell_pending(session, settings.server_url, repository, made, plan.history.commits[0].sha)
        return made


def _earlier(session: Session, request: SubmissionRequest, key: str | None) -> int | None:
    submission = find_submission(session, key) if key is not None else None
    if submission is None:
        return None
    # A field that is newer than the stored request has its default there.
    if SubmissionRequest.model_validate(submission.request) != request:
        raise Problem(
            409,
            f"the idempotency key belongs to submission {submission.id}, which asked for something else; use a new key",
        )
    return submission.id


def _repository(session: Session, name: str) -> RepositoryRow:
    repository = find_repository(session, name)
    if repository is None:
        names = ", ".join(row.name for row in list_repositories(session)) or "none yet"
        remedy = f"registered are: {names}; add one with `warpwatch repository add NAME URL`"
        error = FieldError(field="repository", message=f"there is no repository {name!r}", remedy=remedy)
        raise Problem(422, "nothing was submitted; see `errors`", [error])
    return repository


def _base_of(request: SubmissionRequest) -> str | None:
    """What the commit is held against or compared with, when that is asked for."""
    if not request.base and "compare" in request.kinds:
        error = FieldError(
            field="base", message="kind compare needs it", remedy="name the commit to measure beside `commits`"
        )
        raise Problem(422, "nothing was submitted; see `errors`", [error])
    return request.base or None


def _sanitizer_errors(request: SubmissionRequest) -> list[FieldError]:
    if request.sanitize is None or request.kinds == ["check"]:
        return []
    return [
        FieldError(
            field="sanitize",
            message="nothing that a sanitizer slows down can be timed",
            remedy="ask for kind check alone",
        )
    ]


def _own_base_errors(
    history: CommitHistory, base: CommitHistory | None, request: SubmissionRequest
) -> list[FieldError]:
    """A commit measured beside itself says how much noise there is; held against itself it says nothing."""
    if base is None or base.commits != history.commits or "compare" in request.kinds:
        return []
    return [
        FieldError(
            field="base",
            message="is the commit itself",
            remedy="use `parent`, or ask for kind compare to see the noise",
        )
    ]


def _create(session: Session, plan: SubmissionPlan, request: SubmissionRequest, origin: str, key: str | None) -> int:
    infos = [*plan.history.commits, *(plan.base.commits if plan.base else [])]
    commits = write_down(session, plan.repository.id, infos)
    operators = ensure_operators(session, plan.repository.id, plan.choice.operators)
    earlier = Earlier(session, plan.mirror, plan.history.commits[0]) if request.skip_unchanged else None
    jobs = []
    for info, operator, kind, device in _wanted(plan, request):
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
            field="commits", message=f"would make {len(jobs)} jobs", remedy=f"ask for at most {MAX_JOBS} at once"
        )
        raise Problem(422, "nothing was submitted; see `errors`", [error])
    return create_submission(
        session,
        NewSubmission(
            repository_id=plan.repository.id,
            request=request.model_dump(),
            jobs=jobs,
            origin=origin,
            priority=request.priority,
            idempotency_key=key,
            base_commit_id=commits[plan.base.commits[0].sha] if plan.base and plan.is_held(request) else None,
        ),
    )


def _held_jobs(
    plan: SubmissionPlan, request: SubmissionRequest, commits: dict[str, int], operators: dict[str, int]
) -> list[NewJob]:
    """Comparisons with the base of every operator that both commits have; one whose sources are the same is done
    at once."""
    if plan.base is None or "bench" not in request.kinds:
        return []
    head, base, sources = plan.history.commits[0].sha, plan.base.commits[0].sha, Sources(plan.mirror)
    shared = [
        name
        for name in plan.choice.operators
        if name in plan.base.operators[base] and name in plan.history.operators[head]
    ]
    jobs = []
    for operator in shared:
        is_unchanged = sources.of(base, operator) == sources.of(head, operator)
        for device in plan.devices:
            spec = job_spec(plan.choice, request, "compare", operator, device)
            job = NewJob(
                "compare",
                commits[head],
                operators[operator],
                device.id,
                spec,
                commits[base],
                base if is_unchanged else None,
            )
            if spec.pairs is None and not is_unchanged:
                # No worker has read its variants yet, so the base is benched alone and history shows the difference.
                spec = job_spec(plan.choice, request, "bench", operator, device)
                job = NewJob("bench", commits[base], operators[operator], device.id, spec)
            if is_unchanged or spec.pairs != []:
                jobs.append(job)
    return jobs


def _wanted(plan: SubmissionPlan, request: SubmissionRequest) -> Iterator[tuple[CommitInfo, str, Kind, DeviceRow]]:
    for info in plan.history.commits:
        for operator in plan.choice.operators:
            if operator in plan.history.operators[info.sha]:
                for kind in ORDER:
                    if kind in request.kinds:
                        yield from ((info, operator, kind, device) for device in plan.devices)


def job_spec(
    choice: OperatorSelection, request: SubmissionRequest, kind: Kind, operator: str, device: DeviceRow
) -> JobSpec:
    """The specification of one job of the request."""
    known = choice.known(operator, device.kind)
    is_compare = kind == "compare"
    has_profile = is_compare or kind == "profile"
    return JobSpec(
        suite=request.suite,
        variants=request.variants or None,
        cases=request.cases or None,
        seed=request.seed,
        budget_ns=None if request.budget_ms is None else request.budget_ms * 1_000_000,
        sanitize=request.sanitize,
        known=known,
        profile=ProfilePlan(**request.profile.model_dump()) if has_profile else USUAL_PLAN,
        pairs=[(variant, case) for case in known.cases for variant in known.variants] if is_compare and known else None,
    )
