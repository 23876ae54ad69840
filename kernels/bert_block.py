"""BERT's attention block, end to end: LayerNorm(x + W_o · attention(W_q x, W_k x, W_v x)), with the products of
attention swapped.

x is (batch, rows, heads * dim); weights are (out, in) as nn.Linear has them. Without dropout and without a mask.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from warpwatch.operator import Case, Cost, DeviceKind, Maker, Operator, both_directions, case
from warpwatch.peers import compile_unsupported, triton_unsupported

from . import attention, matmul
from ._compiled import compiled

PROJECTIONS = ("q", "k", "v", "o")

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""softmax(Q Kᵀ / √D) V for (batch, heads, rows, dim)."""


def inputs(case: Case, make: Maker) -> dict[str, Any]:
    width = case["h"] * case["d"]
    weights = {f"w_{name}": make.normal(width, width, scale=width**-0.5) for name in PROJECTIONS}
    biases = {f"b_{name}": make.normal(width, scale=0.1) for name in PROJECTIONS}
    gain = make.normal(width, scale=0.1) + 1
    return {
        "x": make.normal(case["b"], case["s"], width),
        **weights,
        **biases,
        "gain": gain,
        "shift": make.normal(width, scale=0.1),
        "heads": case["h"],
    }


def block(
    attend: Attend,
    x: Tensor,
    w_q: Tensor,
    w_k: Tensor,
    w_v: Tensor,
    w_o: Tensor,
    b_q: Tensor,
    b_k: Tensor,
    b_v: Tensor,
    b_o: Tensor,
    gain: Tensor,
    shift: Tensor,
    heads: int,
) -> Tensor:
    """The block without the attention function, which the caller passes."""

    def by_head(w: Tensor, b: Tensor) -> Tensor:
        return F.linear(x, w, b).view(*x.shape[:2], heads, -1).transpose(1, 2)

    y = attend(by_head(w_q, b_q), by_head(w_k, b_k), by_head(w_v, b_v)).transpose(1, 2).flatten(2)
    return F.layer_norm(x + F.linear(y, w_o, b_o), x.shape[2:], gain, shift)


def plainly(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / math.sqrt(q.shape[3])
    return scores.softmax(3) @ v


def reference(**given: Any) -> Tensor:
    return block(plainly, **given)


def cost(case: Case) -> Cost:
    """Products alone: four projections and the two of attention; backward makes two of each.

    Backward reads x, the weights and the incoming gradient, and writes a gradient for each of x and the weights.
    """
    rows, width = case["b"] * case["s"], case["h"] * case["d"]
    flops = 8 * rows * width**2 + 4 * rows * case["s"] * width
    weights = 4 * width**2 + 6 * width
    if case.direction == "fwd":
        return Cost(flops, case.element_bytes * (2 * rows * width + weights))
    return Cost(2 * flops, case.element_bytes * (3 * rows * width + 2 * weights))


def depth(case: Case) -> int:
    """A result passes through sums over the width and over all rows; a weight's gradient sums over the rows of the
    whole batch."""
    through: int = 2 * case["h"] * case["d"] + case["d"] + case["s"]
    return through if case.direction == "fwd" else through + int(case["b"] * case["s"])


def register_native() -> None:
    matmul.register_native()
    attention.register_native()


QUICK = both_directions(
    case("f32", b=2, s=64, h=4, d=32),
    case("f32", b=3, s=37, h=3, d=11),
    case("bf16", b=1, s=80, h=2, d=64),
)
FULL = (
    *QUICK,
    *both_directions(
        *(case(p, b=16, s=512, h=16, d=64) for p in ("f32", "tf32", "bf16", "f16")),
        *(case(p, b=8, s=128, h=12, d=64) for p in ("f32", "bf16")),
    ),
)
EDGE = (*both_directions(case("f32", b=1, s=65, h=1, d=24)), case("f32", b=2, s=1, h=2, d=8))

operator = Operator(
    "bert_block",
    "BERT's attention block, end to end.",
    inputs=inputs,
    reference=reference,
    cost=cost,
    cases={"quick": QUICK, "full": FULL, "edge": EDGE},
    # The keys' bias moves all scores of a query alike, which no softmax notices: its gradient is zero, and errors
    # relative to zero mean nothing.
    gradients=("x", *(f"w_{name}" for name in PROJECTIONS), "b_q", "b_v", "b_o", "gain", "shift"),
    depth=depth,
    native=register_native,
    uses=("matmul", "attention"),
)


@operator.variant("v1", idea="as the model is written: two products and a softmax between them")
def v1(**given: Any) -> Tensor:
    return block(plainly, **given)


def by_torch(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    out: Tensor = F.scaled_dot_product_attention(q, k, v)
    return out


@operator.variant(
    "v2",
    idea="attention by scaled_dot_product_attention",
    no_special_values="on CPUs torch's fused attention gives 0 for a query whose few scores are NaN",
)
def v2(**given: Any) -> Tensor:
    return block(by_torch, **given)


def by_matmul(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = matmul.best_native(q.flatten(0, 1), k.flatten(0, 1).mT) / math.sqrt(q.shape[3])
    return matmul.best_native(scores.softmax(2), v.flatten(0, 1)).view_as(q)


def matmul_unsupported(case: Case, _device: DeviceKind) -> str | None:
    return "our matmul has no f16" if case.precision == "f16" else None


@operator.variant(
    "v3",
    idea="both products of attention by our matmul",
    outcome="loses to v2: the scores go through memory",
    native=True,
    unsupported=matmul_unsupported,
)
def v3(**given: Any) -> Tensor:
    return block(by_matmul, **given)


def full_precision_only(case: Case, _device: DeviceKind) -> str | None:
    return "multiplies in f32: see the f32 case" if case.precision == "tf32" else None


@operator.variant(
    "v4",
    idea="both products and the softmax by our attention",
    outcome=(
        "loses to v2 and to compile on an H100 in bf16: our attention returns heads one after the other, "
        "and a copy brings them together"
    ),
    native=True,
    unsupported=full_precision_only,
)
def v4(**given: Any) -> Tensor:
    return block(lambda q, k, v: attention.native_attention(q, k, v, False), **given)


def triton_refused(case: Case, device: DeviceKind) -> str | None:
    return full_precision_only(case, device) or triton_unsupported(case, device)


@operator.variant(
    "triton",
    idea="both products and the softmax by our attention in Triton",
    outcome="as fast as v2, forward and backward; loses to compile",
    unsupported=triton_refused,
)
def triton_block(**given: Any) -> Tensor:
    return block(lambda q, k, v: attention.triton_attention(q, k, v, False), **given)


@operator.variant("compile", idea="torch.compile of v1, in which it may find SDPA", unsupported=compile_unsupported)
def compiled_v1(**given: Any) -> Tensor:
    return _compiled()(**given)


@functools.cache
def _compiled() -> Callable[..., Tensor]:
    return compiled(v1)
