"""y = x · W' with W pruned 2:4: each aligned group of four along a row keeps its two largest magnitudes, of equal ones
the first.

Inference (train = 0) prunes W offline, in `prepare`. Training (train = 1) prunes it in every call, and its gradients
are those of a straight-through estimator: dx = g · pruned W, while dW = g' · x is dense, so that pruned weights can
come back.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from warpwatch.operator import Case, Cost, DeviceKind, Maker, Operator, Precision, SizeQuestion, both_directions, case
from warpwatch.peers import compile_unsupported

from ._aligned import aligned
from ._compiled import compiled
from ._gradients import once_differentiable
from ._hopper import hopper_unsupported

MOST_TOKENS = 8
"""Rows of x that the kernel for decoding takes, as in csrc/sparse24/sparse24.h."""
BLOCK_ROWS, STEP_COLUMNS, STEP_MULTIPLE = 16, 64, 4
"""What compressed W is cut into for sparse tensor cores, as in csrc/sparse24/sparse24.h."""
ANY_TWO = 0x44
"""A byte of metadata with valid positions, the first two of both groups."""


def inputs(case: Case, make: Maker) -> dict[str, Any]:
    x, w = make.normal(case["tokens"], case["k"]), make.normal(case["n"], case["k"], scale=case["k"] ** -0.5)
    return {"x": x, "w": w, "train": bool(case["train"])}


def case_of(x: Tensor, w: Tensor, train: bool, **_prepared: Any) -> Case:
    return case(tokens=x.shape[0], n=w.shape[0], k=w.shape[1], train=int(train))


class StraightThrough(torch.autograd.Function):
    """Prunes in forward; backward passes the gradient unchanged."""

    @staticmethod
    def forward(ctx: Any, w: Tensor, prune: Callable[[Tensor], Tensor]) -> Tensor:
        return prune(w)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def straight_through(w: Tensor, prune: Callable[[Tensor], Tensor]) -> Tensor:
    pruned: Tensor = StraightThrough.apply(w, prune)  # type: ignore[no-untyped-call]
    return pruned


def pruned_by_sorting(w: Tensor) -> Tensor:
    """A stable sort keeps the order of equal magnitudes."""
    groups = w.reshape(w.shape[0], w.shape[1] // 4, 4)
    largest = torch.sort(groups.abs(), dim=-1, descending=True, stable=True).indices[..., :2]
    mask = torch.zeros_like(groups, dtype=torch.bool).scatter_(-1, largest, True)
    return torch.where(mask, groups, 0.0).reshape(w.shape)


def pruned_by_comparing(w: Tensor) -> Tensor:
    """An element stays when fewer than two of its group come before it: six comparisons and no sort."""
    groups = w.reshape(w.shape[0], w.shape[1] // 4, 4)
    size = groups.abs()
    columns = size.unbind(-1)
    # beats[i][j], i < j: whether i comes before j, being no smaller.
    beats = {(i, j): columns[i] >= columns[j] for i in range(4) for j in range(i + 1, 4)}
    before = [[(beats[j, i] if j < i else ~beats[i, j]).to(torch.int8) for j in range(4) if j != i] for i in range(4)]
    mask = torch.stack([first + second + third < 2 for first, second, third in before], dim=-1)
    return torch.where(mask, groups, 0.0).reshape(w.shape)


def reference(x: Tensor, w: Tensor, train: bool) -> Tensor:
    return x @ straight_through(w, pruned_by_sorting).mT


def cost(case: Case) -> Cost:
    """Half of a dense product's multiply-adds, in dx too; dW is dense.

    In inference W is read compressed: half of its values and four bits of metadata for each group of four, which for
    16-bit elements is 9/16 of the dense W.
    """
    tokens, n, k, es = case["tokens"], case["n"], case["k"], case.element_bytes
    dense = 2 * tokens * n * k
    if case.direction == "bwd":
        return Cost(dense // 2 + dense, es * (tokens * n + 2 * (tokens * k + n * k)))
    weight = n * k * es if case["train"] else compressed_bytes(case)
    return Cost(dense // 2, es * tokens * (n + k) + weight)


def compressed_bytes(case: Case) -> int:
    """Values and metadata of W."""
    n, k = case["n"], case["k"]
    size: int = n * (k // 2 * case.element_bytes + (k + 7) // 8)
    return size


def depth(case: Case) -> int:
    n, k, tokens = case["n"], case["k"], case["tokens"]
    terms: int = k // 2 if case.direction == "fwd" else max(n, tokens)
    return terms


@functools.cache
def register_native() -> None:
    """Shapes for torch.compile, and the gradients, for the torch operators that the library defines."""

    @torch.library.register_fake("warpwatch::sparse24_prune")  # type: ignore[untyped-decorator]
    def fake_prune(w: Tensor) -> Tensor:
        return w.new_empty(w.shape)

    @torch.library.register_fake("warpwatch::sparse24_compress")  # type: ignore[untyped-decorator]
    def fake_compress(w: Tensor) -> tuple[Tensor, Tensor]:
        n, k = w.shape
        return w.new_empty((n, k // 2)), w.new_empty((n, (k + 7) // 8), dtype=torch.uint8)

    @torch.library.register_fake("warpwatch::sparse24_linear")  # type: ignore[untyped-decorator]
    def fake_linear(x: Tensor, values: Tensor, metadata: Tensor) -> Tensor:
        return x.new_empty((x.shape[0], values.shape[0]))

    @torch.library.register_fake("warpwatch::sparse24_tensor_linear")  # type: ignore[untyped-decorator]
    def fake_tensor_linear(x: Tensor, values: Tensor, positions: Tensor, rows: int) -> Tensor:
        return x.new_empty((x.shape[0], rows))

    @torch.library.register_fake("warpwatch::sparse24_linear_backward")  # type: ignore[untyped-decorator]
    def fake_linear_backward(gradient: Tensor, values: Tensor, metadata: Tensor) -> Tensor:
        return gradient.new_empty((gradient.shape[0], 2 * values.shape[1]))

    @torch.library.register_fake("warpwatch::sparse24_train")  # type: ignore[untyped-decorator]
    def fake_train(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x.new_empty((x.shape[0], w.shape[0])), *fake_compress(w)

    torch.library.register_autograd("warpwatch::sparse24_prune", lambda ctx, gradient: gradient)
    torch.library.register_autograd("warpwatch::sparse24_train", _train_backward, setup_context=_train_remember)


def _train_remember(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(inputs[0], *output[1:])


@once_differentiable
def _train_backward(
    ctx: Any, gradient: Tensor | None, _values: None, _metadata: None
) -> tuple[Tensor | None, Tensor | None]:
    if gradient is None:
        return None, None
    x, values, metadata = ctx.saved_tensors
    return torch.ops.warpwatch.sparse24_linear_backward(gradient, values, metadata), gradient.mT @ x


def sized(precision: Precision, tokens: int, n: int, k: int, train: int) -> Case:
    return case(precision, tokens=tokens, n=n, k=k, train=train)


QUICK = (
    sized("f32", 64, 96, 128, 0),
    sized("f32", 1, 128, 256, 0),
    sized("f32", 33, 51, 300, 0),
    sized("bf16", 40, 64, 128, 0),
    sized("f16", 300, 200, 328, 0),
    *both_directions(sized("f32", 64, 96, 128, 1), sized("f32", 37, 29, 76, 1), sized("f16", 32, 64, 64, 1)),
)
FULL = (
    *QUICK,
    *(sized(p, tokens, 4096, 4096, 0) for p in ("f16", "bf16") for tokens in (1, 8, 4096)),
    sized("f16", 13008, 4096, 1024, 0),
    sized("f16", 8192, 8192, 8192, 0),
    sized("bf16", 1, 28672, 8192, 0),
    sized("f32", 1, 4096, 4096, 0),
    sized("f32", 2048, 4096, 4096, 0),
    *both_directions(
        sized("f16", 13008, 4096, 1024, 1),
        sized("f16", 4096, 4096, 4096, 1),
        sized("bf16", 8192, 8192, 8192, 1),
        sized("f32", 2048, 4096, 4096, 1),
    ),
)
EDGE = (
    sized("f32", 1, 1, 4, 0),
    sized("f32", 9, 257, 132, 0),
    sized("f32", 0, 5, 8, 0),
    *both_directions(sized("f32", 3, 2, 4, 1), sized("f32", 31, 17, 260, 1), sized("bf16", 8, 7, 20, 1)),
)

operator = Operator(
    "sparse24",
    "Linear layer with 2:4 pruned weights.",
    inputs=inputs,
    case_of=case_of,
    reference=reference,
    cost=cost,
    cases={"quick": QUICK, "full": FULL, "edge": EDGE},
    gradients=("x", "w"),
    depth=depth,
    native=register_native,
    no_special_values="a sparse product leaves out what a dense one multiplies by zero",
    questions=(SizeQuestion("From how many tokens on is a 2:4 product faster than the dense one?", "tokens", "v1"),),
)


def pruned_offline(x: Tensor, w: Tensor, train: bool) -> dict[str, Any]:
    """W pruned for inference; training prunes in every call."""
    return {} if train else {"pruned": pruned_by_comparing(w)}


def compressed_offline(x: Tensor, w: Tensor, train: bool) -> dict[str, Any]:
    if train:
        return {}
    values, metadata = torch.ops.warpwatch.sparse24_compress(w)
    return {"values": values, "metadata": metadata}


@operator.variant(
    "v1",
    idea="dense: W pruned offline, in training by comparisons; what a sparse product has to beat",
    prepare=pruned_offline,
)
def v1(x: Tensor, w: Tensor, train: bool, pruned: Tensor | None = None) -> Tensor:
    return F.linear(x, straight_through(w, pruned_by_comparing) if pruned is None else pruned)


@operator.variant("sorting", idea="masked dense: a stable sort of each group in every call, then the dense product")
def sorting(x: Tensor, w: Tensor, train: bool) -> Tensor:
    return F.linear(x, straight_through(w, pruned_by_sorting))


@operator.variant("compile", idea="torch.compile of v1", unsupported=compile_unsupported, prepare=pruned_offline)
def compiled_v1(x: Tensor, w: Tensor, train: bool, pruned: Tensor | None = None) -> Tensor:
    return _compiled()(x, w, train, pruned)


def cuda_prunes_for_training(case: Case, device: DeviceKind) -> str | None:
    return (
        "on CUDA it prunes for training: see v1 and v4 for inference"
        if device == "cuda" and not case["train"]
        else None
    )


@operator.variant(
    "v3",
    idea=(
        "C++: W compressed, multiplied as it is, at half the multiplications; CUDA: W pruned in one pass, then "
        "a dense product"
    ),
    native=True,
    unsupported=cuda_prunes_for_training,
    prepare=compressed_offline,
)
def v3(x: Tensor, w: Tensor, train: bool, values: Tensor | None = None, metadata: Tensor | None = None) -> Tensor:
    if values is not None:
        return _compressed_product(x, values, metadata)
    if x.is_cuda:
        return F.linear(x, torch.ops.warpwatch.sparse24_prune(w))
    y: Tensor = torch.ops.warpwatch.sparse24_train(x, w)[0]
    return y


def few_tokens_only(case: Case, _device: DeviceKind) -> str | None:
    if case["train"]:
        return "is for inference: see v3"
    fits = case["tokens"] <= MOST_TOKENS and case["k"] % 16 == 0
    return None if fits else f"takes at most {MOST_TOKENS} tokens and a multiple of 16 columns"


@operator.variant(
    "v4",
    idea=(
        "decoding: a warp per output reads compressed W, 9/16 of the bytes, and picks columns of x by one byte "
        "permutation"
    ),
    outcome="for one token memory bandwidth is the limit, and it reads fewer bytes than the dense product",
    native=True,
    devices=("cuda",),
    unsupported=few_tokens_only,
    prepare=compressed_offline,
)
def v4(x: Tensor, w: Tensor, train: bool, values: Tensor, metadata: Tensor) -> Tensor:
    return _compressed_product(x, values, metadata)


def needs_tensor_cores(case: Case, device: DeviceKind) -> str | None:
    if case["train"]:
        return "is for inference: see v3"
    if case.precision not in ("f16", "bf16"):
        return f"sparse tensor cores multiply in 16 bits here, not in {case.precision}"
    fits = case["n"] % 8 == 0 and case["k"] % 8 == 0
    return hopper_unsupported() if fits else "the copy engine takes rows of a multiple of 8 elements"


def ordered_offline(x: Tensor, w: Tensor, train: bool) -> dict[str, Any]:
    return dict(zip(("values", "positions"), ordered(*torch.ops.warpwatch.sparse24_compress(w)), strict=True))


def ordered(values: Tensor, metadata: Tensor) -> tuple[Tensor, Tensor]:
    """Compressed W, (n, k / 2) and (n, k / 8), in the order in which sparse tensor cores take it, as
    csrc/sparse24/sparse24.h describes it: values (blocks, steps, 512) and positions (blocks, steps, 128)."""
    rows, columns = -values.shape[0] % BLOCK_ROWS, -metadata.shape[1] % (STEP_MULTIPLE * STEP_COLUMNS // 8)
    values = F.pad(values, (0, 4 * columns, 0, rows))
    metadata = F.pad(metadata, (0, columns, 0, rows), value=ANY_TWO)
    blocks, steps = values.shape[0] // BLOCK_ROWS, 2 * values.shape[1] // STEP_COLUMNS
    # Axes: block, row / 8, row % 8, step, half of the step, half of its values, pair, value of the pair.
    by_lane = values.view(blocks, 2, 8, steps, 2, 2, 4, 2).permute(0, 3, 4, 2, 6, 5, 1, 7)
    # Axes: block, row / 8, row % 8, step, 16 columns, byte.
    positions = metadata.view(blocks, 2, 8, steps, 4, 2).permute(0, 3, 2, 4, 1, 5)
    return by_lane.reshape(blocks, steps, -1), positions.reshape(blocks, steps, -1)


@operator.variant(
    "v5",
    idea=(
        "Hopper's sparse tensor cores: compressed W comes by way of registers, in the order in which they take it, "
        "tokens by the copy engine"
    ),
    outcome="shared memory is the limit, because every token goes in once and comes out for both warpgroups",
    native=True,
    devices=("cuda",),
    unsupported=needs_tensor_cores,
    prepare=ordered_offline,
)
def v5(x: Tensor, w: Tensor, train: bool, values: Tensor, positions: Tensor) -> Tensor:
    y: Tensor = torch.ops.warpwatch.sparse24_tensor_linear(x, values, positions, w.shape[0])
    return y


def _compressed_product(x: Tensor, values: Tensor, metadata: Tensor | None) -> Tensor:
    y: Tensor = torch.ops.warpwatch.sparse24_linear(x, values, metadata)
    return y


def no_sparse_tensor_cores(case: Case, device: DeviceKind, rows: int, columns: int) -> str | None:
    """Requirements that both of torch's semi-structured products share."""
    if device != "cuda":
        return "sparse tensor cores need a GPU"
    if case.precision not in ("f16", "bf16"):
        return f"it multiplies in 16 bits here, not in {case.precision}"
    fits = case["n"] % rows == 0 and case["k"] % columns == 0
    return None if fits else f"it takes weights of a multiple of {rows} x {columns}"


