"""A GRU over a sequence, one layer on top of the other: out (T, B, H) of the last layer, and every layer's last state
(L, B, H).

x is (T, B, I), h0 (L, B, H); weights come flat, per layer W_ih (3H, I), W_hh (3H, H), b_ih and b_hh (3H), gates ordered
r, z, n. The loop over time cannot be parallel: every step waits for a product with W_hh that is far too small to fill a
GPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from warpwatch.operator import Case, Cost, DeviceKind, Maker, Operator, both_directions, case
from warpwatch.peers import compile_unsupported, triton_unsupported

from . import _recurrent
from ._captured import CapturedCall
from ._compiled import compiled
from ._triton_gru import triton_scan

Outputs = tuple[Tensor, Tensor]
LONGEST_COMPILED = 64
UNITS_EACH = 8
"""Hidden units whose f32 weights and states one multiprocessor surely holds in shared memory."""


def inputs(case: Case, make: Maker) -> dict[str, Any]:
    hidden, layers = case["hidden"], case["layers"]
    weights = []
    for width in [case["input"], *[hidden] * (layers - 1)]:
        weights += [make.normal(3 * hidden, n, scale=0.6 * hidden**-0.5) for n in (width, hidden)]
        weights += [make.normal(3 * hidden, scale=0.6 * hidden**-0.5) for _ in range(2)]
    x, h0 = make.normal(case["time"], case["batch"], case["input"]), make.normal(layers, case["batch"], hidden)
    return {"x": x, "h0": h0, "weights": weights}


def case_of(x: Tensor, h0: Tensor, weights: Sequence[Tensor], **_prepared: Any) -> Case:
    time, batch, width = x.shape
    return case(time=time, batch=batch, input=width, hidden=h0.shape[2], layers=h0.shape[0])


def layers_of(h0: Tensor, weights: Sequence[Tensor]) -> Iterator[tuple[Tensor, Sequence[Tensor]]]:
    """Each layer's first state and its four weights."""
    return ((h0[layer], weights[4 * layer : 4 * layer + 4]) for layer in range(h0.shape[0]))


def reference(x: Tensor, h0: Tensor, weights: Sequence[Tensor]) -> Outputs:
    last = []
    for h, layer in layers_of(h0, weights):
        states = []
        for step in x:
            h = _recurrent.naive_cell(step, h, *layer)
            states.append(h)
        x = torch.stack(states)
        last.append(h)
    return x, torch.stack(last)


def cost(case: Case) -> Cost:
    """Per layer, each weight, bias, input and state once.

    Backward needs twice the products, reads the inputs, the incoming gradient and the weights, and writes a gradient
    for each of x, h0 and the weights.
    """
    steps, batch, hidden = case["time"], case["batch"], case["hidden"]
    flops = elements = 0
    for width in [case["input"], *[hidden] * (case["layers"] - 1)]:
        flops += 2 * steps * batch * 3 * hidden * (width + hidden)
        elements += 3 * hidden * (width + hidden) + 6 * hidden + steps * batch * (width + hidden)
    if case.direction == "fwd":
        return Cost(flops, case.element_bytes * elements)
    return Cost(2 * flops, 2 * case.element_bytes * elements)


def depth(case: Case) -> int:
    """A state sums over its input and the state before, layer upon layer; a weight's gradient sums over all steps and
    rows."""
    through: int = case["layers"] * (case["input"] + case["hidden"])
    return through if case.direction == "fwd" else max(3 * through, case["time"] * case["batch"])


def sized(precision: Any, time: int, batch: int, width: int, hidden: int, layers: int = 1) -> Case:
    return case(precision, time=time, batch=batch, input=width, hidden=hidden, layers=layers)


QUICK = both_directions(
    sized("f32", 5, 8, 24, 32),
    sized("f32", 7, 1, 16, 64),
    sized("f32", 3, 9, 13, 19, 2),
    sized("f64", 4, 3, 16, 16),
)
FULL = (
    *QUICK,
    *both_directions(
        *(sized(p, 32, 128, 256, 512) for p in ("f32", "tf32")),
        sized("f64", 32, 16, 256, 512),
        sized("f32", 13, 1, 256, 512),
        *(sized("f32", 1, batch, 768, 512) for batch in (1, 8, 128)),
        sized("f32", 11, 61, 45, 128, 2),
        sized("f32", 128, 64, 512, 512),
        sized("f32", 1024, 16, 768, 768),
    ),
)
EDGE = (
    *both_directions(
        sized("f32", 1, 1, 1, 3), sized("f32", 2, 3, 5, 7), sized("f32", 3, 17, 8, 33), sized("f32", 3, 70, 8, 40)
    ),
    sized("f32", 2, 0, 4, 5),
)


