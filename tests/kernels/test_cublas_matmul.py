"""cublas_matmul: every variant against the oracle, all four transpositions' gradients, and what such code elsewhere got
wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from kernels import cublas_matmul as module
from warpwatch.contract.words import Status
from warpwatch.operator import Case, Operator, both_directions, case

from .conftest import DEVICES, check_variant, runnable

pytestmark = pytest.mark.usefixtures("operator")

TRANSPOSITIONS = [(False, False), (False, True), (True, False), (True, True)]
CASES = (*module.QUICK, *module.EDGE)


def stored(x: Tensor, transposed: bool) -> Tensor:
    """The contiguous operand whose op is x."""
    return x.mT.contiguous() if transposed else x


def own(a: Tensor, b: Tensor, trans_a: bool = False, trans_b: bool = False) -> Tensor:
    """Our operator where the tensors are: C++ on the CPU, cuBLAS on a GPU."""
    y: Tensor = torch.ops.warpwatch.cublas_matmul(a, b, trans_a, trans_b)
    return y


@pytest.mark.parametrize(("name", "case", "device"), runnable(module.operator, CASES))
def test_every_variant_is_right(operator: Operator, name: str, case: Case, device: str) -> None:
    reply = check_variant(operator, name, case, device)
    assert (reply.status, reply.message) == (Status.OK, "")


@pytest.mark.parametrize(
    ("name", "case", "device"),
    runnable(module.operator, both_directions(module.four((5, 7), (7, 6))[3]), compiled=True),
)
def test_torch_compile_is_right(operator: Operator, name: str, case: Case, device: str) -> None:
    assert check_variant(operator, name, case, device).status is Status.OK


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("trans_a", "trans_b"), TRANSPOSITIONS)
@pytest.mark.parametrize(
    ("shape_a", "shape_b"),
    [((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((3, 4), (2, 4, 5)), ((2, 1, 2, 3, 4), (2, 1, 2, 4, 5))],
)
def test_gradients_are_those_of_the_product(
    shape_a: tuple[int, ...], shape_b: tuple[int, ...], trans_a: bool, trans_b: bool, device: str
) -> None:
    """No operand is square, so the wrong dA of op(A) = A' or dB of op(B) = B' has the wrong shape or numbers."""
    a = stored(torch.randn(shape_a, dtype=torch.float64, device=device), trans_a).requires_grad_()
    b = stored(torch.randn(shape_b, dtype=torch.float64, device=device), trans_b).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, y: own(x, y, trans_a, trans_b), (a, b))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("trans_a", "trans_b"), TRANSPOSITIONS)
def test_square_gradients_are_not_transposed(trans_a: bool, trans_b: bool, device: str) -> None:
    """Square matrices take a transposed gradient without complaint."""
    a, b, g = (torch.randn(6, 6, dtype=torch.float64, device=device) for _ in range(3))
    leaves = [a.requires_grad_(), b.requires_grad_()]
    mine = torch.autograd.grad(own(a, b, trans_a, trans_b), leaves, g)
    for got, right in zip(mine, torch.autograd.grad(module.reference(a, b, trans_a, trans_b), leaves, g), strict=True):
        torch.testing.assert_close(got, right)


def views(device: str) -> list[tuple[str, Tensor, Tensor]]:
    """(what it is, A, B) of operands that do not lie in memory as a contiguous matrix does."""
    wide = torch.randn(6, 8, 10, device=device)
    return [
        ("transposed", wide[0].t(), wide[1]),
        ("sliced columns", wide[0, :, 2:8], wide[1, :6, 1:5]),
        ("every second column", wide[0, :, ::2], wide[1, :5, ::2]),
        ("every second matrix", wide[::2], wide[1::2].mT),
        ("batch in the middle", wide.transpose(0, 1), wide.permute(1, 2, 0)),
        ("expanded", wide[0].expand(3, 8, 10), wide[1, 0].expand(3, 4, 10).mT),
        (
            "a batch without one stride",
            torch.randn(3, 4, 8, 10, device=device).transpose(0, 1),
            torch.randn(4, 3, 10, 2, device=device),
        ),
        ("one column", wide[0, :, 3:4], wide[1, 2:3, 1:7]),
        ("one row of many", wide[0, 3:4], wide[2, :, 1:2].expand(8, 10).t()),
    ]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("index", range(9))
def test_views_are_multiplied_by_their_elements(index: int, device: str) -> None:
    """A pointer says nothing about strides: taken for contiguous, each of these gives another product."""
    what, a, b = views(device)[index]
    torch.testing.assert_close(own(a, b), torch.matmul(a, b), msg=what, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(own(a.mT, b.mT, True, True), torch.matmul(a, b), msg=what, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("device", DEVICES)
def test_a_gradient_that_is_expanded_is_read_as_it_lies(device: str) -> None:
    a, b = (torch.randn(size, device=device, requires_grad=True) for size in ((4, 5), (5, 6)))
    own(a, b).sum().backward()
    torch.testing.assert_close(a.grad, b.detach().sum(1).expand(4, 5))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("trans_a", "trans_b"), TRANSPOSITIONS)
def test_a_matrix_times_a_batch_is_one_product_per_matrix(trans_a: bool, trans_b: bool, device: str) -> None:
    """The batch belongs to the result and is no part of the summed axis, not even where the shapes would fit."""
    a, b = torch.randn(4, 4, device=device), torch.randn(4, 4, 4, device=device)
    y = own(stored(a, trans_a), stored(b, trans_b), trans_a, trans_b)
    assert y.shape == (4, 4, 4)
    for matrix, of in zip(y, b, strict=True):
        torch.testing.assert_close(matrix, a @ of)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("trans_a", "trans_b"), TRANSPOSITIONS)
@pytest.mark.parametrize("rank", [5, 6])
def test_transposes_hold_at_any_rank(rank: int, trans_a: bool, trans_b: bool, device: str) -> None:
    a, b = (
        torch.randn((2,) * (rank - 2) + (4, 4), device=device),
        torch.randn((2,) * (rank - 2) + (4, 4), device=device),
    )
    torch.testing.assert_close(own(a, b, trans_a, trans_b), module.reference(a, b, trans_a, trans_b))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("trans_a", "trans_b"), TRANSPOSITIONS)
def test_the_torch_operators_keep_torchs_rules(trans_a: bool, trans_b: bool, device: str) -> None:
    a = stored(torch.randn(3, 4, device=device), trans_a).requires_grad_()
    b = stored(torch.randn(2, 4, 5, device=device), trans_b).requires_grad_()
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(torch.ops.warpwatch.cublas_matmul.default, (a, b, trans_a, trans_b), test_utils=tests)
    g = torch.randn(2, 3, 5, device=device)
    arguments = (g, a.detach(), b.detach(), trans_a, trans_b)
    torch.library.opcheck(torch.ops.warpwatch.cublas_matmul_backward.default, arguments, test_utils=tests)


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ((3, 4), (5, 6), "op.A. has 4 columns, but op.B. 5 rows"),
        ((2, 3, 4), (3, 4, 5), "the same batch"),
        ((2, 3, 4), (1, 2, 4, 5), "the same number of dimensions"),
        ((4,), (4, 5), "at least two dimensions"),
    ],
)
def test_operands_that_do_not_fit_are_refused(a: tuple[int, ...], b: tuple[int, ...], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        own(torch.zeros(a), torch.zeros(b))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_one_handle_per_thread_serves_every_call_until_it_is_closed() -> None:
    count, close = torch.ops.warpwatch.cublas_matmul_handles, torch.ops.warpwatch.cublas_matmul_close
    a = torch.randn(8, 8, device="cuda")
    right = own(a, a)
    handles = count()
    for _ in range(10):
        own(a, a)
    assert count() == handles
    torch.cuda.synchronize()
    close()
    assert count() == 0
    torch.testing.assert_close(own(a, a), right)
    assert count() == 1


def test_handles_can_be_counted_and_closed_where_there_are_none() -> None:
    torch.ops.warpwatch.cublas_matmul_close()
    assert torch.ops.warpwatch.cublas_matmul_handles() == 0


@pytest.mark.parametrize(
    ("given", "flops", "elements"),
    [
        (case(a=(3, 4), b=(5, 4), ta=0, tb=1), 2 * 3 * 5 * 4, 12 + 20 + 15),
        (case(a=(4, 3), b=(7, 4, 5), ta=1, tb=0), 2 * 7 * 3 * 5 * 4, 12 + 140 + 105),
    ],
)
def test_costs(given: Case, flops: int, elements: int) -> None:
    assert (module.cost(given).flops, module.cost(given).bytes) == (flops, 4 * elements)
    backward = module.cost(both_directions(given)[1])
    result = 4 * module.extents(given)[0] * module.extents(given)[1] * module.extents(given)[2]
    assert (backward.flops, backward.bytes) == (2 * flops, 4 * 2 * elements - result)


def test_only_tf32_cases_ask_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(torch.ops.warpwatch, "cublas_matmul", lambda *arguments: asked.append(arguments[-1]))
    before = torch.get_float32_matmul_precision()
    try:
        for precision in ("highest", "high"):
            torch.set_float32_matmul_precision(precision)
            module.cublas(torch.ones(1, 1), torch.ones(1, 1), False, False)
    finally:
        torch.set_float32_matmul_precision(before)
    assert asked == [False, True]
