"""stencil1d: every variant against the oracle, the line's ends, and the torch operators that the library registers."""

from __future__ import annotations

import pytest
import torch

from kernels import stencil1d as module
from warpwatch.contract.words import Status
from warpwatch.operator import Case, Operator

from .conftest import DEVICES, check_variant, runnable, sized


@pytest.mark.parametrize(("name", "case", "device"), runnable(module.operator, (*module.QUICK, *module.EDGE)))
def test_every_variant_is_right(operator: Operator, name: str, case: Case, device: str) -> None:
    reply = check_variant(operator, name, case, device)
    assert reply.status is Status.OK, reply.message


@pytest.mark.parametrize(
    ("name", "case", "device"), runnable(module.operator, [sized("f32", "bwd", n=1001)], compiled=True)
)
def test_torch_compile_is_right(operator: Operator, name: str, case: Case, device: str) -> None:
    assert check_variant(operator, name, case, device).status is Status.OK


@pytest.mark.parametrize(
    "name", [name for name, *_ in (p.values for p in runnable(module.operator, [sized("f32", "fwd", n=300)]))]
)
def test_an_impulse_shows_the_taps_in_reverse(operator: Operator, name: str) -> None:
    # Around the end of a block of 256 threads, and at both ends of the line.
    for place in (255, 256, 0, 299):
        x, w = torch.zeros(300), torch.arange(1.0, 8.0)
        x[place] = 1
        expected = torch.nn.functional.pad(torch.zeros(300), (3, 3))
        expected[place : place + 7] = w.flip(0)
        assert torch.equal(operator.variants[name].function(x, w), expected[3:-3])


@pytest.mark.parametrize("device", DEVICES)
def test_the_gradient_is_that_of_the_function(operator: Operator, device: str) -> None:
    x, w = (torch.randn(n, dtype=torch.float64, device=device, requires_grad=True) for n in (20, 7))
    assert torch.autograd.gradcheck(module.v3, (x, w))


def test_the_gradient_is_the_mirrored_stencil(operator: Operator) -> None:
    x, w, g = torch.randn(50, requires_grad=True), torch.randn(7), torch.randn(50)
    (dx,) = torch.autograd.grad(module.v3(x, w), x, g)
    torch.testing.assert_close(dx, module.reference(g, w.flip(0)))
    assert not torch.allclose(dx, module.reference(g, w)), "uneven taps tell the mirrored stencil from the plain one"


@pytest.mark.parametrize("device", DEVICES)
def test_the_torch_operators_keep_torchs_rules(operator: Operator, device: str) -> None:
    x, w, g = (torch.randn(n, device=device, requires_grad=True) for n in (20, 7, 20))
    torch.library.opcheck(torch.ops.warpwatch.stencil1d.default, (x, w))
    torch.library.opcheck(torch.ops.warpwatch.stencil1d_backward.default, (g.detach(), x.detach(), w.detach()))


def test_views_are_summed_by_their_elements(operator: Operator) -> None:
    x, w = torch.randn(40), torch.randn(14)
    for view in (x[::2], x[1:], x.view(8, 5)[:, 2]):
        torch.testing.assert_close(module.v3(view, w[::2]), module.reference(view, w[::2]))


def test_costs() -> None:
    forward, backward = module.cost(sized("f32", "fwd", n=100)), module.cost(sized("f32", "bwd", n=100))
    assert forward == module.Cost(1300, 4 * 207)
    assert backward == module.Cost(2700, 4 * 314)
