"""linear_vocab: every variant against the oracle, and the torch operators that the library registers."""

from __future__ import annotations

import pytest
import torch

from kernels import linear_vocab as module
from warpwatch.contract.words import Status
from warpwatch.operator import Case, Operator

from .conftest import DEVICES, check_variant, runnable, sized

PARTS = (3, 4, 5)


@pytest.mark.parametrize(("name", "case", "device"), runnable(module.operator, (*module.QUICK, *module.EDGE)))
def test_every_variant_is_right(operator: Operator, name: str, case: Case, device: str) -> None:
    reply = check_variant(operator, name, case, device)
    assert reply.status is Status.OK, reply.message


COMPILED = [sized("f32", direction, batch=3, parts=PARTS, vocab=17) for direction in ("fwd", "bwd")]


@pytest.mark.parametrize(("name", "case", "device"), runnable(module.operator, COMPILED, compiled=True))
def test_torch_compile_is_right(operator: Operator, name: str, case: Case, device: str) -> None:
    assert check_variant(operator, name, case, device).status is Status.OK


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("batch", [1, 6])
def test_the_gradients_are_those_of_the_function(operator: Operator, device: str, batch: int) -> None:
    shapes = (batch, 13), (9, 13), (9,)
    x, w, b = (torch.randn(*shape, dtype=torch.float64, device=device, requires_grad=True) for shape in shapes)
    assert torch.autograd.gradcheck(lambda *tensors: module.v3(*tensors, parts=(13,)), (x, w, b))


@pytest.mark.parametrize("version", [module.ROWS, module.TILES])
@pytest.mark.parametrize("device", DEVICES)
def test_the_torch_operators_keep_torchs_rules(operator: Operator, device: str, version: int) -> None:
    x, w, b = (torch.randn(*shape, device=device, requires_grad=True) for shape in ((3, 13), (9, 13), (9,)))
    torch.library.opcheck(torch.ops.warpwatch.linear_vocab.default, (x, w, b, version))
    torch.library.opcheck(
        torch.ops.warpwatch.linear_vocab_backward.default,
        (torch.randn(3, 9, device=device), x.detach(), w.detach(), version),
    )


def test_views_are_multiplied_by_their_elements(operator: Operator) -> None:
    wide, tall, b = torch.randn(5, 30), torch.randn(30, 22), torch.randn(20)
    for x, w in (
        (wide[:, 3:16], tall[1:14, 1:21].t()),
        (wide[::2, 1:27:2], tall[:20, 2:15]),
        (wide[:, :1], tall[:20, :1]),
    ):
        torch.testing.assert_close(module.v3(x, w, b, (13,)), x @ w.t() + b)


def test_operands_that_do_not_fit_are_refused(operator: Operator) -> None:
    x, w, b = torch.randn(3, 13), torch.randn(9, 13), torch.randn(9)
    for operands in ((x[:, 1:], w, b), (x, w, b[1:]), (x.double(), w, b), (x[0], w, b)):
        with pytest.raises(RuntimeError):
            torch.ops.warpwatch.linear_vocab(*operands)


def test_rows_of_the_padded_variant_are_aligned(operator: Operator) -> None:
    case = sized("f32", "fwd", batch=3, parts=PARTS, vocab=17)
    x, w, b = torch.randn(3, 12), torch.randn(17, 12), torch.randn(17)
    y = module.padded(x, w, b, case["parts"], **module.pad(x, w, b, case["parts"]))
    assert (y.shape, y.stride()) == ((3, 17), (24, 1))


def test_costs() -> None:
    forward, backward = (
        module.cost(sized("f32", d, batch=1, parts=(256, 512, 512), vocab=5893)) for d in ("fwd", "bwd")
    )
    assert (forward.flops, backward.flops) == (2 * 1280 * 5893, 4 * 1280 * 5893)
    assert (forward.bytes, backward.bytes) == (
        4 * (1280 + 1280 * 5893 + 2 * 5893),
        4 * (2 * 1280 + 2 * 1280 * 5893 + 2 * 5893),
    )
