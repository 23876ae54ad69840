"""C = A · B: the product of two matrices, as a series of kernels, each with one more idea than the one before."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from warpwatch.operator import Case, Cost, DeviceKind, Maker, Operator, both_directions, case
from warpwatch.peers import compile_unsupported, triton_interpreted, triton_unsupported

from ._compiled import compiled
from ._gradients import once_differentiable
from ._hopper import hopper_unsupported

NAIVE, COALESCED, SHARED, COLUMN, SQUARE, VECTORS = range(3, 9)
DOUBLE, WARPS, TENSOR, SPLIT, SPLIT_TILES, WARPGROUPS = range(9, 15)
"""Rungs of the native operator, numbered as in csrc/matmul/matmul.h."""

TUNED_SIDE = 256
"""Rows and columns below which autotuning would try tiles that are not filled even once."""

COPIED_ELEMENTS = 8
"""Of 16 bits, of which Hopper's copy engine takes multiples."""
FEWEST_SPLIT = 4
"""Terms of a sum below which products of split numbers, each short of two bits, are less accurate than f32."""
LARGEST_NAIVE = 1 << 26
"""Elements of the intermediate result of v1 that are still worth waiting for: 256 MB in f32."""
LARGEST_UNCOALESCED = 1 << 36
"""Products of v3 on CUDA that are: 4096 cubed takes 0.28 s on an H200."""


def inputs(case: Case, make: Maker) -> dict[str, Any]:
    return {"a": make.normal(case["m"], case["k"]), "b": make.normal(case["k"], case["n"])}


def case_of(a: Tensor, b: Tensor, **_prepared: Any) -> Case:
    return case(m=a.shape[0], k=a.shape[1], n=b.shape[1])


def reference(a: Tensor, b: Tensor) -> Tensor:
    return torch.einsum("mk,kn->mn", a, b)


def cost(case: Case) -> Cost:
    """Forward reads both matrices and writes their product.

    Backward multiplies twice, dA = G Bᵀ and dB = Aᵀ G, which reads A, B and G and writes two gradients.
    """
    m, k, n = case["m"], case["k"], case["n"]
    operands, result = m * k + k * n, m * n
    if case.direction == "fwd":
        return Cost(2 * m * n * k, case.element_bytes * (operands + result))
    return Cost(4 * m * n * k, case.element_bytes * (2 * operands + result))


def depth(case: Case) -> int:
    k: int = case["k"] if case.direction == "fwd" else max(case["m"], case["n"])
    return k


