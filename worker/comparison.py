"""Compares two commits on one device: both children are alive at once and measured in turn, so that drift hits both alike."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import median

from worker.checkout import Checkout, Tools
from worker.child import ChildFailure
from worker.measurer import BUDGET_NS, Measurer, build_native, describe
from worker.outcome import Comparison, Finding, Order, Outcome
from worker.protocol import METRICS, PROTOCOL, Catalogue, SampleReply, Status
from worker.reporter import BoundedReporter, CannotRunError

MIN_ROUNDS = 12
"""Fewer pairs than this cannot tell a change from noise."""


def compare(order: Order, tools: Tools, reporter: BoundedReporter, traces: Path) -> Outcome:
    """Paired rounds and one profile per side for every (variant, case) in spec["pairs"]."""
    if order.base_sha is None or not order.spec.get("pairs"):
        raise CannotRunError("a comparison needs a base commit and at least one pair of variant and case")
    base, head = (_Side(name, checkout, order, reporter, traces) for name, checkout in zip(
        ("base", "head"), tools.checkouts(order.url, [order.base_sha, order.sha], reporter), strict=True
    ))  # fmt: skip
    environment = head.checkout.environment(reporter)
    if base.checkout.environment(reporter).key != environment.key:
        raise CannotRunError("the two commits ask for different interpreters, so a comparison would not be about their code")
    outcome = Outcome(environment, tools.peaks(head.checkout, reporter))
    base.load()
    head.load()
    return _Rounds(order, base, head, reporter).run(replace(outcome, catalogue=head.catalogue, base_catalogue=base.catalogue))


class _Side:
    """One of the two commits. `trouble` is why none of its variants, or none of its native ones, can run."""

    def __init__(self, name: str, checkout: Checkout, order: Order, reporter: BoundedReporter, traces: Path) -> None:
        self.name = name
        self.checkout = checkout
        self.catalogue: Catalogue | None = None
        self.measurer = Measurer(checkout, order, reporter, traces)
        self._order = order
        self._reporter = reporter
        self._trouble: dict[str, tuple[Status, str]] = {}

    def load(self) -> None:
        """Reads the catalogue and builds what is native; trouble is kept for the pairs that it concerns."""
        variants = {variant for variant, _ in self._order.spec["pairs"]}
        try:
            self.catalogue, entry = self.checkout.catalogue(self._order.operator, self._reporter)
        except ChildFailure as failure:
            self._trouble = dict.fromkeys(variants, (failure.status, failure.message))
            return
        if entry is None or entry.error is not None:
            reason = entry.error if entry is not None else None
            trouble = (Status.BUILD_FAILED, reason or f"there is no operator {self._order.operator!r}")
            self._trouble = dict.fromkeys(variants, trouble)
            return
        missing = variants - {variant.name for variant in entry.variants}
        self._trouble = {name: (Status.SKIPPED, f"this commit has no variant {name!r}") for name in missing}
        native = {variant.name for variant in entry.variants if variant.native} & variants
        if native:
            build = build_native(self.checkout, entry.name, self._reporter)
            if build.status is Status.BUILD_FAILED:
                self._trouble |= dict.fromkeys(native, (Status.BUILD_FAILED, build.message))

    def ask(self, verb: str, variant: str, case: str, budget_ns: int, rounds: int) -> SampleReply:
        """One step of the interleaved measurement; a child that fails is a reply with that status."""
        if variant in self._trouble:
            return SampleReply(*self._trouble[variant])
        seconds = self.checkout.host.settings.case_timeout_seconds + budget_ns / 1e9
        try:
            reply = self.checkout.ask(
                SampleReply, verb, seconds, self._reporter, operator=self._order.operator, variant=variant, case=case,
                seed=self._order.spec.get("seed", 0), budget_ns=budget_ns, rounds=rounds,
            )  # fmt: skip
            if verb == "sample" and reply.status is Status.OK and not reply.samples_ns:
                return SampleReply(Status.CRASHED, "the harness took no samples")
            return reply
        except ChildFailure as failure:
            # The other side goes on without it, and an endless loop must not be waited for once per case.
            self._trouble[variant] = (Status.SKIPPED, f"{variant} {failure.status.replace('_', ' ')} before, on {case}")
            return SampleReply(failure.status, failure.message)


class _Rounds:
    def __init__(self, order: Order, base: _Side, head: _Side, reporter: BoundedReporter) -> None:
        self._order = order
        self._base = base
        self._head = head
        self._reporter = reporter
        self._rounds = max(MIN_ROUNDS, int(order.spec.get("rounds") or MIN_ROUNDS))
        self._budget_ns = int(order.spec.get("budget_ns") or BUDGET_NS)

    def run(self, outcome: Outcome) -> Outcome:
        pairs = self._order.spec["pairs"]
        comparisons: list[Comparison] = []
        profiles: dict[str, list[Finding]] = {"base": [], "head": []}
        for done, (variant, case) in enumerate(pairs):
            self._reporter.progress(done, len(pairs), f"{variant} {case}")
            comparison = self._pair(variant, case)
            self._reporter.log(f"compare {variant} {case} {comparison.status} {comparison.message}".rstrip())
            comparisons.append(comparison)
            for side in (self._base, self._head) if comparison.status is Status.OK else ():
                finding = side.measurer.measure("profile", variant, case)
                self._reporter.log(f"{side.name}: {describe('profile', finding)}")
                profiles[side.name].append(finding)
        self._reporter.progress(len(pairs), len(pairs), "")
        return replace(outcome, comparisons=comparisons, findings=profiles["head"], base_findings=profiles["base"])

    def _pair(self, variant: str, case: str) -> Comparison:
        """Prepared on both sides, sampled in turn, finished on both sides; the first thing to go wrong is the comparison's end."""
        metric = METRICS[self._head.checkout.host.kind][0]
        metrics: dict[str, str] = {}
        medians: dict[str, list[float]] = {"base": [], "head": []}
        trouble = None
        for verb, side in self._steps():
            reply = side.ask(verb, variant, case, self._budget_ns, self._rounds)
            if reply.status is not Status.OK:
                trouble = reply.status, f"{side.name}: {reply.message}"
            elif verb == "prepare":
                metrics[side.name] = reply.metric or metric
                if len(set(metrics.values())) > 1:
                    trouble = Status.UNSUPPORTED, f"the base is measured as {metrics['base']}, the head as {metrics['head']}"
            elif verb == "sample":
                medians[side.name].append(median(reply.samples_ns))
            if trouble is not None:
                self._free(variant, case)
                return Comparison(variant, case, metrics.get("head", metric), PROTOCOL, *trouble)
        return Comparison(variant, case, metrics["head"], PROTOCOL, Status.OK, "", medians["base"], medians["head"])

    def _steps(self) -> list[tuple[str, _Side]]:
        """prepare both, then base head, head base, base head …: whoever goes second in one round goes first in the next.

        `finish` comes last: it verifies what was computed while it was timed.
        """
        pair = [self._base, self._head]
        rounds = [("sample", side) for index in range(self._rounds) for side in (pair if index % 2 == 0 else pair[::-1])]
        return [("prepare", side) for side in pair] + rounds + [("finish", side) for side in pair]

    def _free(self, variant: str, case: str) -> None:
        """Gives back what `prepare` laid out, where its child still lives."""
        for side in (self._base, self._head):
            if side.checkout.running:
                side.ask("finish", variant, case, self._budget_ns, self._rounds)
