"""Costs of a commit's speedup: results that are less accurate or differ from call to call, more memory or energy, and
work that only moved between the forward and the backward pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import permutations
from typing import Any

from warpwatch.contract.case import parse_case
from warpwatch.db.reads.query import Session
from warpwatch.db.reads.trades import TradedCell, find_parent, list_traded_cells
from warpwatch.server.explanation.paired import PairedOutcome, list_paired_outcomes
from warpwatch.server.reports.formats import change
from warpwatch.server.verdicts.thresholds import thresholds_of
from warpwatch.server.verdicts.trials import severity

WORSE = 2.0
"""An error counts as larger from this ratio on: rounding alone moves it by less."""
LEAST_SHARE = 0.01
"""Part of the tolerance below which an error is as good as none."""
MORE_MEMORY, LEAST_BYTES = 1.05, 2**20
"""Memory counts as more from this ratio and by this many bytes on: allocators round each tensor up."""
MORE_ENERGY = 1.1
"""Energy counts as more from this ratio on. Nothing tells yet how far two runs of one commit are apart, so it is wide.
"""
MOST = 3
"""Trades that one commit's page lists."""


class TradeKind(StrEnum):
    ACCURACY = "accuracy"
    DETERMINISM = "determinism"
    MEMORY = "memory"
    ENERGY = "energy"
    KEPT = "kept"
    MOVED_WORK = "moved_work"


@dataclass(frozen=True, slots=True)
class Trade:
    """The worst case of a variant that became worse in one way. change: of its time, head over base; None where it was
    not timed on both sides. before, after: relative errors of the tensor, or bytes or joules of a call, which are those
    of no tensor. is_faster: by more than is confirmed. sentence: of moved work, what A/B comparisons say of each pass;
    its `change` is that of a step where they measured one."""

    kind: TradeKind
    operator: str
    variant: str
    case: str
    device_key: str
    tensor: str
    change: float | None
    is_faster: bool
    before: float | None = None
    after: float | None = None
    cases: int = 1
    sentence: str = ""


def find_trades(cells: Iterable[TradedCell]) -> list[Trade]:
    """One trade per kind, operator, variant and device: its worst case, and how many cases show it. Those that became
    faster come first."""
    trades: dict[tuple[str, ...], list[Trade]] = {}
    for cell in cells:
        for trade in _trades_of(cell):
            key = (trade.kind, trade.operator, trade.variant, trade.device_key)
            trades.setdefault(key, []).append(trade)
    worst = [max(group, key=_severity) for group in trades.values()]
    counts = [len({trade.case for trade in group}) for group in trades.values()]
    found = [replace(trade, cases=count) for trade, count in zip(worst, counts, strict=True)]
    return sorted(found, key=lambda trade: (not trade.is_faster, -_severity(trade)))


def _trades_of(cell: TradedCell) -> Iterator[Trade]:
    limit = thresholds_of(cell.device_kind).confirm_ratio
    is_faster = cell.change is not None and cell.change < 1 / limit
    place = (cell.operator, cell.variant, cell.case, cell.device_key)
    before, after = _tensors(cell.base), _tensors(cell.head)
    for name in before.keys() & after.keys():
        old, new = float(before[name]["relative"]), float(after[name]["relative"])
        floor = LEAST_SHARE * float(after[name]["tolerance"])
        if new > WORSE * max(old, floor):
            yield Trade(TradeKind.ACCURACY, *place, name, cell.change, is_faster, old, new)
    if "moving" in cell.base:
        for name in sorted(set(cell.head.get("moving", [])) - set(cell.base["moving"])):
            yield Trade(TradeKind.DETERMINISM, *place, name, cell.change, is_faster)
    if cell.base_bytes is not None and cell.head_bytes is not None:
        least = max(MORE_MEMORY * cell.base_bytes, cell.base_bytes + LEAST_BYTES)
        if cell.head_bytes > least:
            yield Trade(TradeKind.MEMORY, *place, "", cell.change, is_faster, cell.base_bytes, cell.head_bytes)
    if cell.base_kept is not None and cell.head_kept is not None:
        least = max(MORE_MEMORY * cell.base_kept, cell.base_kept + LEAST_BYTES)
        if cell.head_kept > least:
            yield Trade(TradeKind.KEPT, *place, "", cell.change, is_faster, cell.base_kept, cell.head_kept)
    if cell.base_joules is not None and cell.head_joules is not None:
        # A slower call takes more energy as well, which its time tells already.
        least = MORE_ENERGY * max(1.0, cell.change or 1.0) * cell.base_joules
        if cell.head_joules > least:
            yield Trade(TradeKind.ENERGY, *place, "", cell.change, is_faster, cell.base_joules, cell.head_joules)


