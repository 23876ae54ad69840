"""C = A · B with a sparse A (m x k, CSR with int32 indices) and a dense B (k x n).

A's gradient is computed on A's own pattern only: dvalues[p] = G[row of p] · B[col[p]]; that of B is A' G, with a G that
is dense.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpwatch.operator import Case, Cost, Maker, Operator, SizeQuestion, both_directions, case
from warpwatch.peers import triton_unsupported

from ._gradients import once_differentiable
from ._triton_spmm import TritonSpmm

CSR_ALG1, CSR_ALG2, CSR_ALG3 = 4, 6, 12
"""cuSPARSE's algorithms for CSR: its default, one made for row-major operands, one that looks at the pattern first."""

BLOCK = 16
"""Rows and columns of a block in BSR."""

TILE = 64
"""Columns of A per tile, as in csrc/spmm/spmm.h."""

_FRACTION = 2**20


def inputs(case: Case, make: Maker) -> dict[str, Any]:
    m, k = case["size"]
    crow, col = pattern(make, m, k, entries(case))
    return {"crow": crow, "col": col, "values": make.normal(col.numel()), "b": make.normal(k, case["n"])}


def case_of(crow: Tensor, col: Tensor, values: Tensor, b: Tensor, **_prepared: Any) -> Case:
    """`sparsity` is 100 for a matrix without entries alone."""
    m, (k, n) = crow.shape[0] - 1, b.shape
    return case(size=(m, k), n=n, sparsity=0 if col.shape[0] else 100)


