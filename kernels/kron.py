"""Two stacked factorized linear layers, y = x · (W_K ⊗ … ⊗ W_1) twice: small products instead of one matrix of N x N.

x is (batch, f_K, …, f_1), so factor 1 belongs to the fastest axis. Each layer's weights come packed flat, W_k of f_k x
f_k elements in factor order, row-major [in, out]. The output has the shape of x.
"""

from __future__ import annotations

import functools
import importlib.util
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from warpwatch.operator import Case, Cost, DeviceKind, Maker, Operator, SizeQuestion, both_directions, case
from warpwatch.peers import compile_unsupported

from ._compiled import compiled
from ._gradients import once_differentiable

LAYER, BOTH, TENSOR, THREE_TERMS, ONE_TERM = 3, 4, 5, 6, 7
"""Versions of the native operator, numbered as in csrc/kron/kron.h."""

LAYERS = 2


def inputs(case: Case, make: Maker) -> dict[str, Any]:
    factors: tuple[int, ...] = case["factors"]

    def weights() -> Tensor:
        # This scale keeps the size of the numbers from layer to layer.
        return torch.cat([make.normal(f * f, scale=f**-0.5) for f in factors])

    x = make.normal(case["batch"], *reversed(factors))
    return {"x": x, "w1": weights(), "w2": weights(), "factors": factors}


def case_of(x: Tensor, w1: Tensor, w2: Tensor, factors: tuple[int, ...], **_prepared: Any) -> Case:
    return case(batch=x.shape[0], factors=tuple(factors))


def unpack(w: Tensor, factors: Sequence[int]) -> list[Tensor]:
    """The matrices W_1 … W_K, each [in, out], as views of packed weights."""
    return [part.view(f, f) for part, f in zip(torch.split(w, [f * f for f in factors]), factors, strict=True)]


def reference(x: Tensor, w1: Tensor, w2: Tensor, factors: tuple[int, ...]) -> Tensor:
    """Each W_k contracts the axis it belongs to, which is the k-th from the end."""
    for w in (w1, w2):
        for k, weight in enumerate(unpack(w, factors), start=1):
            x = torch.tensordot(x, weight, dims=([x.dim() - k], [0])).movedim(-1, x.dim() - k)
    return x


def cost(case: Case) -> Cost:
    """Forward reads x and both layers' weights and writes y.

    Backward needs two products of the same size per stage, reads x, the incoming gradient and the weights, and writes a
    gradient for each of x and the weights.
    """
    factors: tuple[int, ...] = case["factors"]
    elements = case["batch"] * math.prod(factors)
    weights = LAYERS * sum(f * f for f in factors)
    flops = LAYERS * 2 * elements * sum(factors)
    if case.direction == "fwd":
        return Cost(flops, case.element_bytes * (2 * elements + weights))
    return Cost(2 * flops, case.element_bytes * (3 * elements + 2 * weights))


def depth(case: Case) -> int:
    """Forward, a term passes through every factor's sum of both layers; a weight's gradient sums over the batch and all
    other axes."""
    factors: tuple[int, ...] = case["factors"]
    through = LAYERS * sum(factors)
    if case.direction == "fwd":
        return through
    batch: int = case["batch"]
    return max(through, batch * math.prod(factors) // min(factors))


def register_native() -> None:
    """Shapes for torch.compile, and the gradients, for the torch operators that the library defines."""

    @torch.library.register_fake("warpwatch::kron")  # type: ignore[untyped-decorator]
    def fake(
        x: Tensor, w1: Tensor, w2: Tensor, factors: Sequence[int], version: int = LAYER, keep: bool = False
    ) -> tuple[Tensor, Tensor]:
        states = LAYERS * len(factors) - 1 if keep else 0
        return x.new_empty(x.shape), x.new_empty((states, *x.shape))

    @torch.library.register_fake("warpwatch::kron_backward")  # type: ignore[untyped-decorator]
    def fake_backward(
        gradient: Tensor,
        x: Tensor,
        states: Tensor,
        w1: Tensor,
        w2: Tensor,
        factors: Sequence[int],
        version: int = LAYER,
    ) -> tuple[Tensor, Tensor, Tensor]:
        return x.new_empty(x.shape), w1.new_empty(w1.shape), w2.new_empty(w2.shape)

    torch.library.register_autograd("warpwatch::kron", _backward, setup_context=_remember)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, w1, w2, ctx.factors, ctx.version, _ = inputs
    states = output[1]
    ctx.mark_non_differentiable(states)
    # Otherwise autograd fills a tensor as large as all states with zeros, as the gradient of what has none.
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, states, w1, w2)


