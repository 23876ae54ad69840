"""BERT's attention block, end to end: LayerNorm(x + W_o · attention(W_q x, W_k x, W_v x)), with the products of
attention swapped.

x is (batch, rows, heads * dim); weights are (out, in) as nn.Linear has them. Without dropout and without a mask.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from warpwatch.operator import Case, Cost, DeviceKind, Maker, Operator, both_directions, case
from warpwatch.peers import compile_unsupported, triton_unsupported

from . import attention, matmul
from ._compiled import compiled
from ._gradients import once_differentiable

PROJECTIONS = ("q", "k", "v", "o")
NORM_EPSILON = 1e-5
MOST_COLUMNS = 1024
"""Columns that the kernels for whole rows take, as in csrc/bert_block/bert_block.h."""

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
    q, k, v = (by_head(F.linear(x, w, b), heads) for w, b in ((w_q, b_q), (w_k, b_k), (w_v, b_v)))
    y = attend(q, k, v).transpose(1, 2).flatten(2)
    return F.layer_norm(x + F.linear(y, w_o, b_o), x.shape[2:], gain, shift, NORM_EPSILON)


def by_head(x: Tensor, heads: int) -> Tensor:
    """(b, s, h * d) as (b, h, s, d), a view."""
    return x.view(*x.shape[:2], heads, x.shape[2] // heads).transpose(1, 2)


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


@functools.cache
def register_native() -> None:
    """Shapes for torch.compile, for the torch operators that the library defines; only once."""
    matmul.register_native()
    attention.register_native()

    @torch.library.register_fake("warpwatch::bert_block_norm")  # type: ignore[untyped-decorator]
    def fake_norm(x: Tensor, y: Tensor, gain: Tensor, shift: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
        return x.new_empty(x.shape), x.new_empty((x.shape[0], 2), dtype=torch.float32)

    @torch.library.register_fake("warpwatch::bert_block_norm_backward")  # type: ignore[untyped-decorator]
    def fake_backward(gradient: Tensor, x: Tensor, y: Tensor, gain: Tensor, stats: Tensor) -> tuple[Tensor, Tensor]:
        return x.new_empty(x.shape), x.new_empty((3, x.shape[1]))

    @torch.library.register_fake("warpwatch::bert_block_column_sums")  # type: ignore[untyped-decorator]
    def fake_sums(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return a.new_empty((3, a.shape[1]))


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
    uses=("bert_block", "matmul", "attention"),
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
    outcome="the scores go through memory",
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
    outcome="unlike compile it does not fuse the norm",
    native=True,
    unsupported=full_precision_only,
)
def v4(**given: Any) -> Tensor:
    return block(lambda q, k, v: attention.native_attention(q, k, v, False), **given)


class Block(torch.autograd.Function):
    """The block of v4 with gradients that autograd does not put together: the residual is added where its sum is
    normalized, all gradients of x by the products they come from, and biases share a pass over memory."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, heads: int, *weights: Tensor) -> Tensor:
        w_q, w_k, w_v, w_o, b_q, b_k, b_v, b_o, gain, shift = weights
        rows, operators = x.flatten(0, 1), torch.ops.warpwatch
        q, k, v = (by_head(F.linear(x, w, b), heads) for w, b in ((w_q, b_q), (w_k, b_k), (w_v, b_v)))
        ctx.options = (False, q.shape[3] ** -0.5, attention.WARPGROUPS)
        out, log_sum = operators.attention(q, k, v, *ctx.options)
        y = F.linear(_by_row(out), w_o, b_o)
        normed: tuple[Tensor, Tensor] = operators.bert_block_norm(rows, y, gain, shift, NORM_EPSILON)
        ctx.save_for_backward(x, w_q, w_k, w_v, w_o, gain, q, k, v, out, log_sum, y, normed[1])
        return normed[0].view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, w_q, w_k, w_v, w_o, gain, q, k, v, out, log_sum, y, stats = ctx.saved_tensors
        rows, operators = x.flatten(0, 1), torch.ops.warpwatch
        d, sums = operators.bert_block_norm_backward(gradients[0].flatten(0, 1), rows, y, gain, stats)
        d_out = by_head((d @ w_o).view(x.shape), q.shape[1])
        d_w_o = d.mT @ _by_row(out)
        of_heads = operators.attention_backward(d_out, q, k, v, out, log_sum, *ctx.options)
        projected = [_by_row(of_head) for of_head in of_heads]
        for gradient, w in zip(projected, (w_q, w_k, w_v), strict=True):
            d.addmm_(gradient, w)
        biases = operators.bert_block_column_sums(*projected)
        return (
            d.view_as(x),
            None,
            *(gradient.mT @ rows for gradient in projected),
            d_w_o,
            *biases.unbind(),
            sums[2],
            sums[0],
            sums[1],
        )


def _by_row(of_heads: Tensor) -> Tensor:
    """(b, h, s, d) as a matrix with a row for each of b and s; no copy where a row's heads lie beside each other."""
    return of_heads.transpose(1, 2).flatten(2).flatten(0, 1)


def fused_unsupported(case: Case, _device: DeviceKind) -> str | None:
    if case.precision not in ("f16", "bf16"):
        return "its kernels take 16-bit elements: see v4"
    width = case["h"] * case["d"]
    fits = width % 8 == 0 and width <= MOST_COLUMNS
    return None if fits else f"its kernels take rows of a multiple of 8 elements, at most {MOST_COLUMNS}"


@operator.variant(
    "v5",
    idea=(
        "v4 as one autograd function: residual and norm in one kernel, gradients of x added up by the products, "
        "those of three biases in one pass"
    ),
    native=True,
    devices=("cuda",),
    unsupported=fused_unsupported,
)
def v5(x: Tensor, heads: int, **weights: Tensor) -> Tensor:
    names = (*(f"w_{name}" for name in PROJECTIONS), *(f"b_{name}" for name in PROJECTIONS), "gain", "shift")
    y: Tensor = Block.apply(x, heads, *(weights[name] for name in names))  # type: ignore[no-untyped-call]
    return y


def triton_refused(case: Case, device: DeviceKind) -> str | None:
    return full_precision_only(case, device) or triton_unsupported(case, device)


@operator.variant(
    "triton",
    idea="both products and the softmax by our attention in Triton",
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
