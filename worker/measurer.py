"""Sends one request per variant and case to the child, and makes a finding of whatever happens to it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from warpwatch.contract.catalogue import CaseEntry, OperatorEntry, VariantEntry
from warpwatch.contract.measurement import SETUP
from warpwatch.contract.messages import BenchReply, BuildReply, CasesReply, CheckReply, ProfileReply
from warpwatch.contract.outcome import Finding
from warpwatch.contract.spec import ADDRESS, BUDGET_NS, JobRequest, JobSpec
from warpwatch.contract.words import Fault, JobKind, Reason, Status
from warpwatch.worker.checkout import Checkout
from warpwatch.worker.child import ChildFailure
from warpwatch.worker.plausibility import TimeLimits
from warpwatch.worker.reporter import CannotRunError, Reporter
from warpwatch.worker.sanitizers import SLOWER

TRACE_LIMIT = 512 * 2**20
"""Bytes of one compressed trace; a longer one adds nothing."""
EDGE = "edge"
COUNTING_SECONDS = 300.0
"""Extra time for Nsight Compute: it starts a process and runs every kernel once per group of counters."""
_STRIKES = {Status.CRASHED: 1, Status.TIMED_OUT: 2}
_OUT = 2
"""Strikes after which a variant's remaining cases are skipped: an endless loop must not take hours."""


def choose_variants(entry: OperatorEntry, spec: JobSpec) -> list[VariantEntry]:
    """The variants asked for that the operator has."""
    names = pick([variant.name for variant in entry.variants], spec.variants)
    return [variant for variant in entry.variants if variant.name in names]


def choose_cases(entry: OperatorEntry, spec: JobSpec, kind: str) -> list[CaseEntry]:
    """The cases asked for by name, whatever their suite; without names the first `case_limit` of the suite, all by
    default.

    A check adds the suite "edge": sizes that are easy to get wrong, and whose time does not matter.
    """
    if spec.cases is None:
        suites = {spec.suite} | ({EDGE} if kind == "check" else set())
        return [case for case in entry.cases if not suites.isdisjoint(case.suites)][: spec.case_limit]
    names = pick([case.key for case in entry.cases], spec.cases)
    return [case for case in entry.cases if case.key in names]


def derive_cases(
    checkout: Checkout, entry: OperatorEntry, keys: Iterable[str] | None, seconds: float, reporter: Reporter
) -> list[CaseEntry]:
    """The cases of these keys that the operator can have although it does not declare them."""
    declared = {case.key for case in entry.cases}
    missing = [key for key in dict.fromkeys(keys or ()) if key not in declared]
    if not missing:
        return []
    try:
        reply = checkout.ask(CasesReply, "cases", seconds, reporter, operator=entry.name, cases=missing)
    except ChildFailure as failure:
        reply = CasesReply(failure.status, failure.message)
    if reply.status is not Status.OK:
        reporter.log(f"undeclared cases of {entry.name}: {reply.message}")
    return [case for case in reply.cases if case.key in missing]


def pick(existing: Iterable[str], chosen: list[str] | None) -> list[str]:
    """The existing names that are chosen; None chooses all."""
    return [name for name in existing if chosen is None or name in chosen]


@dataclass(frozen=True, slots=True)
class LoadFailure:
    """Why an operator file does not load. fault, subjects: as in a finding."""

    status: Status
    message: str
    fault: Fault | None = None
    subjects: tuple[str, ...] = ()
    reason: Reason | None = None


def expect_entry(checkout: Checkout, operator: str, reporter: Reporter) -> OperatorEntry:
    """The operator as the commit declares it; CannotRunError where its file does not load, or there is none."""
    try:
        _, entry = checkout.catalogue(operator, reporter)
    except ChildFailure as failure:
        raise CannotRunError(f"{operator} does not load: {failure.message}") from failure
    if entry is None or entry.error is not None:
        raise CannotRunError((entry and entry.error) or f"there is no operator {operator!r}")
    return entry


