"""vector_add: every variant against the oracle, and the torch operator that the library registers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kernels import vector_add as module
from warpwatch.operator import Case, Operator
from worker.protocol import Status

from .conftest import DEVICES, check_variant, ready, runnable, sized

EDGES = (
    *(sized("f32", "fwd", n=n) for n in (0, 1, 255, 257, 4097)),
    sized("f64", "fwd", n=1025),
    sized("i32", "fwd", n=1023),
    sized("f32", "bwd", n=1),
)


@pytest.fixture(scope="module")
def operator(build_cache: Path) -> Operator:
    return ready(module.operator, build_cache)


@pytest.mark.parametrize(("name", "case", "device"), runnable(module.operator, (*module.QUICK, *EDGES)))
def test_every_variant_is_right(operator: Operator, name: str, case: Case, device: str) -> None:
    reply = check_variant(operator, name, case, device)
    assert reply.status is Status.OK, reply.message


@pytest.mark.parametrize(("name", "case", "device"), runnable(module.operator, [sized("f32", "fwd", n=1025)], compiled=True))
def test_torch_compile_is_right(operator: Operator, name: str, case: Case, device: str) -> None:
    assert check_variant(operator, name, case, device).status is Status.OK


def test_views_are_added_by_their_elements(operator: Operator) -> None:
    a = torch.arange(12, dtype=torch.float32).view(3, 4)
    assert torch.equal(module.v3(a.t(), a.t().flip(0)), a.t() + a.t().flip(0))
    assert torch.equal(module.v3(a[:, 1], a[:, 2]), a[:, 1] + a[:, 2])


@pytest.mark.parametrize("other", [torch.ones(4), torch.ones(3, 1), torch.ones(3, dtype=torch.float64)])
def test_operands_that_do_not_fit_are_refused(operator: Operator, other: torch.Tensor) -> None:
    with pytest.raises(RuntimeError, match="both operands must have the same"):
        module.v3(torch.ones(3), other)


def test_a_dtype_without_kernel_is_refused(operator: Operator) -> None:
    with pytest.raises(RuntimeError, match="no implementation for dtype BFloat16"):
        module.v3(torch.ones(3, dtype=torch.bfloat16), torch.ones(3, dtype=torch.bfloat16))


@pytest.mark.parametrize("device", DEVICES)
def test_the_torch_operator_keeps_torchs_rules(operator: Operator, device: str) -> None:
    a, b = (torch.randn(5, 7, device=device, requires_grad=True) for _ in "ab")
    torch.library.opcheck(torch.ops.warpwatch.vector_add.default, (a, b))


def test_costs_are_twelve_bytes_per_element() -> None:
    assert module.cost(sized("f32", "fwd", n=100)).bytes == 1200
    assert module.cost(sized("f64", "fwd", n=100)).bytes == 2400


def test_slow_launch_shapes_stop_at_sizes_that_take_seconds() -> None:
    huge = sized("f32", "fwd", n=2**28)
    assert module.operator.variants["v5"].reason_unsupported(huge, "cuda") == "measured up to n=16777216 only"
    assert module.operator.variants["v3"].reason_unsupported(huge, "cuda") is None
