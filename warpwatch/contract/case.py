"""Cases and their keys, such as `m=4096,k=512,bf16,fwd`: written, parsed, and derived where none is declared."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from .number_formats import NumberFormat, is_number_format, number_format, peak_of

Precision = Literal["f64", "f32", "3xtf32", "tf32", "bf16", "f16", "i32"]
"""3xtf32 is f32 in memory, each number multiplied as a sum of two that tensor cores take: three products instead of
one."""

Direction = Literal["fwd", "bwd", "step", "fwd_train"]
"""fwd: the forward pass without gradients. bwd: the gradients alone, with the forward pass done beforehand. step: a
training step, the forward pass with gradients recorded and the backward pass in one call. fwd_train: the forward pass
of a step alone, cuDNN's forward training."""

Size = int | tuple[int, ...] | str
"""A number, a list of numbers, or the number format of a tensor, such as `a=e4m3-row`."""

PRECISIONS: tuple[str, ...] = get_args(Precision)
DIRECTIONS: tuple[str, ...] = get_args(Direction)
ELEMENT_BYTES: Mapping[str, int] = {"f64": 8, "f32": 4, "3xtf32": 4, "tf32": 4, "bf16": 2, "f16": 2, "i32": 4}


@dataclass(frozen=True, slots=True)
class Case:
    """One concrete problem: sizes, number formats, precision, direction and layout.

    `key` is its stable name in the database, in URLs and on the command line, such as
    `batch=32,factors=128x128,f32,fwd`.
    """

    sizes: tuple[tuple[str, Size], ...]
    precision: Precision = "f32"
    direction: Direction = "fwd"
    layout: str = "contiguous"

    def __getitem__(self, name: str) -> Any:
        """The size called `name`: an int, a tuple of ints for sizes such as `factors=128x128`, or the name of a number
        format."""
        return dict(self.sizes)[name]

    def number_format(self, name: str) -> NumberFormat:
        """The number format called `name`, such as that of `a` in `a=e4m3-row`; its `count_bytes(rows, columns)` counts
        the scales as well."""
        return number_format(self[name])

    @property
    def peak(self) -> str:
        """The name of the measured peak of its products: their precision, or `e4m3`, `e2m1`, `i8`."""
        return peak_of(tuple(size for _, size in self.sizes if isinstance(size, str)), self.precision)

    @property
    def key(self) -> str:
        parts = [f"{name}={_size_text(size)}" for name, size in self.sizes]
        parts += [self.precision, self.direction]
        if self.layout != "contiguous":
            parts.append(self.layout)
        return ",".join(parts)

    @property
    def as_declared(self) -> Case:
        """The case as the functions of an operator file see it, which know fwd and bwd alone: a direction that records
        gradients needs the inputs of bwd, and a variant that supports it."""
        return self if self.direction == "fwd" else replace(self, direction="bwd")

    @property
    def element_bytes(self) -> int:
        return ELEMENT_BYTES[self.precision]


def parse_case(key: str) -> Case:
    """The case of a complete key; ValueError for any other text."""
    parts = [part.strip() for part in key.split(",")]
    sizes = tuple(_size(part) for part in parts if "=" in part)
    words = [part for part in parts if "=" not in part]
    if not sizes or not 2 <= len(words) <= 3:
        raise ValueError(f"{key!r} is no case: give sizes, precision and direction, such as n=1024,f32,fwd")
    precision, direction, *layout = words
    if precision not in PRECISIONS or direction not in DIRECTIONS:
        known = f"{', '.join(PRECISIONS)}; {', '.join(DIRECTIONS)}"
        raise ValueError(f"{key!r} is no case: {precision},{direction} is not a precision and a direction ({known})")
    return Case(sizes, precision, direction, *layout)  # type: ignore[arg-type]


def peak_of_case(key: str, precision: str | None) -> str | None:
    """The name of the measured peak of a case's products, by its key; the precision where the key is a program's."""
    try:
        return parse_case(key).peak
    except ValueError:
        return precision


def derive_case(text: str, declared: Sequence[Case]) -> Case:
    """A case of an operator that it does not declare: sizes of the same names as those of a declared case.

    text: a key whose sizes may stand in any order, and which may lack precision (that of the first declared case),
    direction (fwd) and layout. An operator with backward cases has those of every direction. ValueError names what the
    operator does not know.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    given = dict(_size(part) for part in parts if "=" in part)
    like = [case for case in declared if _takes(case, given)]
    if not like:
        shapes = dict.fromkeys(",".join(f"{name}={_size_text(size)}" for name, size in case.sizes) for case in declared)
        raise ValueError(f"{text!r} has other sizes than the operator: give sizes such as {' or '.join([*shapes][:3])}")
    options: dict[str, list[str]] = {
        name: list(dict.fromkeys(getattr(case, name) for case in like)) for name in ("precision", "direction", "layout")
    }
    if "bwd" in options["direction"]:
        options["direction"] = list(dict.fromkeys([*options["direction"], *DIRECTIONS]))
    chosen = {name: values[0] for name, values in options.items()}
    for word in (part for part in parts if "=" not in part):
        name = next((name for name, values in options.items() if word in values), None)
        if name is None:
            known = ", ".join(word for values in options.values() for word in values)
            raise ValueError(f"{text!r}: the operator has no cases in {word!r}; choose from {known}")
        chosen[name] = word
    sizes = tuple((name, _like(given[name], [case[name] for case in like])) for name, _ in like[0].sizes)
    return Case(sizes, **chosen)  # type: ignore[arg-type]


def _size(part: str) -> tuple[str, Size]:
    name, _, value = part.partition("=")
    if not re.fullmatch(r"[A-Za-z_]\w{0,40}", name):
        raise ValueError(f"{part!r} is no size: give a name and whole numbers, such as n=1024 or factors=8x8")
    if is_number_format(value):
        return name, value
    if not re.fullmatch(r"\d{1,12}(x\d{1,12}){0,15}", value):
        raise ValueError(
            f"{part!r} is no size: give whole numbers, such as n=1024 or factors=8x8, or a number format, such as "
            "a=e4m3-row"
        )
    numbers = tuple(map(int, value.split("x")))
    return name, numbers if len(numbers) > 1 else numbers[0]


def _takes(case: Case, given: Mapping[str, Size]) -> bool:
    """Whether these sizes have the names of the case's, are lists of numbers only where its are, and have its number
    formats."""
    sizes = dict(case.sizes)
    return sizes.keys() == given.keys() and all(
        size == sizes[name]
        if isinstance(size, str) or isinstance(sizes[name], str)
        else isinstance(size, int) or isinstance(sizes[name], tuple)
        for name, size in given.items()
    )


def _like(size: Size, declared: Sequence[Size]) -> Size:
    """The size as a list of one where the declared ones are all lists, which a key does not tell from a number."""
    return (size,) if isinstance(size, int) and all(isinstance(value, tuple) for value in declared) else size


def _size_text(size: Size) -> str:
    return "x".join(map(str, size)) if isinstance(size, tuple) else str(size)