def cutlass_unsupported(case: Case, device: DeviceKind) -> str | None:
    reason = no_sparse_tensor_cores(case, device, 32, 64)
    if reason is None and torch.cuda.get_device_capability()[0] != 8:
        return "torch's CUTLASS kernels for 2:4 run on compute capability 8 alone: see cusparselt"
    return reason


def cusparselt_unsupported(case: Case, device: DeviceKind) -> str | None:
    reason = no_sparse_tensor_cores(case, device, 16, 16)
    if reason is None and not torch.backends.cusparselt.is_available():
        return "this torch comes without cuSPARSELt: install a CUDA build of torch from PyPI"
    return reason


def compress_for_cutlass(pruned: Tensor) -> list[Tensor]:
    from torch.sparse._semi_structured_conversions import sparse_semi_structured_from_dense_cutlass

    return list(sparse_semi_structured_from_dense_cutlass(pruned))  # type: ignore[no-untyped-call]


def cutlass_product(weight: list[Tensor], columns: Tensor) -> Tensor:
    y: Tensor = torch.ops.aten._sparse_semi_structured_mm(*weight, columns)
    return y.mT.contiguous()


def compress_for_cusparselt(pruned: Tensor) -> list[Tensor]:
    return [torch._cslt_compress(pruned)]


