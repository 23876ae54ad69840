"""Rotary position embedding: pairs of elements of queries and keys, rotated by an angle that grows with the position.

y = x * cos + partner(x) * sin, where the partner of (a, b) is (-b, a). A row pairs element i with i + dim / 2, or,
interleaved, 2i with 2i + 1; cos and sin hold a row per position, built for one form or the other. Queries and keys are
(batch, length, heads, dim), or in the layout bhsd as (batch, heads, length, dim).
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpwatch.operator import Case, Cost, DeviceKind, Maker, Operator, both_directions, case
from warpwatch.peers import compile_unsupported, triton_unsupported

from ._compiled import compiled
from ._gradients import once_differentiable

FLAT, TABLE, WORDS = 3, 4, 5
"""Versions of the native operator, numbered as in csrc/rope/rope.h."""

BASE = 10000.0

Both = tuple[Tensor, Tensor]


def inputs(case: Case, make: Maker) -> dict[str, Any]:
    heads_first, interleaved = case.layout == "bhsd", case.layout == "interleaved"
    batch, length, dim = case["batch"], case["length"], case["dim"]

    def rows(heads: int) -> Tensor:
        return make.normal(batch, heads, length, dim) if heads_first else make.normal(batch, length, heads, dim)

    q, k = rows(case["heads"][0]), rows(case["heads"][1])
    table = table_rows(case)
    cos, sin = tables(torch.arange(table, device=q.device), dim, interleaved)
    # A decoding step asks for one position per sequence, wherever that sequence is.
    positions = make.integers(0, table, batch, length) if "table" in dict(case.sizes) else None
    return {
        "q": q,
        "k": k,
        "cos": cos.to(q.dtype),
        "sin": sin.to(q.dtype),
        "positions": positions,
        "heads_first": heads_first,
        "interleaved": interleaved,
    }


def case_of(q: Tensor, k: Tensor, interleaved: bool = False, **_others: Any) -> Case:
    return case(layout="interleaved" if interleaved else "contiguous", batch=q.shape[0], dim=q.shape[3])


def table_rows(case: Case) -> int:
    rows: int = dict(case.sizes).get("table", case["length"])
    return rows


def tables(positions: Tensor, dim: int, interleaved: bool) -> Both:
    """cos and sin of position * BASE ** (-2i / dim), a row per position, each angle at both elements of its pair."""
    frequencies = BASE ** (-torch.arange(0, dim, 2, device=positions.device, dtype=torch.float64) / dim)
    angles = positions.double()[:, None] * frequencies
    angles = angles.repeat_interleave(2, dim=1) if interleaved else torch.cat([angles, angles], dim=1)
    return angles.cos(), angles.sin()


def rotate_half(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)


def rotate_pairs(x: Tensor) -> Tensor:
    first, second = x[..., ::2], x[..., 1::2]
    return torch.stack([-second, first], dim=-1).flatten(-2)


def spread(table: Tensor, positions: Tensor | None, heads_first: bool) -> Tensor:
    """The table's rows for every position, with an axis of size 1 for the heads."""
    rows = table[None] if positions is None else table[positions]
    return rows[:, None] if heads_first else rows[:, :, None]


def reference(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None = None,
    heads_first: bool = False,
    interleaved: bool = False,
) -> Both:
    partner = rotate_pairs if interleaved else rotate_half
    cos, sin = spread(cos, positions, heads_first), spread(sin, positions, heads_first)
    return q * cos + partner(q) * sin, k * cos + partner(k) * sin


def cost(case: Case) -> Cost:
    """Three operations per element, in either direction: gradients are rotated back by the same tables.

    Only table rows of positions in use are read.
    """
    places = case["batch"] * case["length"]
    elements = places * sum(case["heads"]) * case["dim"]
    asked = min(places, table_rows(case)) if "table" in dict(case.sizes) else table_rows(case)
    positions = 8 * places if "table" in dict(case.sizes) else 0
    return Cost(3 * elements, case.element_bytes * (2 * elements + 2 * asked * case["dim"]) + positions)


