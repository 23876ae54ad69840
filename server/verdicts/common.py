"""What all that changed has in common, and nothing that stayed the same has. Pure: cells in, words out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

MOST_VALUES = 3
"""More names than these in a row describe nothing."""
MOST_STATEMENTS = 3
LEAST_CELLS = 2
"""A single cell has everything in common with itself."""
LEAST_FOR_PAIRS = 3
DIVISORS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True, slots=True)
class Cell:
    """One variant on one case and device."""

    operator: str
    variant: str
    sizes: Mapping[str, Any]
    precision: str
    direction: str
    layout: str
    device: str


@dataclass(frozen=True, slots=True)
class _Statement:
    """Something that holds for all that changed. same: the bits of those cells that stayed the same and for which it holds too.

    subject: what it is about. family: name | value | bound | divisor.
    """

    text: str
    subject: str
    family: str
    same: int


def find_common(changed: Sequence[Cell], same: Sequence[Cell], unclear: Sequence[Cell] = ()) -> list[str]:
    """Statements that hold for every changed cell and for none that stayed the same; empty when nothing simple separates them.

    A cell that is unclear, which may have changed too, must not contradict: what does not hold for it is not said. Two properties
    together are tried when no single one will do.
    """
    if len(changed) < LEAST_CELLS:
        return []
    if not same:
        operators = _values(changed, lambda cell: cell.operator)
        return [f"every case of {_listed(sorted(operators))}"] if len(operators) <= MOST_VALUES and not unclear else []
    statements = list(_statements(changed, same, unclear))
    alone = {(one.subject, one.family): one.text for one in reversed(statements) if not one.same}
    if alone:
        first, *others = list(alone.values())[::-1]
        return [f"only {first}", *others[: MOST_STATEMENTS - 1]]
    if len(changed) < LEAST_FOR_PAIRS:
        return []
    together = (
        f"only {one.text}{', ' if other.family == 'name' else ' where '}{other.text}"
        for one, other in combinations(statements, 2)
        if one.subject != other.subject and not one.same & other.same
    )
    return [text for text in [next(together, None)] if text]


def _statements(changed: Sequence[Cell], same: Sequence[Cell], unclear: Sequence[Cell]) -> Iterable[_Statement]:
    """Everything simple that holds for all that changed or may have, the plainest first; what holds for all of `same` too says nothing."""
    everything = (1 << len(same)) - 1
    for text, subject, family, holds in [*_names(changed), *_sizes(changed, [*same, *unclear])]:
        if not all(map(holds, unclear)):
            continue
        bits = sum(1 << place for place, cell in enumerate(same) if holds(cell))
        if bits != everything:
            yield _Statement(text, subject, family, bits)


_Property = tuple[str, str, str, Callable[[Cell], bool]]
_SUBJECTS: tuple[tuple[str, Callable[[Cell], str], str], ...] = (
    ("operator", lambda cell: cell.operator, "{}"),
    ("variant", lambda cell: cell.variant, "{}"),
    ("direction", lambda cell: {"fwd": "forward", "bwd": "backward"}.get(cell.direction, cell.direction), "{}"),
    ("precision", lambda cell: cell.precision, "{}"),
    ("layout", lambda cell: cell.layout, "{}"),
    ("device", lambda cell: cell.device, "on {}"),
)


def _names(changed: Sequence[Cell]) -> Iterable[_Property]:
    for subject, read, form in _SUBJECTS:
        values = _values(changed, read)
        if len(values) <= MOST_VALUES:
            yield form.format(_listed(sorted(values))), subject, "name", lambda cell, read=read, values=values: read(cell) in values  # type: ignore[misc]


def _sizes(changed: Sequence[Cell], others: Sequence[Cell]) -> Iterable[_Property]:
    """Properties of every size that all cells have."""
    cells = [*changed, *others]
    for name in cells[0].sizes:
        if not all(name in cell.sizes for cell in cells):
            continue
        if all(_is_number(cell.sizes[name]) for cell in cells):
            for words, read in _readings(name, cells):
                yield from _numbers(words, read, changed)
            continue
        values = _values(changed, lambda cell, name=name: str(cell.sizes[name]))  # type: ignore[misc]
        if len(values) <= MOST_VALUES:
            text = f"{name} = {_listed(sorted(values))}"
            yield text, name, "value", lambda cell, name=name, values=values: str(cell.sizes[name]) in values  # type: ignore[misc]


def _is_number(value: Any) -> bool:
    """Whether a size is a number or a list of numbers."""
    return all(type(one) is int for one in value) if isinstance(value, list | tuple) else type(value) is int


def _readings(name: str, cells: Sequence[Cell]) -> Iterable[tuple[str, Callable[[Cell], int]]]:
    """A size as numbers: itself, or of a list its length, its least and its largest."""
    if all(isinstance(cell.sizes[name], int) for cell in cells):
        yield name, lambda cell: int(cell.sizes[name])
        return
    folds: tuple[tuple[str, Callable[[Sequence[int]], int]], ...] = (
        (f"number of {name}", len), (f"largest of {name}", max), (f"least of {name}", min),
    )  # fmt: skip
    for words, fold in folds:
        yield words, lambda cell, fold=fold: fold(_list(cell.sizes[name]))  # type: ignore[misc]


def _numbers(words: str, read: Callable[[Cell], int], changed: Sequence[Cell]) -> Iterable[_Property]:
    values = _values(changed, read)
    if len(values) == 1:
        (value,) = values
        yield f"{words} = {value}", words, "value", lambda cell: read(cell) == value
        return
    least, most = min(values), max(values)
    yield f"{words} ≥ {least}", words, "bound", lambda cell: read(cell) >= least
    yield f"{words} ≤ {most}", words, "bound", lambda cell: read(cell) <= most
    # Of several divisors that tell them apart, the largest is that of a tile.
    for divisor in reversed(DIVISORS):
        if all(value % divisor for value in values):
            yield f"{words} % {divisor} ≠ 0", words, "divisor", lambda cell, divisor=divisor: read(cell) % divisor != 0  # type: ignore[misc]
        elif all(value % divisor == 0 for value in values):
            yield f"{words} % {divisor} = 0", words, "divisor", lambda cell, divisor=divisor: read(cell) % divisor == 0  # type: ignore[misc]


def _values(cells: Iterable[Cell], read: Callable[[Cell], Any]) -> set[Any]:
    return {read(cell) for cell in cells}


def _list(value: Any) -> Sequence[int]:
    return [value] if isinstance(value, int) else value or [0]


def _listed(names: Sequence[Any]) -> str:
    """`v1`, `v3 and triton`, `a, b and c`."""
    *first, last = map(str, names)
    return f"{', '.join(first)} and {last}" if first else last
