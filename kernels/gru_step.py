"""One step of a decoder: h' = GRU(cat(e, c), h), logits = cat(e, h', c) · Wᵀ + b, where the context c stays the same
for a whole decode.

W_ih is (3H, E + H) = [W_e | W_c] and the vocabulary's W (V, E + 2H) = [V_e | V_h | V_c]. What c contributes, W_c c and
V_c c, is computed once per decode (`prepare=`): a step then reads E instead of E + H input columns, and a fifth to two
fifths fewer bytes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpwatch.operator import Case, Cost, DeviceKind, Maker, Operator, SizeQuestion, both_directions, case
from warpwatch.peers import compile_unsupported, triton_unsupported

from . import _recurrent, matmul
from ._compiled import compiled
from ._gradients import once_differentiable
from ._triton_gru import triton_scan
from ._triton_linear import TritonLinear

ROWS, TILES = 3, 5
"""Versions of the native operators, numbered as in csrc/common/row_products.h."""

MOST_ROWS = 8
"""Rows that one launch of the own CUDA kernels takes at once."""

Outputs = tuple[Tensor, Tensor]
linear = torch.nn.functional.linear


def inputs(case: Case, make: Maker) -> dict[str, Any]:
    batch, width, hidden, vocab = case["batch"], case["embedding"], case["hidden"], case["vocab"]
    state, scale = (batch, hidden), 0.6 * hidden**-0.5
    return {
        "e": make.normal(batch, width),
        "h": make.normal(*state, scale=0.5),
        "c": make.normal(*state, scale=0.5),
        "w_ih": make.normal(3 * hidden, width + hidden, scale=scale),
        "w_hh": make.normal(3 * hidden, hidden, scale=scale),
        "b_ih": make.normal(3 * hidden, scale=scale),
        "b_hh": make.normal(3 * hidden, scale=scale),
        "w_fc": make.normal(vocab, width + 2 * hidden, scale=scale),
        "b_fc": make.normal(vocab, scale=scale),
    }


def case_of(e: Tensor, h: Tensor, w_fc: Tensor, **_others: Any) -> Case:
    return case(batch=e.shape[0], embedding=e.shape[1], hidden=h.shape[1], vocab=w_fc.shape[0])


def reference(
    e: Tensor, h: Tensor, c: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor, w_fc: Tensor, b_fc: Tensor
) -> Outputs:
    h = _recurrent.naive_cell(torch.cat([e, c], 1), h, w_ih, w_hh, b_ih, b_hh)
    return torch.cat([e, h, c], 1) @ w_fc.t() + b_fc, h


def cost(case: Case) -> Cost:
    """Forward is a step of a decode that knows its context's products: they are read instead of c and its weights.

    Backward is the whole step's: two products per weight, everything read, and a gradient written for every input.
    """
    batch, width, hidden, vocab = case["batch"], case["embedding"], case["hidden"], case["vocab"]
    context = hidden if case.direction == "bwd" else 0
    weights = 3 * hidden * (width + hidden + context) + vocab * (width + hidden + context)
    outputs = batch * (hidden + vocab)
    if case.direction == "fwd":
        added = batch * (3 * hidden + vocab) + 3 * hidden
        return Cost(2 * batch * weights, case.element_bytes * (weights + added + batch * (width + hidden) + outputs))
    given = weights + 6 * hidden + vocab + batch * (width + 2 * hidden)
    return Cost(4 * batch * weights, case.element_bytes * (2 * given + outputs))


def depth(case: Case) -> int:
    through: int = case["embedding"] + 2 * case["hidden"]
    return 2 * through if case.direction == "fwd" else max(case["vocab"] + 3 * case["hidden"], case["batch"])


def register_native() -> None:
    """Shapes for torch.compile, and the gradients, for the torch operator that the library defines."""

    @torch.library.register_fake("warpwatch::gru_step")  # type: ignore[untyped-decorator]
    def fake(
        e: Tensor,
        h: Tensor,
        w_e: Tensor,
        w_h: Tensor,
        bias: Tensor,
        gates: Tensor,
        w_fc: Tensor,
        logits: Tensor,
        keep: bool = False,
        version: int = ROWS,
    ) -> tuple[Tensor, Tensor, Tensor]:
        batch, hidden = h.shape
        return logits.new_empty(logits.shape), h.new_empty(h.shape), h.new_empty((batch if keep else 0, 4 * hidden))

    @torch.library.register_fake("warpwatch::gru_step_backward")  # type: ignore[untyped-decorator]
    def fake_backward(
        d_logits: Tensor,
        d_after: Tensor,
        e: Tensor,
        h: Tensor,
        c: Tensor,
        after: Tensor,
        saved: Tensor,
        w_ih: Tensor,
        w_hh: Tensor,
        w_fc: Tensor,
        version: int = ROWS,
    ) -> tuple[Tensor, ...]:
        biases = [h.new_empty(w.shape[0]) for w in (w_ih, w_hh, w_fc)]
        e, h, c, w_ih, w_hh, w_fc = (t.new_empty(t.shape) for t in (e, h, c, w_ih, w_hh, w_fc))
        return e, h, c, w_ih, w_hh, biases[0], biases[1], w_fc, biases[2]

    torch.library.register_autograd("warpwatch::gru_step", _backward, setup_context=_remember)


def register_all() -> None:
    register_native()
    matmul.register_native()


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    e, h, w_e, w_h, bias, gates, w_fc, logits, _, version = inputs
    _, after, saved = output
    ctx.mark_non_differentiable(saved)
    if saved.shape[0] != h.shape[0]:
        # The forward call was not asked to keep what the gradients need.
        _, _, saved = torch.ops.warpwatch.gru_step(e, h, w_e, w_h, bias, gates, w_fc, logits, True, version)
    ctx.save_for_backward(e, h, w_e, w_h, w_fc, after, saved)


@once_differentiable
def _backward(ctx: Any, d_logits: Tensor, d_after: Tensor, _saved: Tensor) -> tuple[Tensor | None, ...]:
    """Products of a library; they read each weight once, as the forward kernels do."""
    e, h, w_e, w_h, w_fc, after, saved = ctx.saved_tensors
    r, z, n, q = saved.chunk(4, 1)
    d_e, through = torch.split(d_logits @ w_fc, [e.shape[1], h.shape[1]], dim=1)
    g = d_after + through
    d_n = g * (1 - z) * (1 - n * n)
    d_r, d_z = d_n * q * r * (1 - r), g * (h - n) * z * (1 - z)
    d_input, d_hidden = torch.cat([d_r, d_z, d_n], 1), torch.cat([d_r, d_z, d_n * r], 1)
    d_fc = d_logits.t() @ torch.cat([e, after], 1)
    return (
        torch.addmm(d_e, d_input, w_e),
        torch.addmm(g * z, d_hidden, w_h),
        d_input.t() @ e,
        d_hidden.t() @ h,
        d_hidden.sum(0),
        d_input,
        d_fc,
        d_logits,
        None,
        None,
    )


def step(batch: int, embedding: int, hidden: int, vocab: int, precision: Any = "f32") -> Case:
    return case(precision, batch=batch, embedding=embedding, hidden=hidden, vocab=vocab)


QUICK = both_directions(step(1, 32, 64, 300), step(8, 32, 64, 301), step(5, 13, 19, 37), step(3, 16, 24, 40, "f64"))
FULL = (
    *QUICK,
    *both_directions(
        *(step(batch, 256, 512, 5893) for batch in (1, 8, 128)),
        step(128, 256, 512, 5893, "tf32"),
        step(8, 256, 512, 5893, "f64"),
    ),
)
EDGE = (*both_directions(step(1, 1, 2, 7), step(9, 8, 33, 65), step(70, 13, 24, 101)), step(0, 3, 4, 5))


def by_torch(
    e: Tensor, h: Tensor, c: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor, w_fc: Tensor, b_fc: Tensor
) -> Outputs:
    """torch.nn.GRU over a sequence of length one: on a GPU cuDNN's, whose gates in f32 are 2e-6 to 4e-6 off."""
    x, weights = torch.cat([e, c], 1)[None], [w_ih, w_hh, b_ih, b_hh]
    h = torch._VF.gru(x, h[None], weights, True, 1, 0.0, torch.is_grad_enabled(), False, False)[0][0]
    return linear(torch.cat([e, h, c], 1), w_fc, b_fc), h


