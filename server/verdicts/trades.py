"""What a commit traded for what: errors, bits that differ, memory, energy, machine code and waiting times, beside the
time; and one pass for the other.

Counts and errors are exact, so a difference between neighbouring commits of one environment is one. Energy and waiting
times are readings of one run each: a waiting time is suspected only, and far outside of its noise. Work that moved
between the passes is decided by A/B comparisons.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import permutations
from math import log
from statistics import median
from typing import TYPE_CHECKING, Any

from warpwatch.contract.case import parse_case
from warpwatch.contract.measurement import LAUNCH, METRICS
from warpwatch.contract.report_facts import Trade
from warpwatch.contract.words import BatchState, TradeKind
from warpwatch.server.verdicts.held import PairedOutcome, paired_outcomes
from warpwatch.server.verdicts.noise import Reading, detectable, learn
from warpwatch.server.verdicts.paired import severity
from warpwatch.server.verdicts.thresholds import thresholds_of

if TYPE_CHECKING:
    from warpwatch.db.reads.trades import TradedCell, TradedWait, TradeFacts

WORSE = 2.0
"""An error counts as larger from this ratio on: rounding alone moves it by less."""
LEAST_SHARE = 0.01
"""Part of the tolerance below which an error is as good as none."""
MORE_MEMORY, LEAST_BYTES = 1.05, 2**20
"""Memory counts as more from this ratio and by this many bytes on: allocators round each tensor up."""
LEAST_CODE_BYTES = 2**12
"""Of machine code, which is smaller than what calls allocate."""
MORE_ENERGY = 1.1
"""Energy counts as more from this ratio on. Nothing tells yet how far two runs of one commit are apart, so it is wide.
"""
LONGER, LEAST_SECONDS, FEWEST_WAITS = 1.25, 0.1, 3
"""A waiting time is suspected from this ratio and by so many seconds on, after so many readings before."""
DETECTABLE = 2.0
"""And from so many times the change on that history would suspect of a time with the same noise."""
LEFT = {"least": log(MORE_MEMORY), "least_error": log(WORSE)}
"""What may be left of an exact cost that a later gain gave back, of its logarithm; of an error the second one. Lists of
costs follow it here, and counts in db.reads.trades."""
_KEY = ("kind", "operator", "variant", "device_key", "is_worse")
_PASSES = {"fwd": "forward", "bwd": "backward", "fwd_train": "forward", "step": "step"}
"""The pass that a direction times."""


def find_trades(facts: TradeFacts) -> list[Trade]:
    """One trade per kind, operator, variant, device and direction: its worst case, and how many cases show it. Those
    that became faster come first, and what was paid before what was gained."""
    groups: dict[tuple[object, ...], list[Trade]] = {}
    bases = {(base.operator, base.device_key): base.sha for base in facts.bases}
    for trade in _all_trades(facts):
        if trade.kind != TradeKind.MOVED:
            trade = replace(trade, since=bases.get((trade.operator, trade.device_key)))
        groups.setdefault(tuple(getattr(trade, name) for name in _KEY), []).append(trade)
    found = [replace(max(group, key=distance), cases=len({trade.case for trade in group})) for group in groups.values()]
    return sorted(found, key=importance)


def importance(trade: Trade) -> tuple[bool, bool, float]:
    """Sort key: what was paid, of that for speed, of that the most."""
    return not trade.is_worse, not trade.is_faster, -distance(trade)


def open_costs(trades: Iterable[Trade]) -> list[Trade]:
    """The costs that no later commit gave back and nobody accepted, the newest first. trades: of one line, in order of
    history."""
    costs: dict[tuple[object, ...], list[Trade]] = {}
    for trade in trades:
        key = (trade.kind, trade.operator, trade.variant, trade.device_key)
        if trade.is_worse:
            costs.setdefault(key, []).append(trade)
        elif key in costs:
            costs[key] = [cost for cost in costs[key] if not _gives_back(trade, cost)]
    rest = [cost for group in costs.values() for cost in group if cost.accepted_by is None]
    return sorted((cost for cost in rest if cost.kind != TradeKind.ENERGY), key=lambda cost: -(cost.id or 0))


def _all_trades(facts: TradeFacts) -> Iterator[Trade]:
    for cell in facts.cells:
        yield from _trades_of(cell)
    for library in facts.libraries:
        plain = Trade(TradeKind.CODE, library.operator, "", "", library.device_key, "", None, is_faster=False)
        yield from _larger(replace(plain, before=library.base_bytes, after=library.head_bytes), LEAST_CODE_BYTES)
    for wait in facts.waits:
        yield from _trades_of_wait(wait)
    yield from find_moved_work(paired_outcomes(facts.pairs, facts.among), facts.cells)


def _trades_of(cell: TradedCell) -> Iterator[Trade]:
    limit = thresholds_of(cell.device_kind).confirm_ratio
    plain = Trade(
        TradeKind.MEMORY,
        cell.operator,
        cell.variant,
        cell.case,
        cell.device_key,
        "",
        cell.change,
        cell.change is not None and cell.change < 1 / limit,
        metric=METRICS[cell.device_kind][0],
    )
    yield from _trades_of_checks(cell, plain)
    old, new = (
        {name: counter["median"] for name, counter in counters.items() if counter["unit"] == "bytes"}
        for counters in (cell.base_counters, cell.head_counters)
    )
    for name in old.keys() & new.keys():
        kind = TradeKind.KEPT if name == "kept" else TradeKind.MEMORY
        yield from _larger(replace(plain, kind=kind, before=old[name], after=new[name]), LEAST_BYTES)
    if cell.base_joules is not None and cell.head_joules is not None:
        # A slower call takes more energy as well, which its time tells already.
        least = MORE_ENERGY * max(1.0, cell.change or 1.0) * cell.base_joules
        if cell.head_joules > least:
            yield replace(plain, kind=TradeKind.ENERGY, before=cell.base_joules, after=cell.head_joules)


def _trades_of_checks(cell: TradedCell, plain: Trade) -> Iterator[Trade]:
    before, after = (
        {tensor["name"]: tensor for tensor in details.get("tensors", [])} for details in (cell.base, cell.head)
    )
    for name in before.keys() & after.keys():
        old, new = float(before[name]["relative"]), float(after[name]["relative"])
        floor = LEAST_SHARE * float(after[name]["tolerance"])
        if max(old, new) > WORSE * max(min(old, new), floor):
            yield replace(plain, kind=TradeKind.ACCURACY, tensor=name, before=old, after=new, is_worse=new > old)
    if "moving" in cell.base and "moving" in cell.head:
        counted = replace(plain, kind=TradeKind.DETERMINISM)
        if cell.base.get("differing") is not None and cell.head.get("differing") is not None:
            counted = replace(counted, before=cell.base["differing"], after=cell.head["differing"])
        for name in sorted(set(cell.head["moving"]) - {*cell.base["moving"], *cell.moved}):
            yield replace(counted, tensor=name)
        if cell.base["moving"] and not cell.head["moving"]:
            yield replace(counted, tensor=cell.base["moving"][0], is_worse=False)
    base, head = cell.base.get("batch") or {}, cell.head.get("batch") or {}
    states = {base.get("state"), head.get("state")}
    if states == {BatchState.INVARIANT, BatchState.DEPENDENT}:
        old, new = (rows["changed"] / max(rows["rows"], 1) for rows in (base, head))
        yield replace(plain, kind=TradeKind.BATCH, before=old, after=new, is_worse=new > old)


def _larger(trade: Trade, least_bytes: int) -> Iterator[Trade]:
    """The trade where one of its values is larger than the other."""
    assert trade.before is not None
    assert trade.after is not None
    small, large = sorted((trade.before, trade.after))
    if large > max(MORE_MEMORY * small, small + least_bytes):
        yield replace(trade, is_worse=trade.after > trade.before)


def _trades_of_wait(wait: TradedWait) -> Iterator[Trade]:
    """What history would suspect of a time with this noise and then some: one reading per run, taken on a busy host."""
    if len(wait.earlier) < FEWEST_WAITS:
        return
    level = median(wait.earlier)
    readings = [Reading(-place, -place, 0, *(value * 1e9,) * 3) for place, value in enumerate(wait.earlier)]
    least = max(LONGER, 1 + DETECTABLE * detectable(learn(readings, wait.device_kind), wait.device_kind))
    ratio = max(wait.seconds / level, level / wait.seconds)
    if ratio > least and abs(wait.seconds - level) > LEAST_SECONDS:
        place = TradeKind(wait.kind), wait.operator, wait.variant, wait.case, wait.device_key, ""
        yield Trade(
            *place,
            change=None,
            is_faster=False,
            before=level,
            after=wait.seconds,
            is_worse=wait.seconds > level,
            is_exact=False,
        )


def distance(trade: Trade) -> float:
    """How far the values of a trade are apart, by their logarithms; of moved work, how far the step moved."""
    if trade.kind == TradeKind.MOVED:
        return log(severity(trade.change or 1.0))
    if trade.kind in (TradeKind.DETERMINISM, TradeKind.BATCH) or trade.before is None or trade.after is None:
        return 0.0
    return abs(log(max(trade.after, 1e-300) / max(trade.before, 1e-300)))


def _gives_back(gain: Trade, cost: Trade) -> bool:
    """Whether a later gain leaves less of a cost than would count as one."""
    if gain.kind in (TradeKind.DETERMINISM, TradeKind.BATCH):
        return True
    name = "least_error" if gain.kind == TradeKind.ACCURACY else "least"
    return distance(cost) - distance(gain) <= (LEFT[name] if cost.is_exact else log(LONGER))


def find_moved_work(outcomes: Iterable[PairedOutcome], cells: Iterable[TradedCell]) -> Iterator[Trade]:
    """A trade for each shape whose work moved between the passes.

    outcomes: of A/B comparisons of a commit with its parent; times of separate runs say nothing here. cells: with the
    memory that is kept between the passes. Work has moved where one pass became faster and the other slower, or where a
    step does not have what a pass gained. A commit has paid for it unless the step is known to be no slower.
    """
    groups: dict[tuple[str, str, str, str], dict[str, PairedOutcome]] = {}
    for item in outcomes:
        # The host's time of a call is a signal of its own: it is no work of the device that could move.
        if item.metric == LAUNCH:
            continue
        with suppress(ValueError):
            case = parse_case(item.case)
            shape = replace(case, direction="fwd").key
            groups.setdefault((item.operator, item.variant, item.device_key, shape), {})[case.direction] = item
    kept = {
        (cell.operator, cell.variant, cell.device_key, cell.case): (before, after)
        for cell in cells
        if (before := _kept(cell.base_counters)) is not None and (after := _kept(cell.head_counters)) is not None
    }
    for (operator, variant, device_key, _), group in groups.items():
        if not _has_moved(group):
            continue
        step = group.get("step")
        shown = step or max(group.values(), key=lambda item: severity(item.ratio or 1.0))
        places = [(operator, variant, device_key, item.case) for item in group.values()]
        before, after = next((kept[place] for place in places if place in kept), (None, None))
        yield Trade(
            TradeKind.MOVED,
            operator,
            variant,
            shown.case,
            device_key,
            "",
            step.ratio if step is not None else None,
            is_faster=False,
            before=before,
            after=after,
            is_worse=step is None or step.outcome in ("slower", "unsure"),
            metric=shown.metric,
            passes=_changes(group),
        )


def _has_moved(group: Mapping[str, PairedOutcome]) -> bool:
    confirmed = {(_PASSES[direction], item.outcome) for direction, item in group.items()}
    if any({(one, "faster"), (other, "slower")} <= confirmed for one, other in permutations(("forward", "backward"))):
        return True
    step = group.get("step")
    return step is not None and any(_is_missing(item, step) for name, item in group.items() if name != "step")


def _is_missing(item: PairedOutcome, step: PairedOutcome) -> bool:
    """Whether a pass became faster by more than the whole interval of the step allows. Of a step that takes ten times
    as long as the pass, a gain of 5 % is half a percent."""
    if item.outcome != "faster" or step.outcome == "unsure" or step.low is None or item.metric != step.metric:
        return False
    if item.base_ns is None or item.head_ns is None or step.base_ns is None:
        return False
    return step.low > 1 - (item.base_ns - item.head_ns) / step.base_ns


def _changes(group: Mapping[str, PairedOutcome]) -> dict[str, float | None]:
    """What comparisons decided of each direction: its ratio, None where it is the same."""
    return {
        direction: group[direction].ratio if group[direction].outcome != "same" else None
        for direction in ("bwd", "fwd", "fwd_train", "step")
        if direction in group and group[direction].outcome in ("faster", "slower", "same")
    }


def _kept(counters: dict[str, Any]) -> float | None:
    value = counters["kept"].get("median") if isinstance(counters.get("kept"), dict) else None
    return float(value) if isinstance(value, int | float) else None
