"""bert_block: every variant against the oracle, and against torch's own module with the same weights."""

from __future__ import annotations

import pytest
import torch

from kernels import bert_block as module
from warpwatch.contract.words import Status
from warpwatch.operator import Case, Operator, both_directions, case
from warpwatch.worker.harness.problem import SeededMaker

from .conftest import check_variant, runnable

pytestmark = pytest.mark.usefixtures("operator")


@pytest.mark.parametrize(("name", "case", "device"), runnable(module.operator, (*module.QUICK, *module.EDGE)))
def test_every_variant_is_right(operator: Operator, name: str, case: Case, device: str) -> None:
    reply = check_variant(operator, name, case, device)
    assert (reply.status, reply.message) == (Status.OK, "")


SMALL = both_directions(case(b=2, s=9, h=2, d=8))


@pytest.mark.parametrize(("name", "case", "device"), runnable(module.operator, SMALL, compiled=True))
def test_torch_compile_is_right(operator: Operator, name: str, case: Case, device: str) -> None:
    assert check_variant(operator, name, case, device).status is Status.OK


def test_the_block_is_that_of_torchs_encoder_layer() -> None:
    given = module.inputs(case("f64", b=2, s=7, h=3, d=4), SeededMaker(1, torch.device("cpu"), "f64"))
    theirs = torch.nn.MultiheadAttention(12, 3, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([given[f"w_{name}"] for name in "qkv"]))
        theirs.in_proj_bias.copy_(torch.cat([given[f"b_{name}"] for name in "qkv"]))
        theirs.out_proj.weight.copy_(given["w_o"])
        theirs.out_proj.bias.copy_(given["b_o"])
    x = given["x"]
    y = torch.nn.functional.layer_norm(x + theirs(x, x, x)[0], (12,), given["gain"], given["shift"])
    torch.testing.assert_close(module.reference(**given), y)


def test_only_the_two_products_are_swapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """v3 multiplies twice by our matmul, with the keys transposed by strides."""
    seen: list[tuple[torch.Size, torch.Size]] = []
    ours = module.matmul.native_matmul

    def spy(a: torch.Tensor, b: torch.Tensor, version: int) -> torch.Tensor:
        seen.append((a.shape, b.shape))
        return ours(a, b, version)

    monkeypatch.setattr(module.matmul, "native_matmul", spy)
    module.v3(**module.inputs(case(b=2, s=7, h=3, d=4), SeededMaker(1, torch.device("cpu"), "f32")))
    assert [tuple(map(tuple, shapes)) for shapes in seen] == [((6, 7, 4), (6, 4, 7)), ((6, 7, 7), (6, 7, 4))]


def test_costs() -> None:
    forward, backward = (module.cost(c) for c in both_directions(case("bf16", b=2, s=10, h=2, d=4))[:2])
    assert forward.flops == 4 * 2 * 20 * 8 * 8 + 2 * 2 * 20 * 10 * 8
    assert backward.flops == 2 * forward.flops
    assert forward.bytes == 2 * (2 * 160 + 4 * 64 + 6 * 8)
    assert backward.bytes == 2 * (3 * 160 + 2 * (4 * 64 + 6 * 8))