operator = Operator(
    "gru_step",
    "One step of a GRU decoder with a constant context: the cell and the vocabulary's logits.",
    inputs=inputs,
    case_of=case_of,
    reference=reference,
    cost=cost,
    cases={"quick": QUICK, "full": FULL, "edge": EDGE},
    gradients=("e", "h", "c", "w_ih", "w_hh", "b_ih", "b_hh", "w_fc", "b_fc"),
    depth=depth,
    by_torch=by_torch,
    native=register_all,
    uses=("gru_step", "matmul"),
    questions=(SizeQuestion("Up to which batch does a decoder step of our own beat cuDNN?", "batch", "cudnn"),),
)


@operator.variant("v1", idea="two concatenations, the cell gate by gate, one product onto the vocabulary")
def v1(e: Tensor, h: Tensor, c: Tensor, **weights: Tensor) -> Outputs:
    return reference(e, h, c, **weights)


@operator.variant("v2", idea="torch.gru_cell and F.linear, each behind a concatenation")
def v2(
    e: Tensor, h: Tensor, c: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor, w_fc: Tensor, b_fc: Tensor
) -> Outputs:
    h = torch.gru_cell(torch.cat([e, c], 1), h, w_ih, w_hh, b_ih, b_hh)
    return linear(torch.cat([e, h, c], 1), w_fc, b_fc), h


