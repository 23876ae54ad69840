"""Compares two commits on one device, in rounds of fresh children that are alive at once and measured in turn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import mean

from warpwatch.contract.outcome import Comparison, Finding, Order, Outcome
from warpwatch.contract.protocol import METRICS, PROTOCOL, Catalogue, SampleReply
from warpwatch.contract.words import Reason, Status
from warpwatch.worker.checkout import Checkout, Tools
from warpwatch.worker.child import ChildFailure
from warpwatch.worker.gate import expect_healthy
from warpwatch.worker.measurer import BUDGET_NS, Measurer, build_native, describe
from warpwatch.worker.reporter import BoundedReporter, CannotRunError

ROUNDS = 12
"""Rounds of a comparison that asks for no other number: fewer cannot tell a small change from noise."""
MIN_ROUNDS = 6
"""With fewer there is no interval that holds the median in 95 of 100 cases."""
TYPICAL = {"cuda": 0.5, "cpu": 0.1}
"""The quantile that stands for a slice, per device kind.

What else runs on a CPU only ever adds time, so that the fastest tenth of a slice says what the code takes; its median
says as well how busy the machine was.
"""
TURNS = {"cuda": 1, "cpu": 8}
"""How often a round goes A B B A, per device kind.

Bursts of other work on a CPU last longer than a slice, so that they mostly hit neighbouring slices alike.
"""


def compare(order: Order, tools: Tools, reporter: BoundedReporter, traces: Path) -> Outcome:
    """Paired rounds and one profile per side for every (variant, case) in spec["pairs"]."""
    if order.base_sha is None or not order.spec.get("pairs"):
        raise CannotRunError("a comparison needs a base commit and at least one pair of variant and case")
    base, head = (
        _Side(name, checkout, order, reporter, traces)
        for name, checkout in zip(
            ("base", "head"), tools.checkouts(order.url, [order.base_sha, order.sha], reporter), strict=True
        )
    )
    environment = head.checkout.environment(reporter)
    if base.checkout.environment(reporter).key != environment.key:
        raise CannotRunError(
            "the two commits ask for different interpreters, so a comparison would not be about their code",
            reason=Reason.INTERPRETER_MISMATCH,
        )
    outcome = Outcome(environment, tools.peaks(head.checkout, reporter))
    expect_healthy(head.checkout, head.checkout.host.device, outcome.peaks, reporter)
    base.load()
    head.load()
    return _Rounds(order, base, head, reporter).run(
        replace(outcome, catalogue=head.catalogue, base_catalogue=base.catalogue)
    )


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
                SampleReply,
                verb,
                seconds,
                self._reporter,
                operator=self._order.operator,
                variant=variant,
                case=case,
                seed=self._order.spec.get("seed", 0),
                budget_ns=budget_ns,
                rounds=rounds,
            )
            if verb == "sample" and reply.status is Status.OK and not reply.samples_ns:
                return SampleReply(Status.CRASHED, "the harness took no samples")
            return reply
        except ChildFailure as failure:
            # The other side goes on without it, and an endless loop must not be waited for once per case.
            self._trouble[variant] = (Status.SKIPPED, f"{variant} {failure.status.replace('_', ' ')} before, on {case}")
            return SampleReply(failure.status, failure.message)


class _Rounds:
    """Rounds of every pair.

    Each round starts both children anew, because where memory and code came to lie, and which of two speeds a process
    settles on, stays the same for a process's life: more slices of the same two processes would only make a difference
    between the processes look certain.
    """

    def __init__(self, order: Order, base: _Side, head: _Side, reporter: BoundedReporter) -> None:
        self._base = base
        self._head = head
        self._reporter = reporter
        self._rounds = max(MIN_ROUNDS, int(order.spec.get("rounds") or ROUNDS))
        self._budget_ns = int(order.spec.get("budget_ns") or BUDGET_NS)
        metric = METRICS[head.checkout.host.kind][0]
        self._found = {
            (variant, case): Comparison(variant, case, metric, PROTOCOL, Status.OK, "")
            for variant, case in order.spec["pairs"]
        }

    def run(self, outcome: Outcome) -> Outcome:
        for index in range(self._rounds):
            self._reporter.progress(index, self._rounds, f"round {index + 1} of {self._rounds}")
            for side in (self._base, self._head):
                side.checkout.renew_child(self._reporter)
            for pair, found in self._found.items():
                if found.status is Status.OK:
                    self._found[pair] = self._round(found, index)
        profiles: dict[str, list[Finding]] = {"base": [], "head": []}
        for (variant, case), found in self._found.items():
            self._reporter.log(f"compare {variant} {case} {found.status} {found.message}".rstrip())
            for side in (self._base, self._head) if found.status is Status.OK else ():
                finding = side.measurer.measure("profile", variant, case)
                self._reporter.log(f"{side.name}: {describe('profile', finding)}")
                profiles[side.name].append(finding)
        self._reporter.progress(self._rounds, self._rounds, "")
        return replace(
            outcome, comparisons=list(self._found.values()), findings=profiles["head"], base_findings=profiles["base"]
        )

    def _round(self, found: Comparison, index: int) -> Comparison:
        """One more round of a pair; the first thing to go wrong is the comparison's end."""
        metrics: dict[str, str] = {}
        samples: dict[str, list[float]] = {"base": [], "head": []}
        for verb, side in self._steps(index):
            reply = side.ask(verb, found.variant, found.case, self._budget_ns, self._rounds)
            if reply.status is not Status.OK:
                reason = Reason.BASE_FAILED if side is self._base else None
                return self._end(found, reply.status, f"{side.name}: {reply.message}", reason)
            if verb == "prepare":
                metrics[side.name] = reply.metric or found.metric
            if len(set(metrics.values())) > 1:
                message = f"the base is measured as {metrics['base']}, the head as {metrics['head']}"
                return self._end(found, Status.UNSUPPORTED, message)
            if verb == "sample":
                samples[side.name].append(typical(reply.samples_ns, side.checkout.host.kind))
        base_ns, head_ns = middle(samples["base"], samples["head"])
        return replace(
            found, metric=metrics["head"], base_ns=[*found.base_ns, base_ns], head_ns=[*found.head_ns, head_ns]
        )

    def _steps(self, index: int) -> list[tuple[str, _Side]]:
        """prepare both, sample in turn, finish both. `finish` verifies what was computed while it was timed."""
        sides = {"base": self._base, "head": self._head}
        turns = [sides[name] for name in turns_of(index, self._base.checkout.host.kind)]
        both = turns[:2]
        return [
            (verb, side) for verb, order in (("prepare", both), ("sample", turns), ("finish", both)) for side in order
        ]

    def _end(self, found: Comparison, status: Status, message: str, reason: Reason | None = None) -> Comparison:
        """The comparison without its rounds; what `prepare` laid out is given back where its child still lives."""
        for side in (self._base, self._head):
            if side.checkout.running:
                side.ask("finish", found.variant, found.case, self._budget_ns, self._rounds)
        return replace(found, status=status, message=message, reason=reason, base_ns=[], head_ns=[])


def typical(samples_ns: list[float], device_kind: str) -> float:
    """What stands for a slice."""
    ordered = sorted(samples_ns)
    return ordered[round(TYPICAL[device_kind] * (len(ordered) - 1))]


def middle(base_ns: list[float], head_ns: list[float]) -> tuple[float, float]:
    """What stands for a round: of its pairs of neighbouring slices the one whose ratio is in the middle, the mean of
    two where there are two."""
    pairs = sorted(zip(base_ns, head_ns, strict=True), key=lambda pair: pair[1] / pair[0])
    chosen = pairs[(len(pairs) - 1) // 2 : len(pairs) // 2 + 1]
    return mean(base for base, _ in chosen), mean(head for _, head in chosen)


def turns_of(index: int, device_kind: str) -> list[str]:
    """Whose slice is next in round `index`, base or head: A B B A lets a steady drift cancel, and A is the base in
    every second round."""
    first, second = ("base", "head") if index % 2 == 0 else ("head", "base")
    return [first, second, second, first] * TURNS[device_kind]
