"""The jobs that a request makes, before they are stored: each commit's, those held against a baseline, and the order in
which devices take them. Reads git; nothing here asks the database."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from warpwatch.contract.spec import USUAL_PLAN, JobSpec, ProfilePlan
from warpwatch.contract.words import JobKind
from warpwatch.db.patches import PatchRow
from warpwatch.db.reads.code import RepositoryRow
from warpwatch.db.reads.devices import DeviceRow
from warpwatch.db.reads.measured import JobSlot
from warpwatch.git import CommitInfo
from warpwatch.server.history.commits import CommitHistory
from warpwatch.server.history.sources import Earlier
from warpwatch.server.intake.catalogue import OperatorSelection
from warpwatch.server.intake.gaps import halve
from warpwatch.server.intake.submission_request import ORDER, SubmissionRequest
from warpwatch.server.verdicts.thresholds import stop_rule
from warpwatch.sources import Sources


@dataclass(frozen=True, slots=True)
class SubmissionPlan:
    """The validated input of a submission."""

    repository: RepositoryRow
    history: CommitHistory
    base: CommitHistory | None
    choice: OperatorSelection
    devices: list[DeviceRow]
    mirror: Path
    earlier: Earlier | None
    """Jobs at earlier commits whose results may count; None where unchanged operators are measured, too."""
    patch: PatchRow | None = None
    """Patch that makes the commit, if the commit is a working tree that a user sent."""

    def is_held(self, request: SubmissionRequest) -> bool:
        """Whether the commit is compared with a baseline where sources differ, and its commit status is reported."""
        return self.base is not None and "compare" not in request.kinds


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A job of a request, before it is stored.

    base: the commit that a comparison measures beside its own. unchanged_since: id of the commit whose results are this
    job's too, so that nothing is measured.
    """

    commit: CommitInfo
    operator: str
    kind: JobKind
    device: DeviceRow
    spec: JobSpec
    base: CommitInfo | None = None
    unchanged_since: str | None = None


def plan_jobs(plan: SubmissionPlan, request: SubmissionRequest) -> list[PlannedJob]:
    """All jobs of a request, in the order in which a device takes them, comparisons with a baseline last. Of a range,
    what was asked for before has no job.

    Git is asked for the sources of every commit, so no transaction may be open.
    """
    base = plan.base.commits[0] if plan.base is not None else None
    jobs = []
    for commit, operator, kind, device in requested_jobs(plan, request):
        spec = job_spec(plan.choice, request, kind, operator, device)
        is_compare, since, slot = kind == JobKind.COMPARE, None, JobSlot(operator, device.id, kind)
        if plan.earlier is not None and not is_compare:
            if plan.earlier.is_requested(slot, commit.sha, spec):
                continue
            since = plan.earlier.unchanged_since(slot, commit.sha, spec)
        jobs.append(PlannedJob(commit, operator, kind, device, spec, base if is_compare else None, since))
    return [*in_queue_order(jobs), *_held_jobs(plan, request)]


def in_queue_order(jobs: Iterable[PlannedJob]) -> list[PlannedJob]:
    """The jobs so that charts have their shape early: operators that changed first, of each the newest commit, then the
    oldest, then the middle of the widest gap, again and again. Operators keep their order among equals."""
    jobs = sorted(jobs, key=lambda job: job.commit.ordinal)
    chains: dict[tuple[str, int], dict[str, None]] = {}
    oldest: dict[tuple[str, int], str] = {}
    operators: dict[str, int] = {}
    for job in jobs:
        line = job.operator, job.device.id
        oldest.setdefault(line, job.commit.sha)
        operators.setdefault(job.operator, len(operators))
        if job.unchanged_since is None:
            chains.setdefault(line, {})[job.commit.sha] = None
    changed = {line for line, shas in chains.items() if shas.keys() - {oldest[line]}}
    ranks = {(line, sha): rank for line, shas in chains.items() for rank, sha in enumerate(halve(list(shas)))}

    def place(job: PlannedJob) -> tuple[bool, bool, int, int]:
        line = job.operator, job.device.id
        rank = ranks.get((line, job.commit.sha), 0)
        return job.unchanged_since is not None, line not in changed, rank, operators[job.operator]

    return sorted(jobs, key=place)


def _held_jobs(plan: SubmissionPlan, request: SubmissionRequest) -> list[PlannedJob]:
    """Comparisons with the baseline for every operator of both commits; unchanged sources need no measurement."""
    if plan.base is None:
        return []
    head, base = plan.history.commits[0], plan.base.commits[0]
    jobs = []
    for operator, changed in held_operators(plan, request):
        for device in plan.devices:
            spec = job_spec(plan.choice, request, JobKind.COMPARE, operator, device)
            if spec.pairs is not None and changed:
                # The others are made from the same at both commits, so rounds of them could only mislead.
                spec = replace(spec, pairs=[pair for pair in spec.pairs if changed.includes(pair[0])])
            job = PlannedJob(head, operator, JobKind.COMPARE, device, spec, base, base.sha if not changed else None)
            if spec.pairs is None and changed:
                # No worker has read its variants yet, so the base is benched alone and history shows the difference.
                spec = job_spec(plan.choice, request, JobKind.BENCH, operator, device)
                job = PlannedJob(base, operator, JobKind.BENCH, device, spec)
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