def _library(x: Tensor, h0: Tensor, weights: Sequence[Tensor], cudnn: bool) -> Outputs:
    switch = (
        torch.backends.cudnn.flags(enabled=cudnn, allow_tf32=torch.backends.cudnn.allow_tf32)
        if x.is_cuda
        else nullcontext()
    )
    with switch:
        # cuDNN has gradients only of what it computed for training.
        out, last = torch._VF.gru(x, h0, list(weights), True, h0.shape[0], 0.0, torch.is_grad_enabled(), False, False)
    return out, last


def by_torch(x: Tensor, h0: Tensor, weights: Sequence[Tensor]) -> Outputs:
    """torch.nn.GRU: on a GPU cuDNN's, whose gates have errors of 2e-6 to 4e-6 in f32."""
    return _library(x, h0, weights, cudnn=True)


operator = Operator(
    "gru",
    "Gated recurrent unit over a sequence.",
    inputs=inputs,
    case_of=case_of,
    reference=reference,
    cost=cost,
    cases={"quick": QUICK, "full": FULL, "edge": EDGE},
    gradients=("x", "h0", "weights"),
    depth=depth,
    by_torch=by_torch,
    native=_recurrent.register_scan,
)


def _through_layers(
    x: Tensor, h0: Tensor, weights: Sequence[Tensor], scan: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
) -> Outputs:
    """All layers: the input products of a layer's steps in one product, then `scan` for the rest of the layer."""
    last = []
    for h, (w_ih, w_hh, b_ih, b_hh) in layers_of(h0, weights):
        x = scan(torch.nn.functional.linear(x, w_ih, b_ih), h, w_hh, b_hh)
        last.append(x[-1])
    return x, torch.stack(last)


@operator.variant(
    "v1", idea="a Python loop of cells, gate by gate: six products and a dozen element-wise calls per step"
)
def v1(x: Tensor, h0: Tensor, weights: Sequence[Tensor]) -> Outputs:
    return reference(x, h0, weights)


@operator.variant(
    "v2", idea="input products of all steps at once; per step one product, and on CUDA torch's own fused cell"
)
def v2(x: Tensor, h0: Tensor, weights: Sequence[Tensor]) -> Outputs:
    return _through_layers(x, h0, weights, _fused_scan if x.is_cuda else _eager_scan)


