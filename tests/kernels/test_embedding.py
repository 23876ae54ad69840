"""embedding: every variant against the oracle, repeated indices, padding, and the torch operators that the library
registers."""

from __future__ import annotations

import pytest
import torch

from kernels import embedding as module
from warpwatch.contract.words import Status
from warpwatch.operator import Case, Operator

from .conftest import DEVICES, check_variant, runnable, sized

SMALL = [sized("f32", "bwd", rows=20, width=8, ids=(30,), padding=3)]


@pytest.mark.parametrize(("name", "case", "device"), runnable(module.operator, (*module.QUICK, *module.EDGE)))
def test_every_variant_is_right(operator: Operator, name: str, case: Case, device: str) -> None:
    reply = check_variant(operator, name, case, device)
    assert reply.status is Status.OK, reply.message


@pytest.mark.parametrize(("name", "case", "device"), runnable(module.operator, SMALL, compiled=True))
def test_torch_compile_is_right(operator: Operator, name: str, case: Case, device: str) -> None:
    assert check_variant(operator, name, case, device).status is Status.OK


def gradient(
    variant: str, device: str, indices: torch.Tensor, g: torch.Tensor, rows: int, padding: int | None
) -> torch.Tensor:
    weight = torch.zeros(rows, g.shape[-1], dtype=g.dtype, device=device, requires_grad=True)
    out = module.operator.variants[variant].function(weight, indices, padding)
    return torch.autograd.grad(out, weight, g)[0]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_index_named_many_times_gets_every_gradient(operator: Operator, dtype: torch.dtype, device: str) -> None:
    # Summed in bfloat16, 1000 ones come to 256.
    indices = torch.full((1000,), 2, device=device)
    ones = torch.ones(1000, 5, dtype=dtype, device=device)
    for variant in ("v3", *(["v4"] if device == "cuda" else [])):
        assert gradient(variant, device, indices, ones, 4, None).tolist() == [[0] * 5, [0] * 5, [1000] * 5, [0] * 5]


@pytest.mark.parametrize("device", DEVICES)
def test_padding_is_looked_up_and_learns_nothing(operator: Operator, device: str) -> None:
    weight = torch.arange(12.0, device=device).view(4, 3)
    indices = torch.tensor([1, 0, 1, 3], device=device)
    assert torch.equal(module.v3(weight, indices, 1), weight[indices])
    learnt = gradient("v3", device, indices, torch.ones(4, 3, device=device), 4, 1)
    assert learnt[:, 0].tolist() == [1, 0, 0, 1]


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_an_index_outside_the_table_is_refused(operator: Operator, index: torch.dtype) -> None:
    for wrong in (4, -1):
        indices = torch.tensor([0, wrong], dtype=index)
        with pytest.raises(RuntimeError, match="outside the table"):
            module.v3(torch.zeros(4, 3), indices, None)
        with pytest.raises(RuntimeError, match="outside the table"):
            torch.ops.warpwatch.embedding_backward(torch.zeros(2, 3), indices, 4)


@pytest.mark.parametrize("device", DEVICES)
def test_the_gradient_is_that_of_the_function(operator: Operator, device: str) -> None:
    weight = torch.randn(5, 3, dtype=torch.float64, device=device, requires_grad=True)
    indices = torch.tensor([[4, 0, 4], [2, 4, 0]], device=device)
    assert torch.autograd.gradcheck(lambda weight: module.v3(weight, indices, None), (weight,))


@pytest.mark.parametrize("device", DEVICES)
def test_the_torch_operators_keep_torchs_rules(operator: Operator, device: str) -> None:
    weight, indices = torch.randn(5, 3, device=device, requires_grad=True), torch.tensor([4, 0, 4], device=device)
    g = torch.randn(3, 3, device=device)
    torch.library.opcheck(torch.ops.warpwatch.embedding.default, (weight, indices))
    torch.library.opcheck(torch.ops.warpwatch.embedding_backward.default, (g, indices, 5))
    if device == "cuda":
        keys, order = indices.int().sort(stable=True)
        torch.library.opcheck(torch.ops.warpwatch.embedding_sorted_backward.default, (g, keys, order, 5))


def test_views_are_looked_up_by_their_elements(operator: Operator) -> None:
    weight, indices = torch.randn(6, 8), torch.tensor([[5, 0, 3], [1, 1, 2]])
    for view in (weight[:, ::2], weight.t(), weight[1:, 1:]):
        rows = indices.t() % view.shape[0]
        assert torch.equal(module.v3(view, rows, None), view[rows])


@pytest.mark.parametrize("layout", ["contiguous", "zipf", "same"])
def test_indices_are_spread_as_the_layout_says(operator: Operator, layout: str) -> None:
    from warpwatch.worker.harness.problem import SeededMaker

    case = Case((("rows", 50), ("width", 1), ("ids", (20000,))), "f32", "fwd", layout)
    indices = module.inputs(case, SeededMaker(1, torch.device("cpu"), "f32"))["indices"]
    frequencies = torch.bincount(indices, minlength=50) / 20000
    torch.testing.assert_close(frequencies.double(), module.probabilities(case), atol=0.015, rtol=0)
    assert abs(module.distinct(case) - int((frequencies > 0).sum())) <= 1


def test_costs() -> None:
    forward = Case((("rows", 1000), ("width", 8), ("ids", (10,))), "f32", "fwd", "same")
    assert module.cost(forward) == module.Cost(0, 4 * 8 * (10 + 1) + 10 * 8)
    backward = Case((("rows", 1000), ("width", 8), ("ids", (10,)), ("index", 32)), "f32", "bwd", "same")
    assert module.cost(backward) == module.Cost(80, 4 * 8 * (10 + 1000) + 10 * 4)
    assert (module.depth(forward), module.depth(backward)) == (1, 10)
