"""Work that a commit only moved between the forward and the backward pass, as A/B comparisons say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import permutations
from typing import TYPE_CHECKING, Any

from warpwatch.contract.case import parse_case
from warpwatch.contract.measurement import LAUNCH
from warpwatch.contract.report_facts import Trade
from warpwatch.contract.words import TradeKind
from warpwatch.server.verdicts.held import PairedOutcome
from warpwatch.server.verdicts.paired import severity

if TYPE_CHECKING:
    from warpwatch.db.reads.trades import TradedCell

_PASSES = {"fwd": "forward", "bwd": "backward", "fwd_train": "forward", "step": "step"}
"""The pass that a direction times."""


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