def cusparselt_product(weight: list[Tensor], columns: Tensor, algorithm: int = 0) -> Tensor:
    # Transposed by the library, the result comes out as one row per token, contiguous.
    y: Tensor = torch.ops.aten._cslt_sparse_mm(*weight, columns, transpose_result=True, alg_id=algorithm)
    return y


class SemiStructured(torch.autograd.Function):
    """Pruned and compressed in forward; dx by a dense product, because W' is not 2:4 along its rows."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        w: Tensor,
        compress: Callable[[Tensor], list[Tensor]],
        product: Callable[[list[Tensor], Tensor], Tensor],
    ) -> Tensor:
        pruned = pruned_by_comparing(w)
        ctx.save_for_backward(x, pruned)
        return padded_product(product, compress(pruned), x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        x, pruned = ctx.saved_tensors
        return gradients[0] @ pruned, gradients[0].mT @ x, None, None


def padded(x: Tensor) -> Tensor:
    """x with a multiple of 8 tokens, which both libraries require, at an address that cuSPARSELt takes."""
    missing = -x.shape[0] % 8
    return F.pad(x, (0, 0, 0, missing)) if missing else aligned(x.contiguous())


def padded_product(product: Callable[[list[Tensor], Tensor], Tensor], weight: list[Tensor], x: Tensor) -> Tensor:
    """The product for padded x, without the padding."""
    return product(weight, padded(x).mT)[: x.shape[0]]


def semi_structured_variant(
    name: str,
    idea: str,
    unsupported: Callable[[Case, DeviceKind], str | None],
    compress: Callable[[Tensor], list[Tensor]],
    product: Callable[[list[Tensor], Tensor], Tensor],
) -> None:
    """Registers torch's product with 2:4 weights under the name of the library behind it."""

    def prepare(x: Tensor, w: Tensor, train: bool) -> dict[str, Any]:
        return {} if train else {"weight": compress(pruned_by_comparing(w))}

    def linear(x: Tensor, w: Tensor, train: bool, weight: list[Tensor] | None = None) -> Tensor:
        if weight is not None:
            return padded_product(product, weight, x)
        y: Tensor = SemiStructured.apply(x, w, compress, product)  # type: ignore[no-untyped-call]
        return y

    operator.variant(name, idea=idea, devices=("cuda",), unsupported=unsupported, prepare=prepare)(linear)


