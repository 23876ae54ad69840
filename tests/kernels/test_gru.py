"""gru: every variant against the oracle, the gradient formulas, and the torch operators that the library registers."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor

from kernels import _recurrent
from kernels import gru as module
from warpwatch.contract.words import Status
from warpwatch.operator import Case, Operator

from .conftest import DEVICES, check_variant, runnable
from .test_concat import Calls

VERSIONS = [
    ("cpu", _recurrent.CELL),
    *(("cuda", v) for v in (_recurrent.CELL, _recurrent.PERSISTENT) if "cuda" in DEVICES),
]


@pytest.mark.parametrize(("name", "case", "device"), runnable(module.operator, (*module.QUICK, *module.EDGE)))
def test_every_variant_is_right(operator: Operator, name: str, case: Case, device: str) -> None:
    reply = check_variant(operator, name, case, device)
    assert reply.status is Status.OK, reply.message


COMPILED = module.both_directions(module.sized("f32", 2, 3, 4, 5))


@pytest.mark.parametrize(("name", "case", "device"), runnable(module.operator, COMPILED, compiled=True))
def test_torch_compile_is_right(operator: Operator, name: str, case: Case, device: str) -> None:
    assert check_variant(operator, name, case, device).status is Status.OK


def operands(steps: int, batch: int, hidden: int, device: str, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    shapes = (steps, batch, 3 * hidden), (batch, hidden), (3 * hidden, hidden), (3 * hidden,)
    return [torch.randn(*shape, device=device, dtype=dtype, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("steps", "batch"), [(3, 2), (2, 9)])
def test_the_gradients_are_those_of_the_function(operator: Operator, device: str, steps: int, batch: int) -> None:
    scan = functools.partial(_recurrent.scan, version=_recurrent.CELL)
    assert torch.autograd.gradcheck(scan, operands(steps, batch, 3, device, torch.float64))


@pytest.mark.parametrize(("device", "version"), VERSIONS)
def test_gradients_need_nothing_kept(operator: Operator, device: str, version: int) -> None:
    given = operands(4, 3, 8, device)
    kept = _recurrent.scan(*given, version=version)  # type: ignore[misc,arg-type]
    bare, nothing = torch.ops.warpwatch.gru_scan(*given, version, False)
    assert nothing.numel() == 0
    g = torch.randn_like(kept)
    for ours, theirs in zip(torch.autograd.grad(bare, given, g), torch.autograd.grad(kept, given, g), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(("device", "version"), VERSIONS)
def test_the_torch_operators_keep_torchs_rules(operator: Operator, device: str, version: int) -> None:
    given = operands(3, 2, 5, device)
    torch.library.opcheck(torch.ops.warpwatch.gru_scan.default, (*given, version, True))
    with torch.no_grad():
        out, saved = torch.ops.warpwatch.gru_scan(*given, version, True)
        backward = (torch.randn_like(out), given[1].detach(), given[2].detach(), out, saved, version)
    torch.library.opcheck(torch.ops.warpwatch.gru_scan_backward.default, backward)


@pytest.mark.parametrize(("device", "version"), VERSIONS)
@pytest.mark.parametrize(("steps", "batch", "hidden"), [(5, 1, 40), (3, 7, 24), (4, 8, 17), (2, 33, 64)])
def test_every_split_of_the_work_agrees_with_torch(
    operator: Operator, device: str, version: int, steps: int, batch: int, hidden: int
) -> None:
    """Few rows are split by units, many by rows; odd sizes leave a rest beside whole vectors."""
    given = operands(steps, batch, hidden, device)
    ours, theirs = _recurrent.scan(*given, version=version), module._eager_scan(*given)  # type: ignore[misc,arg-type]
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    g = torch.randn_like(ours)
    for mine, right in zip(*(torch.autograd.grad(y, given, g) for y in (ours, theirs)), strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-3, atol=1e-3)


def test_views_are_read_by_their_elements(operator: Operator) -> None:
    gates, h, w, bias = (tensor.detach() for tensor in operands(3, 4, 8, "cpu"))
    views = gates.permute(1, 0, 2).contiguous().permute(1, 0, 2), h.t().contiguous().t(), w.t().contiguous().t(), bias
    torch.testing.assert_close(_recurrent.scan(*views, version=3), module._eager_scan(gates, h, w, bias))


def test_large_numbers_saturate(operator: Operator) -> None:
    """The vectorised exponential neither overflows into NaN nor loses its sign."""
    gates, h, w, bias = (tensor.detach() for tensor in operands(1, 1, 16, "cpu"))
    gates = gates * 1e4
    torch.testing.assert_close(_recurrent.scan(gates, h, w, bias, 3), module._eager_scan(gates, h, w, bias))


def test_the_calls_into_torch_do_not_grow_with_the_steps(operator: Operator) -> None:
    """The loop over time is launch-bound: a faster cell that is called once per step makes the whole run slower."""
    counts = []
    for steps in (2, 20):
        given = operands(steps, 2, 5, "cpu")
        with Calls() as calls:
            out = _recurrent.scan(*given, version=_recurrent.CELL)  # type: ignore[misc,arg-type]
            torch.autograd.grad(out, given, torch.ones_like(out))
        counts.append(len(calls.names))
    assert counts[0] == counts[1]


def test_what_does_not_fit_is_refused(operator: Operator) -> None:
    gates, h, w, bias = (tensor.detach() for tensor in operands(3, 2, 5, "cpu"))
    for given in (
        (gates[:0], h, w, bias),
        (gates, h[:1], w, bias),
        (gates, h, w.t(), bias),
        (gates, h, w, bias.double()),
    ):
        with pytest.raises(RuntimeError):
            torch.ops.warpwatch.gru_scan(*given)


def test_costs() -> None:
    forward, backward = (
        module.cost(case) for case in module.both_directions(module.sized("f32", 11, 61, 45, 128, 2))[:2]
    )
    assert forward.flops == 2 * 11 * 61 * 384 * (45 + 128 + 128 + 128)
    assert forward.bytes == 4 * (384 * (45 + 3 * 128) + 12 * 128 + 11 * 61 * (45 + 3 * 128))
    assert (backward.flops, backward.bytes) == (2 * forward.flops, 2 * forward.bytes)
