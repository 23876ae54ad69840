"""Executes one job: every chosen variant on every chosen case of one operator at one commit.

A variant that crashes, hangs, runs out of memory or does not compile affects its own rows only. Without an outcome a
job ends in Stopped or CannotRunError, in nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

from warpwatch.contract.catalogue import CaseEntry, OperatorEntry, VariantEntry
from warpwatch.contract.messages import BuildReply
from warpwatch.contract.outcome import Finding, Outcome, PartialOutcome
from warpwatch.contract.spec import JobRequest, KnownNames
from warpwatch.contract.words import RESUMABLE, Fault, JobKind, Reason, Status
from warpwatch.definitions import DefinitionsError
from warpwatch.git import GitError, UnknownRefError
from warpwatch.project import IncompleteCommitError, ProjectError
from warpwatch.worker.building import step_back
from warpwatch.worker.checkout import Checkout
from warpwatch.worker.child import ChildFailure
from warpwatch.worker.comparison import compare
from warpwatch.worker.gate import expect_healthy
from warpwatch.worker.lanes import MOST, TIMED, Measure, lanes_of, measure_in_lanes, spares_of
from warpwatch.worker.measurer import (
    Measurer,
    Strikes,
    build_native,
    choose_cases,
    choose_variants,
    derive_cases,
    describe,
    expect_entry,
    load_failure,
    pick,
)
from warpwatch.worker.mirrors import bring_patch
from warpwatch.worker.outages import reason_of
from warpwatch.worker.plausibility import TimeLimits
from warpwatch.worker.program_comparison import compare_programs
from warpwatch.worker.programs import measure_program
from warpwatch.worker.reporter import BoundedReporter, CannotRunError, Reporter, Stopped
from warpwatch.worker.sanitizers import SanitizerMissingError, find_sanitizer
from warpwatch.worker.toolchains import ToolchainError, find_toolchain
from warpwatch.worker.tools import Tools

_LOG_TAIL = 4000


def execute(
    request: JobRequest, tools: Tools, reporter: Reporter, traces: Path, earlier: PartialOutcome | None = None
) -> Outcome:
    """Executes the job; writes its traces into the folder `traces`, which belongs to the caller.

    earlier: what an interrupted run found, which is not measured again. Raises Stopped when the reporter asks to stop
    or to make room, CannotRunError when nothing could be measured.
    """
    bounded = BoundedReporter(reporter)
    bounded.check()
    try:
        if request.patch is not None:
            bring_patch(tools.host.home, request.url, request.patch, request.sha)
        if request.kind == "compare":
            return _compare(request, tools, bounded, traces, earlier)
        (checkout,) = tools.checkouts(request.url, [request.sha], bounded, request.definitions)
    except ProjectError as error:
        # The commit asks for something that this service does not support. That is a property of the commit and no
        # error of the job.
        reason = Reason.INCOMPLETE_COMMIT if isinstance(error, IncompleteCommitError) else None
        findings = known_findings(request, Status.UNSUPPORTED, str(error), reason=reason)
        return Outcome(*tools.identify(bounded), findings=findings)
    except DefinitionsError as error:
        raise CannotRunError(str(error), reason=Reason.UNUSABLE_DEFINITIONS) from error
    except GitError as error:
        reason = reason_of(error, tools.host.home)
        raise CannotRunError(str(error), retry=not isinstance(error, UnknownRefError), reason=reason) from error
    program = checkout.project.program(request.operator)
    if program is not None:
        return measure_program(request, program, checkout, tools, bounded)
    return _Job(request, checkout, tools, bounded, traces, earlier).run()


def _compare(
    request: JobRequest, tools: Tools, reporter: BoundedReporter, traces: Path, earlier: PartialOutcome | None
) -> Outcome:
    if request.base_sha is None:
        raise CannotRunError("a comparison needs a base commit")
    shas, names = [request.base_sha, request.sha], request.spec.toolchains or ()
    try:
        toolchains = [find_toolchain(tools.host.home, name) for name in names]
    except ToolchainError as error:
        raise CannotRunError(str(error)) from error
    base, head = tools.checkouts(request.url, shas, reporter, request.definitions, toolchains)
    if any(side.project.program(request.operator) is not None for side in (base, head)):
        return compare_programs(request, base, head, tools, reporter)
    if not request.spec.pairs:
        request = replace(request, spec=replace(request.spec, pairs=_list_pairs(request, head, reporter)))
    outcome = compare(request, base, head, tools, reporter, traces, earlier)
    return outcome if request.patch is None else _with_builds(outcome, request.operator, base, head, reporter)


def _with_builds(outcome: Outcome, operator: str, base: Checkout, head: Checkout, reporter: Reporter) -> Outcome:
    """The outcome with the builds of both sides, which the comparison has made: they say what machine code changed."""
    builds: list[BuildReply | None] = []
    for checkout in (base, head):
        try:
            _, entry = checkout.catalogue(operator, reporter)
        except ChildFailure:
            return outcome
        is_native = entry is not None and any(variant.native for variant in entry.variants)
        builds.append(build_native(checkout, entry, reporter) if entry is not None and is_native else None)
    return replace(outcome, base_build=builds[0], build=builds[1])


def _list_pairs(request: JobRequest, head: Checkout, reporter: Reporter) -> list[tuple[str, str]]:
    """Every variant and case that the specification chooses at the head, for a comparison that names none."""
    entry = expect_entry(head, request.operator, reporter)
    variants = [item.name for item in choose_variants(entry, request.spec) if head.host.kind in item.devices]
    pairs = [(name, case.key) for case in choose_cases(entry, request.spec, request.kind) for name in variants]
    if not pairs:
        raise CannotRunError(f"commit {request.sha[:12]} has none of the variants and cases asked for")
    return pairs


def list_pairs(request: JobRequest, tools: Tools, reporter: Reporter) -> list[tuple[str, str]]:
    """Every variant and case that the specification chooses at the commit of a comparison."""
    (head,) = tools.checkouts(request.url, [request.sha], reporter, request.definitions)
    return _list_pairs(request, head, reporter)


def known_findings(
    request: JobRequest,
    status: Status,
    message: str,
    fault: Fault | None = None,
    subjects: Sequence[str] = (),
    reason: Reason | None = None,
) -> list[Finding]:
    """The same finding for every variant and case that an earlier commit had; CannotRunError when none is known.

    reason: of the error.
    """
    names = request.spec.known or KnownNames()
    variants, cases = pick(names.variants, request.spec.variants), pick(names.cases, request.spec.cases)
    if not variants or not cases:
        raise CannotRunError(message, reason=reason)
    return [
        Finding(variant, case, status, message, fault=fault, subjects=list(subjects))
        for variant in variants
        for case in cases
    ]


@dataclass(frozen=True, slots=True)
class _Plan:
    """The variants and cases that a job measures. build: of the native libraries, None without native libraries."""

    variants: list[VariantEntry]
    cases: list[CaseEntry]
    limits: TimeLimits
    build: Future[BuildReply | None] = field(default_factory=Future)

    @property
    def total(self) -> int:
        return len(self.variants) * len(self.cases)


class _Job:
    """A check, bench or profile job that is being executed."""

    def __init__(
        self,
        request: JobRequest,
        checkout: Checkout,
        tools: Tools,
        reporter: BoundedReporter,
        traces: Path,
        earlier: PartialOutcome | None,
    ) -> None:
        self._request = request
        self._checkout = checkout
        self._tools = tools
        self._reporter = reporter
        self._traces = traces
        self._earlier = earlier
        self._kept: dict[tuple[str, str], Finding] = {}

    def run(self) -> Outcome:
        request, reporter, host = self._request, self._reporter, self._checkout.host
        self._checkout.sanitize(None)
        self._checkout.renew_child()
        if request.kind in TIMED:
            self._checkout.await_spares(reporter)
        environment = self._checkout.environment_of(request.operator, reporter)
        if request.kind is JobKind.BENCH:
            self._tools.measure_peaks_at_rest(reporter)
        outcome = Outcome(environment, self._tools.peaks(self._checkout, reporter))
        if request.kind is JobKind.BENCH:
            looked = host.last_canary.found_fit
            expect_healthy(self._checkout, host.device, outcome.peaks, reporter, host.last_canary)
            if host.last_canary.found_fit != looked:
                # In a process that has looked at a GPU, every kernel launch takes about 0.3 µs longer until it ends.
                self._checkout.drop_child()
        if self._checkout.build_failure is not None:
            message, fault = self._checkout.build_failure, self._checkout.build_fault
            return replace(outcome, findings=known_findings(request, Status.BUILD_FAILED, message, fault))
        try:
            catalogue, entry = self._checkout.catalogue(request.operator, reporter)
        except ChildFailure as ended:
            message = f"the file of {request.operator} does not load: {ended.message}"
            return replace(outcome, findings=known_findings(request, ended.status, message))
        outcome = replace(outcome, catalogue=catalogue)
        if entry is None:
            raise CannotRunError(f"commit {request.sha[:12]} has no operator {request.operator!r}")
        failure = load_failure(self._checkout, entry)
        if failure is not None:
            about = (failure.fault, list(failure.subjects), failure.reason)
            return replace(outcome, findings=known_findings(request, failure.status, failure.message, *about))
        return self._measure_all(outcome, entry)

    def _measure_all(self, outcome: Outcome, entry: OperatorEntry) -> Outcome:
        spec, kind = self._request.spec, self._request.kind
        seconds = self._checkout.host.settings.case_timeout_seconds
        derived = derive_cases(self._checkout, entry, spec.cases, seconds, self._reporter)
        outcome, entry = replace(outcome, derived_cases=derived), replace(entry, cases=[*entry.cases, *derived])
        variants, cases = choose_variants(entry, spec), choose_cases(entry, spec, kind)
        if not variants or not cases:
            raise CannotRunError(f"commit {self._request.sha[:12]} has none of the variants and cases asked for")
        if spec.sanitize is not None:
            try:
                self._checkout.sanitize(find_sanitizer(spec.sanitize, self._checkout.host.kind))
            except SanitizerMissingError as missing:
                names = [(variant.name, case.key) for case in cases for variant in variants]
                return replace(outcome, findings=[Finding(*name, Status.UNSUPPORTED, str(missing)) for name in names])
        plan = _Plan(variants, cases, TimeLimits(outcome.peaks, self._checkout.host.kind))
        lanes = 1 if spec.sanitize is not None else lanes_of(self._checkout.host, kind, plan.total)
        self._kept = self._keep(outcome.environment.key, plan)
        partial = dict(self._kept)
        is_shared = lanes > 1
        try:
            if is_shared:
                findings = self._measure_in_lanes(plan, partial, lanes, entry)
            else:
                _build(plan, entry, self._checkout, self._reporter)
                findings = self._measure_in_turn(plan, partial)
        except Stopped as stopped:
            if is_shared:
                # A variant that ran out of memory beside others is measured again alone.
                partial = {cell: found for cell, found in partial.items() if found.status is not Status.OUT_OF_MEMORY}
            is_built = plan.build.done() and plan.build.exception() is None
            build = plan.build.result() if is_built else None
            stopped.outcome = replace(outcome, build=build, findings=[*partial.values()]) if partial else None
            raise
        self._start_next_children(self._reporter)
        return replace(outcome, build=plan.build.result(), findings=findings)

    def _keep(self, environment_key: str, plan: _Plan) -> dict[tuple[str, str], Finding]:
        """The findings of an interrupted run with the same environment."""
        if self._earlier is None or self._earlier.environment_key != environment_key:
            return {}
        cells = {(variant.name, case.key) for variant in plan.variants for case in plan.cases}
        kept = {(found.variant, found.case): found for found in self._earlier.findings}
        self._reporter.log(f"{len(kept)} of {plan.total} results are kept from an interrupted run")
        return {cell: found for cell, found in kept.items() if cell in cells}

    def _measure_in_turn(self, plan: _Plan, partial: dict[tuple[str, str], Finding]) -> list[Finding]:
        """The findings, case by case, which are also put into `partial` as they come."""
        strikes = Strikes(self._kept.values())
        measurer = self._measurer(self._checkout, self._reporter, plan.limits, strikes)
        for case in plan.cases:
            for variant in plan.variants:
                self._take(plan, partial, measurer, self._reporter, variant, case)
        self._reporter.progress(plan.total, plan.total, "")
        return [*partial.values()]

    def _measure_in_lanes(
        self, plan: _Plan, partial: dict[tuple[str, str], Finding], lanes: int, entry: OperatorEntry
    ) -> list[Finding]:
        """The same in several children at once, while native libraries are built."""
        kind, variants = self._request.kind, {variant.name: variant for variant in plan.variants}
        cases = {case.key: case for case in plan.cases}
        strikes = Strikes(self._kept.values())

        def open_lane(checkout: Checkout, reporter: Reporter) -> Measure:
            measurer = self._measurer(checkout, reporter, plan.limits, strikes)
            return lambda cell: self._take(plan, partial, measurer, reporter, variants[cell[0]], cases[cell[1]])

        if kind in TIMED:
            # The child that has read the catalogue takes no turns.
            self._checkout.drop_child()
        # Variants with native code come last, because they wait for the build. In a check those before them are taken
        # from the end: files go from what is simple to what is compiled, and the longest should not begin last.
        names = sorted(variants if kind in TIMED else reversed(variants), key=lambda name: variants[name].native)
        cells = [(variant, case) for case in cases for variant in names]

        def build(checkout: Checkout, reporter: Reporter) -> None:
            # A thread of its own, because it steps back for good beside what is timed.
            initializer = step_back if kind in TIMED else None
            with ThreadPoolExecutor(1, initializer=initializer) as builder:
                builder.submit(_build, plan, entry, checkout, reporter).result()

        # To open a GPU disturbs what is timed on it.
        at_tail = None if kind in TIMED else self._start_next_children
        findings = measure_in_lanes(self._checkout, kind, cells, open_lane, self._reporter, lanes, build, at_tail)
        self._reporter.progress(plan.total, plan.total, "")
        places = {(variant, case): place for place, (case, variant) in enumerate(product(cases, variants))}
        return sorted(findings, key=lambda finding: places[finding.variant, finding.case])

    def _start_next_children(self, reporter: Reporter) -> None:
        """Starts children that the next job begins with, if it measures this commit. It starts those that fail."""
        mine, after = self._request, self._tools.upcoming
        if after is None or after.kind not in MOST:
            return
        if (mine.url, mine.sha, mine.definitions) == (after.url, after.sha, after.definitions):
            with suppress(CannotRunError, OSError):
                self._checkout.start_spares(spares_of(self._checkout.host), reporter)

    def _measurer(self, checkout: Checkout, reporter: Reporter, limits: TimeLimits, strikes: Strikes) -> Measurer:
        return Measurer(checkout, self._request, reporter, self._traces, limits, strikes)

    def _take(
        self,
        plan: _Plan,
        partial: dict[tuple[str, str], Finding],
        measurer: Measurer,
        reporter: Reporter,
        variant: VariantEntry,
        case: CaseEntry,
    ) -> Finding:
        """Measures one variant on one case, reports it and puts it into `partial`; Stopped where it makes room."""
        cell = (variant.name, case.key)
        if cell in self._kept:
            return self._kept[cell]
        urgent_job_id = reporter.should_yield() if self._request.kind in RESUMABLE else None
        if urgent_job_id is not None:
            raise Stopped(f"job {urgent_job_id} is more urgent", urgent_job_id)
        reporter.progress(len(partial), plan.total, " ".join(cell), cell)
        finding = partial[cell] = self._one(measurer, variant, case, plan)
        reporter.log(describe(self._request.kind, finding))
        return finding

    def _one(self, measurer: Measurer, variant: VariantEntry, case: CaseEntry, plan: _Plan) -> Finding:
        build = plan.build.result() if variant.native else None
        if build is not None and build.status is Status.BUILD_FAILED:
            return Finding(
                variant.name, case.key, Status.BUILD_FAILED, f"{build.message}\n{build.log[-_LOG_TAIL:]}".strip()
            )
        return measurer.measure(self._request.kind, variant.name, case.key)


def _build(plan: _Plan, entry: OperatorEntry, checkout: Checkout, reporter: Reporter) -> None:
    """Builds what the variants of the plan load, which those that wait for it then get to know."""
    try:
        is_native = any(variant.native for variant in plan.variants)
        plan.build.set_result(build_native(checkout, entry, reporter) if is_native else None)
    except BaseException as error:
        plan.build.set_exception(error)
        raise