semi_structured_variant(
    "cutlass", "torch's 2:4 product by CUTLASS", cutlass_unsupported, compress_for_cutlass, cutlass_product
)
semi_structured_variant(
    "cusparselt",
    "torch's 2:4 product by cuSPARSELt",
    cusparselt_unsupported,
    compress_for_cusparselt,
    cusparselt_product,
)


def searched_unsupported(case: Case, device: DeviceKind) -> str | None:
    reason = "is for inference: see cusparselt" if case["train"] else cusparselt_unsupported(case, device)
    if reason is None and case.precision == "f16":
        return "the library's search loses the CUDA context in f16, as seen on an H200 with torch 2.11"
    return reason


def compressed_and_searched(x: Tensor, w: Tensor, train: bool) -> dict[str, Any]:
    """W compressed, and the number of the algorithm that cuSPARSELt's own timing found fastest for these tokens."""
    weight = compress_for_cusparselt(pruned_by_comparing(w))
    columns = padded(x).mT
    return {"weight": weight, "algorithm": torch._cslt_sparse_mm_search(weight[0], columns, transpose_result=True)}


@operator.variant(
    "cusparselt_searched",
    idea="cusparselt with the algorithm that the library's search found fastest, offline",
    devices=("cuda",),
    unsupported=searched_unsupported,
    prepare=compressed_and_searched,
)
def cusparselt_searched(x: Tensor, w: Tensor, train: bool, weight: list[Tensor], algorithm: int) -> Tensor:
    return padded_product(functools.partial(cusparselt_product, algorithm=algorithm), weight, x)


@functools.cache
def _compiled() -> Callable[..., Tensor]:
    return compiled(v1)
