"""sparse24: what stays of each group, the compressed format, gradients, and every variant against the oracle."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernels import sparse24 as module
from warpwatch.contract.words import Status
from warpwatch.operator import Case, Operator, both_directions

from .conftest import DEVICES, check_variant, runnable

pytestmark = pytest.mark.usefixtures("operator")

TRAINING = module.sized("f32", 5, 6, 12, 1)


@pytest.mark.parametrize(("name", "case", "device"), runnable(module.operator, (*module.QUICK, *module.EDGE)))
def test_every_variant_is_right(operator: Operator, name: str, case: Case, device: str) -> None:
    reply = check_variant(operator, name, case, device)
    assert (reply.status, reply.message) == (Status.OK, "")


@pytest.mark.parametrize(
    ("name", "case", "device"), runnable(module.operator, both_directions(TRAINING), compiled=True)
)
def test_torch_compile_is_right(operator: Operator, name: str, case: Case, device: str) -> None:
    assert check_variant(operator, name, case, device).status is Status.OK


def pruned_by(name: str, w: Tensor) -> Tensor:
    """The matrix as each of our functions prunes it; the compressed form is multiplied by an identity matrix."""
    if name == "compress":
        values, metadata = torch.ops.warpwatch.sparse24_compress(w)
        return decompressed(values.cpu(), metadata.cpu(), w.shape[1]).to(w.device)
    ways: dict[str, Callable[[Tensor], Tensor]] = {
        "sort": module.pruned_by_sorting,
        "compare": module.pruned_by_comparing,
        "native": torch.ops.warpwatch.sparse24_prune,
    }
    return ways[name](w)


def decompressed(values: Tensor, metadata: Tensor, columns: int) -> Tensor:
    """The format as csrc/sparse24/sparse24.h describes it, element by element."""
    w = torch.zeros(values.shape[0], columns, dtype=values.dtype)
    for row in range(values.shape[0]):
        for group in range(columns // 4):
            bits = int(metadata[row, group // 2]) >> 4 * (group % 2) & 15
            first, second = bits & 3, bits >> 2
            assert first < second
            w[row, 4 * group + first], w[row, 4 * group + second] = values[row, 2 * group], values[row, 2 * group + 1]
    return w


WAYS = ("sort", "compare", "native", "compress")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("way", WAYS)
def test_of_each_group_the_two_largest_stay_and_of_equal_ones_the_first(
    way: str, dtype: torch.dtype, device: str
) -> None:
    w = torch.tensor(
        [
            [1, 2, 3, 4, 4, 3, 2, 1, -4, 1, -3, 2],
            [1, 1, 1, 1, 0, 0, 0, 0, 0, 0, -1, 1],
            [1, 2, 2, 2, 2, -2, 1, 2, 0, -0.0, 0, 5],
        ],
        device=device,
        dtype=dtype,
    )
    expected = [
        [0, 0, 3, 4, 4, 3, 0, 0, -4, 0, -3, 0],
        [1, 1, 0, 0, 0, 0, 0, 0, 0, 0, -1, 1],
        [0, 2, 2, 0, 2, -2, 0, 0, 0, 0, 0, 5],
    ]
    assert pruned_by(way, w).tolist() == expected


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("rows", "columns"), [(1, 4), (3, 12), (17, 64), (5, 260)])
def test_all_ways_prune_alike(rows: int, columns: int, dtype: torch.dtype, device: str) -> None:
    # Rounded to few values, so that most groups hold equal ones.
    w = torch.randn(rows, columns, device=device).mul(2).round().to(dtype)
    right = pruned_by("sort", w)
    for way in WAYS[1:]:
        assert torch.equal(pruned_by(way, w), right), way
    view = torch.randn(rows, columns + 3, device=device).to(dtype)[:, 3:]
    assert torch.equal(pruned_by("native", view), pruned_by("sort", view))
    assert torch.equal(pruned_by("compress", view), pruned_by("sort", view))


@pytest.mark.parametrize(("rows", "columns"), [(16, 256), (40, 72)])
def test_the_order_for_tensor_cores_is_the_documented_one(rows: int, columns: int) -> None:
    """What each lane of a warp takes, as csrc/sparse24/sparse24.h describes it, makes up W again."""
    w = torch.randn(rows, columns).half()
    values, positions = module.ordered(*torch.ops.warpwatch.sparse24_compress(w))
    blocks, steps = values.shape[:2]
    assert blocks == -(-rows // 16)
    assert steps == 4 * -(-columns // 256)
    of_lanes, bytes_of_lanes = values.view(blocks, steps, 2, 32, 8), positions.view(blocks, steps, 32, 4)
    whole, metadata = (
        torch.zeros(blocks * 16, steps * 32).half(),
        torch.zeros(blocks * 16, steps * 8, dtype=torch.uint8),
    )
    for block, step, lane in itertools.product(range(blocks), range(steps), range(32)):
        g, t = divmod(lane, 4)
        for half, (part, (row, column)) in itertools.product(
            range(2), enumerate([(g, 2 * t), (g + 8, 2 * t), (g, 2 * t + 8), (g + 8, 2 * t + 8)])
        ):
            at = step * 32 + half * 16 + column
            whole[block * 16 + row, at : at + 2] = of_lanes[block, step, half, lane, 2 * part : 2 * part + 2]
        for part, row in enumerate((g, g + 8)):
            at = step * 8 + 2 * t
            metadata[block * 16 + row, at : at + 2] = bytes_of_lanes[block, step, lane, 2 * part : 2 * part + 2]
    again = decompressed(whole, metadata, steps * 64)
    assert torch.equal(again[:rows, :columns], module.pruned_by_sorting(w))
    assert not again[rows:].any()
    assert not again[:, columns:].any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_compressed_16_bit_weights_take_nine_sixteenths(dtype: torch.dtype) -> None:
    w = torch.randn(32, 128).to(dtype)
    tensors = torch.ops.warpwatch.sparse24_compress(w)
    size = sum(t.numel() * t.element_size() for t in tensors)
    assert size * 16 == w.numel() * w.element_size() * 9
    assert module.compressed_bytes(module.sized("bf16", 1, 32, 128, 0)) == size


@pytest.mark.parametrize("device", DEVICES)
def test_the_gradient_of_the_weight_is_dense_and_that_of_the_tokens_is_not(device: str) -> None:
    """The gradient of W goes to what was pruned as well; that of x comes from pruned W alone."""
    x, w = torch.randn(9, 16, device=device, requires_grad=True), torch.randn(7, 16, device=device, requires_grad=True)
    g = torch.randn(9, 7, device=device)
    for name in ("v1", "sorting", "v3"):
        dx, dw = torch.autograd.grad(module.operator.variants[name].function(x, w, True), (x, w), g)
        torch.testing.assert_close(dx, g @ module.pruned_by_sorting(w.detach()), msg=name)
        torch.testing.assert_close(dw, g.mT @ x.detach(), msg=name)


def test_the_torch_operators_keep_torchs_rules() -> None:
    x, w = torch.randn(3, 12, requires_grad=True), torch.randn(5, 12, requires_grad=True)
    operators = torch.ops.warpwatch
    torch.library.opcheck(operators.sparse24_train.default, (x, w))
    torch.library.opcheck(operators.sparse24_prune.default, (w,))
    torch.library.opcheck(operators.sparse24_compress.default, (w.detach(),))
    values, metadata = operators.sparse24_compress(w.detach())
    torch.library.opcheck(operators.sparse24_linear.default, (x.detach(), values, metadata))
    torch.library.opcheck(operators.sparse24_linear_backward.default, (torch.randn(3, 5), values, metadata))


@pytest.mark.parametrize("device", DEVICES)
def test_offline_weights_are_no_part_of_the_call(operator: Operator, device: str) -> None:
    """Inference multiplies by what was prepared, whatever W has become since."""
    x, w = torch.randn(2, 16, device=device), torch.randn(7, 16, device=device)
    right = module.reference(x, w, False)
    for name in ("v1", "v3" if device == "cpu" else "v4"):
        variant = operator.variants[name]
        assert variant.prepare is not None
        prepared = variant.prepare(x, w, False)
        torch.testing.assert_close(variant.function(x, torch.full_like(w, float("nan")), False, **prepared), right)


@pytest.mark.parametrize(
    ("x", "w", "message"),
    [((3, 8), (5, 12), "12 columns"), ((3, 6), (5, 6), "multiple of 4"), ((3,), (5, 4), "4 columns")],
)
def test_operands_that_do_not_fit_are_refused(x: tuple[int, ...], w: tuple[int, ...], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        torch.ops.warpwatch.sparse24_train(torch.zeros(x), torch.zeros(w))


def test_absent_libraries_say_why() -> None:
    half, single = module.sized("f16", 64, 64, 64, 0), module.sized("f32", 64, 64, 64, 0)
    for name in ("cutlass", "cusparselt", "cusparselt_searched"):
        assert module.operator.variants[name].reason_unsupported(half, "cpu") is not None
        assert "16 bits" in str(module.operator.variants[name].reason_unsupported(single, "cuda"))
    if not torch.backends.cusparselt.is_available():
        assert "CUDA build" in str(module.operator.variants["cusparselt"].reason_unsupported(half, "cuda"))


def test_costs() -> None:
    offline = module.cost(module.sized("f16", 10, 32, 64, 0))
    assert (offline.flops, offline.bytes) == (10 * 32 * 64, 2 * 10 * (32 + 64) + 32 * 64 * 2 * 9 // 16)
    forward, backward = (module.cost(c) for c in both_directions(module.sized("f16", 10, 32, 64, 1))[:2])
    assert (forward.flops, forward.bytes) == (10 * 32 * 64, 2 * (10 * (32 + 64) + 32 * 64))
    assert (backward.flops, backward.bytes) == (3 * 10 * 32 * 64, 2 * (10 * 32 + 2 * (10 * 64 + 32 * 64)))
