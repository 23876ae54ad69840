"""square: every variant against the oracle and the golden example, and the torch operators that the library registers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kernels import square as module
from warpwatch.operator import Case, Operator, both_directions
from worker.protocol import Status

from .conftest import DEVICES, check_variant, ready, runnable, sized

EDGES = both_directions(*(sized("f32", "fwd", size=size) for size in ((1, 1), (17, 15), (16, 16), (1, 4097), (0, 3))))


@pytest.fixture(scope="module")
def operator(build_cache: Path) -> Operator:
    return ready(module.operator, build_cache)


@pytest.mark.parametrize(("name", "case", "device"), runnable(module.operator, [sized("f32", "fwd", size=(2, 3))]))
def test_the_golden_example(operator: Operator, name: str, case: Case, device: str) -> None:
    y = operator.variants[name].function(torch.tensor([[1.0, 2, 3], [4, 5, 6]], device=device))
    assert y.tolist() == [[1, 4, 9], [16, 25, 36]]


@pytest.mark.parametrize(("name", "case", "device"), runnable(module.operator, (*module.QUICK, *EDGES)))
def test_every_variant_is_right(operator: Operator, name: str, case: Case, device: str) -> None:
    reply = check_variant(operator, name, case, device)
    assert reply.status is Status.OK, reply.message


@pytest.mark.parametrize(("name", "case", "device"), runnable(module.operator, [sized("f32", "bwd", size=(17, 15))], compiled=True))
def test_torch_compile_is_right(operator: Operator, name: str, case: Case, device: str) -> None:
    assert check_variant(operator, name, case, device).status is Status.OK


@pytest.mark.parametrize("device", DEVICES)
def test_the_gradient_is_that_of_the_function(operator: Operator, device: str) -> None:
    a = torch.randn(5, 7, dtype=torch.float64, device=device, requires_grad=True)
    assert torch.autograd.gradcheck(module.v3, (a,))


@pytest.mark.parametrize("device", DEVICES)
def test_the_torch_operators_keep_torchs_rules(operator: Operator, device: str) -> None:
    a, g = torch.randn(5, 7, device=device, requires_grad=True), torch.randn(5, 7, device=device)
    torch.library.opcheck(torch.ops.warpwatch.square.default, (a,))
    torch.library.opcheck(torch.ops.warpwatch.square_backward.default, (g, a.detach()))


def test_views_are_squared_by_their_elements(operator: Operator) -> None:
    a = torch.arange(24, dtype=torch.float32).view(4, 6)
    for view in (a.t(), a[:, 1::2], a[1:, 1:]):
        assert torch.equal(module.v3(view), view * view)


def test_special_numbers_are_those_of_torch(operator: Operator) -> None:
    a = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e-30, 1e30])
    torch.testing.assert_close(module.v3(a), a * a, equal_nan=True, rtol=0, atol=0)


def test_costs() -> None:
    forward, backward = module.cost(sized("f32", "fwd", size=(10, 10))), module.cost(sized("f32", "bwd", size=(10, 10)))
    assert (forward.bytes, backward.bytes) == (800, 1200)
