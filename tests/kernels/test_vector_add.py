"""vector_add: every variant against the oracle, and the torch operator that the library registers."""

from __future__ import annotations

import pytest
import torch

from kernels import vector_add as module
from warpwatch.contract.words import Status
from warpwatch.operator import Case, Operator
from warpwatch.worker.harness.problem import CaseProblem

from .conftest import DEVICES, check_variant, runnable, sized

EDGES = (
    *(sized("f32", "fwd", n=n) for n in (0, 1, 255, 257, 4097)),
    sized("f64", "fwd", n=1025),
    sized("i32", "fwd", n=1023),
    sized("f32", "bwd", n=1),
    sized("f32", "fwd", host=1),
    sized("f32", "fwd", host=1025),
)


@pytest.mark.parametrize(("name", "case", "device"), runnable(module.operator, (*module.QUICK, *EDGES)))
def test_every_variant_is_right(operator: Operator, name: str, case: Case, device: str) -> None:
    reply = check_variant(operator, name, case, device)
    assert reply.status is Status.OK, reply.message


@pytest.mark.parametrize(
    ("name", "case", "device"),
    runnable(module.operator, [sized("f32", "fwd", n=1025), sized("f32", "bwd", n=1025)], compiled=True),
)
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


@pytest.mark.parametrize(
    "name", [name for name in module.operator.variants if name not in ("pageable", "pinned", "streams")]
)
def test_what_lies_on_the_host_is_for_variants_that_fetch_it(name: str) -> None:
    """A kernel that was handed host memory would add on the host, and be timed as if it had not."""
    from_host, on_device = sized("f32", "fwd", host=8), sized("f32", "fwd", n=8)
    assert "pageable, pinned and streams" in (
        module.operator.variants[name].reason_unsupported(from_host, "cuda") or ""
    )
    for other in ("pageable", "pinned", "streams"):
        assert module.operator.variants[other].reason_unsupported(from_host, "cuda") is None
        assert "sized `host`" in (module.operator.variants[other].reason_unsupported(on_device, "cuda") or "")


def test_operands_of_an_end_to_end_case_lie_on_the_host(operator: Operator) -> None:
    problem = CaseProblem(
        operator, operator.variants["pageable"], sized("f32", "fwd", host=8), torch.device(DEVICES[-1])
    )
    inputs = problem.data(1).inputs
    assert (inputs["a"].device.type, inputs["b"].device.type, inputs["device"].type) == ("cpu", "cpu", DEVICES[-1])
    assert problem.run(problem.data(1))["y"].device.type == "cpu"


def test_costs_are_twelve_bytes_per_element() -> None:
    assert module.cost(sized("f32", "fwd", n=100)).bytes == 1200
    assert module.cost(sized("f64", "fwd", n=100)).bytes == 2400
    assert module.cost(sized("f32", "fwd", host=100)).bytes == 2400


def test_slow_launch_shapes_stop_at_sizes_that_take_seconds() -> None:
    huge = sized("f32", "fwd", n=2**28)
    assert module.operator.variants["v5"].reason_unsupported(huge, "cuda") == "measured up to n=16777216 only"
    assert module.operator.variants["v3"].reason_unsupported(huge, "cuda") is None
