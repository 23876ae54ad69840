"""rope: every variant against the oracle, what makes the embedding relative, and the torch operators that the library
registers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels import rope as module
from warpwatch.contract.words import Status
from warpwatch.operator import Case, Operator

from .conftest import DEVICES, check_variant, runnable, sized

SMALL = [sized("f32", "bwd", batch=1, length=9, heads=(3, 1), dim=8)]


@pytest.mark.parametrize(("name", "case", "device"), runnable(module.operator, (*module.QUICK, *module.EDGE)))
def test_every_variant_is_right(operator: Operator, name: str, case: Case, device: str) -> None:
    reply = check_variant(operator, name, case, device)
    assert reply.status is Status.OK, reply.message


@pytest.mark.parametrize(("name", "case", "device"), runnable(module.operator, SMALL, compiled=True))
def test_torch_compile_is_right(operator: Operator, name: str, case: Case, device: str) -> None:
    assert check_variant(operator, name, case, device).status is Status.OK


def products(form: str, pairing: str, device: str) -> Tensor:
    """<R_m q, R_n k> for all positions m and n of one q and one k, by tables of `form` and pairs of `pairing`."""
    length, dim = 24, 16
    torch.manual_seed(1)
    q, k = (torch.randn(1, 1, 1, dim, dtype=torch.float64, device=device).expand(1, length, 1, dim) for _ in range(2))
    cos, sin = module.tables(torch.arange(length, device=device), dim, form == "interleaved")
    y_q, y_k = module.v3(q, k, cos, sin, None, False, pairing == "interleaved")
    return y_q[0, :, 0] @ y_k[0, :, 0].T


def spread_of_diagonals(matrix: Tensor) -> float:
    """How much entries differ that have m - n in common, 0 where each diagonal holds one number."""
    length = matrix.shape[0]
    return max(float(matrix.diagonal(d).max() - matrix.diagonal(d).min()) for d in range(1 - length, length))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("form", ["half", "interleaved"])
def test_a_product_depends_on_the_distance_alone(operator: Operator, form: str, device: str) -> None:
    assert spread_of_diagonals(products(form, form, device)) < 1e-12


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("form", "pairing"), [("interleaved", "half"), ("half", "interleaved")])
def test_angles_of_one_form_and_pairs_of_the_other_are_not_relative(
    operator: Operator, form: str, pairing: str, device: str
) -> None:
    assert spread_of_diagonals(products(form, pairing, device)) > 0.1


def test_the_published_gradient_holds_where_both_halves_have_one_sine() -> None:
    cos, sin = module.tables(torch.arange(5), 8, interleaved=False)
    x, g = (torch.randn(5, 8, dtype=torch.float64, requires_grad=True) for _ in range(2))
    y = x * cos + module.rotate_half(x) * sin
    (dx,) = torch.autograd.grad(y, x, g)
    torch.testing.assert_close(dx, g * cos - module.rotate_half(g) * sin)
    uneven = torch.rand(5, 8, dtype=torch.float64)
    (dx,) = torch.autograd.grad(x * cos + module.rotate_half(x) * uneven, x, g)
    torch.testing.assert_close(dx, g * cos - module.rotate_half(g * uneven))
    assert not torch.allclose(dx, g * cos - module.rotate_half(g) * uneven), (
        "in general the sine comes before the rotation"
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("interleaved", [False, True])
def test_the_gradient_is_that_of_the_function(operator: Operator, interleaved: bool, device: str) -> None:
    def random(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64, device=device)

    q, k = random(2, 3, 2, 6).requires_grad_(), random(2, 3, 1, 6).requires_grad_()
    # Random tables tell apart what the usual ones have twice.
    cos, sin, positions = random(4, 6), random(4, 6), torch.tensor([[3, 0, 1], [2, 2, 0]], device=device)
    assert torch.autograd.gradcheck(lambda q, k: module.v3(q, k, cos, sin, positions, False, interleaved), (q, k))


@pytest.mark.parametrize("device", DEVICES)
def test_the_torch_operators_keep_torchs_rules(operator: Operator, device: str) -> None:
    q, k = (
        torch.randn(1, 3, 2, 6, device=device, requires_grad=True),
        torch.randn(1, 3, 1, 6, device=device, requires_grad=True),
    )
    cos, sin = torch.randn(3, 6, device=device), torch.randn(3, 6, device=device)
    torch.library.opcheck(torch.ops.warpwatch.rope.default, (q, k, cos, sin))
    torch.library.opcheck(torch.ops.warpwatch.rope_backward.default, (q.detach(), k.detach(), cos, sin))


def test_views_are_turned_by_their_elements(operator: Operator) -> None:
    x, table = torch.randn(2, 5, 4, 16), torch.randn(5, 16)
    q, k = x[..., :8], x[..., 1::2].transpose(1, 2)[:, :2].transpose(1, 2)
    views = q, k, table[:, :8], table[:, 1::2]
    for ours, right in zip(module.v3(*views, None, False, False), module.reference(*views), strict=True):
        torch.testing.assert_close(ours, right)


def test_a_position_outside_the_tables_is_refused(operator: Operator) -> None:
    q, table = torch.zeros(1, 2, 1, 4), torch.zeros(3, 4)
    for wrong in (3, -1):
        with pytest.raises(RuntimeError, match="outside"):
            module.v3(q, q, table, table, torch.tensor([[0, wrong]]), False, False)


def test_costs() -> None:
    case = sized("bf16", "fwd", batch=2, length=10, heads=(4, 1), dim=8)
    elements = 2 * 10 * 5 * 8
    assert module.cost(case) == module.Cost(3 * elements, 2 * (2 * elements + 2 * 10 * 8))
    decode = sized("bf16", "fwd", batch=2, length=1, heads=(4, 1), dim=8, table=100)
    assert module.cost(decode).bytes == 2 * (2 * 2 * 5 * 8 + 2 * 2 * 8) + 2 * 8
