"""Sends one request per variant and case to the child, and makes a finding of whatever happens to it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from warpwatch.contract.catalogue import OperatorEntry
from warpwatch.contract.measurement import NO_CEILING, SETUP
from warpwatch.contract.messages import BenchReply, BuildReply, CheckReply, ProfileReply
from warpwatch.contract.outcome import Finding
from warpwatch.contract.spec import ADDRESS, BUDGET_NS
from warpwatch.contract.words import Fault, JobKind, Status
from warpwatch.worker.checkout import Checkout
from warpwatch.worker.child import ChildFailure
from warpwatch.worker.plan import JobPlan
from warpwatch.worker.plausibility import TimeLimits
from warpwatch.worker.reporter import Reporter
from warpwatch.worker.sanitizers import SLOWER

TRACE_LIMIT = 512 * 2**20
"""Bytes of one compressed trace; a longer one adds nothing."""
COUNTING_SECONDS = 300.0
"""Extra time for Nsight Compute: it starts a process and runs every kernel once per group of counters."""
_STRIKES = {Status.CRASHED: 1, Status.TIMED_OUT: 2}
_OUT = 2
"""Strikes after which a variant's remaining cases are skipped: an endless loop must not take hours."""


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
        plan: JobPlan,
        checkout: Checkout,
        reporter: Reporter,
        limits: TimeLimits,
        strikes: Strikes,
    ) -> None:
        self._checkout = checkout
        self._limits = limits
        self._request, self._traces = plan.request, plan.traces
        self._reporter = reporter
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
        # Where a call uses nothing but what was prepared, the time of `prepare` is part of all other metrics.
        prepare_ns = {m.metric: m.median_ns for m in bench.measurements}.get(SETUP, 0.0)
        for measurement in bench.measurements:
            flops, bytes_moved = (0, 0) if measurement.metric in NO_CEILING else (bench.flops, bench.bytes)
            apart_ns = 0.0 if measurement.metric == SETUP else prepare_ns
            objection = self._limits.objection(measurement.samples_ns, flops, bytes_moved, elapsed, apart_ns)
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