def load_failure(checkout: Checkout, entry: OperatorEntry) -> LoadFailure | None:
    """Why the file of the operator does not load; None where it does."""
    if entry.error is None:
        return None
    measured, module = checkout.project.measured, entry.missing_module
    reason = Reason.UNUSABLE_DEFINITIONS if checkout.is_defined_beside else None
    if module is None:
        fault = Fault.BAD_DEFINITION if checkout.is_defined_beside else None
        return LoadFailure(Status.BUILD_FAILED, entry.error, fault, reason=reason)
    faulty: tuple[Fault, tuple[str, ...]] = (Fault.MISSING_MODULE, (module,))
    if measured is not None and module.partition(".")[0] in measured.packages:
        message = f"this commit has no {module}, which the definition of {entry.name} imports"
        return LoadFailure(Status.UNSUPPORTED, message, *faulty, reason=reason)
    python = checkout.host.find_interpreter(checkout.project.interpreter) or checkout.project.interpreter
    message = (
        f"{entry.name} imports {module}, which {python} lacks: install it there, or let `build` in warpwatch.toml "
        f"install it, and run this job again\n{entry.error}"
    )
    return LoadFailure(Status.MISSING_DEPENDENCY, message, *faulty, reason=Reason.MISSING_DEPENDENCY)


def build_native(checkout: Checkout, entry: OperatorEntry, reporter: Reporter) -> BuildReply:
    """Builds the libraries that the operator loads; a compiler that hangs or crashes is a failed build."""
    reporter.log(f"build {entry.name} …")
    reply = checkout.build(entry.uses or [entry.name], reporter)
    how = "unchanged" if reply.cached else f"{reply.seconds:.1f} s"
    reporter.log(f"build {entry.name} {reply.status} ({how}) {reply.message}".rstrip())
    return reply


class Strikes:
    """The crashes and timeouts of the variants of a job, and which variants were wrong; measurers in several threads
    may share one object.

    earlier: the findings of an interrupted run of the same job.
    """

    def __init__(self, earlier: Iterable[Finding] = ()) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._last: dict[str, Finding] = {}
        self._guilty: set[str] = set()
        for finding in earlier:
            self.add(finding)

    def add(self, finding: Finding) -> None:
        with self._lock:
            if finding.status is Status.WRONG:
                self._guilty.add(finding.variant)
            if finding.status is not Status.SKIPPED:
                self._counts[finding.variant] += _STRIKES.get(finding.status, 0)
                self._last[finding.variant] = finding

    def has_failed(self, variant: str) -> bool:
        """Whether it ended a child or ran out of time."""
        return self._counts[variant] > 0

    def is_guilty(self, variant: str) -> bool:
        """Whether it was wrong on its own."""
        return variant in self._guilty

    def reason_to_skip(self, variant: str) -> str | None:
        """Why the remaining cases of the variant are skipped; None where they are not."""
        with self._lock:
            if self._counts[variant] < _OUT:
                return None
            last = self._last[variant]
        return f"{variant} {last.status.replace('_', ' ')} before, on {last.case}"


