"""Costs of a commit's speedup: results that are less accurate or differ from call to call, and more memory or
energy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from warpwatch.db.reads.trades import TradedCell
from warpwatch.server.verdicts.thresholds import thresholds_of

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


@dataclass(frozen=True, slots=True)
class Trade:
    """The worst case of a variant that became worse in one way. change: of its time, head over base; None where it was
    not timed on both sides. before, after: relative errors of the tensor, or bytes or joules of a call, which are those
    of no tensor. is_faster: by more than is confirmed."""

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
    if cell.base_joules is not None and cell.head_joules is not None:
        # A slower call takes more energy as well, which its time tells already.
        least = MORE_ENERGY * max(1.0, cell.change or 1.0) * cell.base_joules
        if cell.head_joules > least:
            yield Trade(TradeKind.ENERGY, *place, "", cell.change, is_faster, cell.base_joules, cell.head_joules)


def _tensors(details: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {tensor["name"]: tensor for tensor in details.get("tensors", [])}


def _severity(trade: Trade) -> float:
    return trade.after / max(trade.before, 1e-300) if trade.after is not None and trade.before is not None else 0.0
