"""scaled_matmul: every variant against the product of what the codes stand for, and the costs with scales."""

from __future__ import annotations

import pytest

from kernels import scaled_matmul as module
from warpwatch.contract.words import Status
from warpwatch.operator import Case

from .conftest import check_variant, runnable


@pytest.mark.parametrize(("name", "case", "device"), runnable(module.operator, (*module.QUICK, *module.EDGE)))
def test_every_variant_is_right(name: str, case: Case, device: str) -> None:
    reply = check_variant(module.operator, name, case, device)
    assert reply.status is Status.OK, reply.message
    assert not [probe.message for probe in reply.probes if probe.status == "refuses"]


@pytest.mark.parametrize(("name", "case", "device"), runnable(module.operator, module.QUICK[1:3], compiled=True))
def test_torch_compile_is_right(name: str, case: Case, device: str) -> None:
    assert check_variant(module.operator, name, case, device).status is Status.OK


def test_costs_count_codes_and_scales() -> None:
    assert module.cost(module.sized("bf16", 8, 16, 256, "e4m3-row")).bytes == 24 * 256 + 4 * 24 + 2 * 8 * 16
    assert module.cost(module.sized("f32", 8, 16, 256, "nvfp4")).bytes == 24 * 128 + 24 * 16 + 8 + 4 * 8 * 16
