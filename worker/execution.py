"""Runs one job: every chosen variant on every chosen case of one operator at one commit. Plain data in, plain data out.

One variant that crashes, hangs, takes too much memory or does not compile costs its own rows only. Stopped and
CannotRunError are the only ways out without an outcome.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from warpwatch.contract.outcome import Finding, Order, Outcome
from warpwatch.contract.protocol import BuildReply, CaseEntry, OperatorEntry, VariantEntry
from warpwatch.contract.words import Status
from warpwatch.git import GitError, UnknownRefError
from warpwatch.project import ProjectError
from warpwatch.worker.checkout import Checkout, Tools
from warpwatch.worker.child import ChildFailure
from warpwatch.worker.comparison import compare
from warpwatch.worker.gate import expect_healthy
from warpwatch.worker.measurer import Measurer, build_native, choose_cases, choose_variants, describe, pick
from warpwatch.worker.reporter import BoundedReporter, CannotRunError, Reporter, Stopped
from warpwatch.worker.sanitizers import SanitizerMissingError, find_sanitizer

_LOG_TAIL = 4000


def execute(order: Order, tools: Tools, reporter: Reporter, traces: Path) -> Outcome:
    """What the job found; traces are written into the folder `traces`, which belongs to the caller.

    Raises Stopped when the reporter says so, CannotRunError when nothing could be measured at all.
    """
    bounded = BoundedReporter(reporter)
    bounded.check()
    try:
        if order.kind == "compare":
            return compare(order, tools, bounded, traces)
        (checkout,) = tools.checkouts(order.url, [order.sha], bounded)
    except ProjectError as error:
        # The commit asks for something this service does not do, which is a property of the commit and not an error of
        # the job.
        return Outcome(*tools.identify(bounded), findings=known_findings(order, Status.UNSUPPORTED, str(error)))
    except GitError as error:
        raise CannotRunError(str(error), retry=not isinstance(error, UnknownRefError)) from error
    return _Job(order, checkout, tools, bounded, traces).run()


def known_findings(order: Order, status: Status, message: str) -> list[Finding]:
    """The same finding for all that an earlier commit is known to have had; CannotRunError when nothing is known."""
    known = order.spec.get("known") or {}
    variants = pick(known.get("variants", []), order.spec.get("variants"))
    cases = pick(known.get("cases", []), order.spec.get("cases"))
    if not variants or not cases:
        raise CannotRunError(message)
    return [Finding(variant, case, status, message) for variant in variants for case in cases]


class _Job:
    """A check, bench or profile job at work."""

    def __init__(self, order: Order, checkout: Checkout, tools: Tools, reporter: BoundedReporter, traces: Path) -> None:
        self._order = order
        self._checkout = checkout
        self._tools = tools
        self._reporter = reporter
        self._measurer = Measurer(checkout, order, reporter, traces)

    def run(self) -> Outcome:
        order, reporter = self._order, self._reporter
        self._checkout.sanitize(None)
        outcome = Outcome(self._checkout.environment(reporter), self._tools.peaks(self._checkout, reporter))
        if order.kind == "bench":
            expect_healthy(self._checkout, self._checkout.host.device, outcome.peaks, reporter)
        try:
            catalogue, entry = self._checkout.catalogue(order.operator, reporter)
        except ChildFailure as failure:
            message = f"the file of {order.operator} does not load: {failure.message}"
            return replace(outcome, findings=known_findings(order, failure.status, message))
        outcome = replace(outcome, catalogue=catalogue)
        if entry is None:
            raise CannotRunError(f"commit {order.sha[:12]} has no operator {order.operator!r}")
        if entry.error is not None:
            return replace(outcome, findings=known_findings(order, Status.BUILD_FAILED, entry.error))
        return self._measure_all(outcome, entry)

    def _measure_all(self, outcome: Outcome, entry: OperatorEntry) -> Outcome:
        variants, cases = (
            choose_variants(entry, self._order.spec),
            choose_cases(entry, self._order.spec, self._order.kind),
        )
        if not variants or not cases:
            raise CannotRunError(f"commit {self._order.sha[:12]} has none of the variants and cases asked for")
        sanitize = self._order.spec.get("sanitize")
        if sanitize is not None:
            try:
                self._checkout.sanitize(find_sanitizer(sanitize, self._checkout.host.kind))
            except SanitizerMissingError as missing:
                names = [(variant.name, case.key) for case in cases for variant in variants]
                return replace(outcome, findings=[Finding(*name, Status.UNSUPPORTED, str(missing)) for name in names])
        build = None
        if any(variant.native for variant in variants):
            build = build_native(self._checkout, entry.name, self._reporter)
        total = len(variants) * len(cases)
        findings: list[Finding] = []
        for case in cases:
            for variant in variants:
                self._reporter.progress(len(findings), total, f"{variant.name} {case.key}")
                try:
                    finding = self._one(variant, case, build)
                except Stopped as stopped:
                    stopped.outcome = replace(outcome, build=build, findings=findings) if findings else None
                    raise
                self._reporter.log(describe(self._order.kind, finding))
                findings.append(finding)
        self._reporter.progress(total, total, "")
        return replace(outcome, build=build, findings=findings)

    def _one(self, variant: VariantEntry, case: CaseEntry, build: BuildReply | None) -> Finding:
        if variant.native and build is not None and build.status is Status.BUILD_FAILED:
            return Finding(
                variant.name, case.key, Status.BUILD_FAILED, f"{build.message}\n{build.log[-_LOG_TAIL:]}".strip()
            )
        return self._measurer.measure(self._order.kind, variant.name, case.key)