@operator.variant("cudnn", idea="cuDNN's GRU over a sequence of length one", devices=("cuda",))
def cudnn(e: Tensor, h: Tensor, c: Tensor, **weights: Tensor) -> Outputs:
    return by_torch(e, h, c, **weights)


def context(
    e: Tensor, h: Tensor, c: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor, w_fc: Tensor, b_fc: Tensor
) -> dict[str, Tensor]:
    """The context's products plus biases, (batch, 3H) for the gates and (batch, V) for the logits, and the columns of
    the weights that every step uses. Variants with these ignore the inputs that went into them (`_in_context`).

    One split makes all columns, so that its gradient is one concatenation instead of a sum of padded tensors.
    """
    width, hidden = e.shape[1], h.shape[1]
    w_e, w_c = torch.split(w_ih, [width, hidden], dim=1)
    w_eh, w_fc_c = torch.split(w_fc, [width + hidden, hidden], dim=1)
    return {"gates": linear(c, w_c, b_ih), "logits": linear(c, w_fc_c, b_fc), "w_e": w_e, "w_eh": w_eh}


@operator.variant(
    "split",
    idea="the context's products computed once; four products that add to sums which exist already",
    prepare=context,
)
def split(
    e: Tensor,
    h: Tensor,
    w_hh: Tensor,
    b_hh: Tensor,
    gates: Tensor,
    logits: Tensor,
    w_e: Tensor,
    w_eh: Tensor,
    **_in_context: Tensor,
) -> Outputs:
    v_e, v_h = torch.split(w_eh, [e.shape[1], h.shape[1]], dim=1)
    h = _recurrent.fused_cell(torch.addmm(gates, e, w_e.t()), torch.addmm(b_hh, h, w_hh.t()), h)
    return torch.addmm(torch.addmm(logits, e, v_e.t()), h, v_h.t()), h


def native_unsupported(case: Case, device: DeviceKind) -> str | None:
    if case.precision not in ("f32", "f64"):
        return "computes in f32 and f64"
    if device == "cuda" and case["batch"] > MOST_ROWS:
        return f"on CUDA it is made for at most {MOST_ROWS} rows; more are a case for tensor cores"
    return None


@operator.variant(
    "v3",
    idea=(
        "our kernels, the context's products computed once: one launch for products and cell, one for the "
        "logits; gradients by a library"
    ),
    outcome="a step is two launches",
    native=True,
    unsupported=native_unsupported,
    prepare=context,
)
def v3(
    e: Tensor,
    h: Tensor,
    w_hh: Tensor,
    b_hh: Tensor,
    gates: Tensor,
    logits: Tensor,
    w_e: Tensor,
    w_eh: Tensor,
    **_in_context: Tensor,
) -> Outputs:
    operands = (e, h, w_e, w_hh, b_hh, gates, w_eh, logits)
    keep = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in operands)
    y, after, _ = torch.ops.warpwatch.gru_step(*operands, keep)
    return y, after


def low_precision_only(case: Case, device: DeviceKind) -> str | None:
    if case.precision == "f64" or (device == "cpu" and case.precision != "f32"):
        return "it multiplies in f32, and on GPUs in tf32"
    return "v5 keeps the accuracy of f32 on tensor cores" if device == "cuda" and case.precision == "f32" else None


@operator.variant(
    "v4",
    idea="split with all four products by tiles of our matmul, for any number of rows; their gradients by the same",
    native=True,
    unsupported=low_precision_only,
    prepare=context,
)
def v4(
    e: Tensor,
    h: Tensor,
    w_hh: Tensor,
    b_hh: Tensor,
    gates: Tensor,
    logits: Tensor,
    w_e: Tensor,
    w_eh: Tensor,
    **_in_context: Tensor,
) -> Outputs:
    v_e, v_h = torch.split(w_eh, [e.shape[1], h.shape[1]], dim=1)
    hidden_gates = matmul.best_native(h, w_hh.t()) + b_hh
    h = _recurrent.fused_cell(matmul.best_native(e, w_e.t()) + gates, hidden_gates, h)
    return matmul.best_native(e, v_e.t()) + matmul.best_native(h, v_h.t()) + logits, h