@functools.cache
def register_native() -> None:
    """Shapes for torch.compile, and the gradients, for the torch operator that the library defines; only once."""

    @torch.library.register_fake("warpwatch::matmul")  # type: ignore[untyped-decorator]
    def fake(a: Tensor, b: Tensor, version: int = NAIVE) -> Tensor:
        return a.new_empty((*a.shape[:-1], b.shape[-1]))

    def remember(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
        a, b, ctx.version = inputs
        ctx.save_for_backward(a, b)

    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        # A transpose is a view with its strides exchanged, and the kernels take strides: nothing is copied.
        a, b = ctx.saved_tensors
        da = native_matmul(g, b.mT, ctx.version) if ctx.needs_input_grad[0] else None
        db = native_matmul(a.mT, g, ctx.version) if ctx.needs_input_grad[1] else None
        return da, db, None

    torch.library.register_autograd("warpwatch::matmul", backward, setup_context=remember)


def native_matmul(a: Tensor, b: Tensor, version: int) -> Tensor:
    """The native operator on two matrices, or on two batches of them: (M, K) times (K, N), each in any layout."""
    c: Tensor = torch.ops.warpwatch.matmul(a, b, version)
    return c


def best_native(a: Tensor, b: Tensor) -> Tensor:
    """The product by the rung that is our fastest in the precision of the operands."""
    rounded = a.dtype == torch.bfloat16 or torch.backends.cuda.matmul.allow_tf32
    return native_matmul(a, b, TENSOR if rounded else SPLIT_TILES)


QUICK = both_directions(
    case("f32", m=192, k=256, n=320),
    case("f32", m=131, k=67, n=129),
    case("f64", m=65, k=130, n=63),
    case("tf32", m=128, k=160, n=256),
    case("3xtf32", m=131, k=67, n=129),
    case("bf16", m=160, k=128, n=72),
)
FULL = (
    *QUICK,
    *both_directions(
        *(case(p, m=side, k=side, n=side) for p in ("f32", "tf32", "3xtf32", "bf16") for side in (4096, 8192)),
        *(case(p, m=5120, k=256, n=5120) for p in ("f32", "tf32", "3xtf32", "bf16")),
        *(case(p, m=2047, k=1025, n=1531) for p in ("f32", "tf32", "3xtf32", "bf16")),
        case("f32", m=2048, k=2048, n=2048),
        case("f64", m=2048, k=2048, n=2048),
    ),
)
EDGE = (
    *both_directions(
        case("f32", m=1, k=1, n=1),
        case("f32", m=127, k=33, n=257),
        case("bf16", m=8, k=17, n=136),
        case("tf32", m=33, k=31, n=130),
    ),
    case("f32", m=1, k=300, n=5),
    case("f32", m=5, k=0, n=3),
    case("f32", m=0, k=4, n=7),
)

operator = Operator(
    "matmul",
    "The product of two matrices, as a ladder of kernels.",
    inputs=inputs,
    case_of=case_of,
    reference=reference,
    cost=cost,
    cases={"quick": QUICK, "full": FULL, "edge": EDGE},
    gradients=("a", "b"),
    depth=depth,
    native=register_native,
)


def too_large_for_v1(case: Case, _device: DeviceKind) -> str | None:
    if case["m"] * case["k"] * case["n"] > LARGEST_NAIVE:
        return f"keeps all m * k * n products: more than {LARGEST_NAIVE}"
    return full_precision_only(case, _device)


def full_precision_only(case: Case, _device: DeviceKind) -> str | None:
    """For variants that multiply in full f32 even where the case allows tf32."""
    return "multiplies in f32: see the f32 case" if "tf32" in case.precision else None


def f32_only(case: Case, _device: DeviceKind) -> str | None:
    return None if case.precision == "f32" else "multiplies in f32: see the f32 case"


def not_split(case: Case, _device: DeviceKind) -> str | None:
    return "does not split numbers: see the f32 and tf32 cases" if case.precision == "3xtf32" else None


def v3_unsupported(case: Case, device: DeviceKind) -> str | None:
    if "tf32" in case.precision:
        return "multiplies in f32: see the f32 case"
    if case.precision == "bf16" and device == "cuda":
        return "the naive kernel is for f32 and f64: see v11"
    if device == "cuda" and case["m"] * case["k"] * case["n"] > LARGEST_UNCOALESCED:
        return "a call takes seconds: v4 reads in whole lines"
    return None


def tensor_unsupported(case: Case, _device: DeviceKind) -> str | None:
    return None if case.precision in ("tf32", "bf16") else "its tensor cores take tf32 and bf16: see those cases"


def warpgroups_unsupported(case: Case, _device: DeviceKind) -> str | None:
    if case.precision != "bf16":
        return "it multiplies in bf16: see that case"
    if case["k"] % COPIED_ELEMENTS or case["n"] % COPIED_ELEMENTS:
        return "the copy engine takes rows of whole 16 bytes"
    return hopper_unsupported()


def split_only(case: Case, _device: DeviceKind) -> str | None:
    return None if case.precision == "3xtf32" else "multiplies in 3xtf32: see that case"


def as_accurate_as_f32(case: Case, _device: DeviceKind) -> str | None:
    if case.precision not in ("f32", "3xtf32"):
        return "it multiplies floats, with the accuracy of f32"
    fewest = case["k"] if case.direction == "fwd" else min(case["m"], case["n"])
    return "a sum of so few products shows the bits that split numbers lack" if 0 < fewest < FEWEST_SPLIT else None


@operator.variant("v1", idea="all products at once, then their sum along k", unsupported=too_large_for_v1)
def v1(a: Tensor, b: Tensor) -> Tensor:
    return (a.unsqueeze(2) * b).sum(1)


@operator.variant("v2", idea="a @ b: whatever library torch prefers", unsupported=not_split)
def v2(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


_OUTCOMES = {
    "v3": "neighbouring threads read different lines of B",
    "v4": "reads are coalesced",
    "v5": "fewer reads of global memory than v4",
    "v6": "fewer reads of shared memory per result than v5",
    "v7": "more results per read of shared memory than v6",
    "v8": "the width of an access is not the limit",
    "v9": "copies overlap with products",
    "v11": "mma.sync does not reach the rate of Hopper's wgmma",
    "v13": "in f32 cuBLAS multiplies on CUDA cores",
    "v14": "few tiles leave multiprocessors idle",
}


def _rung(name: str, version: int, idea: str, **options: Any) -> None:
    """Registers one version of the native kernel as variant `name`."""

    def rung(a: Tensor, b: Tensor) -> Tensor:
        return native_matmul(a, b, version)

    operator.variant(name, idea=idea, outcome=_OUTCOMES.get(name, ""), native=True, **options)(rung)


_rung(
    "v3",
    NAIVE,
    "C++ on the CPU: packed panels, 6 x 2 vectors in registers; on CUDA one thread per element, a warp along rows",
    unsupported=v3_unsupported,
)
_CUDA_F32: dict[str, Any] = {"devices": ("cuda",), "unsupported": f32_only}
_rung("v4", COALESCED, "v3 with a warp along columns, so that it reads B in whole lines", **_CUDA_F32)
_rung("v5", SHARED, "tiles of 32 x 32 in shared memory, each element read once per block", **_CUDA_F32)
_rung("v6", COLUMN, "8 results below each other per thread: one read of B serves eight", **_CUDA_F32)
_rung("v7", SQUARE, "8 x 8 results per thread, tiles of 128 x 128", **_CUDA_F32)
_rung("v8", VECTORS, "v7 with 16 bytes per access, to global and to shared memory", **_CUDA_F32)
_rung("v9", DOUBLE, "two tiles deep: the next pair is copied by cp.async meanwhile", **_CUDA_F32)
_rung("v10", WARPS, "four tiles deep, 64 x 32 results per warp with lanes interleaved", **_CUDA_F32)
_rung(
    "v11",
    TENSOR,
    "mma.sync on tensor cores, 64 x 64 results per warp",
    devices=("cuda",),
    unsupported=tensor_unsupported,
)
_rung(
    "v12",
    SPLIT,
    "each float as a sum of two tf32 numbers, three products on tensor cores; sums of 32 terms are added up in f32",
    devices=("cuda",),
    unsupported=as_accurate_as_f32,
)
_rung(
    "v13",
    SPLIT_TILES,
    "v12 with fragments read one step ahead and blocks that go on from tile to tile; few tiles are shared by a cluster",
    devices=("cuda",),
    unsupported=as_accurate_as_f32,
)
_rung(
    "v14",
    WARPGROUPS,
    "wgmma on Hopper: one warpgroup copies tiles into a ring by TMA, two multiply 64 x 256 results each; two blocks "
    "share the columns of B",
    devices=("cuda",),
    unsupported=warpgroups_unsupported,
)


class Preferred(torch.autograd.Function):
    """a @ b and its gradients by the library of that name."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, library: str) -> Tensor:
        ctx.save_for_backward(a, b)
        ctx.library = library
        with preferring(library):
            return a @ b

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        a, b = ctx.saved_tensors
        with preferring(ctx.library):
            return gradients[0] @ b.mT, a.mT @ gradients[0], None


@contextmanager
def preferring(library: str) -> Iterator[None]:
    """Inside, torch computes products by `library`."""
    before = torch.backends.cuda.preferred_blas_library()
    torch.backends.cuda.preferred_blas_library(library)
    try:
        yield
    finally:
        torch.backends.cuda.preferred_blas_library(before)


@operator.variant("cublas", idea="torch.matmul by cuBLAS", devices=("cuda",), unsupported=not_split)
def cublas(a: Tensor, b: Tensor) -> Tensor:
    c: Tensor = Preferred.apply(a, b, "cublas")  # type: ignore[no-untyped-call]
    return c


@operator.variant("cublaslt", idea="torch.matmul by cuBLASLt", devices=("cuda",), unsupported=not_split)
def cublaslt(a: Tensor, b: Tensor) -> Tensor:
    c: Tensor = Preferred.apply(a, b, "cublaslt")  # type: ignore[no-untyped-call]
    return c


def compile_refused(case: Case, device: DeviceKind) -> str | None:
    return not_split(case, device) or compile_unsupported(case, device)


@operator.variant("compile", idea="torch.compile of a @ b", unsupported=compile_refused)
def compiled_matmul(a: Tensor, b: Tensor) -> Tensor:
    return _compiled()(a, b)


@functools.cache
def _compiled() -> Callable[..., Tensor]:
    return compiled(v2)


def triton_refused(case: Case, device: DeviceKind) -> str | None:
    if case.precision == "f64":
        return "the kernel sums in f32"
    return not_split(case, device) or triton_unsupported(case, device)


def triton_split_refused(case: Case, device: DeviceKind) -> str | None:
    return split_only(case, device) or triton_unsupported(case, device)


@operator.variant(
    "triton",
    idea="64 x 64 results per program",
    unsupported=triton_refused,
)
def triton_naive(a: Tensor, b: Tensor) -> Tensor:
    c: Tensor = TritonMatmul.apply(a, b, "naive")  # type: ignore[no-untyped-call]
    return c


@operator.variant(
    "triton_swizzled",
    idea="128 x 128 results per program, tiles in groups of 8 rows",
    outcome="each element loaded serves more results",
    unsupported=triton_refused,
)
def triton_swizzled(a: Tensor, b: Tensor) -> Tensor:
    c: Tensor = TritonMatmul.apply(a, b, "swizzled")  # type: ignore[no-untyped-call]
    return c


@operator.variant("triton_split", idea="triton_swizzled in 3xtf32", unsupported=triton_split_refused)
def triton_split(a: Tensor, b: Tensor) -> Tensor:
    c: Tensor = TritonMatmul.apply(a, b, "split")  # type: ignore[no-untyped-call]
    return c


@operator.variant(
    "triton_tuned",
    idea="triton_swizzled, tiles by triton.autotune",
    unsupported=triton_refused,
)
def triton_tuned(a: Tensor, b: Tensor) -> Tensor:
    c: Tensor = TritonMatmul.apply(a, b, "tuned")  # type: ignore[no-untyped-call]
    return c


try:
    import triton
    import triton.language as tl
except ImportError:
    pass
else:

    @triton.jit  # type: ignore[untyped-decorator]
    def product_kernel(  # type: ignore[no-untyped-def]
        a,
        b,
        c,
        m,
        n,
        k,
        a_m,
        a_k,
        b_k,
        b_n,
        block_m: tl.constexpr,
        block_n: tl.constexpr,
        block_k: tl.constexpr,
        group: tl.constexpr,
        precision: tl.constexpr,
        widen: tl.constexpr,
    ):
        rows, columns = tl.cdiv(m, block_m), tl.cdiv(n, block_n)
        tile = tl.program_id(0)
        first = tile // (group * columns) * group
        tall = min(rows - first, group)
        i = (first + tile % (group * columns) % tall).to(tl.int64) * block_m + tl.arange(0, block_m)
        j = (tile % (group * columns) // tall).to(tl.int64) * block_n + tl.arange(0, block_n)
        total = tl.zeros((block_m, block_n), tl.float32)
        for start in range(0, k, block_k):
            s = start + tl.arange(0, block_k)
            x = tl.load(a + i[:, None] * a_m + s[None, :] * a_k, (i[:, None] < m) & (s[None, :] < k), 0.0)
            y = tl.load(b + s[:, None] * b_k + j[None, :] * b_n, (s[:, None] < k) & (j[None, :] < n), 0.0)
            if widen:
                x, y = x.to(tl.float32), y.to(tl.float32)
            total = tl.dot(x, y, total, input_precision=precision)
        tl.store(c + i[:, None] * n + j[None, :], total.to(c.dtype.element_ty), (i[:, None] < m) & (j[None, :] < n))


CONFIGURATIONS = (
    (128, 256, 64, 8, 3),
    (256, 128, 32, 8, 3),
    (128, 128, 64, 4, 4),
    (128, 128, 32, 8, 4),
    (64, 128, 32, 4, 4),
    (64, 64, 32, 4, 5),
)
"""What autotuning chooses from: rows, columns and depth of a tile, warps, stages."""

SCALAR_CONFIGURATIONS = ((128, 64, 16, 8, 3), (64, 64, 16, 4, 3), (64, 128, 16, 8, 3))
"""The same where tensor cores must not be used: a program's loop is written out in full then, so that deep tiles
compile for minutes."""


@functools.cache
def _tuned_kernel(scalar: bool) -> Any:
    """The autotuned kernel; None without a GPU to tune on, where the fixed tiles are used."""
    if not torch.cuda.is_available():
        return None
    configurations = [
        triton.Config({"block_m": m, "block_n": n, "block_k": k, "group": 8}, num_warps=warps, num_stages=stages)
        for m, n, k, warps, stages in (SCALAR_CONFIGURATIONS if scalar else CONFIGURATIONS)
    ]
    return triton.autotune(configurations, key=["m", "n", "k", "a_m", "a_k", "b_k", "b_n"])(product_kernel)


class TritonMatmul(torch.autograd.Function):
    """The Triton kernel; its gradients are the same kernel on transposed views."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, how: str) -> Tensor:
        ctx.save_for_backward(a, b)
        ctx.how = how
        ctx.precision = "tf32x3" if how == "split" else _dot_precision(a)
        return _triton_product(a, b, how, ctx.precision)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        a, b = ctx.saved_tensors
        g = gradients[0]
        return _triton_product(g, b.mT, ctx.how, ctx.precision), _triton_product(a.mT, g, ctx.how, ctx.precision), None


def _dot_precision(a: Tensor) -> str:
    """The input precision of tl.dot for floats: what torch's settings allow."""
    return "tf32" if a.dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest" else "ieee"


def _triton_product(a: Tensor, b: Tensor, how: str, precision: str) -> Tensor:
    (m, k), n = a.shape, b.shape[1]
    c = a.new_empty(m, n)
    if c.numel() == 0:
        return c
    arguments = (a, b, c, m, n, k, *a.stride(), *b.stride())
    options = {"precision": precision, "widen": triton_interpreted()}
    scalar = precision == "ieee" and a.dtype == torch.float32
    tuned = _tuned_kernel(scalar) if how == "tuned" and min(m, n) >= TUNED_SIDE else None
    if tuned is not None:
        tuned[lambda meta: (triton.cdiv(m, meta["block_m"]) * triton.cdiv(n, meta["block_n"]),)](*arguments, **options)
        return c
    # Without tensor cores a program's loop is written out in full: deep tiles would take longer to compile than they
    # save.
    height, width, deep = (64, 64, 32) if how == "naive" else (128, 128, 32)
    if scalar:
        width, deep = 64, 16
    grid = (triton.cdiv(m, height) * triton.cdiv(n, width),)
    product_kernel[grid](
        *arguments, height, width, deep, 1 if how == "naive" else 8, **options, num_warps=4 if how == "naive" else 8
    )
    return c