def entries(case: Case) -> int:
    """Non-zero entries of A; `sparsity` is the percentage of zeros."""
    m, k = case["size"]
    return int(m * k * (100 - case["sparsity"]) // 100)


def pattern(make: Maker, m: int, k: int, count: int) -> tuple[Tensor, Tensor]:
    """(crow, col) of a random CSR matrix with exactly `count` entries, so that all seeds of a case give tensors of one
    size.

    Row lengths deviate by up to half of the mean where possible; a row's columns are spread over equal parts, one per
    part.
    """
    density = count / (m * k) if m * k else 0.0
    uneven = max(0.0, min(0.5, (k - 1) / (density * k) - 1)) if count else 0.0
    half = make.integers(0, _FRACTION, m // 2).double() / _FRACTION
    # Two by two the deviations cancel.
    share = 1 + uneven * torch.cat([half, -half, half.new_zeros(m % 2)])
    crow = torch.zeros(m + 1, dtype=torch.int64, device=share.device)
    crow[1:] = (share.cumsum(0) / max(m, 1) * count + 1e-6).floor().long()
    length = crow.diff()
    row = torch.repeat_interleave(torch.arange(m, device=crow.device), length, output_size=count)
    first = torch.arange(count, device=crow.device) - crow[row]
    low, high = first * k // length[row], (first + 1) * k // length[row]
    col = low + (make.integers(0, _FRACTION, count).long() * (high - low) // _FRACTION)
    return crow.int(), col.int()


def rows_of(crow: Tensor, col: Tensor) -> Tensor:
    """The row of every entry."""
    return torch.repeat_interleave(
        torch.arange(crow.numel() - 1, device=crow.device), crow.diff().long(), output_size=col.numel()
    )


def densify(crow: Tensor, col: Tensor, values: Tensor, k: int) -> Tensor:
    return values.new_zeros(crow.numel() - 1, k).index_put((rows_of(crow, col), col.long()), values)


def reference(crow: Tensor, col: Tensor, values: Tensor, b: Tensor) -> Tensor:
    return densify(crow, col, values, b.shape[0]) @ b


def cost(case: Case) -> Cost:
    """2·nnz·n operations forward, and as many for each of dB and dvalues, which read G, B and A and write both
    gradients."""
    (m, k), n, nnz = case["size"], case["n"], entries(case)
    indices, dense = 4 * (nnz + m + 1), case.element_bytes * n
    if case.direction == "fwd":
        return Cost(2 * nnz * n, indices + case.element_bytes * nnz + dense * (k + m))
    return Cost(4 * nnz * n, indices + 2 * case.element_bytes * nnz + dense * (2 * k + m))


def depth(case: Case) -> int:
    """A sum runs over a row of A; in the gradients over a column of A or all columns of B."""
    (m, k), n = case["size"], case["n"]
    fill = 1.5 * entries(case) / max(m * k, 1)
    return max(1, int(fill * k)) if case.direction == "fwd" else max(1, n, int(fill * m))


@functools.cache
def register_native() -> None:
    """Shapes for torch.compile, and the gradients, for the torch operators that the library defines."""

    def fake(name: str, shape: Callable[..., Tensor]) -> None:
        torch.library.register_fake(f"warpwatch::{name}", shape)

    fake("spmm", lambda crow, col, values, b: b.new_empty(crow.shape[0] - 1, b.shape[1]))
    fake("spmm_transposed", lambda crow, col, values, g, k: g.new_empty(k, g.shape[1]))
    fake("spmm_sampled", lambda crow, col, g, b: b.new_empty(col.shape))
    fake("spmm_inspect", lambda crow, col, k: crow.new_empty(crow.shape[0] - 1, (k + TILE - 1) // TILE + 1))
    fake("spmm_tiled", lambda crow, col, starts, values, b: b.new_empty(crow.shape[0] - 1, b.shape[1]))
    fake("spmm_tiled_sampled", lambda crow, col, starts, g, b: b.new_empty(col.shape))

    def remember(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        crow, col, values, b = ctx.saved_tensors
        _, _, wants_values, wants_b = ctx.needs_input_grad
        of_values = torch.ops.warpwatch.spmm_sampled(crow, col, g, b) if wants_values else None
        of_b = torch.ops.warpwatch.spmm_transposed(crow, col, values, g, b.shape[0]) if wants_b else None
        return None, None, of_values, of_b

    torch.library.register_autograd("warpwatch::spmm", backward, setup_context=remember)


# Few rows, because Triton's interpreter takes milliseconds for each.
QUICK = both_directions(
    case("f32", size=(128, 1024), n=128, sparsity=90),
    case("f32", size=(65, 131), n=33, sparsity=75),
    case("f64", size=(96, 256), n=64, sparsity=95),
    case("f32", size=(32, 128), n=64, sparsity=0),
)
SWEEP = (0, 25, 50, 75, 90, 95, 99)
FULL = (
    *QUICK,
    *(case("f32", size=(side, side), n=256, sparsity=s) for side in (1024, 4096, 16384) for s in SWEEP),
    *(case("f32", "bwd", size=(side, side), n=256, sparsity=s) for side in (1024, 4096, 16384) for s in (50, 90, 99)),
    # A dense operand as wide as A: what a graph network's feature matrix is not, and a pruned layer's batch is.
    *both_directions(*(case("f32", size=(4096, 4096), n=4096, sparsity=s) for s in (90, 99))),
    case("f64", size=(4096, 4096), n=256, sparsity=95),
)
EDGE = (
    *both_directions(case("f32", size=(1, 1), n=1, sparsity=0), case("f32", size=(65, 127), n=129, sparsity=80)),
    case("f32", size=(64, 64), n=128, sparsity=50),
    case("f32", size=(63, 65), n=31, sparsity=99),
    case("f32", size=(5, 7), n=3, sparsity=100),
    case("f32", size=(3, 200), n=4, sparsity=10),
)

operator = Operator(
    "spmm",
    "A sparse matrix in CSR times a dense one.",
    inputs=inputs,
    case_of=case_of,
    reference=reference,
    cost=cost,
    cases={"quick": QUICK, "full": FULL, "edge": EDGE},
    gradients=("values", "b"),
    depth=depth,
    native=register_native,
    no_special_values="NaN in B meets zeros of A in a dense product and nothing in a sparse one",
    questions=(
        SizeQuestion("From which share of zeros on is a sparse product faster than the dense one?", "sparsity", "v1"),
    ),
)


def prepare_dense(crow: Tensor, col: Tensor, values: Tensor, b: Tensor) -> dict[str, Any]:
    return {"a": densify(crow, col, values, b.shape[0])}


@operator.variant(
    "v1", idea="A made dense beforehand, then one dense product: what sparsity has to beat", prepare=prepare_dense
)
def v1(crow: Tensor, col: Tensor, values: Tensor, b: Tensor, a: Tensor) -> Tensor:
    return a @ b


def transpose(crow: Tensor, col: Tensor, values: Tensor, b: Tensor) -> dict[str, Tensor]:
    """A' in CSR and which value goes where in it; empty where no gradient is required.

    Values may change from call to call.
    """
    if not (values.requires_grad or b.requires_grad):
        return {}
    k = b.shape[0]
    order = col.long().argsort(stable=True)
    crow_t = torch.zeros(k + 1, dtype=torch.int64, device=col.device)
    crow_t[1:] = torch.bincount(col, minlength=k).cumsum(0)
    return {"crow_t": crow_t.int(), "col_t": rows_of(crow, col)[order].int(), "order": order}


def csr_tensor(crow: Tensor, col: Tensor, values: Tensor, k: int) -> Tensor:
    shape = (crow.numel() - 1, k)
    return torch.sparse_csr_tensor(
        crow.contiguous(), col.contiguous(), values.contiguous(), shape, check_invariants=False
    )


class TorchSparse(torch.autograd.Function):
    """torch's sparse products.

    Autograd's own formula would compute A's gradient densely and convert A' in every call.
    """

    @staticmethod
    def forward(
        ctx: Any, crow: Tensor, col: Tensor, values: Tensor, b: Tensor, transposed: dict[str, Tensor]
    ) -> Tensor:
        ctx.save_for_backward(crow, col, values, b)
        ctx.transposed = transposed
        y: Tensor = torch.sparse.mm(csr_tensor(crow, col, values, b.shape[0]), b)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        crow, col, values, b = ctx.saved_tensors
        (g,), of = gradients, ctx.transposed
        sampled = torch.sparse.sampled_addmm(csr_tensor(crow, col, values, b.shape[0]), g, b.t(), beta=0.0)
        of_b = torch.sparse.mm(csr_tensor(of["crow_t"], of["col_t"], values[of["order"]], g.shape[0]), g)
        return None, None, sampled.values(), of_b, None


@operator.variant(
    "v2",
    idea="torch.sparse.mm on a CSR tensor; gradients by torch.sparse.sampled_addmm and a product with A' in CSR",
    prepare=transpose,
)
def v2(crow: Tensor, col: Tensor, values: Tensor, b: Tensor, **transposed: Tensor) -> Tensor:
    y: Tensor = TorchSparse.apply(crow, col, values, b, transposed)  # type: ignore[no-untyped-call]
    return y


def forward_only(case: Case, _device: str) -> str | None:
    return None if case.direction == "fwd" else "its gradients would be v2's, which needs A' in CSR: see there"


def in_coordinates(crow: Tensor, col: Tensor, values: Tensor, b: Tensor) -> dict[str, Any]:
    """The row and column of every entry."""
    return {"indices": torch.stack([rows_of(crow, col), col.long()])}


@operator.variant(
    "coo",
    idea="torch.sparse.mm on coordinates: eight bytes more per entry, and no row has to be searched for its end",
    prepare=in_coordinates,
    unsupported=forward_only,
)
def by_coordinates(crow: Tensor, col: Tensor, values: Tensor, b: Tensor, indices: Tensor) -> Tensor:
    shape = (crow.numel() - 1, b.shape[0])
    # Contiguous as in csr_tensor: by strided values, the product of torch 2.11 on a GPU was wrong.
    a = torch.sparse_coo_tensor(indices, values.contiguous(), shape, check_invariants=False, is_coalesced=True)
    y: Tensor = torch.sparse.mm(a, b)
    return y


def by_columns(crow: Tensor, col: Tensor, values: Tensor, b: Tensor) -> dict[str, Any]:
    """Where columns begin, the row of every entry, and which value goes where: A in CSC is A' in CSR."""
    order = col.long().argsort(stable=True)
    ccol = torch.zeros(b.shape[0] + 1, dtype=torch.int64, device=col.device)
    ccol[1:] = torch.bincount(col, minlength=b.shape[0]).cumsum(0)
    return {"ccol": ccol, "row": rows_of(crow, col)[order], "order": order}


@operator.variant(
    "csc",
    idea="A by columns, which torch converts to CSR in every call",
    devices=("cpu",),
    prepare=by_columns,
    unsupported=forward_only,
)
def compressed_columns(
    crow: Tensor, col: Tensor, values: Tensor, b: Tensor, ccol: Tensor, row: Tensor, order: Tensor
) -> Tensor:
    shape = (crow.numel() - 1, b.shape[0])
    y: Tensor = torch.sparse_csc_tensor(ccol, row, values[order], shape, check_invariants=False) @ b
    return y


def whole_blocks_only(case: Case, device: str) -> str | None:
    m, k = case["size"]
    fits = m % BLOCK == 0 and k % BLOCK == 0
    return forward_only(case, device) or (None if fits else f"it takes matrices of whole blocks of {BLOCK} x {BLOCK}")


def in_blocks(crow: Tensor, col: Tensor, values: Tensor, b: Tensor) -> dict[str, Any]:
    """The blocks that have an entry, in CSR, and the place of every entry in their values."""
    rows, columns, across = rows_of(crow, col), col.long(), b.shape[0] // BLOCK
    blocks, which = torch.unique(rows // BLOCK * across + columns // BLOCK, return_inverse=True)
    per_row = torch.bincount(blocks // across, minlength=(crow.numel() - 1) // BLOCK)
    return {
        "block_crow": torch.nn.functional.pad(per_row.cumsum(0), (1, 0)),
        "block_col": blocks % across,
        "places": (which * BLOCK + rows % BLOCK) * BLOCK + columns % BLOCK,
    }


@operator.variant(
    "bsr",
    idea="dense blocks of 16 x 16 where A has an entry: products without indices, and zeros that are multiplied",
    prepare=in_blocks,
    unsupported=whole_blocks_only,
)
def block_rows(
    crow: Tensor,
    col: Tensor,
    values: Tensor,
    b: Tensor,
    block_crow: Tensor,
    block_col: Tensor,
    places: Tensor,
) -> Tensor:
    filled = values.new_zeros(block_col.numel() * BLOCK * BLOCK).index_put((places,), values).view(-1, BLOCK, BLOCK)
    shape = (crow.numel() - 1, b.shape[0])
    y: Tensor = torch.sparse_bsr_tensor(block_crow, block_col, filled, shape, check_invariants=False) @ b
    return y


class SparsePlan:
    """A cuSPARSE plan by its number. Plans for the same shapes are equal: their buffers are interchangeable."""

    def __init__(self, number: int, shape: tuple[int, ...]) -> None:
        self.number = number
        self._shape = shape
        weakref.finalize(self, torch.ops.warpwatch.spmm_cusparse_forget, number)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SparsePlan) and self._shape == other._shape

    def __hash__(self) -> int:
        return hash(self._shape)


def plan(crow: Tensor, col: Tensor, values: Tensor, b: Tensor, algorithm: int) -> dict[str, Any]:
    """Descriptors, buffer sizes and preprocessing, done once.

    torch owns the buffers, so a call leaves no allocation behind.
    """
    operands = tuple(t.detach().contiguous() for t in (crow, col, values, b))
    gradients = values.requires_grad or b.requires_grad
    number, *buffers = torch.ops.warpwatch.spmm_cusparse_plan(*operands, algorithm, gradients)
    return {"plan": SparsePlan(number, (crow.numel(), col.numel(), *b.shape)), "buffers": buffers}


class CuSparse(torch.autograd.Function):
    """The planned products: y = A b, dvalues = (G b') on A's pattern, db = A' G."""

    @staticmethod
    def forward(
        ctx: Any, crow: Tensor, col: Tensor, values: Tensor, b: Tensor, plan: SparsePlan, buffers: list[Tensor]
    ) -> Tensor:
        crow, col, values, b = (t.contiguous() for t in (crow, col, values, b))
        ctx.save_for_backward(crow, col, values, b)
        ctx.plan, ctx.buffers = plan, buffers
        y: Tensor = torch.ops.warpwatch.spmm_cusparse(crow, col, values, b, buffers[0], plan.number)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        crow, col, values, b = ctx.saved_tensors
        (g,), (_, transposed, sampled), number = gradients, ctx.buffers, ctx.plan.number
        of_values = torch.ops.warpwatch.spmm_cusparse_sampled(crow, col, g, b, sampled, number)
        of_b = torch.ops.warpwatch.spmm_cusparse_transposed(crow, col, values, g, transposed, number, b.shape[0])
        return None, None, of_values, of_b, None, None


def empty_unsupported(case: Case, _device: str) -> str | None:
    return None if entries(case) else "cuSPARSE takes no matrix without entries"


def planned(crow: Tensor, col: Tensor, values: Tensor, b: Tensor, plan: SparsePlan, buffers: list[Tensor]) -> Tensor:
    y: Tensor = CuSparse.apply(crow, col, values, b, plan, buffers)  # type: ignore[no-untyped-call]
    return y


for name, algorithm, idea in (
    (
        "cusparse",
        CSR_ALG2,
        "cuSPARSE itself, described and sized once, executed many times: its algorithm for row-major operands",
    ),
    ("cusparse_default", CSR_ALG1, "the same with its default algorithm, which is made for column-major operands"),
    ("cusparse_inspected", CSR_ALG3, "the same with its algorithm that looks at the pattern beforehand"),
):
    prepare = functools.partial(plan, algorithm=algorithm)
    operator.variant(name, idea=idea, native=True, devices=("cuda",), unsupported=empty_unsupported, prepare=prepare)(
        planned
    )


@operator.variant(
    "v3",
    idea="rows split over threads or warps, sums in registers; C++: column blocks; CUDA: a warp per row, dB by atomics",
    outcome="atomics of the gradient collide",
    native=True,
)
def v3(crow: Tensor, col: Tensor, values: Tensor, b: Tensor) -> Tensor:
    y: Tensor = torch.ops.warpwatch.spmm(crow, col, values, b)
    return y


def inspect(crow: Tensor, col: Tensor, values: Tensor, b: Tensor) -> dict[str, Tensor]:
    """Offsets of each tile's entries in A, and in A' as well where gradients are required."""
    inspected = {"starts": torch.ops.warpwatch.spmm_inspect(crow, col, b.shape[0]), **transpose(crow, col, values, b)}
    if "crow_t" in inspected:
        inspected["starts_t"] = torch.ops.warpwatch.spmm_inspect(
            inspected["crow_t"], inspected["col_t"], crow.numel() - 1
        )
    return inspected


Multiply = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""A product from crow, col, the offsets of the tiles' entries, values and b."""


def by_tiles(crow: Tensor, col: Tensor, starts: Tensor, values: Tensor, b: Tensor) -> Tensor:
    y: Tensor = torch.ops.warpwatch.spmm_tiled(crow, col, starts, values, b)
    return y


def by_rows(crow: Tensor, col: Tensor, _starts: Tensor, values: Tensor, b: Tensor) -> Tensor:
    y: Tensor = torch.ops.warpwatch.spmm(crow, col, values, b)
    return y


class SparseProduct(torch.autograd.Function):
    """A product whose dB is the same product with A', and whose gradient of A's values is computed by tiles."""

    @staticmethod
    def forward(
        ctx: Any, multiply: Multiply, crow: Tensor, col: Tensor, values: Tensor, b: Tensor, inspected: dict[str, Tensor]
    ) -> Tensor:
        ctx.save_for_backward(crow, col, values, b)
        ctx.multiply, ctx.inspected = multiply, inspected
        return multiply(crow, col, inspected["starts"], values, b)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        crow, col, values, b = ctx.saved_tensors
        (g,), of = gradients, ctx.inspected
        of_values = torch.ops.warpwatch.spmm_tiled_sampled(crow, col, of["starts"], g, b)
        of_b = ctx.multiply(of["crow_t"], of["col_t"], of["starts_t"], values[of["order"]], g)
        return None, None, None, of_values, of_b, None


@operator.variant(
    "v4",
    idea=(
        "64 x 64 tiles found beforehand; rows of B staged once for 64 rows of A, and dB without atomics over A' in CSR"
    ),
    native=True,
    prepare=inspect,
)
def v4(crow: Tensor, col: Tensor, values: Tensor, b: Tensor, **inspected: Tensor) -> Tensor:
    y: Tensor = SparseProduct.apply(by_tiles, crow, col, values, b, inspected)  # type: ignore[no-untyped-call]
    return y


@operator.variant(
    "v5",
    idea="v3 forward; dB by v3 over A' in CSR, found beforehand, without atomics; the gradient of A by v4's tiles",
    native=True,
    prepare=inspect,
)
def v5(crow: Tensor, col: Tensor, values: Tensor, b: Tensor, **inspected: Tensor) -> Tensor:
    y: Tensor = SparseProduct.apply(by_rows, crow, col, values, b, inspected)  # type: ignore[no-untyped-call]
    return y


@operator.variant(
    "triton",
    idea="a program per row of A and 128 columns of B; dB by atomics",
    unsupported=triton_unsupported,
)
def triton_spmm(crow: Tensor, col: Tensor, values: Tensor, b: Tensor) -> Tensor:
    y: Tensor = TritonSpmm.apply(crow, col, values, b)  # type: ignore[no-untyped-call]
    return y
