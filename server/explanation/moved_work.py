"""Work that a commit only moved between the forward and the backward pass, as A/B comparisons say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

from warpwatch.contract.case import parse_case
from warpwatch.contract.measurement import LAUNCH
from warpwatch.db.reads.query import Session
from warpwatch.db.reads.trades import TradedCell, find_parent
from warpwatch.server.explanation.paired import PairedOutcome, list_paired_outcomes
from warpwatch.server.reports.formats import change
from warpwatch.server.verdicts.paired import severity


@dataclass(frozen=True, slots=True)
class MovedWork:
    """The shape of a variant of which work moved farthest between the passes.

    change: of a step, head over base; None where no comparison measured one. before, after: bytes that are kept between
    the passes, None where nobody counted them. sentence: what A/B comparisons say of each pass. cases: shapes of which
    work moved.
    """

    operator: str
    variant: str
    case: str
    device_key: str
    change: float | None
    before: float | None
    after: float | None
    sentence: str
    cases: int = 1


_PASSES = {
    "fwd": ("forward", "forward"),
    "bwd": ("backward", "backward"),
    "fwd_train": ("forward", "forward with gradients"),
    "step": ("step", "step"),
}
"""The pass that a direction times, and the name of the direction in a sentence."""


def read_moved_work(session: Session, commit_id: int, cells: Iterable[TradedCell]) -> list[MovedWork]:
    """What moved at a commit, by comparisons with its first parent. cells: those of the commit."""
    parent_id = find_parent(session, commit_id)
    outcomes = list_paired_outcomes(session, parent_id, commit_id) if parent_id is not None else []
    return find_moved_work(outcomes, cells)


def find_moved_work(outcomes: Iterable[PairedOutcome], cells: Iterable[TradedCell]) -> list[MovedWork]:
    """Of each operator, variant and device the shape whose work moved farthest between the passes.

    outcomes: of A/B comparisons of a commit with its parent; times of separate runs say nothing here. cells: with the
    memory that is kept between the passes. Work has moved where one pass became faster and the other slower, or where a
    step does not have what a pass gained.
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
    moved: dict[tuple[str, str, str], list[MovedWork]] = {}
    for (operator, variant, device_key, _), group in groups.items():
        if not _has_moved(group):
            continue
        shown = group.get("step") or max(group.values(), key=lambda item: severity(item.ratio or 1.0))
        places = [(operator, variant, device_key, item.case) for item in group.values()]
        before, after = next((kept[place] for place in places if place in kept), (None, None))
        work = MovedWork(
            operator,
            variant,
            shown.case,
            device_key,
            shown.ratio if "step" in group else None,
            before,
            after,
            _moved_sentence(group, before, after),
        )
        moved.setdefault((operator, variant, device_key), []).append(work)
    return [
        replace(max(group, key=lambda work: severity(work.change or 1.0)), cases=len(group)) for group in moved.values()
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


def _kept(counters: dict[str, Any]) -> float | None:
    value = counters["kept"].get("median") if isinstance(counters.get("kept"), dict) else None
    return float(value) if isinstance(value, int | float) else None
