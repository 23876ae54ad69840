"""causal_conv: every variant against the oracle, causality, and the torch operators that the library registers."""

from __future__ import annotations

import pytest
import torch

from kernels import causal_conv as module
from warpwatch.contract.words import Status
from warpwatch.operator import Case, Operator

from .conftest import DEVICES, check_variant, runnable, sized

SMALL = sized("f32", "bwd", batch=2, channels=2, length=9)


@pytest.mark.parametrize(("name", "case", "device"), runnable(module.operator, (*module.QUICK, *module.EDGE)))
def test_every_variant_is_right(operator: Operator, name: str, case: Case, device: str) -> None:
    reply = check_variant(operator, name, case, device)
    assert reply.status is Status.OK, reply.message


@pytest.mark.parametrize(("name", "case", "device"), runnable(module.operator, [SMALL], compiled=True))
def test_torch_compile_is_right(operator: Operator, name: str, case: Case, device: str) -> None:
    assert check_variant(operator, name, case, device).status is Status.OK


@pytest.mark.parametrize(("name", "case", "device"), runnable(module.operator, [SMALL]))
def test_nothing_depends_on_what_comes_later(operator: Operator, name: str, case: Case, device: str) -> None:
    function = operator.variants[name].function
    k, w, eps = (torch.randn(shape, device=device) for shape in ((2, 2, 40), (2, 40), ()))
    later = k.clone()
    later[..., 21:] += 1
    torch.testing.assert_close(function(k, w, eps)[..., :21], function(later, w, eps)[..., :21])


def test_an_impulse_shows_the_filter_from_its_last_tap_on(operator: Operator) -> None:
    w = torch.arange(1.0, 31).view(1, 30)
    k = torch.zeros(1, 1, 30)
    k[..., 7] = 1
    y = module.v3(k, w, torch.tensor(0.5))[0, 0]
    assert y[:7].tolist() == [0.5] * 7
    assert y[7:].tolist() == [30.5 - i for i in range(23)]


@pytest.mark.parametrize("device", DEVICES)
def test_the_gradient_is_that_of_the_function(operator: Operator, device: str) -> None:
    operands = [
        torch.randn(shape, dtype=torch.float64, device=device, requires_grad=True)
        for shape in ((2, 2, 11), (2, 11), ())
    ]
    assert torch.autograd.gradcheck(module.v3, operands)


def test_the_gradients_are_those_published(operator: Operator) -> None:
    k, w, g = (torch.randn(shape, dtype=torch.float64) for shape in ((2, 3, 19), (3, 19), (2, 3, 19)))
    dk, dw = torch.ops.warpwatch.causal_conv_backward(g, k, w)
    length = 19
    for u in range(length):
        later = range(u, length)
        torch.testing.assert_close(dk[..., u], sum(w[:, length - 1 - (t - u)] * g[..., t] for t in later))
    for d in range(length):
        torch.testing.assert_close(dw[:, length - 1 - d], (k[..., : length - d] * g[..., d:]).sum((0, 2)))


@pytest.mark.parametrize("device", DEVICES)
def test_the_torch_operators_keep_torchs_rules(operator: Operator, device: str) -> None:
    k, w, eps = (torch.randn(shape, device=device, requires_grad=True) for shape in ((2, 2, 9), (2, 9), ()))
    torch.library.opcheck(torch.ops.warpwatch.causal_conv.default, (k, w, eps))
    torch.library.opcheck(torch.ops.warpwatch.causal_conv_backward.default, (k.detach(), k.detach(), w.detach()))


def test_views_are_filtered_by_their_elements(operator: Operator) -> None:
    k, w, eps = torch.randn(3, 8, 40), torch.randn(8, 80), torch.randn(())
    for view in (k[:, :, ::2], k.transpose(1, 2)[:, :8, :], k[1:, :, 5:]):
        filters = w[:, : 2 * view.shape[2] : 2]
        torch.testing.assert_close(module.v3(view, filters, eps), module.reference(view, filters, eps))


@pytest.mark.parametrize(("least", "expected"), [(1, 1), (7, 8), (1535, 1536), (2001, 2025)])
def test_transforms_have_fast_lengths(least: int, expected: int) -> None:
    assert module.fast_length(least) == expected


def test_costs() -> None:
    forward, backward = (
        module.cost(sized("f32", direction, batch=2, channels=3, length=10)) for direction in ("fwd", "bwd")
    )
    assert forward == module.Cost(2 * 3 * 10 * 11, 4 * (120 + 30 + 1))
    assert backward == module.Cost(2 * 2 * 3 * 10 * 11 + 60, 4 * (180 + 60 + 1))
