"""sparse24_step: masks that are 2:4 both ways and the best there are, W and W' compressed, and every variant."""

from __future__ import annotations

import itertools

import pytest
import torch

from kernels import sparse24_step as module
from warpwatch.contract.words import Status
from warpwatch.operator import Case, Operator

from .conftest import check_variant, runnable
from .test_sparse24 import decompressed

pytestmark = pytest.mark.usefixtures("operator")

SMALL = module.sized("f32", 12, 8, 20)
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize(("name", "case", "device"), runnable(module.operator, (*module.QUICK, *module.EDGE)))
def test_every_variant_is_right(operator: Operator, name: str, case: Case, device: str) -> None:
    reply = check_variant(operator, name, case, device)
    assert (reply.status, reply.message) == (Status.OK, "")


@pytest.mark.parametrize(("name", "case", "device"), runnable(module.operator, [SMALL], compiled=True))
def test_torch_compile_is_right(operator: Operator, name: str, case: Case, device: str) -> None:
    assert check_variant(operator, name, case, device).status is Status.OK


def test_a_mask_keeps_two_of_four_both_ways_and_the_largest_sum() -> None:
    w = torch.randn(8, 12, generator=torch.Generator().manual_seed(1))
    mask = module.transposable(w)
    assert bool((mask.view(8, 3, 4).sum(2) == 2).all())
    assert bool((mask.view(2, 4, 12).sum(1) == 2).all())
    rows = list(itertools.combinations(range(4), 2))
    for i, j in itertools.product(range(2), range(3)):
        block = w[4 * i : 4 * i + 4, 4 * j : 4 * j + 4].abs().double()
        best = max(
            sum(float(block[r, c]) for r, pair in enumerate(way) for c in pair)
            for way in itertools.product(rows, repeat=4)
            if all(sum(c in pair for pair in way) == 2 for c in range(4))
        )
        assert float((block * mask[4 * i : 4 * i + 4, 4 * j : 4 * j + 4]).sum()) == pytest.approx(best)


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_pass_compresses_both_ways(dtype: torch.dtype) -> None:
    """Numbers of few bits have many ways with equal sums; the last rows of 12 share a byte with nothing."""
    for n, k in ((4, 4), (12, 20), (8, 36), (64, 16)):
        w = (torch.randn(n, k, generator=torch.Generator().manual_seed(n)) * 4).round().to(dtype)
        pruned = w * module.transposable(w)
        values, metadata, values_t, metadata_t = torch.ops.warpwatch.sparse24_compress_both(w)
        # A zero that stays and one that is pruned are the same number.
        assert torch.equal(decompressed(values, metadata, k), pruned)
        assert torch.equal(decompressed(values_t, metadata_t, n), pruned.mT)


def test_both_take_nine_eighths_of_the_dense_matrix_in_16_bits() -> None:
    w = torch.randn(64, 128).bfloat16()
    parts = torch.ops.warpwatch.sparse24_compress_both(w)
    size = sum(part.numel() * part.element_size() for part in parts)
    assert size == module.compressed_bytes(module.sized("bf16", 1, 64, 128))
    assert 8 * size == 9 * w.numel() * w.element_size()


@pytest.mark.parametrize("tokens", [1, 3, 5, 33, 64])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_transposed_product_is_the_product(tokens: int, dtype: torch.dtype) -> None:
    w, x = torch.randn(12, 20).to(dtype), torch.randn(tokens, 20).to(dtype)
    values, metadata = torch.ops.warpwatch.sparse24_compress(w)
    y = torch.ops.warpwatch.sparse24_linear_transposed(x, values, metadata)
    assert y.is_contiguous()
    torch.testing.assert_close(y.mT, torch.ops.warpwatch.sparse24_linear(x, values, metadata))


def test_the_torch_operators_keep_torchs_rules() -> None:
    w, x = torch.randn(8, 12), torch.randn(5, 12)
    torch.library.opcheck(torch.ops.warpwatch.sparse24_compress_both.default, (w,))
    parts = torch.ops.warpwatch.sparse24_compress(w)
    torch.library.opcheck(torch.ops.warpwatch.sparse24_linear_transposed.default, (x, *parts))


@pytest.mark.parametrize("shape", [(6, 8), (8, 6)])
def test_a_weight_without_whole_blocks_is_refused(shape: tuple[int, int]) -> None:
    with pytest.raises(RuntimeError, match="multiple of 4"):
        torch.ops.warpwatch.sparse24_compress_both(torch.zeros(shape))


def test_costs() -> None:
    cost = module.cost(module.sized("bf16", 10, 8, 16))
    assert cost.flops == 2 * 10 * 8 * 16 * 2
    assert cost.bytes == 2 * (2 * 10 * 24 + 2 * 128)
