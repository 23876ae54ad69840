"""causal_conv_short: every variant against the oracle, causality, and the library's torch operators."""

from __future__ import annotations

import pytest
import torch

from kernels import causal_conv_short as module
from warpwatch.contract.words import Status
from warpwatch.operator import Case, Operator

from .conftest import DEVICES, check_variant, runnable, sized

SMALL = sized("f32", "bwd", batch=1, channels=2, length=9, width=3, bias=1, silu=1)


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
    x, w = torch.randn(1, 2, 20, device=device), torch.randn(2, 3, device=device)
    later = x.clone()
    later[..., 11:] += 1
    before, after = function(x, w, None, False), function(later, w, None, False)
    assert torch.equal(before[..., :11], after[..., :11])
    assert not torch.isclose(before[..., 11:], after[..., 11:]).any(dim=1).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("width", [2, 3, 4])
@pytest.mark.parametrize("silu", [False, True])
def test_the_gradient_is_that_of_the_function(operator: Operator, width: int, silu: bool, device: str) -> None:
    x, w, bias = (
        torch.randn(shape, dtype=torch.float64, device=device, requires_grad=True)
        for shape in ((2, 3, 6), (3, width), (3,))
    )
    assert torch.autograd.gradcheck(lambda *all: module.v3(*all, silu), (x, w, bias))
    assert torch.autograd.gradcheck(lambda *all: module.v3(*all, None, silu), (x, w))


@pytest.mark.parametrize("device", DEVICES)
def test_the_torch_operators_keep_torchs_rules(operator: Operator, device: str) -> None:
    x, w, bias = (torch.randn(shape, device=device, requires_grad=True) for shape in ((2, 3, 6), (3, 4), (3,)))
    torch.library.opcheck(torch.ops.warpwatch.causal_conv_short.default, (x, w, bias, True))
    plain = [tensor.detach() for tensor in (x, x, w)]
    torch.library.opcheck(torch.ops.warpwatch.causal_conv_short_backward.default, (*plain, bias.detach(), True))
    torch.library.opcheck(torch.ops.warpwatch.causal_conv_short_backward.default, (*plain, None, False))


def test_views_are_filtered_by_their_elements(operator: Operator) -> None:
    x, w = torch.randn(2, 5, 4), torch.randn(5, 8)
    # Channels last, as a linear layer leaves them.
    for view in (x.permute(0, 2, 1).contiguous().permute(0, 2, 1), x[..., ::2], x[:, :, 1:]):
        torch.testing.assert_close(
            module.v3(view, w[:, ::2], None, True), module.reference(view, w[:, ::2], None, True)
        )


def test_silu_keeps_its_ends(operator: Operator) -> None:
    x = torch.tensor([-1000.0, -90, -20, -1e-3, 0, 1e-3, 20, 90, 1000]).view(1, 1, -1)
    w = torch.tensor([[0.0, 1]])
    torch.testing.assert_close(module.v3(x, w, None, True), torch.nn.functional.silu(x), rtol=1e-6, atol=1e-30)


def test_costs() -> None:
    sizes = {"batch": 2, "channels": 3, "length": 10, "width": 4, "bias": 1, "silu": 1}
    forward, backward = (module.cost(sized("bf16", direction, **sizes)) for direction in ("fwd", "bwd"))
    assert forward == module.Cost(60 * 12, 2 * (120 + 15))
    assert backward == module.Cost(60 * (16 + 7 + 8 + 1), 2 * (180 + 30))
