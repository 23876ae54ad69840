"""concat: every variant against the oracle, the torch operators that the library registers, and that nothing is
concatenated."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernels import concat as module
from warpwatch.contract.words import Status
from warpwatch.operator import Case, Operator

from .conftest import DEVICES, check_variant, runnable, sized


@pytest.mark.parametrize(("name", "case", "device"), runnable(module.operator, (*module.QUICK, *module.EDGE)))
def test_every_variant_is_right(operator: Operator, name: str, case: Case, device: str) -> None:
    reply = check_variant(operator, name, case, device)
    assert reply.status is Status.OK, reply.message


COMPILED = [sized("f32", direction, rows=3, parts=(4, 5), consumer=7) for direction in ("fwd", "bwd")]


@pytest.mark.parametrize(("name", "case", "device"), runnable(module.operator, COMPILED, compiled=True))
def test_torch_compile_is_right(operator: Operator, name: str, case: Case, device: str) -> None:
    assert check_variant(operator, name, case, device).status is Status.OK


@pytest.mark.parametrize("device", DEVICES)
def test_the_gradients_are_those_of_the_function(operator: Operator, device: str) -> None:
    shapes = (1, 3, 5), (1, 3, 2), (1, 3, 6), (9, 13)
    *parts, w = (torch.randn(*shape, dtype=torch.float64, device=device, requires_grad=True) for shape in shapes)
    assert torch.autograd.gradcheck(lambda *tensors: module.v3(tensors[:-1], tensors[-1]), (*parts, w))


@pytest.mark.parametrize("version", [module.ROWS, module.TILES])
@pytest.mark.parametrize("device", DEVICES)
def test_the_torch_operators_keep_torchs_rules(operator: Operator, device: str, version: int) -> None:
    parts = [torch.randn(3, width, device=device, requires_grad=True) for width in (5, 8)]
    w, g = torch.randn(9, 13, device=device, requires_grad=True), torch.randn(3, 9, device=device)
    torch.library.opcheck(torch.ops.warpwatch.concat_linear.default, (parts, w, version))
    torch.library.opcheck(
        torch.ops.warpwatch.concat_linear_backward.default, (g, [p.detach() for p in parts], w.detach(), version)
    )


def test_views_are_multiplied_by_their_elements(operator: Operator) -> None:
    wide, w = torch.randn(4, 40), torch.randn(22, 9).t()
    parts = wide[:, 1:12], wide.t()[3:7, :4].t(), wide[:, 20:34:2]
    torch.testing.assert_close(module.v3(parts, w), torch.cat(parts, 1) @ w.t())


class Calls(TorchDispatchMode):
    """Names of the torch operators that are called while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func._schema.name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("name", "cats"), [("v1", 1), ("v2", 0), ("v3", 0), ("v5", 0)])
def test_fused_variants_concatenate_nothing(operator: Operator, name: str, cats: int) -> None:
    parts, w = [torch.randn(1, 3, 5), torch.randn(1, 3, 8)], torch.randn(9, 13)
    with Calls() as calls:
        operator.variants[name].function(parts, w)
    assert calls.names.count("aten::cat") == cats
    assert not [called for called in calls.names if "copy" in called]


def test_costs() -> None:
    sizes = {"rows": (1, 8), "parts": (256, 512)}
    assert module.cost(sized("f32", "fwd", **sizes, consumer=0)) == module.Cost(0, 2 * 4 * 8 * 768)
    forward, backward = (module.cost(sized("f32", d, **sizes, consumer=1536)) for d in ("fwd", "bwd"))
    assert (forward.flops, backward.flops) == (2 * 8 * 768 * 1536, 4 * 8 * 768 * 1536)
    assert forward.bytes == 4 * (8 * 768 + 768 * 1536 + 8 * 1536)