@once_differentiable
def _backward(ctx: Any, gradient: Tensor | None, _states: None) -> tuple[Tensor | None, ...]:
    if gradient is None:
        return (None,) * 6
    x, states, w1, w2 = ctx.saved_tensors
    if states.shape[0] == 0:
        # The forward call was not asked to keep what the gradients need.
        _, states = torch.ops.warpwatch.kron(x, w1, w2, ctx.factors, ctx.version, True)
    gradients = torch.ops.warpwatch.kron_backward(gradient, x, states, w1, w2, ctx.factors, ctx.version)
    return (*gradients, None, None, None)


QUICK = both_directions(
    case("f32", batch=16, factors=(32, 32)),
    case("f64", batch=16, factors=(32, 32)),
    case("f32", batch=33, factors=(7, 5, 11)),
    case("f32", batch=64, factors=(3, 3)),
    case("f32", batch=1, factors=(32, 32)),
)
FULL = (
    *QUICK,
    *both_directions(
        *(case(p, batch=32, factors=(128, 128)) for p in ("f32", "f64", "tf32")),
        case("f32", batch=32, factors=(8, 8, 8, 8)),
        *(case("f32", batch=1024, factors=f) for f in ((8,) * 5, (16,) * 4, (32,) * 3, (64,) * 2, (128,) * 2)),
        *(case("f64", batch=1024, factors=f) for f in ((32,) * 3, (64,) * 2, (128,) * 2)),
        *(case("tf32", batch=1024, factors=f) for f in ((32,) * 3, (64,) * 2, (128,) * 2)),
        case("f32", batch=64, factors=(127, 31)),
        case("f64", batch=33, factors=(7, 5, 11)),
        case("f32", batch=1, factors=(128, 128)),
        case("f32", batch=64, factors=(128, 128, 128)),
    ),
    # Its gradients' float64 oracle does not fit into 80 GB.
    case("f32", batch=320, factors=(128, 128, 128)),
)
EDGE = (
    *both_directions(case("f32", batch=2, factors=(31, 33))),
    case("f32", batch=1, factors=(1,)),
    case("f32", batch=3, factors=(1, 17, 2)),
    case("f32", batch=0, factors=(3, 5)),
)

operator = Operator(
    "kron",
    "Two stacked factorized linear layers: x times a Kronecker product of small matrices, twice.",
    inputs=inputs,
    case_of=case_of,
    reference=reference,
    cost=cost,
    cases={"quick": QUICK, "full": FULL, "edge": EDGE},
    gradients=("x", "w1", "w2"),
    depth=depth,
    native=register_native,
    questions=(SizeQuestion("What does a fused layer win over cuBLAS by its factors?", "factors", "cublas"),),
)


@operator.variant(
    "v1",
    idea="(x @ w).movedim(-1, 1) per factor",
)
def v1(x: Tensor, w1: Tensor, w2: Tensor, factors: tuple[int, ...]) -> Tensor:
    for w in (w1, w2):
        for weight in unpack(w, factors):
            x = (x @ weight).movedim(-1, 1)
    return x.contiguous()


