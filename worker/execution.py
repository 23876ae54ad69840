"""Executes one job: every chosen variant on every chosen case of one operator at one commit.

A variant that crashes, hangs, runs out of memory or does not compile affects its own rows only. Without an outcome a
job ends in Stopped or CannotRunError, in nothing else.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from warpwatch.contract.catalogue import CaseEntry, OperatorEntry, VariantEntry
from warpwatch.contract.commit_ids import short_sha
from warpwatch.contract.messages import BuildReply
from warpwatch.contract.outcome import Finding, Outcome, PartialOutcome
from warpwatch.contract.spec import JobRequest
from warpwatch.contract.words import RESUMABLE, JobKind, Reason, Status
from warpwatch.project import IncompleteCommitError, ProjectError
from warpwatch.worker.building import step_back
from warpwatch.worker.cells import compare_cells
from warpwatch.worker.checkout import Checkout
from warpwatch.worker.comparison import compare
from warpwatch.worker.gate import expect_healthy
from warpwatch.worker.lanes import MOST, TIMED, Cell, Measure, lanes_of, measure_in_lanes, spares_of
from warpwatch.worker.measurer import Measurer, Strikes, build_native, describe
from warpwatch.worker.plan import (
    JobPlan,
    LoadFailure,
    choose_cases,
    choose_variants,
    known_findings,
    plan_job,
    read_operator,
)
from warpwatch.worker.plausibility import TimeLimits
from warpwatch.worker.program_comparison import compare_programs
from warpwatch.worker.programs import measure_program
from warpwatch.worker.reporter import BoundedReporter, CannotRunError, Reporter, Stopped
from warpwatch.worker.sanitizers import SanitizerMissingError, find_sanitizer
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
        plan = plan_job(request, tools, bounded, traces, earlier)
    except ProjectError as error:
        # The commit asks for something that this service does not support. That is a property of the commit and no
        # error of the job.
        reason = Reason.INCOMPLETE_COMMIT if isinstance(error, IncompleteCommitError) else None
        findings = known_findings(request, LoadFailure(Status.UNSUPPORTED, str(error), reason=reason))
        return Outcome(*tools.identify(bounded), findings=findings)
    try:
        with tools.device_turn(bounded):
            if request.is_crossed:
                return compare_cells(plan, tools, bounded)
            if request.kind is JobKind.COMPARE:
                return compare_programs(plan, tools, bounded) if any(plan.programs) else compare(plan, tools, bounded)
            return measure_program(plan, tools, bounded) if any(plan.programs) else _Job(plan, tools, bounded).run()
    finally:
        tools.close_sealed()


@dataclass(frozen=True, slots=True)
class _Cells:
    """The variants and cases that a job measures, by name."""

    entry: OperatorEntry
    variants: dict[str, VariantEntry]
    cases: dict[str, CaseEntry]
    limits: TimeLimits

    @property
    def total(self) -> int:
        return len(self.variants) * len(self.cases)


class _Job:
    """A check, bench or profile job that is being executed."""

    def __init__(self, plan: JobPlan, tools: Tools, reporter: BoundedReporter) -> None:
        self._plan = plan
        self._request = plan.request
        self._checkout = plan.checkouts[-1]
        self._tools = tools
        self._reporter = reporter
        self._kept: dict[Cell, Finding] = {}
        """Of an interrupted run."""
        self._findings: dict[Cell, Finding] = {}
        """All until now, which lanes add to."""
        self._build: Future[BuildReply | None] = Future()
        """Of the native libraries, None without native libraries."""

    def run(self) -> Outcome:
        request, reporter, host = self._request, self._reporter, self._checkout.host
        self._checkout.sanitize(None)
        self._checkout.renew_child()
        if request.kind in TIMED:
            self._checkout.await_spares(reporter)
        environment = self._checkout.environment_of(self._plan.sources, reporter)
        if request.kind is JobKind.BENCH:
            self._tools.measure_peaks_at_rest(reporter)
        outcome = Outcome(environment, self._tools.peaks(self._checkout, reporter))
        if request.kind is JobKind.BENCH:
            looked = host.last_canary.found_fit
            expect_healthy(self._checkout, host.device, outcome.peaks, reporter, host.last_canary)
            if host.last_canary.found_fit != looked:
                # In a process that has looked at a GPU, every kernel launch takes about 0.3 µs longer until it ends.
                self._checkout.drop_child()
        declared = read_operator(self._checkout, request.operator, request.spec.cases, reporter)
        outcome = replace(outcome, catalogue=declared.catalogue, derived_cases=[*declared.derived])
        if declared.failure is not None:
            return replace(outcome, findings=known_findings(request, declared.failure))
        if declared.entry is None:
            raise CannotRunError(f"commit {short_sha(request.sha)} has no operator {request.operator!r}")
        return self._measure_all(outcome, declared.entry)

    def _measure_all(self, outcome: Outcome, entry: OperatorEntry) -> Outcome:
        spec, kind, host = self._request.spec, self._request.kind, self._checkout.host
        variants = {item.name: item for item in choose_variants(entry, spec)}
        cells = _Cells(
            entry,
            variants,
            {item.key: item for item in choose_cases(entry, spec, kind)},
            self._tools.time_limits(outcome.peaks, self._reporter),
        )
        if not cells.total:
            raise CannotRunError(f"commit {short_sha(self._request.sha)} has none of the variants and cases asked for")
        if spec.sanitize is not None:
            try:
                self._checkout.sanitize(find_sanitizer(spec.sanitize, host.kind))
            except SanitizerMissingError as missing:
                names = [(variant, case) for case in cells.cases for variant in variants]
                return replace(outcome, findings=[Finding(*name, Status.UNSUPPORTED, str(missing)) for name in names])
        if kind is JobKind.CHECK and host.kind == "cuda":
            self._checkout.drop_profiled_child()
        lanes = 1 if spec.sanitize is not None else lanes_of(host, kind, cells.total)
        self._keep(outcome.environment.key, cells)
        is_shared = lanes > 1
        try:
            if is_shared:
                findings = self._measure_in_lanes(cells, lanes)
            else:
                self._build_native(cells, self._checkout, self._reporter)
                findings = self._measure_in_turn(cells)
        except Stopped as stopped:
            partial = self._findings
            if is_shared:
                # A variant that ran out of memory beside others is measured again alone.
                partial = {cell: found for cell, found in partial.items() if found.status is not Status.OUT_OF_MEMORY}
            is_built = self._build.done() and self._build.exception() is None
            build = self._build.result() if is_built else None
            stopped.outcome = replace(outcome, build=build, findings=[*partial.values()]) if partial else None
            raise
        self._start_next_children(self._reporter)
        return replace(outcome, build=self._build.result(), findings=findings)

    def _keep(self, environment_key: str, cells: _Cells) -> None:
        """Takes over the findings of an interrupted run with the same environment."""
        earlier = self._plan.earlier
        if earlier is None or earlier.environment_key != environment_key:
            return
        wanted = set(product(cells.variants, cells.cases))
        kept = {(found.variant, found.case): found for found in earlier.findings}
        self._reporter.log(f"{len(kept)} of {cells.total} results are kept from an interrupted run")
        self._kept = {cell: found for cell, found in kept.items() if cell in wanted}
        self._findings = dict(self._kept)

    def _measure_in_turn(self, cells: _Cells) -> list[Finding]:
        """The findings, case by case."""
        measure = self._open_lane(cells, self._checkout, self._reporter, Strikes(self._kept.values()))
        for case, variant in product(cells.cases, cells.variants):
            measure((variant, case))
        self._reporter.progress(cells.total, cells.total, "")
        return [*self._findings.values()]

    def _measure_in_lanes(self, cells: _Cells, lanes: int) -> list[Finding]:
        """The same in several children at once, while native libraries are built."""
        kind, variants = self._request.kind, cells.variants
        strikes = Strikes(self._kept.values())
        if kind in TIMED:
            # The child that has read the catalogue takes no turns.
            self._checkout.drop_child()
        # Variants with native code come last, because they wait for the build. In a check those before them are taken
        # from the end: files go from what is simple to what is compiled, and the longest should not begin last.
        names = sorted(variants if kind in TIMED else reversed(variants), key=lambda name: variants[name].native)

        def build(checkout: Checkout, reporter: Reporter) -> None:
            # A thread of its own, because it steps back for good beside what is timed.
            initializer = step_back if kind in TIMED else None
            with ThreadPoolExecutor(1, initializer=initializer) as builder:
                builder.submit(self._build_native, cells, checkout, reporter).result()

        findings = measure_in_lanes(
            self._checkout,
            kind,
            [(variant, case) for case in cells.cases for variant in names],
            lambda checkout, reporter: self._open_lane(cells, checkout, reporter, strikes),
            self._reporter,
            lanes,
            build,
            # To open a GPU disturbs what is timed on it.
            at_tail=None if kind in TIMED else self._start_next_children,
        )
        self._reporter.progress(cells.total, cells.total, "")
        places = {(variant, case): place for place, (case, variant) in enumerate(product(cells.cases, variants))}
        return sorted(findings, key=lambda finding: places[finding.variant, finding.case])

    def _start_next_children(self, reporter: Reporter) -> None:
        """Starts children that the next job begins with, if it measures this commit. It starts those that fail."""
        mine, after = self._request, self._tools.upcoming
        if after is None or after.kind not in MOST:
            return
        if (mine.url, mine.sha, mine.definitions) == (after.url, after.sha, after.definitions):
            with suppress(CannotRunError, OSError):
                self._checkout.start_spares(spares_of(self._checkout.host), reporter)

    def _open_lane(self, cells: _Cells, checkout: Checkout, reporter: Reporter, strikes: Strikes) -> Measure:
        """A function that measures one variant on one case with the child of a checkout, and reports it; it raises
        Stopped where it makes room."""
        kind = self._request.kind
        measurer = Measurer(self._plan, checkout, reporter, cells.limits, strikes)

        def measure(cell: Cell) -> Finding:
            if cell in self._kept:
                return self._kept[cell]
            urgent_job_id = reporter.should_yield() if kind in RESUMABLE else None
            if urgent_job_id is not None:
                raise Stopped(f"job {urgent_job_id} is more urgent", urgent_job_id)
            reporter.progress(len(self._findings), cells.total, " ".join(cell), cell)
            build = self._build.result() if cells.variants[cell[0]].native else None
            if build is not None and build.status is Status.BUILD_FAILED:
                message = f"{build.message}\n{build.log[-_LOG_TAIL:]}".strip()
                finding = Finding(*cell, Status.BUILD_FAILED, message)
            else:
                finding = measurer.measure(kind, *cell)
            self._findings[cell] = finding
            reporter.log(describe(kind, finding))
            return finding

        return measure

    def _build_native(self, cells: _Cells, checkout: Checkout, reporter: Reporter) -> None:
        """Builds what the variants load, which those that wait for it then get to know."""
        try:
            is_native = any(variant.native for variant in cells.variants.values())
            self._build.set_result(build_native(checkout, cells.entry, reporter) if is_native else None)
        except BaseException as error:
            self._build.set_exception(error)
            raise
