"""One of the commits of a comparison: what its child is asked, and which of its variants cannot run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import and_
from typing import Any

from warpwatch.contract.catalogue import CaseEntry, Catalogue
from warpwatch.contract.measurement import LAUNCH
from warpwatch.contract.messages import BuildReply, GraphPlan, SampleReply
from warpwatch.contract.words import Status
from warpwatch.worker.checkout import Checkout
from warpwatch.worker.child import ChildFailure
from warpwatch.worker.measurer import Measurer, Strikes, build_native
from warpwatch.worker.plan import JobPlan, LoadFailure, read_operator
from warpwatch.worker.plausibility import TimeLimits
from warpwatch.worker.reporter import BoundedReporter


class ComparedSide:
    """One of the commits. build: of its native libraries, None where there was none. `_trouble` holds, per variant, the
    status and message of one that cannot run; `_has_device_time` whether samples of what is prepared have one."""

    def __init__(
        self, name: str, plan: JobPlan, checkout: Checkout, reporter: BoundedReporter, limits: TimeLimits
    ) -> None:
        self.name = name
        self.checkout = checkout
        self.catalogue: Catalogue | None = None
        self.derived: tuple[CaseEntry, ...] = ()
        self.build: BuildReply | None = None
        self.measurer = Measurer(plan, checkout, reporter, limits, Strikes())
        self._limits = limits
        self._cases: dict[str, CaseEntry] = {}
        self._request = plan.request
        self._reporter = reporter
        self._trouble: dict[str, tuple[Status, str]] = {}
        self._has_device_time = True

    def load(self) -> None:
        """Reads the catalogue and builds the native variants; notes which variants cannot run."""
        request, pairs = self._request, self._request.spec.pairs or []
        variants = {variant for variant, _ in pairs}
        declared = read_operator(self.checkout, request.operator, [case for _, case in pairs], self._reporter)
        self.catalogue, self.derived, entry = declared.catalogue, declared.derived, declared.entry
        if declared.failure is not None or entry is None:
            failure = declared.failure or LoadFailure(Status.BUILD_FAILED, f"there is no operator {request.operator!r}")
            self._trouble = dict.fromkeys(variants, (failure.status, failure.message))
            return
        self._cases = {case.key: case for case in entry.cases}
        missing = variants - {variant.name for variant in entry.variants}
        self._trouble = {name: (Status.SKIPPED, f"this commit has no variant {name!r}") for name in missing}
        native = {variant.name for variant in entry.variants if variant.native}
        # The builds of a patch say what machine code it changes, whatever is measured.
        if native if request.patch is not None else native & variants:
            self.build = build_native(self.checkout, entry, self._reporter)
            if self.build.status is Status.BUILD_FAILED:
                self._trouble |= dict.fromkeys(native & variants, (Status.BUILD_FAILED, self.build.message))

    def entry_of(self, case: str) -> CaseEntry | None:
        """The case as the commit describes it; None where it has none of this key."""
        return self._cases.get(case)

    def ask(self, verb: str, variant: str, case: str, budget_ns: int, rounds: int, **fields: Any) -> SampleReply:
        """One step of the interleaved measurement; when the child fails, a reply with that status."""
        return self.send(verb, variant, case, budget_ns, rounds, **fields)()

    def send(
        self, verb: str, variant: str, case: str, budget_ns: int, rounds: int, **fields: Any
    ) -> Callable[[], SampleReply]:
        """Begins a step; what it returns waits for its reply, which the next step needs. fields: further ones of
        contract.messages.Request."""
        if variant in self._trouble:
            return partial(SampleReply, *self._trouble[variant])
        if verb == "prepare":
            self._has_device_time = fields.get("metrics") != [LAUNCH]
        fields |= {"operator": self._request.operator, "variant": variant, "case": case, "budget_ns": budget_ns}
        fields |= {"seed": self._request.spec.seed, "rounds": rounds}
        begin = time.monotonic()
        try:
            self.checkout.send(verb, self._reporter, **fields)
        except ChildFailure as failure:
            return partial(self._failed, variant, case, failure)
        return partial(self._receive, verb, variant, case, budget_ns, begin)

    def _receive(self, verb: str, variant: str, case: str, budget_ns: int, begin: float) -> SampleReply:
        seconds = self.checkout.timeout_seconds(self._request.operator) + budget_ns / 1e9
        try:
            reply = self.checkout.answer(SampleReply, seconds, self._reporter)
        except ChildFailure as failure:
            return self._failed(variant, case, failure)
        is_missing = not (reply.samples_ns if self._has_device_time else reply.launch_ns or reply.no_launch)
        if verb == "sample" and reply.status is Status.OK and is_missing:
            return SampleReply(Status.CRASHED, "the harness took no samples")
        # Times that no device can show are refused.
        entry = self._cases.get(case)
        flops, bytes_moved = (entry.flops, entry.bytes) if entry else (0, 0)
        elapsed = time.monotonic() - begin
        objection = self._limits.objection(reply.samples_ns, flops, bytes_moved, elapsed, reply.prepare_ns)
        objection = objection or self._limits.objection(reply.launch_ns, 0, 0, elapsed, reply.prepare_ns)
        return reply if objection is None else SampleReply(Status.WRONG, objection)

    def _failed(self, variant: str, case: str, failure: ChildFailure) -> SampleReply:
        # The other side continues, and an endless loop must not cost a time-out per case.
        self._trouble[variant] = (Status.SKIPPED, f"{variant} {failure.status.replace('_', ' ')} before, on {case}")
        return SampleReply(failure.status, failure.message)


class SideError(Exception):
    """A pair cannot be measured on a side; `reply` says why. side: None where neither is at fault alone."""

    def __init__(self, side: ComparedSide | None, reply: SampleReply) -> None:
        super().__init__(reply.message)
        self.side = side
        self.reply = reply


@dataclass(frozen=True, slots=True)
class SharedPlan:
    """What all sides follow in every round. plan: None on a CPU. in_turn: whether the sides prepare one after another,
    because at least one times something for it."""

    plan: GraphPlan | None
    in_turn: bool


def agree_on_plan(sides: Sequence[ComparedSide], variant: str, case: str, budget_ns: int, rounds: int) -> SharedPlan:
    """The largest plan that fits every side, for which each times a few calls, one side after another; SideError.

    A side with a plan of its own would get graphs of other lengths, and with them another time for the same kernels.
    Where a graph captures the variant on some sides only, all are timed by `kernel`.
    """
    if sides[0].checkout.host.kind != "cuda":
        return SharedPlan(None, in_turn=True)
    for metrics in ([], ["kernel"]):
        plans: dict[str, GraphPlan] = {}
        in_turn = False
        for side in sides:
            reply = side.ask("plan", variant, case, budget_ns, rounds, sides=len(sides), metrics=metrics)
            if reply.status is Status.OK and reply.plan is None:
                reply = SampleReply(Status.CRASHED, "the harness made no plan")
            if reply.status is not Status.OK or reply.plan is None:
                raise SideError(side, reply)
            plans[side.name] = reply.plan
            in_turn |= reply.times_itself
        if len({plan.metric for plan in plans.values()}) == 1:
            return SharedPlan(reduce(and_, plans.values()), in_turn)
    named = ", ".join(f"the {name} is measured as {plan.metric}" for name, plan in sorted(plans.items()))
    raise SideError(None, SampleReply(Status.UNSUPPORTED, named))