class StepGradients(torch.autograd.Function):
    """v3's step, and the gradients of all that went into it, the context and its columns of the weights included.

    The weights are not split, so that no gradient has to be joined from parts.
    """

    @staticmethod
    def forward(ctx: Any, prepared: dict[str, Tensor], keep: bool, *operands: Tensor) -> Outputs:
        e, h, c, w_ih, w_hh, _, b_hh, w_fc, _ = operands
        version = TILES if h.is_cuda and h.shape[0] > MOST_ROWS else ROWS
        w_e, w_eh = w_ih[:, : e.shape[1]], w_fc[:, : e.shape[1] + h.shape[1]]
        y, after, saved = torch.ops.warpwatch.gru_step(
            e, h, w_e, w_hh, b_hh, prepared["gates"], w_eh, prepared["logits"], keep, version
        )
        ctx.save_for_backward(e, h, c, after, saved, w_ih, w_hh, w_fc)
        ctx.version = version
        return y, after

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        of_operands = torch.ops.warpwatch.gru_step_backward(*gradients, *ctx.saved_tensors, ctx.version)
        return (None, None, *of_operands)


def detached_context(
    e: Tensor, h: Tensor, c: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor, w_fc: Tensor, b_fc: Tensor
) -> dict[str, Tensor]:
    """The context's products without a record of how they came about: the step's own gradients include theirs."""
    with torch.no_grad():
        prepared = context(e, h, c, w_ih, w_hh, b_ih, b_hh, w_fc, b_fc)
        return {"gates": prepared["gates"], "logits": prepared["logits"]}


def whole_unsupported(case: Case, device: DeviceKind) -> str | None:
    if case.precision not in ("f32", "f64"):
        return "computes in f32 and f64"
    if device == "cuda" and case.precision == "f64" and case["batch"] > MOST_ROWS:
        return f"in f64 it takes at most {MOST_ROWS} rows"
    return None


@operator.variant(
    "v5",
    idea=(
        "v3 with gradients by our kernels, each weight read once and its gradient written once, whole; more than eight "
        "rows by tiles on tensor cores, each float as a sum of two tf32 numbers"
    ),
    native=True,
    unsupported=whole_unsupported,
    prepare=detached_context,
)
def v5(
    e: Tensor,
    h: Tensor,
    c: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor,
    b_hh: Tensor,
    w_fc: Tensor,
    b_fc: Tensor,
    gates: Tensor,
    logits: Tensor,
) -> Outputs:
    operands = (e, h, c, w_ih, w_hh, b_ih, b_hh, w_fc, b_fc)
    keep = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in operands)
    outputs: Outputs = StepGradients.apply({"gates": gates, "logits": logits}, keep, *operands)  # type: ignore[no-untyped-call]
    return outputs


@operator.variant("compile", idea="torch.compile of v2, its cell written out", unsupported=compile_unsupported)
def through_compiler(e: Tensor, h: Tensor, c: Tensor, **weights: Tensor) -> Outputs:
    return _compiled()(e, h, c, **weights)


def triton_reason(case: Case, device: DeviceKind) -> str | None:
    return "its tiles of f64 would not fit" if case.precision == "f64" else triton_unsupported(case, device)


@operator.variant(
    "triton",
    idea="split with products and cell in Triton",
    outcome="its tiles are made for more rows",
    unsupported=triton_reason,
    prepare=context,
)
def triton_step(
    e: Tensor,
    h: Tensor,
    w_hh: Tensor,
    b_hh: Tensor,
    gates: Tensor,
    logits: Tensor,
    w_e: Tensor,
    w_eh: Tensor,
    **_in_context: Tensor,
) -> Outputs:
    multiply: Callable[..., Tensor] = TritonLinear.apply
    v_e, v_h = torch.split(w_eh, [e.shape[1], h.shape[1]], dim=1)
    after = triton_scan(multiply(e, w_e, gates)[None], h, w_hh, b_hh)[0]
    return multiply(after, v_h, multiply(e, v_e, logits)), after


@functools.cache
def _compiled() -> Callable[..., Outputs]:
    def hoisted(
        e: Tensor,
        h: Tensor,
        c: Tensor,
        w_ih: Tensor,
        w_hh: Tensor,
        b_ih: Tensor,
        b_hh: Tensor,
        w_fc: Tensor,
        b_fc: Tensor,
    ) -> Outputs:
        h = _recurrent.cell(linear(torch.cat([e, c], 1), w_ih, b_ih), linear(h, w_hh, b_hh), h)
        return linear(torch.cat([e, h, c], 1), w_fc, b_fc), h

    return compiled(hoisted)
