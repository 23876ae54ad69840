"""Measures two commits under two toolchains on one device, in rounds of four fresh children that are alive at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from warpwatch.contract.measurement import JUDGED, LAUNCH, PROTOCOLS
from warpwatch.contract.messages import SampleReply
from warpwatch.contract.outcome import Comparison, Outcome
from warpwatch.contract.rounds import CellRounds
from warpwatch.contract.spec import BUDGET_NS
from warpwatch.contract.words import Reason, Status
from warpwatch.worker.checkout import Checkout
from warpwatch.worker.compared_side import ComparedSide, SharedPlan, SideError, agree_on_plan
from warpwatch.worker.comparison import TURNS, Pair, ended, planned_rounds, typical
from warpwatch.worker.crowd import drop_at_once, drop_idle_at_once, load_at_once
from warpwatch.worker.gate import expect_healthy
from warpwatch.worker.plan import JobPlan, with_pairs
from warpwatch.worker.reporter import BoundedReporter, CannotRunError, Stopped
from warpwatch.worker.tools import Tools

CELLS = ("base, old toolchain", "head, old toolchain", "base, new toolchain", "head, new toolchain")


def compare_cells(plan: JobPlan, tools: Tools, reporter: BoundedReporter) -> Outcome:
    """Rounds of every pair in the four cells of a plan: its base and its commit, each under both toolchains, with a
    comparison for each judged metric. The rounds of an interrupted run count where the environment is the same.
    CannotRunError when nothing can be measured."""
    if any(plan.programs):
        raise CannotRunError("a benchmark program is compared under two toolchains at one commit alone")
    plan = with_pairs(plan, reporter)
    request, checkouts, earlier = plan.request, plan.checkouts, plan.earlier
    drop_idle_at_once(checkouts)
    for checkout in checkouts:
        checkout.start_spares(1, reporter)
    _expect_same_toolchains(checkouts, reporter)
    environment = checkouts[-1].environment_of(plan.sources, reporter)
    peaks = tools.peaks(checkouts[-1], reporter)
    expect_healthy(checkouts[-1], tools.host.device, peaks, reporter, tools.host.last_canary)
    limits = tools.time_limits(peaks, reporter)
    sides = [
        ComparedSide(name, plan, checkout, reporter, limits) for name, checkout in zip(CELLS, checkouts, strict=True)
    ]
    load_at_once(checkouts, request.operator, reporter)
    for side in sides:
        side.load()
    known = earlier.comparisons if earlier is not None and earlier.environment_key == environment.key else []
    cells = _Cells(plan, sides, known)
    outcome = Outcome(
        environment,
        peaks,
        catalogue=sides[-1].catalogue,
        base_catalogue=sides[-2].catalogue,
        derived_cases=[*{case.key: case for side in sides for case in side.derived}.values()],
    )
    try:
        _take_rounds(cells, planned_rounds(request.spec), reporter)
    except Stopped as stopped:
        stopped.outcome = replace(outcome, comparisons=cells.list_comparisons())
        raise
    outcome = replace(outcome, comparisons=cells.list_comparisons())
    return outcome if request.patch is None else replace(outcome, base_build=sides[-2].build, build=sides[-1].build)


def _expect_same_toolchains(checkouts: Sequence[Checkout], reporter: BoundedReporter) -> None:
    """CannotRunError where base and head would differ in more than their code under one toolchain."""
    keys = [checkout.environment(reporter).key for checkout in checkouts]
    if keys[:2] != keys[:1] * 2 or keys[2:] != keys[2:3] * 2:
        raise CannotRunError(
            "one toolchain gives the two commits different environments, because their warpwatch.toml ask for other "
            "interpreters or images; name toolchains that have an interpreter",
            reason=Reason.INTERPRETER_MISMATCH,
        )


def _take_rounds(cells: _Cells, count: int, reporter: BoundedReporter) -> None:
    """Rounds until none is left; Stopped between two of them to make room for a more urgent job."""
    sides, operator = cells.sides, cells.plan.request.operator
    checkouts = [side.checkout for side in sides]
    first = cells.count_rounds()
    for index in range(first, count):
        # Every run takes a round at least, however often it makes room.
        urgent_job_id = reporter.should_yield() if index > first else None
        if urgent_job_id is not None:
            raise Stopped(f"job {urgent_job_id} is more urgent", urgent_job_id)
        reporter.progress(index, count, f"round {index + 1} of {count}")
        if index > first:
            for checkout in checkouts:
                checkout.start_spares(1, reporter)
            drop_at_once(checkouts)
            load_at_once(checkouts, operator, reporter)
        cells.take_round(index)
    reporter.progress(count, count, "")


class _Cells:
    """The rounds of all pairs. comparisons: by pair, by judged metric; the first is that of the device's time."""

    def __init__(self, plan: JobPlan, sides: list[ComparedSide], earlier: Sequence[Comparison]) -> None:
        self.plan = plan
        self.sides = sides
        self._kind = plan.checkouts[-1].host.kind
        self._device_metric, *_ = JUDGED[self._kind]
        self._budget_ns = plan.request.spec.budget_ns or BUDGET_NS
        self._plans: dict[Pair, SharedPlan] = {}
        self._comparisons: dict[Pair, dict[str, Comparison]] = {}
        for pair in plan.request.spec.pairs or []:
            rows = [row for row in earlier if (row.variant, row.case) == pair]
            self._comparisons[pair] = {
                LAUNCH if row.metric == LAUNCH else self._device_metric: row for row in rows
            } or {metric: Comparison(*pair, metric, PROTOCOLS[self._kind], Status.OK) for metric in JUDGED[self._kind]}

    def list_comparisons(self) -> list[Comparison]:
        return [row for rows in self._comparisons.values() for row in rows.values()]

    def count_rounds(self) -> int:
        """How many whole rounds an interrupted run took."""
        rows = [rows[self._device_metric] for rows in self._comparisons.values()]
        return min((len(row.base_ns) for row in rows if row.status is Status.OK), default=0)

    def take_round(self, index: int) -> None:
        """One more round of every pair that has not failed; the first failure ends the cells of a pair."""
        before = {pair: dict(rows) for pair, rows in self._comparisons.items()}
        for pair, rows in self._comparisons.items():
            device_time = rows[self._device_metric]
            if device_time.status is not Status.OK or len(device_time.base_ns) > index:
                continue
            try:
                self._measure(pair, index)
            except SideError as error:
                self._end(pair, error)
            except Stopped:
                self._comparisons = before
                raise

    def _measure(self, pair: Pair, index: int) -> None:
        """A round of a pair, in which every cell is first, last and in between equally often: A B C D D C B A, the next
        round B C D A A D C B."""
        if pair not in self._plans:
            self._plans[pair] = agree_on_plan(self.sides, *pair, self._budget_ns, 1)
        rows = self._comparisons[pair]
        first = index % len(self.sides)
        order = [*self.sides[first:], *self.sides[:first]]
        metrics = {
            self._ask(side, pair, "prepare", plan=self._plans[pair].plan, metrics=[*rows]).metric for side in order
        }
        if len(metrics) > 1:
            raise SideError(None, SampleReply(Status.UNSUPPORTED, "the four cells are measured by different metrics"))
        slices: dict[str, dict[str, list[float]]] = {metric: {name: [] for name in CELLS} for metric in rows}
        for side in [*order, *reversed(order)] * TURNS[self._kind]:
            reply = self._ask(side, pair, "sample")
            slices[self._device_metric][side.name].append(typical(reply.samples_ns, self._kind))
            if LAUNCH in slices and not reply.launch_ns:
                # Where a call of a cell waits for the device, nothing is told of the host's time of the others.
                del slices[LAUNCH], rows[LAUNCH]
            if LAUNCH in slices:
                slices[LAUNCH][side.name].append(typical(reply.launch_ns, LAUNCH))
        for side in order:
            self._ask(side, pair, "finish")
        for metric, of_cells in slices.items():
            row = rows[metric]
            taken = row.cells or CellRounds([], [], [], [])
            columns = taken.base_old, taken.head_old, taken.base_new, taken.head_new
            # Neighbouring slices see the same bursts of other work, so each cell counts as what its slices show.
            longer = [[*column, _middle(of_cells[name])] for column, name in zip(columns, CELLS, strict=True)]
            cells = CellRounds(*longer)
            name = metric if metric == LAUNCH else metrics.pop() or metric
            rows[metric] = replace(row, metric=name, base_ns=cells.base_ns, head_ns=cells.head_ns, cells=cells)

    def _ask(self, side: ComparedSide, pair: Pair, verb: str, **fields: Any) -> SampleReply:
        reply = side.ask(verb, *pair, self._budget_ns, 1, **fields)
        if reply.status is not Status.OK:
            raise SideError(side, reply)
        return reply

    def _end(self, pair: Pair, error: SideError) -> None:
        """Ends the cells of a pair; a child that still runs frees what `prepare` allocated."""
        for side in self.sides:
            if side.checkout.running:
                side.ask("finish", *pair, self._budget_ns, 1)
        name = error.side.name if error.side is not None else "all"
        reason = Reason.BASE_FAILED if name.startswith("base") else None
        device_time = self._comparisons[pair][self._device_metric]
        row = ended(device_time, error.reply.status, f"{name}: {error.reply.message}", reason)
        self._comparisons[pair] = {self._device_metric: row}


def _middle(slices: list[float]) -> float:
    """The mean of the middle half of some slices."""
    ordered = sorted(slices)
    cut = len(ordered) // 4
    kept = ordered[cut : len(ordered) - cut]
    return sum(kept) / len(kept)
