"""attention: every variant against the oracle, what causal means, views, and the rules of the native operators."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kernels import attention as module
from warpwatch.contract.words import Status
from warpwatch.operator import Case, Operator, Precision, both_directions, case

from .conftest import DEVICES, check_variant, runnable

pytestmark = pytest.mark.usefixtures("operator")


def large_tiles(precision: Precision, d: int) -> list[Case]:
    return [
        case(precision, b=2, h=3, q=q, k=k, d=d, causal=causal)
        for q, k, causal in ((513, 513, 1), (200, 330, 1), (330, 77, 1), (65, 513, 0))
    ]


# One of everything that tiles do differently: one query more than a tile, several tiles of keys, heads in parts, wide
# and narrow heads.
TILES = both_directions(
    case("f32", b=1, h=1, q=129, k=129, d=64, causal=1),
    case("f32", b=1, h=1, q=150, k=40, d=70, causal=1),
    case("f16", b=1, h=1, q=65, k=200, d=128, causal=0),
    case("bf16", b=1, h=1, q=257, k=257, d=16, causal=1),
    *large_tiles("bf16", 64),
    *large_tiles("f16", 128),
)
OTHER_TILES = both_directions(*large_tiles("bf16", 128), *large_tiles("f16", 64))
"""The same code as in TILES, with the other precision."""


@pytest.mark.parametrize(("name", "case", "device"), runnable(module.operator, (*module.QUICK, *module.EDGE)))
def test_every_variant_is_right(operator: Operator, name: str, case: Case, device: str) -> None:
    reply = check_variant(operator, name, case, device)
    # torch's memory-efficient kernel adds up gradients by atomics, so results may vary between two calls.
    may_vary = name == "sdpa_efficient" and case.direction == "bwd" and reply.message.startswith("Nondeterministic")
    assert (reply.status, "" if may_vary else reply.message) == (Status.OK, "")


def tiled(cases: Iterable[Case], *marks: pytest.MarkDecorator) -> list[Any]:
    """Parameters for the variants that compute by tiles."""
    entries = [entry for entry in runnable(module.operator, cases) if entry.values[0] in ("v3", "v4")]
    return [pytest.param(*entry.values, id=entry.id, marks=marks) for entry in entries]


@pytest.mark.parametrize(("name", "case", "device"), [*tiled(TILES), *tiled(OTHER_TILES, pytest.mark.nightly)])
def test_all_tiles_are_right(operator: Operator, name: str, case: Case, device: str) -> None:
    reply = check_variant(operator, name, case, device)
    assert (reply.status, reply.message) == (Status.OK, "")


SMALL = both_directions(case(b=1, h=2, q=24, k=17, d=8, causal=1))


@pytest.mark.parametrize(("name", "case", "device"), runnable(module.operator, SMALL, compiled=True))
def test_torch_compile_is_right(operator: Operator, name: str, case: Case, device: str) -> None:
    assert check_variant(operator, name, case, device).status is Status.OK


def operands(*shape: int, device: str = "cpu", dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [torch.randn(*shape, device=device, dtype=dtype, requires_grad=True) for _ in "qkv"]


@pytest.mark.parametrize("causal", [False, True])
def test_the_gradients_are_those_of_the_function(causal: bool) -> None:
    q, k, v = operands(1, 2, 5, 3, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda q, k, v: module.native_attention(q, k, v, causal), (q, k, v))


@pytest.mark.parametrize("device", DEVICES)
def test_the_torch_operators_keep_torchs_rules(device: str) -> None:
    q, k, v = operands(1, 2, 5, 8, device=device)
    torch.library.opcheck(torch.ops.warpwatch.attention.default, (q, k, v, True, 0.5))
    q, k, v = (t.detach() for t in (q, k, v))
    out, log_sum = torch.ops.warpwatch.attention(q, k, v, True, 0.5)
    torch.library.opcheck(
        torch.ops.warpwatch.attention_backward.default, (torch.randn_like(q), q, k, v, out, log_sum, True, 0.5)
    )


@pytest.mark.parametrize("device", DEVICES)
def test_views_are_taken_by_their_elements(device: str) -> None:
    packed = torch.randn(2, 33, 3, 4, 16, device=device)
    q, k, v = (t.transpose(1, 2) for t in packed.unbind(2))
    right = scaled_dot_product_attention(q.double(), k.double(), v.double())
    for make in (lambda t: t, lambda t: t.mT.contiguous().mT, lambda t: torch.cat([t, t], 3)[..., :16]):
        y = module.native_attention(make(q), make(k), make(v), False)
        torch.testing.assert_close(y.double(), right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("heads", "dim", "dtype"), [(3, 11, torch.float32), (4, 64, torch.bfloat16), (2, 128, torch.float16)]
)
def test_results_lie_as_their_operands_do(device: str, heads: int, dim: int, dtype: torch.dtype) -> None:
    """In a model the heads of a row are neighbours; to bring results together that lie head by head takes a copy."""
    rows = [
        t.transpose(1, 2).detach().requires_grad_() for t in operands(2, 70, heads, dim, device=device, dtype=dtype)
    ]
    by_head = [t.detach().contiguous().requires_grad_() for t in rows]
    gradient = torch.randn(2, heads, 70, dim, device=device, dtype=dtype)
    results = []
    for given in (rows, by_head):
        out = module.native_attention(given[0], given[1], given[2], True)
        gradients = torch.autograd.grad(out, given, gradient)
        assert [t.stride() for t in (out, *gradients)] == [given[0].stride()] * 4
        results.append([out, *gradients])
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))
    detached = [t.detach() for t in rows]
    torch.library.opcheck(torch.ops.warpwatch.attention.default, (*detached, True, 0.5), test_utils="test_faketensor")
    out, log_sum = torch.ops.warpwatch.attention(*detached, True, 0.5)
    backward = (gradient, *detached, out, log_sum, True, 0.5)
    torch.library.opcheck(torch.ops.warpwatch.attention_backward.default, backward, test_utils="test_faketensor")


@pytest.mark.parametrize("device", DEVICES)
def test_a_hidden_key_has_no_influence(device: str) -> None:
    q, k, v = (t.detach() for t in operands(1, 1, 70, 16, device=device))
    before = module.native_attention(q, k, v, True)
    k[..., 40:, :], v[..., 40:, :] = 1e4, -1e4
    assert torch.equal(module.native_attention(q, k, v, True)[..., :40, :], before[..., :40, :])


@pytest.mark.parametrize("device", DEVICES)
def test_scores_too_large_for_an_exponential(device: str) -> None:
    """Without the highest score subtracted, e to the power of 100 is infinite; with tiles, a later one may have the
    highest."""
    q, k, v = (t.detach() for t in operands(1, 1, 3, 4, device=device))
    k = torch.cat([-50 * q.mean(2, keepdim=True).expand(1, 1, 100, 4), 80 * q], 2)
    v = torch.randn(1, 1, 103, 4, device=device)
    right = scaled_dot_product_attention((20 * q).double(), k.double(), v.double())
    torch.testing.assert_close(module.native_attention(20 * q, k, v, False).double(), right, rtol=1e-4, atol=1e-4)


def test_a_key_at_minus_infinity_counts_for_nothing() -> None:
    """The first tile has nothing but minus infinity, which is no NaN as long as another tile has a number."""
    q = torch.ones(1, 1, 2, 4)
    k = torch.cat([torch.full((1, 1, 60, 4), -torch.inf), torch.zeros(1, 1, 2, 4)], 2)
    v = torch.randn(1, 1, 62, 4)
    torch.testing.assert_close(
        module.native_attention(q, k, v, False), v[..., 60:, :].mean(2, keepdim=True).expand(1, 1, 2, 4)
    )


def test_shapes_that_do_not_fit_are_refused(operator: Operator) -> None:
    q = torch.zeros(1, 2, 3, 4)
    for other in (torch.zeros(1, 2, 3, 5), torch.zeros(1, 1, 3, 4), torch.zeros(1, 2, 0, 4), torch.zeros(2, 3, 4)):
        with pytest.raises(RuntimeError):
            module.native_attention(q, other, other, False)


def test_costs() -> None:
    """A causal mask hides nearly half of the pairs, and backward makes five products of two."""
    forward, backward = (
        module.cost(c) for c in both_directions(case("bf16", b=2, h=3, q=64, k=64, d=16, causal=0))[:2]
    )
    assert (forward.flops, backward.flops) == (4 * 6 * 64 * 64 * 16, 10 * 6 * 64 * 64 * 16)
    assert (forward.bytes, backward.bytes) == (2 * 4 * 6 * 64 * 16, 2 * 7 * 6 * 64 * 16)
    assert module.cost(case(b=2, h=3, q=64, k=64, d=16, causal=1)).flops == 4 * 6 * (64 * 65 // 2) * 16