@operator.variant(
    "v2",
    idea="one plain product per factor with the transposes folded in, and one closing transpose per layer",
)
def v2(x: Tensor, w1: Tensor, w2: Tensor, factors: tuple[int, ...]) -> Tensor:
    shape = x.shape
    for w in (w1, w2):
        for weight in unpack(w, factors):
            f = weight.shape[0]
            x = weight.t() @ x.reshape(x.numel() // f, f).t()
        x = x.reshape(math.prod(shape[1:]), shape[0]).t().contiguous()
    return x.view(shape)


@operator.variant(
    "cublas",
    idea="one strided-batched product per factor, the weight with batch stride 0",
)
def cublas(x: Tensor, w1: Tensor, w2: Tensor, factors: tuple[int, ...]) -> Tensor:
    shape = x.shape
    for w in (w1, w2):
        for weight in unpack(w, factors):
            f = weight.shape[0]
            x = torch.bmm(
                weight.t().expand(shape[0], f, f), x.reshape(shape[0], math.prod(shape[1:]) // f, f).transpose(1, 2)
            )
    return x.view(shape)


def full_precision_only(case: Case, _device: DeviceKind) -> str | None:
    return "computes in f32: see the f32 case" if case.precision == "tf32" else None


@operator.variant(
    "v3",
    idea="C++: a batch row stays in cache through both layers; CUDA: one launch per layer, the state in shared memory",
    outcome="few rows of large factors leave multiprocessors idle",
    native=True,
    unsupported=full_precision_only,
)
def v3(x: Tensor, w1: Tensor, w2: Tensor, factors: tuple[int, ...]) -> Tensor:
    return _native(x, w1, w2, factors, LAYER)


@operator.variant(
    "v4",
    idea="both layers in one launch: the state leaves shared memory once",
    native=True,
    devices=("cuda",),
    unsupported=full_precision_only,
)
def v4(x: Tensor, w1: Tensor, w2: Tensor, factors: tuple[int, ...]) -> Tensor:
    return _native(x, w1, w2, factors, BOTH)


def tf32_only(case: Case, _device: DeviceKind) -> str | None:
    if case.precision != "tf32":
        return "its tensor cores round to tf32: see the tf32 case"
    return None if all(f in (16, 32, 64, 128) for f in case["factors"]) else "takes factors of 16, 32, 64 and 128 alone"


@operator.variant(
    "v5",
    idea="v4 on tensor cores, in tf32",
    native=True,
    devices=("cuda",),
    unsupported=tf32_only,
)
def v5(x: Tensor, w1: Tensor, w2: Tensor, factors: tuple[int, ...]) -> Tensor:
    return _native(x, w1, w2, factors, TENSOR)


def three_terms_unsupported(case: Case, _device: DeviceKind) -> str | None:
    if case.precision != "f32":
        return "splits floats: see the f32 case"
    return None if case["factors"] in ((64,) * 2, (128,) * 2, (32,) * 3) else "takes 64 x 64, 128 x 128 or 32 x 32 x 32"


@operator.variant(
    "v6",
    idea=(
        "tensor cores with the accuracy of f32: a float as a sum of two numbers of tf32; factors in the order that "
        "keeps warps and blocks longest from exchanging what they computed. Where that is not known to be faster, "
        "including all gradients but those of few rows of 128 x 128, it is v4"
    ),
    native=True,
    devices=("cuda",),
    unsupported=three_terms_unsupported,
)
def v6(x: Tensor, w1: Tensor, w2: Tensor, factors: tuple[int, ...]) -> Tensor:
    return _native(x, w1, w2, factors, THREE_TERMS)


def one_term_unsupported(case: Case, _device: DeviceKind) -> str | None:
    if case.precision != "tf32":
        return "its tensor cores round to tf32: see the tf32 case"
    return None if case["factors"] in ((64,) * 2, (32,) * 3) else "takes 64 x 64 or 32 x 32 x 32"


@operator.variant(
    "v7",
    idea="v6 in tf32, forward; v5 where v6 is v4",
    native=True,
    devices=("cuda",),
    unsupported=one_term_unsupported,
)
def v7(x: Tensor, w1: Tensor, w2: Tensor, factors: tuple[int, ...]) -> Tensor:
    return _native(x, w1, w2, factors, ONE_TERM)


@operator.variant("compile", idea="torch.compile of v1", unsupported=compile_unsupported)
def compiled_v1(x: Tensor, w1: Tensor, w2: Tensor, factors: tuple[int, ...]) -> Tensor:
    return _compiled()(x, w1, w2, factors)


def gpytorch_unsupported(case: Case, _device: DeviceKind) -> str | None:
    if case["batch"] == 0:
        return "it leaves a size for torch to find, which has no answer without rows"
    installed = importlib.util.find_spec("linear_operator") is not None
    return None if installed else "linear_operator is not installed: pip install gpytorch"


@operator.variant("gpytorch", idea="GPyTorch's KroneckerProductLinearOperator", unsupported=gpytorch_unsupported)
def gpytorch(x: Tensor, w1: Tensor, w2: Tensor, factors: tuple[int, ...]) -> Tensor:
    from linear_operator.operators import KroneckerProductLinearOperator

    y = x.reshape(x.shape[0], math.prod(x.shape[1:])).t()
    for w in (w1, w2):
        y = KroneckerProductLinearOperator(*(weight.t() for weight in reversed(unpack(w, factors)))) @ y
    return y.t().reshape(x.shape)


@functools.cache
def _compiled() -> Callable[..., Tensor]:
    return compiled(v1)


def _native(x: Tensor, w1: Tensor, w2: Tensor, factors: tuple[int, ...], version: int) -> Tensor:
    keep = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (x, w1, w2))
    y: Tensor = torch.ops.warpwatch.kron(x, w1, w2, factors, version, keep)[0]
    return y
