"""Finds the pattern of an event: what all affected cases share and no unaffected case has. Only `with_common` reads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from math import log
from typing import Any

from warpwatch.db.reads.cells import CellAround, list_cells_around
from warpwatch.db.reads.events import EventRow
from warpwatch.db.reads.query import Session
from warpwatch.db.regressions import RegressionRow

NOTABLE_SHARE, NOTABLE_CHANGE, LARGEST_SHARE = 0.3, 0.02, 0.5
"""A case without an A/B result counts as unaffected when its time moved by less than the first share of the least
confirmed change. For small changes the bound is the second value, because of noise, but at most the third share.
"""
NEITHER = ("unsupported", "skipped")
MOST_VALUES = 3
"""More names than these in a row describe nothing."""
MOST_STATEMENTS = 3
LEAST_CELLS = 2
"""A single cell has everything in common with itself."""
LEAST_FOR_PAIRS = 3
DIVISORS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_Property = tuple[str, str, Callable[[Any], bool]]
_DIRECTIONS = {"fwd": "forward", "bwd": "backward", "step": "training step", "fwd_train": "forward training"}


def with_common(session: Session, events: Sequence[EventRow]) -> list[EventRow]:
    """The events with their `common` pattern; only confirmed regressions have one."""
    rows = {row.id: row for event in events for row in event.regressions if row.verdict == "confirmed"}
    cells = defaultdict(list)
    for cell in list_cells_around(session, rows) if rows else []:
        cells[cell.regression_id].append(cell)
    return [replace(event, common=_common([(row, cells[row.id]) for row in event.regressions])) for event in events]


def _common(parts: Sequence[tuple[RegressionRow, list[CellAround]]]) -> str:
    sorted_in: dict[str, list[CellAround]] = {"changed": [], "same": [], "unclear": []}
    for row, cells in parts:
        least = min(
            (abs(log(cell.decided)) for cell in cells if cell.verdict == "confirmed" and cell.decided), default=0.0
        )
        for cell in cells:
            fate = _fate(row, cell, least)
            if fate is not None:
                sorted_in[fate].append(cell)
    return "; ".join(find_common(sorted_in["changed"], sorted_in["same"], sorted_in["unclear"]))


def _fate(row: RegressionRow, cell: CellAround, least: float) -> str | None:
    """changed | same | unclear; None where too little is known of the cell.

    least: the least confirmed change, as a logarithm.
    """
    if cell.verdict == "confirmed":
        return "changed"
    if row.direction == "broken":
        if cell.base_status != "ok" or cell.head_status in (None, *NEITHER):
            return None
        return "same" if cell.head_status == "ok" else "unclear"
    if cell.verdict is not None:
        return "same" if cell.verdict == "dismissed" else "unclear"
    if cell.ratio is None:
        return None
    moved = log(cell.ratio) if row.direction == "slower" else -log(cell.ratio)
    bound = min(max(NOTABLE_SHARE * least, NOTABLE_CHANGE), LARGEST_SHARE * least)
    return "unclear" if moved > bound else "same"


@dataclass(frozen=True, slots=True)
class _Statement:
    """Something that holds for all that changed.

    same: the bits of those cells that stayed the same and for which it holds too.

    subject: what it is about. family: name | value | bound | divisor.
    """

    text: str
    subject: str
    family: str
    same: int


def find_common(
    changed: Sequence[CellAround], same: Sequence[CellAround], unclear: Sequence[CellAround] = ()
) -> list[str]:
    """Statements that hold for every changed cell and for none that stayed the same; empty when nothing simple
    separates them.

    A statement that does not hold for an unclear cell, which may have changed too, is left out. Two properties together
    are tried when no single property separates the cells.
    """
    if len(changed) < LEAST_CELLS:
        return []
    if not same:
        operators = {cell.operator for cell in changed}
        return [f"every case of {_listed(sorted(operators))}"] if len(operators) <= MOST_VALUES and not unclear else []
    statements = list(_statements(changed, same, unclear))
    sufficient = {(item.subject, item.family): item.text for item in reversed(statements) if not item.same}
    if sufficient:
        plainest, *others = list(sufficient.values())[::-1]
        return [f"only {plainest}", *others[: MOST_STATEMENTS - 1]]
    if len(changed) < LEAST_FOR_PAIRS:
        return []
    together = (
        f"only {first.text}{', ' if second.family == 'name' else ' where '}{second.text}"
        for first, second in combinations(statements, 2)
        if first.subject != second.subject and not first.same & second.same
    )
    return [text for text in [next(together, None)] if text]


def _statements(
    changed: Sequence[CellAround], same: Sequence[CellAround], unclear: Sequence[CellAround]
) -> Iterable[_Statement]:
    """Everything simple that holds for all that changed or may have, the plainest first; what holds for all of `same`
    too says nothing."""
    everything = (1 << len(same)) - 1
    for reading in _readings([*changed, *same, *unclear]):
        # Each reading is taken once, because there are more properties than readings.
        values = reading.values
        changed_values, same_values, unclear_values = (
            values[: len(changed)],
            values[len(changed) : len(changed) + len(same)],
            values[len(changed) + len(same) :],
        )
        for text, family, holds in reading.properties(set(changed_values)):
            bits = sum(1 << place for place, value in enumerate(same_values) if holds(value))
            if bits != everything and all(map(holds, unclear_values)):
                yield _Statement(reading.form.format(text), reading.subject, family, bits)


@dataclass(frozen=True, slots=True)
class _Reading:
    """One value read from every cell. form: the template of a statement about it."""

    subject: str
    form: str
    values: list[Any]
    properties: Callable[[set[Any]], Iterable[_Property]]


def _readings(cells: Sequence[CellAround]) -> Iterable[_Reading]:
    for name in ("operator", "variant", "direction", "precision", "layout", "device"):
        values = [getattr(cell, name) for cell in cells]
        if name == "direction":
            values = [_DIRECTIONS.get(value, value) for value in values]
        yield _Reading(name, "on {}" if name == "device" else "{}", values, _names)
    for name in cells[0].sizes:
        if all(name in cell.sizes for cell in cells):
            yield from _size_readings(name, [cell.sizes[name] for cell in cells])


def _size_readings(name: str, values: list[Any]) -> Iterable[_Reading]:
    """A size as it is; lists of numbers by their length, their least and their largest."""
    if all(type(value) is int for value in values):
        yield _Reading(name, name + " {}", values, _numbers)
    elif all(
        isinstance(value, list | tuple) and value and all(type(number) is int for number in value) for value in values
    ):
        yield _Reading(f"number of {name}", f"number of {name} {{}}", [len(value) for value in values], _numbers)
        yield _Reading(f"largest of {name}", f"largest of {name} {{}}", [max(value) for value in values], _numbers)
        yield _Reading(f"least of {name}", f"least of {name} {{}}", [min(value) for value in values], _numbers)
    else:
        yield _Reading(name, name + " = {}", [str(value) for value in values], _names)


def _names(values: set[Any]) -> Iterable[_Property]:
    if len(values) <= MOST_VALUES:
        yield _listed(sorted(values)), "name", values.__contains__


def _numbers(values: set[Any]) -> Iterable[_Property]:
    least, most = min(values), max(values)
    if least == most:
        yield f"= {least}", "value", least.__eq__
        return
    yield f"≥ {least}", "bound", least.__le__
    yield f"≤ {most}", "bound", most.__ge__
    # Of several divisors that tell them apart, the largest is that of a tile.
    for divisor in reversed(DIVISORS):
        if all(value % divisor for value in values):
            yield f"% {divisor} ≠ 0", "divisor", partial(_is_multiple, divisor, False)
        elif not any(value % divisor for value in values):
            yield f"% {divisor} = 0", "divisor", partial(_is_multiple, divisor, True)


def _is_multiple(divisor: int, expected: bool, value: int) -> bool:
    """Whether `divisor` divides `value`, compared with `expected`."""
    return (value % divisor == 0) is expected


def _listed(names: Sequence[Any]) -> str:
    """`v1`, `v3 and triton`, `a, b and c`."""
    *first, last = map(str, names)
    return f"{', '.join(first)} and {last}" if first else last