def _tensors(details: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {tensor["name"]: tensor for tensor in details.get("tensors", [])}


def _severity(trade: Trade) -> float:
    return trade.after / max(trade.before, 1e-300) if trade.after is not None and trade.before is not None else 0.0


_PASSES = {
    "fwd": ("forward", "forward"),
    "bwd": ("backward", "backward"),
    "fwd_train": ("forward", "forward with gradients"),
    "step": ("step", "step"),
}
"""The pass that a direction times, and the name of the direction in a sentence."""


def read_trades(session: Session, commit_id: int) -> list[Trade]:
    """The trades of a commit, work that moved between the passes first."""
    cells, parent_id = list_traded_cells(session, commit_id), find_parent(session, commit_id)
    outcomes = list_paired_outcomes(session, parent_id, commit_id) if parent_id is not None else []
    return [*find_moved_work(outcomes, cells), *find_trades(cells)]


def find_moved_work(outcomes: Iterable[PairedOutcome], cells: Iterable[TradedCell]) -> list[Trade]:
    """Of each operator, variant and device the shape whose work moved farthest between the passes.

    outcomes: of A/B comparisons of a commit with its parent; times of separate runs say nothing here. cells: with the
    memory that is kept between the passes. Work has moved where one pass became faster and the other slower, or where a
    step does not have what a pass gained.
    """
    groups: dict[tuple[str, str, str, str], dict[str, PairedOutcome]] = {}
    for item in outcomes:
        with suppress(ValueError):
            case = parse_case(item.case)
            shape = replace(case, direction="fwd").key
            groups.setdefault((item.operator, item.variant, item.device_key, shape), {})[case.direction] = item
    kept = {
        (cell.operator, cell.variant, cell.device_key, cell.case): (cell.base_kept, cell.head_kept)
        for cell in cells
        if cell.base_kept is not None and cell.head_kept is not None
    }
    moved: dict[tuple[str, str, str], list[Trade]] = {}
    for (operator, variant, device_key, _), group in groups.items():
        if not _has_moved(group):
            continue
        shown = group.get("step") or max(group.values(), key=lambda item: severity(item.ratio or 1.0))
        places = [(operator, variant, device_key, item.case) for item in group.values()]
        before, after = next((kept[place] for place in places if place in kept), (None, None))
        trade = Trade(
            TradeKind.MOVED_WORK,
            operator,
            variant,
            shown.case,
            device_key,
            "",
            shown.ratio if "step" in group else None,
            is_faster="step" in group and shown.outcome == "faster",
            before=before,
            after=after,
            sentence=_moved_sentence(group, before, after),
        )
        moved.setdefault((operator, variant, device_key), []).append(trade)
    return [
        replace(max(group, key=lambda trade: severity(trade.change or 1.0)), cases=len(group))
        for group in moved.values()
    ]


def _has_moved(group: Mapping[str, PairedOutcome]) -> bool:
    confirmed = {(_PASSES[direction][0], item.outcome) for direction, item in group.items()}
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


def _moved_sentence(group: Mapping[str, PairedOutcome], before: float | None, after: float | None) -> str:
    """backward 4.0× faster, forward with gradients 1.9× slower, step 1.2× slower; kept memory +30 %."""
    parts = []
    for direction in ("bwd", "fwd", "fwd_train", "step"):
        item = group.get(direction)
        if item is None or item.outcome not in ("faster", "slower", "same"):
            continue
        name = _PASSES[direction][1]
        if item.outcome == "same" or item.ratio is None:
            parts.append(f"{name} the same")
        else:
            factor = severity(item.ratio)
            parts.append(f"{name} {factor:.{1 if factor >= 1.95 else 2}f}× {item.outcome}")
    text = ", ".join(parts)
    if before and after is not None and after != before:
        text += f"; kept memory {change(after / before)}"
    return text
