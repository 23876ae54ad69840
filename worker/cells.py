"""Measures two commits under two toolchains on one device, in rounds of four fresh children that are alive at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from warpwatch.contract.measurement import JUDGED
from warpwatch.contract.messages import SampleReply
from warpwatch.contract.rounds import CellRounds
from warpwatch.contract.spec import BUDGET_NS, JobRequest
from warpwatch.contract.words import Status
from warpwatch.worker.compared_side import ComparedSide, SharedPlan, SideError, agree_on_plan
from warpwatch.worker.comparison import TURNS, Pair, planned_rounds, typical
from warpwatch.worker.crowd import drop_at_once, drop_idle_at_once, load_at_once
from warpwatch.worker.gate import expect_healthy
from warpwatch.worker.plan import plan_job, with_pairs
from warpwatch.worker.reporter import BoundedReporter, CannotRunError, Reporter
from warpwatch.worker.tools import Tools

CELLS = ("base, old toolchain", "head, old toolchain", "base, new toolchain", "head, new toolchain")


@dataclass(frozen=True, slots=True)
class ComparedCells:
    """The rounds of one variant on one case in all four cells; without rounds, status and message say why."""

    variant: str
    case: str
    rounds: CellRounds
    status: Status = Status.OK
    message: str = ""


def compare_cells(request: JobRequest, tools: Tools, reporter: Reporter, traces: Path) -> list[ComparedCells]:
    """Rounds of every pair in the four cells of `request`: its base and its commit, each under both of its toolchains.
    CannotRunError when nothing can be measured."""
    if request.spec.toolchains is None:
        raise CannotRunError("four cells need two toolchains")
    bounded = BoundedReporter(reporter)
    plan = with_pairs(plan_job(request, tools, bounded, traces, is_crossed=True), bounded)
    request, checkouts = plan.request, plan.checkouts
    drop_idle_at_once(checkouts)
    for checkout in checkouts:
        checkout.start_spares(1, bounded)
    peaks = tools.peaks(checkouts[0], bounded)
    expect_healthy(checkouts[0], tools.host.device, peaks, bounded, tools.host.last_canary)
    limits = tools.time_limits(peaks, bounded)
    sides = [
        ComparedSide(name, plan, checkout, bounded, limits) for name, checkout in zip(CELLS, checkouts, strict=True)
    ]
    load_at_once(checkouts, request.operator, bounded)
    for side in sides:
        side.load()
    plans: dict[Pair, SharedPlan] = {}
    results = {pair: ComparedCells(*pair, CellRounds([], [], [], [])) for pair in request.spec.pairs or []}
    count = planned_rounds(request.spec)
    for index in range(count):
        bounded.progress(index, count, f"round {index + 1} of {count}")
        if index:
            for checkout in checkouts:
                checkout.start_spares(1, bounded)
            drop_at_once(checkouts)
            load_at_once(checkouts, request.operator, bounded)
        for pair, result in results.items():
            if result.status is Status.OK:
                results[pair] = _round(result, sides, request, index, plans)
    bounded.progress(count, count, "")
    return list(results.values())


def _round(
    result: ComparedCells,
    sides: list[ComparedSide],
    request: JobRequest,
    index: int,
    plans: dict[Pair, SharedPlan],
) -> ComparedCells:
    """One more round, in which every cell is first, last and in between equally often: A B C D D C B A, the next round
    B C D A A D C B. The first failure ends the cells of this pair. plans: by pair, from its first round on."""
    kind, pair, budget_ns = sides[0].checkout.host.kind, (result.variant, result.case), request.spec.budget_ns
    if pair not in plans:
        try:
            plans[pair] = agree_on_plan(sides, *pair, budget_ns or BUDGET_NS, 1)
        except SideError as error:
            return _ended(result, sides, request, error.reply, error.side.name if error.side else "all")
    prepared: dict[str, Any] = {"plan": plans[pair].plan, "metrics": [JUDGED[kind][0]]}
    first = index % len(sides)
    order = [*sides[first:], *sides[:first]]
    steps = [("prepare", side) for side in order]
    steps += [("sample", side) for side in [*order, *reversed(order)] * TURNS[kind]]
    steps += [("finish", side) for side in order]
    slices: dict[str, list[float]] = {name: [] for name in CELLS}
    metrics: set[str] = set()
    for verb, side in steps:
        fields = prepared if verb == "prepare" else {}
        reply = side.ask(verb, *pair, budget_ns or BUDGET_NS, 1, **fields)
        metrics |= {reply.metric} if verb == "prepare" else set()
        if reply.status is not Status.OK or len(metrics) > 1:
            return _ended(result, sides, request, reply, side.name)
        if verb == "sample":
            slices[side.name].append(typical(reply.samples_ns, kind))
    rounds = result.rounds
    # Neighbouring slices see the same bursts of other work, so each cell counts as what its slices show together.
    base_old, head_old, base_new, head_new = (_middle(slices[name]) for name in CELLS)
    return replace(
        result,
        rounds=CellRounds(
            [*rounds.base_old, base_old],
            [*rounds.head_old, head_old],
            [*rounds.base_new, base_new],
            [*rounds.head_new, head_new],
        ),
    )


def _middle(slices: list[float]) -> float:
    """The mean of the middle half of some slices."""
    ordered = sorted(slices)
    cut = len(ordered) // 4
    kept = ordered[cut : len(ordered) - cut]
    return sum(kept) / len(kept)


def _ended(
    result: ComparedCells, sides: list[ComparedSide], request: JobRequest, reply: SampleReply, name: str
) -> ComparedCells:
    for side in sides:
        if side.checkout.running:
            side.ask("finish", result.variant, result.case, request.spec.budget_ns or BUDGET_NS, 1)
    status = reply.status if reply.status is not Status.OK else Status.UNSUPPORTED
    message = reply.message or "the four cells are measured by different metrics"
    return replace(result, rounds=CellRounds([], [], [], []), status=status, message=f"{name}: {message}")
