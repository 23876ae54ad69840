"""Recognises the digits of a coarser precision in a wrong result, by the reference on factors that are rounded to it.

Tensor cores round what they multiply to tf32 and sum in f32. A reference that rounds its factors alike then has the
same digits as the result, where the exact oracle differs in the fourth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..dispatch import DispatchMode
from ..problem import CaseData, CaseProblem

_BITS = {"tf32": 11, "bf16": 8}
"""Bits of a significand, the first of which is not stored."""
_CANDIDATES = {"f32": ("tf32", "bf16"), "3xtf32": ("tf32", "bf16"), "tf32": ("bf16",)}
_REMEDIES = {
    "tf32": "declare the case's precision as tf32, or turn off allow_tf32 / use input_precision='ieee' in tl.dot",
    "bf16": "declare the case's precision as bf16, or multiply and store in f32",
}
_MUCH_CLOSER = 0.4
"""A result shows these digits where its distance from the rounded reference is less than this share of its distance
from the oracle. Independent errors of the same size make the first distance the larger of the two."""
_PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "convolution")
"""Operators of torch whose factors tensor cores round, `convolution_backward` included."""


def find_digits(
    problem: CaseProblem, redraw: Callable[[], CaseData], name: str, result: Tensor, oracle: Tensor
) -> str | None:
    """The coarser precision whose digits the wrong `result` has; None where no rounding explains it.

    redraw: draws the inputs of the result again. oracle: the exact result of the same name.
    """
    if not result.dtype.is_floating_point or not result.numel():
        return None
    wide = result.detach().double()
    from_oracle = _distance(wide, oracle)
    for precision in _CANDIDATES.get(problem.case.precision, ()):
        try:
            rounded = list(_rounded_references(problem, redraw, precision))
        except (RuntimeError, ValueError):
            # The rounded inputs may leave the domain, and one more reference may not fit into the memory.
            continue
        if any(_distance(wide, other[name]) < _MUCH_CLOSER * from_oracle for other in rounded if name in other):
            return precision
    return None


def describe_digits(precision: str) -> str:
    """The end of a sentence about a result that has the digits of `precision`."""
    return f"; these digits are {precision}'s: {_REMEDIES[precision]}"


def _distance(result: Tensor, other: Tensor) -> float:
    return float(torch.linalg.vector_norm(result - other.double()))


def _rounded_references(
    problem: CaseProblem, redraw: Callable[[], CaseData], precision: str
) -> Iterator[dict[str, Tensor]]:
    """The reference in float64 with rounded factors of each product, then with rounded inputs. Hardware rounds to tf32
    to the nearest, or cuts digits off."""
    for round_to_integer in (torch.round, torch.trunc) if precision == "tf32" else (torch.round,):

        def rounded(tensor: Tensor, to_integer: Callable[[Tensor], Tensor] = round_to_integer) -> Tensor:
            return round_significand(tensor, _BITS[precision], to_integer)

        with ProductRounding(rounded) as factors:
            reference = problem.oracle(redraw())
        if factors.has_rounded:
            yield reference
        wide = problem.widened(redraw())
        yield problem.evaluate_reference(wide.map(lambda t: rounded(t) if t.dtype.is_floating_point else t))


def round_significand(tensor: Tensor, bits: int, to_integer: Callable[[Tensor], Tensor] = torch.round) -> Tensor:
    """The numbers with so many bits of their significands."""
    significand, exponent = torch.frexp(tensor)
    return torch.ldexp(to_integer(torch.ldexp(significand, torch.tensor(bits))), exponent - bits)


class ProductRounding(DispatchMode):  # type: ignore[no-untyped-call]
    """While active, rounds the factors of every product of matrices by `rounded`."""

    def __init__(self, rounded: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._rounded = rounded
        self.has_rounded = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func._schema.name.removeprefix("aten::").removesuffix("_backward")
        if name not in _PRODUCTS:
            return func(*args, **(kwargs or {}))
        self.has_rounded = True
        # The summand of a product, such as that of addmm, comes before its factors and is added in f32.
        first = 1 if name.startswith(("add", "badd")) else 0
        factors = [self._rounded(a) if isinstance(a, Tensor) and i >= first else a for i, a in enumerate(args)]
        return func(*factors, **(kwargs or {}))