def _eager_scan(gates: Tensor, h: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    turned, states = w.t(), []
    for step in gates:
        h = _recurrent.cell(step, torch.addmm(bias, h, turned), h)
        states.append(h)
    return torch.stack(states)


def _fused_scan(gates: Tensor, h: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    turned, states = w.t(), []
    for step in gates:
        h = torch.ops.aten._thnn_fused_gru_cell(step, torch.addmm(bias, h, turned), h)[0]
        states.append(h)
    return torch.stack(states)


@operator.variant("aten_gru", idea="torch.nn.GRU without cuDNN: the same loop in C++")
def aten_gru(x: Tensor, h0: Tensor, weights: Sequence[Tensor]) -> Outputs:
    return _library(x, h0, weights, cudnn=False)


def flatten(x: Tensor, h0: Tensor, weights: Sequence[Tensor]) -> dict[str, Any]:
    """The weights in one buffer, as cuDNN requires; unchanged where autograd needs the original tensors."""
    if torch.is_grad_enabled():
        return {"flat": list(weights)}
    flat = [weight.clone() for weight in weights]
    gru_mode, none, layers, hidden = 3, 0, h0.shape[0], h0.shape[2]
    torch._cudnn_rnn_flatten_weight(flat, 4, x.shape[2], gru_mode, hidden, none, layers, False, False)
    return {"flat": flat}


@operator.variant(
    "cudnn",
    idea="torch.nn.GRU on cuDNN, its weights packed into one buffer beforehand",
    outcome="its f32 gates round more coarsely than products in f32",
    devices=("cuda",),
    prepare=flatten,
)
def cudnn(x: Tensor, h0: Tensor, weights: Sequence[Tensor], flat: Sequence[Tensor]) -> Outputs:
    return _library(x, h0, flat, cudnn=True)


def forward_only(case: Case, _device: DeviceKind) -> str | None:
    return "captures the forward pass alone" if case.direction == "bwd" else None


@operator.variant(
    "cuda_graph",
    idea="v2 captured beforehand: one launch for the whole loop, and a copy of the outputs",
    devices=("cuda",),
    unsupported=forward_only,
    prepare=lambda **inputs: {"captured": CapturedCall(v2, **inputs)},
)
def cuda_graph(x: Tensor, h0: Tensor, weights: Sequence[Tensor], captured: CapturedCall) -> Outputs:
    outputs: Outputs = captured()
    return outputs


def full_precision_only(case: Case, device: DeviceKind) -> str | None:
    if case.precision == "tf32" and device == "cpu":
        return "computes in f32: see the f32 case"
    return None if case.precision in ("f64", "f32", "tf32") else "its cells are made for f32 and f64"


@operator.variant(
    "v3",
    idea=(
        "C++: each thread takes its rows through all steps without a barrier; CUDA: a library product and one "
        "cell kernel of ours per step"
    ),
    native=True,
    unsupported=full_precision_only,
)
def v3(x: Tensor, h0: Tensor, weights: Sequence[Tensor]) -> Outputs:
    return _through_layers(x, h0, weights, functools.partial(_recurrent.scan, version=_recurrent.CELL))


def resident_only(case: Case, _device: DeviceKind) -> str | None:
    if case.precision != "f32":
        return "keeps its weights in f32 only"
    # On 132 multiprocessors this is 1024.
    most = UNITS_EACH * torch.cuda.get_device_properties().multi_processor_count // 128 * 128
    return None if case["hidden"] <= most else f"more than {most} units' weights do not fit on chip"


@operator.variant(
    "v4",
    idea=(
        "one launch per layer: each block keeps its units' weights in shared memory; the blocks of a batch row "
        "meet at a barrier after every step"
    ),
    outcome="with one row launches are the limit, with many rows the products are",
    native=True,
    devices=("cuda",),
    unsupported=resident_only,
)
def v4(x: Tensor, h0: Tensor, weights: Sequence[Tensor]) -> Outputs:
    return _through_layers(x, h0, weights, functools.partial(_recurrent.scan, version=_recurrent.PERSISTENT))


def short_only(case: Case, device: DeviceKind) -> str | None:
    if case["time"] > LONGEST_COMPILED:
        return f"it unrolls the loop over time, and more than {LONGEST_COMPILED} steps compile for minutes"
    return compile_unsupported(case, device)


def tiles_unsupported(case: Case, _device: DeviceKind) -> str | None:
    if case.precision != "f32":
        return "it multiplies floats, with the accuracy of f32: see the f32 case"
    return None if case["hidden"] % 8 == 0 else "its warps take eight units each: the units must be a multiple of eight"


@operator.variant(
    "v5",
    idea=(
        "one launch per step: the state's product on tensor cores, each float as a sum of two tf32 numbers, and the "
        "cells, or their gradients, where the sums are"
    ),
    native=True,
    devices=("cuda",),
    unsupported=tiles_unsupported,
)
def v5(x: Tensor, h0: Tensor, weights: Sequence[Tensor]) -> Outputs:
    return _through_layers(x, h0, weights, functools.partial(_recurrent.scan, version=_recurrent.TILES))


@operator.variant("compile", idea="torch.compile of the hoisted loop", unsupported=short_only)
def through_compiler(x: Tensor, h0: Tensor, weights: Sequence[Tensor]) -> Outputs:
    return _compiled()(x, h0, list(weights))


def triton_reason(case: Case, device: DeviceKind) -> str | None:
    return triton_unsupported(case, device) if case.precision != "f64" else "its cells are made for f32"


@operator.variant(
    "triton",
    idea="a library product and one Triton kernel for the cells, per step",
    unsupported=triton_reason,
)
def triton_gru(x: Tensor, h0: Tensor, weights: Sequence[Tensor]) -> Outputs:
    return _through_layers(x, h0, weights, triton_scan)


@functools.cache
def _compiled() -> Callable[..., Outputs]:
    def hoisted(x: Tensor, h0: Tensor, weights: Sequence[Tensor]) -> Outputs:
        return _through_layers(x, h0, weights, _eager_scan)

    return compiled(hoisted)
