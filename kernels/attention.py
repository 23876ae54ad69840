"""softmax(Q Kᵀ / √D + mask) V for every head of a batch, causal or not.

q is (batch, heads, queries, dim), k and v are (batch, heads, keys, dim). Causal hides key j from query i where j > i.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from warpwatch.operator import Case, Cost, DeviceKind, Maker, Operator, both_directions, case
from warpwatch.peers import compile_unsupported, triton_unsupported

from ._aligned import aligned
from ._compiled import compiled
from ._gradients import once_differentiable
from ._hopper import hopper_unsupported

TENSOR_CORES, WARPGROUPS = 3, 4
"""Rungs of the native operators, numbered as in csrc/attention/attention.h."""

LARGEST_DIM = 128
"""Of a head, for the CUDA kernels of v3."""
WARPGROUP_DIMS = (64, 128)
"""Of a head, for the kernels of v4."""


def inputs(case: Case, make: Maker) -> dict[str, Any]:
    b, h, d = case["b"], case["h"], case["d"]
    q, k, v = (make.normal(b, h, rows, d) for rows in (case["q"], case["k"], case["k"]))
    return {"q": q, "k": k, "v": v, "causal": bool(case["causal"])}


def case_of(q: Tensor, k: Tensor, v: Tensor, causal: bool, **_prepared: Any) -> Case:
    return case(b=q.shape[0], h=q.shape[1], q=q.shape[2], k=k.shape[2], d=q.shape[3], causal=int(causal))


def reference(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """One head after the other, so that only the scores of one head are in memory."""
    heads = [_one_head(*head, causal) for head in zip(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), strict=True)]
    return torch.stack(heads).view(*q.shape[:3], v.shape[3])


def _one_head(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    scores = q @ k.T / math.sqrt(q.shape[1])
    if causal:
        scores = scores.masked_fill(hidden(scores), -math.inf)
    return scores.softmax(1) @ v


def hidden(scores: Tensor) -> Tensor:
    """Where a causal mask hides a key from a query."""
    return torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)


def pairs(case: Case) -> int:
    """Pairs of a query and a key that it may see, over all heads."""
    queries, keys = case["q"], case["k"]
    seen = sum(min(i + 1, keys) for i in range(queries)) if case["causal"] else queries * keys
    return int(case["b"] * case["h"] * seen)


def cost(case: Case) -> Cost:
    """Two products forward.

    Backward computes the scores again and then four gradients, five products in all, from q, k, v and the incoming
    gradient; the softmax is not counted.
    """
    heads, d = case["b"] * case["h"], case["d"]
    per_query, per_key = heads * case["q"] * d, heads * case["k"] * d
    if case.direction == "fwd":
        return Cost(4 * pairs(case) * d, case.element_bytes * 2 * (per_query + per_key))
    return Cost(10 * pairs(case) * d, case.element_bytes * (3 * per_query + 4 * per_key))


def depth(case: Case) -> int:
    """A score sums over a head's elements, a result over all keys, and a key's gradient over all queries."""
    longest: int = case["k"] if case.direction == "fwd" else max(case["q"], case["k"])
    return longest + int(case["d"])


def new_like(x: Tensor) -> Tensor:
    """As the native operator makes results: with the heads of a row beside each other if they are in x."""
    b, h, s, d = x.shape
    return x.new_empty(b, s, h, d).transpose(1, 2) if x.stride(1) < x.stride(2) else x.new_empty(x.shape)


@functools.cache
def register_native() -> None:
    """Shapes for torch.compile, and the gradients, for the torch operators that the library defines; only once."""

    @torch.library.register_fake("warpwatch::attention")  # type: ignore[untyped-decorator]
    def fake(
        q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, version: int = TENSOR_CORES
    ) -> tuple[Tensor, Tensor]:
        wide = torch.float64 if q.dtype == torch.float64 else torch.float32
        return new_like(q), q.new_empty(q.shape[:3], dtype=wide)

    @torch.library.register_fake("warpwatch::attention_backward")  # type: ignore[untyped-decorator]
    def fake_backward(
        gradient: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        log_sum: Tensor,
        causal: bool,
        scale: float,
        version: int = TENSOR_CORES,
    ) -> tuple[Tensor, Tensor, Tensor]:
        return new_like(q), new_like(k), new_like(v)

    def remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        q, k, v, *ctx.options = inputs
        out, log_sum = output
        ctx.mark_non_differentiable(log_sum)
        # Otherwise autograd fills a tensor with zeros, as the gradient of what has none.
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, out, log_sum)

    @once_differentiable
    def backward(ctx: Any, gradient: Tensor | None, _log_sum: None) -> tuple[Tensor | None, ...]:
        if gradient is None:
            return (None,) * 6
        gradients = torch.ops.warpwatch.attention_backward(gradient, *ctx.saved_tensors, *ctx.options)
        return (*gradients, None, None, None)

    torch.library.register_autograd("warpwatch::attention", backward, setup_context=remember)


def native_attention(q: Tensor, k: Tensor, v: Tensor, causal: bool, version: int = WARPGROUPS) -> Tensor:
    """Attention by the native operator; a rung that does not take the operands leaves them to the one before."""
    out: Tensor = torch.ops.warpwatch.attention(q, k, v, causal, q.shape[3] ** -0.5, version)[0]
    return out


QUICK = both_directions(
    case("f32", b=2, h=4, q=128, k=128, d=64, causal=0),
    case("f32", b=1, h=3, q=97, k=97, d=33, causal=1),
    case("f64", b=1, h=2, q=65, k=50, d=16, causal=0),
    case("bf16", b=1, h=4, q=96, k=96, d=64, causal=1),
    case("f16", b=2, h=2, q=64, k=80, d=32, causal=0),
)
FULL = (
    *QUICK,
    *both_directions(
        *(case(p, b=16, h=16, q=512, k=512, d=64, causal=0) for p in ("f32", "bf16", "f16")),
        *(
            case("bf16", b=4, h=16, q=rows, k=rows, d=d, causal=causal)
            for rows in (512, 2048, 8192)
            for d in (64, 128)
            for causal in (0, 1)
        ),
        *(case("f16", b=4, h=16, q=2048, k=2048, d=128, causal=causal) for causal in (0, 1)),
        # In f32 the scores of 8192 queries that unfused variants keep do not fit into 80 GB.
        *(case("f32", b=4, h=16, q=rows, k=rows, d=64, causal=causal) for rows in (512, 2048) for causal in (0, 1)),
        case("f32", b=4, h=16, q=2048, k=2048, d=128, causal=1),
        case("bf16", b=3, h=5, q=1023, k=1023, d=80, causal=1),
    ),
)
EDGE = (
    *both_directions(
        case("f32", b=1, h=1, q=65, k=63, d=5, causal=0),
        case("bf16", b=1, h=2, q=63, k=65, d=72, causal=1),
        case("f32", b=1, h=1, q=50, k=170, d=128, causal=1),
        # Whole tiles, in which the kernels do not look for an end.
        case("bf16", b=1, h=1, q=256, k=256, d=64, causal=1),
        case("f16", b=1, h=1, q=128, k=256, d=128, causal=0),
    ),
    # With one key the gradients of scores are zero, and so is what an error would be measured against.
    case("f32", b=2, h=1, q=1, k=1, d=1, causal=1),
    case("f32", b=1, h=2, q=3, k=1, d=8, causal=0),
    case("f32", b=1, h=2, q=1, k=129, d=64, causal=0),
)

operator = Operator(
    "attention",
    "Multi-head attention, causal or not.",
    inputs=inputs,
    case_of=case_of,
    reference=reference,
    cost=cost,
    cases={"quick": QUICK, "full": FULL, "edge": EDGE},
    gradients=("q", "k", "v"),
    depth=depth,
    native=register_native,
    no_special_values="a hidden pair is left out by some formulas and multiplied by zero by others, which keeps a NaN",
)


@operator.variant("v1", idea="two products and a softmax between them; all scores go through memory")
def v1(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    scores = q @ k.mT / math.sqrt(q.shape[3])
    if causal:
        scores = scores.masked_fill(hidden(scores), -math.inf)
    return scores.softmax(3) @ v


def _torch_attention(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """torch's fused kernels read 16 bytes at a time without checking alignment: an unaligned tensor ends in an error
    that destroys the process's CUDA context or, in cuDNN, in NaN.

    Unaligned tensors are therefore copied, the incoming gradient as well, and so are tensors with gaps, which the
    kernels refuse.
    """
    out = F.scaled_dot_product_attention(aligned(q), aligned(k), aligned(v), is_causal=causal)
    if out.requires_grad:
        out.register_hook(aligned)  # type: ignore[no-untyped-call]
    return out


def _sdpa(backend: SDPBackend, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    with sdpa_kernel(backend):
        return _torch_attention(q, k, v, causal)


@operator.variant("v2", idea="scaled_dot_product_attention, whichever backend torch chooses")
def v2(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    return _torch_attention(q, k, v, causal)


@operator.variant("sdpa_math", idea="scaled_dot_product_attention in plain products")
def sdpa_math(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    return _sdpa(SDPBackend.MATH, q, k, v, causal)


def sixteen_bits_only(case: Case, _device: DeviceKind) -> str | None:
    return None if case.precision in ("bf16", "f16") else "takes bf16 and f16 alone"


def flash_unsupported(case: Case, device: DeviceKind) -> str | None:
    if case["causal"] and case["q"] != case["k"]:
        return "torch has no causal FlashAttention for fewer or more keys than queries"
    return sixteen_bits_only(case, device)


def efficient_unsupported(case: Case, _device: DeviceKind) -> str | None:
    if case.precision == "f64":
        return "has no kernel for f64"
    return "takes rows of whole 16 bytes" if case["d"] * case.element_bytes % 16 else None


def cudnn_unsupported(case: Case, device: DeviceKind) -> str | None:
    if case["d"] % 8:
        return "cuDNN takes heads of a multiple of 8"
    return sixteen_bits_only(case, device)


@operator.variant("sdpa_flash", idea="FlashAttention in torch", devices=("cuda",), unsupported=flash_unsupported)
def sdpa_flash(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    return _sdpa(SDPBackend.FLASH_ATTENTION, q, k, v, causal)


@operator.variant(
    "sdpa_efficient", idea="memory-efficient attention in torch", devices=("cuda",), unsupported=efficient_unsupported
)
def sdpa_efficient(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    return _sdpa(SDPBackend.EFFICIENT_ATTENTION, q, k, v, causal)


@operator.variant(
    "sdpa_cudnn",
    idea="cuDNN's fused attention",
    devices=("cuda",),
    unsupported=cudnn_unsupported,
)
def sdpa_cudnn(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    return _sdpa(SDPBackend.CUDNN_ATTENTION, q, k, v, causal)


@operator.variant("einsum", idea="both products as einsum")
def einsum(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.shape[3])
    if causal:
        scores = scores.masked_fill(hidden(scores), -math.inf)
    return torch.einsum("bhqk,bhkd->bhqd", scores.softmax(3), v)


@operator.variant(
    "cublas",
    idea="one strided-batched product with K transposed and 1/√D as its factor, softmax, another product",
    devices=("cuda",),
)
def cublas(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    (b, h, queries, d), keys = q.shape, k.shape[2]
    # beta = 0 leaves the first operand unread.
    unread = q.new_empty(()).expand(b * h, queries, keys)
    scores = torch.baddbmm(unread, q.flatten(0, 1), k.flatten(0, 1).mT, beta=0, alpha=d**-0.5)
    if causal:
        scores = scores.masked_fill(hidden(scores), -math.inf)
    return torch.bmm(scores.softmax(2), v.flatten(0, 1)).view(b, h, queries, d)


def identities(q: Tensor, **_others: Any) -> dict[str, Any]:
    return {"identity": torch.eye(q.shape[1] * q.shape[3], dtype=q.dtype, device=q.device)}


@operator.variant(
    "mha",
    idea="nn.MultiheadAttention's function, whose four projections, here identities, are timed with it",
    prepare=identities,
)
def mha(q: Tensor, k: Tensor, v: Tensor, causal: bool, identity: Tensor) -> Tensor:
    b, heads, rows, d = q.shape
    # It takes (rows, batch, heads * dim).
    queries, keys, values = (t.permute(2, 0, 1, 3).reshape(t.shape[2], b, heads * d) for t in (q, k, v))
    mask = hidden(q.new_empty(rows, k.shape[2])) if causal else None
    y, _ = F.multi_head_attention_forward(
        queries,
        keys,
        values,
        heads * d,
        heads,
        None,
        None,
        None,
        None,
        False,
        0.0,
        identity,
        None,
        training=False,
        need_weights=False,
        attn_mask=mask,
        use_separate_proj_weight=True,
        q_proj_weight=identity,
        k_proj_weight=identity,
        v_proj_weight=identity,
    )
    return y.view(rows, b, heads, d).permute(1, 2, 0, 3)


def v3_unsupported(case: Case, device: DeviceKind) -> str | None:
    if device == "cpu":
        return None
    if case["d"] > LARGEST_DIM:
        return f"its kernels take heads of at most {LARGEST_DIM}"
    return "its kernels sum in f32" if case.precision == "f64" else None


@operator.variant(
    "v3",
    idea=(
        "scores stay on chip: tiles with an online softmax, and backward recomputes them from the stored sums; "
        "C++: vectors; CUDA: mma.sync, with f32 split into two tf32 numbers"
    ),
    outcome="mma.sync does not reach the rate of Hopper's wgmma",
    native=True,
    unsupported=v3_unsupported,
)
def v3(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    return native_attention(q, k, v, causal, TENSOR_CORES)


def v4_unsupported(case: Case, device: DeviceKind) -> str | None:
    if case["d"] not in WARPGROUP_DIMS:
        return "its kernels take heads of 64 and 128"
    return hopper_unsupported() or sixteen_bits_only(case, device)


@operator.variant(
    "v4",
    idea=(
        "v3's algorithm with wgmma on Hopper: one warpgroup copies tiles by TMA, the others multiply; "
        "the next scores are computed while values are summed up"
    ),
    outcome="the gradient computes the scores once for queries and once for keys, so that results repeat to the bit",
    native=True,
    devices=("cuda",),
    unsupported=v4_unsupported,
)
def v4(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    return native_attention(q, k, v, causal, WARPGROUPS)


@operator.variant("compile", idea="torch.compile of v1, in which it may find SDPA", unsupported=compile_unsupported)
def compiled_v1(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    return _compiled()(q, k, v, causal)


@functools.cache
def _compiled() -> Callable[..., Tensor]:
    return compiled(v1)


def flex_unsupported(case: Case, device: DeviceKind) -> str | None:
    if case["d"] not in (16, 32, 64, 128, 256) or case.precision == "f64":
        return "flex_attention takes heads of 16, 32, 64, 128 or 256, and no f64"
    if case["d"] >= 128 and case.precision == "f32":
        return "one of its kernels in f32 takes half a minute to compile"
    return compile_unsupported(case, device)


def flex_mask(q: Tensor, k: Tensor, causal: bool, **_others: Any) -> dict[str, Any]:
    from torch.nn.attention.flex_attention import create_block_mask

    if not causal:
        return {"mask": None}
    return {
        "mask": create_block_mask(lambda b, h, i, j: i >= j, None, None, q.shape[2], k.shape[2], device=str(q.device))
    }


@operator.variant(
    "flex", idea="flex_attention, compiled", devices=("cuda",), unsupported=flex_unsupported, prepare=flex_mask
)
def flex(q: Tensor, k: Tensor, v: Tensor, causal: bool, mask: Any) -> Tensor:
    return _compiled_flex()(q, k, v, block_mask=mask)


@functools.cache
def _compiled_flex() -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    return compiled(flex_attention)


def triton_refused(case: Case, device: DeviceKind) -> str | None:
    if case.precision == "f64":
        return "the kernels sum in f32"
    return triton_unsupported(case, device)


@operator.variant(
    "triton",
    idea="v3's algorithm: a program owns 64 queries and loops over the keys",
    unsupported=triton_refused,
)
def triton_attention(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    from ._triton_attention import TritonAttention

    out: Tensor = TritonAttention.apply(q, k, v, causal)  # type: ignore[no-untyped-call]
    return out
