"""quantize: every variant against the definition, code by code, and the costs with scales."""

from __future__ import annotations

import pytest

from kernels import quantize as module
from warpwatch.contract.words import Status
from warpwatch.operator import Case, Operator

from .conftest import check_variant, runnable

CHECKED = [
    given
    for given in runnable(module.operator, (*module.QUICK, *module.EDGE))
    # The definition is judged by itself, which a few small matrices show as well.
    if given.values[0] != "v1" or given.values[1] in module.EDGE
]


@pytest.mark.parametrize(("name", "case", "device"), CHECKED)
def test_every_variant_is_right(operator: Operator, name: str, case: Case, device: str) -> None:
    reply = check_variant(operator, name, case, device)
    assert reply.status is Status.OK, reply.message


@pytest.mark.parametrize(("name", "case", "device"), runnable(module.operator, module.QUICK[1:2], compiled=True))
def test_torch_compile_is_right(operator: Operator, name: str, case: Case, device: str) -> None:
    assert check_variant(operator, name, case, device).status is Status.OK


def test_costs_count_scales_and_the_transposed_copy() -> None:
    row, both = module.sized("bf16", 256, 512, "e4m3-1x128"), module.sized("bf16", 256, 512, "e4m3-1x128", 1)
    assert module.cost(row).bytes == 2 * 256 * 512 + 256 * 512 + 4 * 256 * 4
    assert module.cost(both).bytes == module.cost(row).bytes + 256 * 512 + 4 * 512 * 2
    assert module.cost(module.sized("f32", 64, 64, "nvfp4")).bytes == 4 * 64 * 64 + 64 * 32 + 64 * 4 + 4
