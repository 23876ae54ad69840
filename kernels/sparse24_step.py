"""One training step of a linear layer whose weights are 2:4 along rows and along columns.

W is pruned in every step: of each block of 4 x 4, two elements stay in every row and in every column, those with the
largest sum of magnitudes of the 90 ways there are; of equal sums the first way in the order of `WAYS`. So the pruned W
and its transposition both compress, and both products that need it do half of the multiplications:

y = x · prune(W)', dx = g · prune(W), and W moves by -rate · g' · x, the gradient of a straight-through estimator, so
that pruned weights can come back.

With `across`, y comes out transposed, a row per column of the layer, as the layer behind may read it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from warpwatch.operator import Case, Cost, DeviceKind, Maker, Operator, Precision, case
from warpwatch.peers import compile_unsupported

from . import sparse24
from ._compiled import compiled

RATE = 0.125
"""A power of two, so that it rounds nothing."""

_PAIRS = [tuple(int(column in pair) for column in range(4)) for pair in itertools.combinations(range(4), 2)]
WAYS = [
    [element for row in rows for element in row]
    for rows in itertools.product(_PAIRS, repeat=4)
    if all(sum(column) == 2 for column in zip(*rows, strict=True))
]

Outputs = tuple[Tensor, Tensor, Tensor]


def inputs(case: Case, make: Maker) -> dict[str, Any]:
    tokens, n, k = case["tokens"], case["n"], case["k"]
    return {
        "x": make.normal(tokens, k),
        "w": make.normal(n, k, scale=k**-0.5),
        "g": make.normal(tokens, n, scale=max(tokens, 1) ** -0.5),
        "across": bool(case["across"]),
    }


def case_of(x: Tensor, w: Tensor, g: Tensor, across: bool, **_prepared: Any) -> Case:
    return case(tokens=x.shape[0], n=w.shape[0], k=w.shape[1], across=int(across))


def transposable(w: Tensor) -> Tensor:
    """The mask of W. Sums in float64 are exact for numbers of similar size, so all variants find the same largest."""
    n, k = w.shape
    blocks = w.abs().double().reshape(n // 4, 4, k // 4, 4).transpose(1, 2).reshape(-1, 16)
    ways = torch.tensor(WAYS, dtype=torch.float64, device=w.device)
    # Of equal sums argmax returns the first.
    best = (blocks @ ways.T).argmax(1)
    return ways.bool()[best].view(n // 4, k // 4, 4, 4).transpose(1, 2).reshape(n, k)


def step(x: Tensor, w: Tensor, g: Tensor, across: bool, pruned: Tensor) -> Outputs:
    """The step by dense products, with W already pruned."""
    y = F.linear(x, pruned)
    return y.mT.contiguous() if across else y, g @ pruned, torch.addmm(w, g.mT, x, alpha=-RATE)


def reference(x: Tensor, w: Tensor, g: Tensor, across: bool) -> Outputs:
    return step(x, w, g, across, w * transposable(w))


def cost(case: Case) -> Cost:
    """Three products, two of which do half of a dense one's multiply-adds.

    W is read once and written once; x, g, y and dx move once.
    """
    tokens, n, k = case["tokens"], case["n"], case["k"]
    return Cost(4 * tokens * n * k, case.element_bytes * (2 * tokens * (n + k) + 2 * n * k))


def compressed_bytes(case: Case) -> int:
    """Of W and W' together: for 16-bit elements 9/8 of the dense W."""
    n, k = case["n"], case["k"]
    size: int = n * k * case.element_bytes + n * ((k + 7) // 8) + k * ((n + 7) // 8)
    return size


def depth(case: Case) -> int:
    longest: int = max(case["tokens"], case["n"], case["k"])
    return longest


@functools.cache
def register_native() -> None:
    """Shapes for torch.compile, for the torch operators that the library of sparse24 defines."""
    sparse24.register_native()

    @torch.library.register_fake("warpwatch::sparse24_compress_both")  # type: ignore[untyped-decorator]
    def fake_compress(w: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        n, k = w.shape
        first = w.new_empty((n, k // 2)), w.new_empty((n, (k + 7) // 8), dtype=torch.uint8)
        return *first, w.new_empty((k, n // 2)), w.new_empty((k, (n + 7) // 8), dtype=torch.uint8)

    @torch.library.register_fake("warpwatch::sparse24_linear_transposed")  # type: ignore[untyped-decorator]
    def fake_linear(x: Tensor, values: Tensor, metadata: Tensor) -> Tensor:
        return x.new_empty((values.shape[0], x.shape[0]))


def sized(precision: Precision, tokens: int, n: int, k: int, across: int = 0) -> Case:
    return case(precision, tokens=tokens, n=n, k=k, across=across)


QUICK = (
    sized("f32", 96, 64, 128),
    sized("f32", 96, 64, 128, 1),
    sized("f32", 37, 28, 52),
    sized("bf16", 64, 64, 64),
    sized("f16", 33, 36, 20, 1),
)
FULL = (
    *QUICK,
    *(sized(p, 4096, 4096, 4096, across) for p in ("f16", "bf16") for across in (0, 1)),
    sized("f16", 13008, 4096, 1024),
    sized("f32", 2048, 2048, 2048),
)
EDGE = (sized("f32", 1, 4, 4), sized("f32", 3, 12, 4, 1), sized("bf16", 9, 4, 260), sized("f32", 0, 8, 4))

operator = Operator(
    "sparse24_step",
    "Training step of a linear layer whose weights are 2:4 along rows and columns.",
    inputs=inputs,
    case_of=case_of,
    reference=reference,
    cost=cost,
    cases={"quick": QUICK, "full": FULL, "edge": EDGE},
    depth=depth,
    native=register_native,
    no_special_values="of NaN and infinities no sum of magnitudes is the largest",
    uses=("sparse24",),
)


def pruned_beforehand(x: Tensor, w: Tensor, g: Tensor, across: bool) -> dict[str, Tensor]:
    return {"pruned": w * transposable(w)}


@operator.variant(
    "v1",
    idea="dense: three products, and W pruned beforehand as no training can; what a sparse step has to beat",
    prepare=pruned_beforehand,
)
def v1(x: Tensor, w: Tensor, g: Tensor, across: bool, pruned: Tensor) -> Outputs:
    return step(x, w, g, across, pruned)


@operator.variant("v2", idea="masked dense: a product with all 90 ways finds the mask in every step")
def v2(x: Tensor, w: Tensor, g: Tensor, across: bool) -> Outputs:
    return step(x, w, g, across, w * transposable(w))


@operator.variant("compile", idea="torch.compile of v2", unsupported=compile_unsupported)
def compiled_v2(x: Tensor, w: Tensor, g: Tensor, across: bool) -> Outputs:
    return _compiled()(x, w, g, across)


@operator.variant(
    "v3",
    idea=(
        "C++: W and W' pruned and compressed in one pass, to 9/8 of the dense W in 16 bits; both products at "
        "half of the multiplications, y in either order"
    ),
    native=True,
    devices=("cpu",),
)
def v3(x: Tensor, w: Tensor, g: Tensor, across: bool) -> Outputs:
    values, metadata, values_t, metadata_t = torch.ops.warpwatch.sparse24_compress_both(w)
    product = torch.ops.warpwatch.sparse24_linear_transposed if across else torch.ops.warpwatch.sparse24_linear
    dx: Tensor = torch.ops.warpwatch.sparse24_linear(g, values_t, metadata_t)
    return product(x, values, metadata), dx, torch.addmm(w, g.mT, x, alpha=-RATE)


def cusparselt_unsupported(case: Case, device: DeviceKind) -> str | None:
    if case["n"] % 16 or case["k"] % 16:
        return "it takes weights of a multiple of 16 x 16"
    return sparse24.cusparselt_unsupported(case, device)


@operator.variant(
    "cusparselt",
    idea="v2's mask; W and W' compressed by cuSPARSELt, which multiplies with both",
    devices=("cuda",),
    unsupported=cusparselt_unsupported,
)
def by_cusparselt(x: Tensor, w: Tensor, g: Tensor, across: bool) -> Outputs:
    pruned = w * transposable(w)
    both = [sparse24.compress_for_cusparselt(matrix.contiguous()) for matrix in (pruned, pruned.mT)]
    y = sparse24.padded_product(sparse24.cusparselt_product, both[0], x)
    dx = sparse24.padded_product(sparse24.cusparselt_product, both[1], g)
    return y.mT.contiguous() if across else y, dx, torch.addmm(w, g.mT, x, alpha=-RATE)


@functools.cache
def _compiled() -> Callable[..., Outputs]:
    return compiled(v2)
