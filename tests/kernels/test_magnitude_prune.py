"""magnitude_prune: exact counts, ties, NaN, gradients, and every variant against the oracle."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels import magnitude_prune as module
from warpwatch.contract.words import Status
from warpwatch.operator import Case, Operator, both_directions, case

from .conftest import DEVICES, check_variant, runnable

pytestmark = pytest.mark.usefixtures("operator")

EAGER = ("v1", "v2", "kthvalue", "v3")


@pytest.mark.parametrize(("name", "case", "device"), runnable(module.operator, (*module.QUICK, *module.EDGE)))
def test_every_variant_is_right(operator: Operator, name: str, case: Case, device: str) -> None:
    reply = check_variant(operator, name, case, device)
    assert (reply.status, reply.message) == (Status.OK, "")


@pytest.mark.parametrize(
    ("name", "case", "device"),
    runnable(module.operator, both_directions(case(size=(9, 11), percent=30)), compiled=True),
)
def test_torch_compile_is_right(operator: Operator, name: str, case: Case, device: str) -> None:
    assert check_variant(operator, name, case, device).status is Status.OK


def ordinary(n: int) -> Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(n))


TENSORS = {
    "all equal": torch.full((20_000,), -0.5),
    "all zero": torch.zeros(9001),
    "two values": (ordinary(30_000) > 1).float() - 2,
    "few values": ordinary(70_001).mul(4).round().div(4),
    "of either sign": torch.cat([ordinary(5000), -ordinary(5000)]),
    "of 16 bits": ordinary(100_003).bfloat16(),
    "of 16 bits, f16": ordinary(65_536).half(),
    "tiny": ordinary(10_000) * 1e-40,
    "of 64 bits": ordinary(12_345).double(),
    "equal in 40 bits": ordinary(12_345).double() * 1e-12 + 1,
    "ordinary": ordinary(200_001),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("what", TENSORS)
@pytest.mark.parametrize("name", EAGER)
def test_exactly_the_largest_are_kept_and_of_equal_ones_the_first(name: str, what: str, device: str) -> None:
    w = TENSORS[what].to(device)
    n = w.numel()
    for keep in (0, 1, 2, n // 10, n // 2 + 1, n - 1, n):
        pruned, mask = module.operator.variants[name].function(w, keep)
        expected, expected_mask = module.reference(w, keep)
        assert int(mask.sum()) == keep
        assert torch.equal(mask, expected_mask)
        assert torch.equal(pruned, expected)


@pytest.mark.parametrize("device", DEVICES)
def test_nan_and_infinities_are_the_largest(device: str) -> None:
    w = torch.tensor([1, float("nan"), -float("inf"), 3, -0.0, float("inf"), -float("nan")], device=device)
    for keep, first in ((2, [1, 6]), (3, [1, 2, 6]), (4, [1, 2, 5, 6]), (5, [1, 2, 3, 5, 6])):
        for name in EAGER:
            mask = module.operator.variants[name].function(w, keep)[1]
            assert mask.nonzero().flatten().tolist() == first, name


@pytest.mark.parametrize("device", DEVICES)
def test_a_view_is_pruned_by_its_elements(device: str) -> None:
    w = torch.randn(40, 60, device=device)
    for view in (w.t(), w[:, 1::2], w[3:, 5:], w.view(-1)[1:]):
        pruned, mask = module.v3(view, view.numel() // 3)
        assert torch.equal(mask, module.reference(view, view.numel() // 3)[1])
        assert torch.equal(pruned, torch.where(mask, view, 0))


@pytest.mark.parametrize("device", DEVICES)
def test_the_gradient_passes_where_something_was_kept(device: str) -> None:
    w = torch.randn(7, 9, dtype=torch.float64, device=device, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: module.v3(x, 20)[0], (w,))
    g = torch.full_like(w, float("nan"))
    pruned, mask = module.v3(w, 20)
    (gradient,) = torch.autograd.grad(pruned, w, g)
    assert not gradient[~mask].any()
    assert not mask.requires_grad


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_torch_operators_keep_torchs_rules(dtype: torch.dtype, device: str) -> None:
    w = torch.randn(5, 7, device=device).to(dtype).requires_grad_()
    torch.library.opcheck(torch.ops.warpwatch.magnitude_prune.default, (w, 11))
    mask = torch.rand(5, 7, device=device) > 0.5
    torch.library.opcheck(torch.ops.warpwatch.magnitude_prune_backward.default, (w.detach(), mask))


@pytest.mark.parametrize("keep", [-1, 13])
def test_an_impossible_count_is_refused(keep: int) -> None:
    with pytest.raises(RuntimeError, match=f"cannot keep {keep} of 12"):
        module.v3(torch.zeros(3, 4), keep)


def test_costs() -> None:
    forward, backward = both_directions(case("bf16", size=(10, 20), percent=15))[:2]
    assert module.kept(forward) == 30
    assert module.cost(forward).bytes == module.cost(backward).bytes == 200 * (2 + 2 + 1)
