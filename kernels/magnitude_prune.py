"""The largest magnitudes of a tensor: exactly `keep` of them, of equal ones the first, and zero elsewhere.

The outputs are the pruned tensor and the mask of what is kept; the gradient of the pruned tensor passes where the mask
is true.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpwatch.operator import Case, Cost, Maker, Operator, both_directions, case
from warpwatch.peers import compile_unsupported

from ._compiled import compiled
from ._gradients import once_differentiable

BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def kept(case: Case) -> int:
    """How many elements a case keeps."""
    return int(math.prod(case["size"]) * case["percent"] // 100)


def inputs(case: Case, make: Maker) -> dict[str, Any]:
    return {"w": make.normal(*case["size"]), "keep": kept(case)}


def reference(w: Tensor, keep: int) -> tuple[Tensor, Tensor]:
    """A stable sort keeps the order of equal magnitudes."""
    order = torch.sort(w.detach().abs().flatten(), descending=True, stable=True).indices
    mask = torch.zeros(w.numel(), dtype=torch.bool, device=w.device)
    mask[order[:keep]] = True
    return chosen(w, mask)


def chosen(w: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """w where the mask is true, zero elsewhere. torch.where instead of a product, because NaN times zero is NaN."""
    mask = mask.view(w.shape)
    return torch.where(mask, w, torch.zeros((), dtype=w.dtype, device=w.device)), mask


def cost(case: Case) -> Cost:
    """One comparison per element.

    Forward reads w and writes the pruned tensor and a mask of bytes; backward reads mask and gradient.
    """
    n = math.prod(case["size"])
    return Cost(n, n * (2 * case.element_bytes + 1))


@functools.cache
def register_native() -> None:
    """Shapes for torch.compile, and the gradient, for the torch operators that the library defines.

    Operators that use this one call it as well, and torch accepts one registration.
    """

    @torch.library.register_fake("warpwatch::magnitude_prune")  # type: ignore[untyped-decorator]
    def fake(w: Tensor, keep: int) -> tuple[Tensor, Tensor]:
        return w.new_empty(w.shape), w.new_empty(w.shape, dtype=torch.bool)

    @torch.library.register_fake("warpwatch::magnitude_prune_backward")  # type: ignore[untyped-decorator]
    def fake_backward(gradient: Tensor, mask: Tensor) -> Tensor:
        return gradient.new_empty(gradient.shape)

    def remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(output[1])

    @once_differentiable
    def backward(ctx: Any, gradient: Tensor | None, _mask: None) -> tuple[Tensor | None, None]:
        if gradient is None:
            return None, None
        return torch.ops.warpwatch.magnitude_prune_backward(gradient, *ctx.saved_tensors), None

    torch.library.register_autograd("warpwatch::magnitude_prune", backward, setup_context=remember)


QUICK = both_directions(
    case("f32", size=(256, 512), percent=10),
    case("f32", size=(127, 129), percent=50),
    # Formats of 16 bits have so few values that thousands of weights are equal to the smallest kept.
    case("bf16", size=(256, 256), percent=20),
    case("f16", size=(101, 103), percent=37),
    case("f64", size=(128, 128), percent=10),
)
FULL = (
    *QUICK,
    *both_directions(
        *(case("f32", size=(4096, 4096), percent=p) for p in (1, 10, 50, 90)),
        case("bf16", size=(4096, 4096), percent=10),
        case("f16", size=(4096, 4096), percent=50),
        case("f32", size=(1023, 1025), percent=20),
        case("bf16", size=(16384, 16384), percent=10),
        case("f32", size=(16384, 16384), percent=10),
        case("f64", size=(4096, 4096), percent=10),
    ),
)
EDGE = (
    *both_directions(
        case("f32", size=(1,), percent=100),
        case("bf16", size=(8191,), percent=99),
        case("f32", size=(8193,), percent=100),
    ),
    case("f32", size=(7,), percent=0),
    case("f32", size=(0, 4), percent=50),
    case("f64", size=(3, 5), percent=34),
)

operator = Operator(
    "magnitude_prune",
    "Keep the elements of largest magnitude, exactly as many as asked for.",
    inputs=inputs,
    reference=reference,
    cost=cost,
    cases={"quick": QUICK, "full": FULL, "edge": EDGE},
    gradients=("w",),
    native=register_native,
)


def magnitudes(w: Tensor) -> Tensor:
    """Integers that compare as |w| does, with NaN the largest: the bits without the sign."""
    bits = w.detach().view(BITS[w.element_size()]).flatten()
    return bits & torch.iinfo(bits.dtype).max


def above(size: Tensor, threshold: Tensor, keep: int) -> Tensor:
    """The mask of elements above the threshold and of the first elements equal to it, `keep` in all."""
    mask, equal = size > threshold, size == threshold
    return mask | (equal & (equal.cumsum(0) <= keep - mask.sum()))


@operator.variant("v1", idea="a stable sort of all magnitudes")
def v1(w: Tensor, keep: int) -> tuple[Tensor, Tensor]:
    return reference(w, keep)


@operator.variant("v2", idea="torch.topk finds the threshold, a running count breaks ties")
def v2(w: Tensor, keep: int) -> tuple[Tensor, Tensor]:
    size = magnitudes(w)
    if keep == 0:
        return chosen(w, torch.zeros_like(size, dtype=torch.bool))
    return chosen(w, above(size, torch.topk(size, keep, sorted=False).values.min(), keep))


@operator.variant("kthvalue", idea="torch.kthvalue finds the threshold")
def kthvalue(w: Tensor, keep: int) -> tuple[Tensor, Tensor]:
    size = magnitudes(w)
    if keep == 0:
        return chosen(w, torch.zeros_like(size, dtype=torch.bool))
    return chosen(w, above(size, torch.kthvalue(size, size.numel() - keep + 1).values, keep))


@operator.variant(
    "v3",
    idea="radix select; CUDA: histograms of 15 and 16 bits, one for 16-bit formats; C++: a histogram, then nth_element",
    outcome="it reads the weights a few times and sorts nothing",
    native=True,
)
def v3(w: Tensor, keep: int) -> tuple[Tensor, Tensor]:
    pruned, mask = torch.ops.warpwatch.magnitude_prune(w, keep)
    return pruned, mask


@operator.variant("compile", idea="torch.compile of v2", unsupported=compile_unsupported)
def compiled_v2(w: Tensor, keep: int) -> tuple[Tensor, Tensor]:
    return _compiled()(w, keep)


@functools.cache
def _compiled() -> Callable[..., tuple[Tensor, Tensor]]:
    return compiled(v2, fullgraph=False)