class Measurer:
    """Measures variants and cases with one checkout's child, and skips a variant that has failed too often."""

    def __init__(
        self,
        checkout: Checkout,
        request: JobRequest,
        reporter: Reporter,
        traces: Path,
        limits: TimeLimits,
        strikes: Strikes,
    ) -> None:
        self._checkout = checkout
        self._limits = limits
        self._request = request
        self._reporter = reporter
        self._traces = traces
        self._strikes = strikes

    def measure(self, kind: str, variant: str, case: str) -> Finding:
        """The finding of one `kind` of job, whatever happens to the child."""
        reason = self._strikes.reason_to_skip(variant)
        if reason is not None:
            return Finding(variant, case, Status.SKIPPED, reason)
        # Another variant's damage to the process can make a correct one fail, and libraries cache plans that fit one
        # caller and not the next. So a failure counts only when the variant ran alone.
        beside = self._checkout.others_ran(variant)
        finding = self._ask(kind, variant, case)
        ended = finding.status in (Status.CRASHED, Status.OUT_OF_MEMORY) and not self._checkout.running
        if beside and ended and not self._strikes.has_failed(variant):
            self._reporter.log(f"{variant} ended a child that others had used; once more in a fresh one")
            finding = self._ask(kind, variant, case)
        elif beside and finding.status is Status.WRONG and not self._strikes.is_guilty(variant):
            self._reporter.log(f"{variant} is wrong in a child that others had used; once more in a fresh one")
            self._checkout.drop_child()
            finding = _cleared(finding, self._ask(kind, variant, case))
        if finding.status is Status.CRASHED and self._checkout.host.kind == "cuda":
            # An illegal access poisons the whole CUDA context, so that the next variant would fail for nothing.
            self._checkout.drop_child()
        self._strikes.add(finding)
        return finding

    def _ask(self, kind: str, variant: str, case: str) -> Finding:
        spec, operator = self._request.spec, self._request.operator
        names: dict[str, Any] = {"operator": operator, "variant": variant, "case": case, "seed": spec.seed}
        seconds = self._checkout.timeout_seconds(operator)
        try:
            if kind == "check":
                return self._check(names, seconds)
            if kind == "bench":
                return self._bench(names, seconds)
            output = self._traces / f"{self._checkout.sha[:12]}-{uuid4().hex}.json.gz"
            seconds += COUNTING_SECONDS if spec.profile.counters else 0
            # The profiles of a comparison explain its verdict, which waits for them.
            names |= {"output": output.name, "profile": spec.profile, "energy": self._request.kind == JobKind.PROFILE}
            profile = self._checkout.ask(ProfileReply, "profile", seconds, self._reporter, **names)
            return self._with_trace(Finding(variant, case, profile.status, profile.message, profile=profile), output)
        except ChildFailure as failure:
            return Finding(variant, case, failure.status, failure.message, fault=failure.fault)

    def _bench(self, names: dict[str, Any], seconds: float) -> Finding:
        budget = self._request.spec.budget_ns or BUDGET_NS
        begin = time.monotonic()
        bench = self._checkout.ask(
            BenchReply, "bench", seconds + budget / 1e9, self._reporter, budget_ns=budget, **names
        )
        elapsed = time.monotonic() - begin
        for measurement in bench.measurements:
            flops, bytes_moved = (0, 0) if measurement.metric == SETUP else (bench.flops, bench.bytes)
            objection = self._limits.objection(measurement.samples_ns, flops, bytes_moved, elapsed)
            if objection is not None:
                fault, subjects = Fault.IMPLAUSIBLE_TIME, [measurement.metric]
                return Finding(names["variant"], names["case"], Status.WRONG, objection, fault=fault, subjects=subjects)
        return _finding(names, bench, bench=bench)

    def _with_trace(self, finding: Finding, output: Path) -> Finding:
        """The finding with a copy of its trace at `output`, which no kernel code can change any more."""
        assert finding.profile is not None
        if finding.status is not Status.OK:
            return replace(finding, profile=replace(finding.profile, path=None))
        try:
            self._checkout.collect(output.name, output, TRACE_LIMIT)
        except OSError as error:
            message = f"the profile left no usable trace: {error.strerror or error}"
            return Finding(finding.variant, finding.case, Status.CRASHED, message)
        return replace(finding, profile=replace(finding.profile, path=str(output)))

    def _check(self, names: dict[str, Any], seconds: float) -> Finding:
        sanitizer = self._request.spec.sanitize
        check = self._checkout.ask(CheckReply, "check", seconds * (SLOWER if sanitizer else 1), self._reporter, **names)
        finding = _finding(names, check, check=check)
        if sanitizer is None or sanitizer == ADDRESS:
            return finding
        # On a GPU the report is complete only when the process has ended.
        report = self._checkout.end_child(seconds)
        if report is None:
            return finding
        message = "\n".join(filter(None, [report, check.message]))
        return replace(finding, status=Status.WRONG, message=message, fault=Fault.SANITIZER, subjects=[])


def _finding(names: dict[str, Any], reply: CheckReply | BenchReply, **replies: Any) -> Finding:
    """The finding of a reply, with its fault; replies: the reply under the name of its kind."""
    return Finding(
        names["variant"],
        names["case"],
        reply.status,
        reply.message,
        fault=reply.fault,
        subjects=reply.subjects,
        **replies,
    )


def _cleared(wrong: Finding, alone: Finding) -> Finding:
    """The finding of a variant that ran alone, with a note that it was wrong in a process that others had used."""
    if alone.status is not Status.OK:
        return alone
    note = f"right alone, and wrong in a process that other variants had used: {wrong.message}"
    return replace(alone, message="; ".join(filter(None, [alone.message, note])))


def describe(kind: str, finding: Finding) -> str:
    """One line of log: kind, variant, case, status, and why it failed."""
    lines = finding.message.strip().splitlines()
    reason = f": {lines[-1]}" if lines and finding.status is not Status.OK else ""
    return f"{kind} {finding.variant} {finding.case} {finding.status}{reason}"