def register_native() -> None:
    """Shapes for torch.compile, and the gradient, for the torch operators that the library defines."""

    def fake(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *_: Any) -> Both:
        return q.new_empty(q.shape), k.new_empty(k.shape)

    def remember(ctx: Any, inputs: tuple[Any, ...], output: Both) -> None:
        _, _, cos, sin, positions, *ctx.form = inputs
        ctx.save_for_backward(cos, sin, positions)

    @once_differentiable
    def backward(ctx: Any, q_gradient: Tensor, k_gradient: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin, positions = ctx.saved_tensors
        both = torch.ops.warpwatch.rope_backward(q_gradient, k_gradient, cos, sin, positions, *ctx.form)
        return (*both, *[None] * 6)

    torch.library.register_fake("warpwatch::rope", fake)
    torch.library.register_fake("warpwatch::rope_backward", fake)
    torch.library.register_autograd("warpwatch::rope", backward, setup_context=remember)


def sized(precision: Any, layout: str = "contiguous", **sizes: Any) -> Case:
    return case(precision, "fwd", layout, **sizes)


QUICK = both_directions(
    sized("f32", batch=2, length=128, heads=(8, 2), dim=64),
    sized("bf16", batch=1, length=128, heads=(8, 2), dim=128),
    sized("f32", "bhsd", batch=1, length=65, heads=(4, 4), dim=64),
    sized("f32", "interleaved", batch=1, length=64, heads=(3, 1), dim=10),
    sized("f16", batch=64, length=1, heads=(8, 2), dim=64, table=512),
)
FULL = (
    *QUICK,
    *both_directions(
        # Lengths up to 32k of one sequence, with the heads of an 8-billion-parameter model.
        *(sized("bf16", batch=1, length=length, heads=(32, 8), dim=128) for length in (512, 2048, 8192, 32768)),
        *(sized("bf16", batch=1, length=2048, heads=(32, 8), dim=dim) for dim in (64, 256)),
        *(sized("bf16", "bhsd", batch=1, length=length, heads=(32, 8), dim=128) for length in (2048, 8192)),
        sized("bf16", "bhsd", batch=1, length=2048, heads=(32, 8), dim=256),
        sized("bf16", "interleaved", batch=1, length=8192, heads=(32, 8), dim=128),
        sized("f16", batch=4, length=2048, heads=(32, 8), dim=128),
        sized("f32", batch=1, length=8192, heads=(32, 8), dim=128),
        sized("f64", batch=1, length=2048, heads=(32, 8), dim=128),
    ),
    # Decoding is never differentiated.
    *(sized("bf16", batch=batch, length=1, heads=(32, 8), dim=128, table=32768) for batch in (1, 64, 512)),
)
EDGE = (
    *both_directions(
        sized("f32", batch=1, length=1, heads=(1, 1), dim=2),
        sized("bf16", batch=1, length=3, heads=(5, 3), dim=18),
        sized("f32", "interleaved", batch=2, length=3, heads=(2, 1), dim=16),
    ),
    sized("f64", "bhsd", batch=2, length=5, heads=(3, 1), dim=6),
    sized("f16", "bhsd", batch=2, length=1, heads=(17, 1), dim=80, table=3),
    sized("bf16", "interleaved", batch=1, length=2, heads=(9, 9), dim=32),
    sized("f32", batch=2, length=0, heads=(2, 1), dim=8),
)

operator = Operator(
    "rope",
    "Rotary position embedding of queries and keys.",
    inputs=inputs,
    case_of=case_of,
    reference=reference,
    cost=cost,
    cases={"quick": QUICK, "full": FULL, "edge": EDGE},
    gradients=("q", "k"),
    depth=lambda case: 2,
    native=register_native,
)


@operator.variant(
    "v1", idea="x * cos + rotate_half(x) * sin as models write it: two halves negated and joined, two products, a sum"
)
def v1(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None, heads_first: bool, interleaved: bool
) -> Both:
    return reference(q, k, cos, sin, positions, heads_first, interleaved)


@operator.variant(
    "v2",
    idea=(
        "the sign moves into the small table, so that the partner is a plain roll and the last two steps are "
        "one addcmul"
    ),
)
def v2(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None, heads_first: bool, interleaved: bool
) -> Both:
    half = sin.shape[1] // 2
    sign = torch.ones(2, dtype=sin.dtype, device=sin.device)
    sign[0].neg_()
    signed = sin * (sign.repeat(half) if interleaved else sign.repeat_interleave(half))
    cos, signed = spread(cos, positions, heads_first), spread(signed, positions, heads_first)

    def turned(x: Tensor) -> Tensor:
        partner = x.reshape(*x.shape[:-1], half, 2).flip(-1).flatten(-2) if interleaved else x.roll(half, dims=-1)
        return torch.addcmul(x * cos, partner, signed)

    return turned(q), turned(k)


@operator.variant(
    "v3",
    idea="queries and keys in one pass over memory; C++: rows over threads; CUDA: a block per position",
    native=True,
)
def v3(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None, heads_first: bool, interleaved: bool
) -> Both:
    return _native(q, k, cos, sin, positions, heads_first, interleaved, FLAT)


@operator.variant(
    "v4",
    idea="a thread keeps its part of the tables in registers and rotates every head of its position, four loads ahead",
    native=True,
    devices=("cuda",),
    unsupported=lambda case, device: "f64 is v3's alone" if case.precision == "f64" else None,
)
def v4(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None, heads_first: bool, interleaved: bool
) -> Both:
    return _native(q, k, cos, sin, positions, heads_first, interleaved, TABLE)


@operator.variant(
    "v5",
    idea="two heads per thread, loaded before the tables; elements stay in whole words, and the caches to the tables",
    outcome="memory bandwidth is the limit",
    native=True,
    devices=("cuda",),
    unsupported=lambda case, device: "f64 is v3's alone" if case.precision == "f64" else None,
)
def v5(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None, heads_first: bool, interleaved: bool
) -> Both:
    return _native(q, k, cos, sin, positions, heads_first, interleaved, WORDS)


@operator.variant("compile", idea="torch.compile of v1", unsupported=compile_unsupported)
def compiled_v1(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None, heads_first: bool, interleaved: bool
) -> Both:
    return _compiled()(q, k, cos, sin, positions, heads_first, interleaved)


@operator.variant(
    "triton",
    idea="one program per position: it loads the tables' row once, then all heads as one tile",
    unsupported=triton_unsupported,
)
def triton_rope(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None, heads_first: bool, interleaved: bool
) -> Both:
    both: Both = TritonRope.apply(q, k, cos, sin, positions, heads_first, interleaved)  # type: ignore[no-untyped-call]
    return both


def liger_unsupported(case: Case, _device: DeviceKind) -> str | None:
    if case.layout == "interleaved":
        return "liger turns halves alone"
    installed = importlib.util.find_spec("liger_kernel") is not None
    return None if installed else "liger_kernel is not installed: pip install liger-kernel"


@operator.variant(
    "liger",
    idea="Liger's Triton kernel, which works in place, so on copies",
    devices=("cuda",),
    unsupported=liger_unsupported,
)
def liger(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None, heads_first: bool, interleaved: bool
) -> Both:
    from liger_kernel.ops.rope import LigerRopeFunction

    tables = [table[None] if positions is None else table[positions] for table in (cos, sin)]
    # It takes (batch, heads, length, dim) and makes (batch, length, heads, dim) of it, which it then overwrites.
    rows = (q.contiguous(), k.contiguous()) if heads_first else (q.clone().transpose(1, 2), k.clone().transpose(1, 2))
    y_q, y_k = LigerRopeFunction.apply(*rows, *tables)
    return (y_q, y_k) if heads_first else (y_q.transpose(1, 2), y_k.transpose(1, 2))


@functools.cache
def _compiled() -> Callable[..., Both]:
    return compiled(v1)


def _native(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None,
    heads_first: bool,
    interleaved: bool,
    version: int,
) -> Both:
    both: Both = torch.ops.warpwatch.rope(q, k, cos, sin, positions, heads_first, interleaved, version)
    return both


try:
    import triton
    import triton.language as tl
except ImportError:
    pass
else:

    @triton.jit  # type: ignore[untyped-decorator]
    def turn_kernel(  # type: ignore[no-untyped-def]
        x,
        y,
        cos,
        sin,
        positions,
        length,
        heads,
        dim,
        heads_first: tl.constexpr,
        interleaved: tl.constexpr,
        transposed: tl.constexpr,
        asked: tl.constexpr,
        head_block: tl.constexpr,
        pair_block: tl.constexpr,
        wide: tl.constexpr,
    ):
        place = tl.program_id(0).to(tl.int64)
        batch, position = place // length, place % length
        row = tl.load(positions + place) if asked else position
        pair = tl.arange(0, pair_block)
        first = 2 * pair if interleaved else pair
        second = first + (1 if interleaved else dim // 2)
        inside = pair < dim // 2
        c1 = tl.load(cos + row * dim + first, inside).to(wide)
        c2 = tl.load(cos + row * dim + second, inside).to(wide)
        s1 = tl.load(sin + row * dim + first, inside).to(wide)
        s2 = tl.load(sin + row * dim + second, inside).to(wide)
        if transposed:
            s1, s2 = -s2, -s1
        for start in range(0, heads, head_block):
            head = start + tl.arange(0, head_block)
            at = ((batch * heads + head) * length + position if heads_first else place * heads + head) * dim
            within = (head < heads)[:, None] & inside[None, :]
            a = tl.load(x + at[:, None] + first[None, :], within).to(wide)
            b = tl.load(x + at[:, None] + second[None, :], within).to(wide)
            tl.store(y + at[:, None] + first[None, :], a * c1 - b * s1, within)
            tl.store(y + at[:, None] + second[None, :], b * c2 + a * s2, within)


class TritonRope(torch.autograd.Function):
    """The Triton kernel and its gradient, the same kernel with the sines of each pair exchanged and negated."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        cos: Tensor,
        sin: Tensor,
        positions: Tensor | None,
        heads_first: bool,
        interleaved: bool,
    ) -> Both:
        ctx.save_for_backward(cos, sin, positions)
        ctx.form = heads_first, interleaved
        return tuple(_triton_turn(x, cos, sin, positions, heads_first, interleaved, False) for x in (q, k))  # type: ignore[return-value]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin, positions = ctx.saved_tensors
        heads_first, interleaved = ctx.form
        both = [_triton_turn(g, cos, sin, positions, heads_first, interleaved, True) for g in gradients]
        return (*both, *[None] * 5)


def _triton_turn(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None,
    heads_first: bool,
    interleaved: bool,
    transposed: bool,
) -> Tensor:
    x, cos, sin = x.contiguous(), cos.contiguous(), sin.contiguous()
    positions = None if positions is None else positions.contiguous()
    y = torch.empty_like(x)
    length, heads, dim = (x.shape[2], x.shape[1], x.shape[3]) if heads_first else x.shape[1:]
    if y.numel() == 0:
        return y
    pair_block = triton.next_power_of_2(max(dim // 2, 1))
    head_block = min(triton.next_power_of_2(heads), max(1, 4096 // pair_block))
    turn_kernel[(x.shape[0] * length,)](
        x,
        y,
        cos,
        sin,
        positions if positions is not None else x,
        length,
        heads,
        dim,
        heads_first,
        interleaved,
        transposed,
        positions is not None,
        head_block,
        pair_block,
        tl.float64 if x.dtype == torch.float64 else tl.float32,
    )
    return y
