"""launch: every variant against the oracle, results on the right side, and the library's torch operators."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernels import launch as module
from warpwatch.contract.words import Status
from warpwatch.operator import Case, Operator

from .conftest import DEVICES, check_variant, runnable, sized

CASES = (*module.QUICK, *module.EDGE)
CPU = torch.device("cpu")


@pytest.mark.parametrize(("name", "case", "device"), runnable(module.operator, CASES))
def test_every_variant_is_right(operator: Operator, name: str, case: Case, device: str) -> None:
    reply = check_variant(operator, name, case, device)
    assert reply.status is Status.OK, reply.message


@pytest.mark.parametrize("device", DEVICES)
def test_the_torch_operators_keep_torchs_rules(operator: Operator, device: str) -> None:
    x = torch.randn(77, device=device)
    torch.library.opcheck(torch.ops.warpwatch.launch_empty.default, (x,))
    torch.library.opcheck(torch.ops.warpwatch.launch_add.default, (x,))
    for way in (module.OWN, module.MEMCPY):
        torch.library.opcheck(torch.ops.warpwatch.launch_copy.default, (x, way))
    a, place = torch.arange(77, dtype=torch.int32), torch.zeros(1, dtype=torch.int32, device=device)
    for memory in (module.DEVICE, module.POOL):
        torch.library.opcheck(torch.ops.warpwatch.launch_allocate.default, (x, 308, memory))
        torch.library.opcheck(torch.ops.warpwatch.launch_add_from_host.default, (a, a, place, memory))


@pytest.mark.parametrize("way", ["add", "d2d"])
def test_views_are_taken_by_their_elements(operator: Operator, way: str) -> None:
    x = torch.arange(24, dtype=torch.float32).view(4, 6)
    for view in (x.t(), x[:, 1::2], x[1:, 1:]):
        for version in (module.v3, module.v4) if way == "d2d" else (module.v3,):
            assert torch.equal(version(view, way, CPU), module.reference(view, way, CPU))


def test_a_copy_is_no_view(operator: Operator) -> None:
    x = torch.ones(5)
    for version in (module.v1, module.v3, module.v4):
        y = version(x, "d2d", CPU)
        assert y.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


def test_large_copies_by_all_threads_are_whole(operator: Operator) -> None:
    x = torch.arange(1_500_001, dtype=torch.float32)
    assert torch.equal(torch.ops.warpwatch.launch_copy(x, module.OWN), x)


def test_the_program_takes_views_and_wraps_around(operator: Operator) -> None:
    a = torch.arange(24, dtype=torch.int32).view(4, 6) + 2**31 - 12
    for view in (a.t(), a[:, 1::2], a[1:, 1:]):
        y = torch.ops.warpwatch.launch_add_from_host(view, view, torch.zeros(1), module.DEVICE)
        assert torch.equal(y, view + view)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"b": torch.ones(4, dtype=torch.int32)}, "shape"), ({"a": torch.ones(3)}, "int32"), ({"memory": 3}, "memory")],
)
def test_the_program_refuses_what_does_not_fit(operator: Operator, change: dict[str, Any], message: str) -> None:
    a = torch.ones(3, dtype=torch.int32)
    given = {"a": a, "b": a, "place": torch.zeros(1), "memory": module.DEVICE} | change
    with pytest.raises(RuntimeError, match=message):
        torch.ops.warpwatch.launch_add_from_host(*given.values())


def test_other_dtypes_are_refused(operator: Operator) -> None:
    with pytest.raises(RuntimeError, match="float32"):
        torch.ops.warpwatch.launch_copy(torch.ones(3, dtype=torch.float64), module.OWN)


def test_copies_between_two_memories_need_two() -> None:
    for name in ("h2d", "d2h", "sync", "pin"):
        case = sized("f32", "fwd", **{name: 8})
        assert (
            module.operator.variants["v1"].reason_unsupported(case, "cpu")
            == "a CPU has one memory, and nothing to wait for"
        )
        assert module.operator.variants["v1"].reason_unsupported(case, "cuda") is None


@pytest.mark.skipif("cuda" not in DEVICES, reason="needs a GPU")
@pytest.mark.parametrize("name", ["v1", "v2"])
def test_results_lie_where_their_name_says(operator: Operator, name: str) -> None:
    device, variant = torch.device("cuda"), operator.variants[name]
    for way, x, where in (("h2d", torch.ones(9), "cuda"), ("d2h", torch.ones(9, device=device), "cpu")):
        prepared = variant.prepare(x, way, device) if variant.prepare else {}
        y = variant.function(x, way, device, **prepared)
        assert y.device.type == where
        assert y.is_pinned() is (name == "v2" and way == "d2h")


def test_costs() -> None:
    assert module.cost(sized("f32", "fwd", d2d=100)).bytes == 800
    assert module.cost(sized("f32", "fwd", h2d=100)).bytes == 400
    assert module.cost(sized("f32", "fwd", empty=1)).bytes == 0
    assert module.cost(sized("f32", "fwd", malloc=100)).bytes == 0
    assert module.cost(sized("i32", "fwd", add_from_host=100)).bytes == 2400
