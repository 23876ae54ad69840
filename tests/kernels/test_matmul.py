"""matmul: every variant against the oracle, batches and views for the native operator, and edge cases of tiles."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels import matmul as module
from warpwatch.contract.words import Status
from warpwatch.operator import Case, Operator, both_directions, case

from .conftest import DEVICES, check_variant, runnable

pytestmark = pytest.mark.usefixtures("operator")

# One of everything that the CPU's blocks and a GPU's tiles do differently: one tile and a bit, several blocks of k, few
# rows, few columns.
BLOCKS = both_directions(
    case("f32", m=97, k=513, n=33),
    case("f32", m=6, k=256, n=16),
    case("f32", m=3, k=5, n=4100),
    case("bf16", m=100, k=300, n=50),
)
TENSOR = both_directions(
    *(
        case(p, m=m, k=k, n=n)
        for p in ("tf32", "3xtf32", "bf16")
        for m, k, n in ((128, 64, 256), (129, 257, 130), (64, 96, 136))
    ),
)


@pytest.mark.parametrize(("name", "case", "device"), runnable(module.operator, (*module.QUICK, *module.EDGE, *BLOCKS)))
def test_every_variant_is_right(operator: Operator, name: str, case: Case, device: str) -> None:
    reply = check_variant(operator, name, case, device)
    assert (reply.status, reply.message) == (Status.OK, "")


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "case", "device"), [entry for entry in runnable(module.operator, TENSOR) if entry.values[2] == "cuda"]
)
def test_every_tensor_core_kernel_is_right(operator: Operator, name: str, case: Case, device: str) -> None:
    reply = check_variant(operator, name, case, device)
    assert (reply.status, reply.message) == (Status.OK, "")


@pytest.mark.parametrize(
    ("name", "case", "device"), runnable(module.operator, both_directions(case(m=24, k=17, n=40)), compiled=True)
)
def test_torch_compile_is_right(operator: Operator, name: str, case: Case, device: str) -> None:
    assert check_variant(operator, name, case, device).status is Status.OK


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("batch", [(), (3,)])
def test_the_gradients_are_those_of_the_function(batch: tuple[int, ...], device: str) -> None:
    a, b = (torch.randn(*batch, *s, dtype=torch.float64, device=device, requires_grad=True) for s in ((5, 7), (7, 3)))
    assert torch.autograd.gradcheck(lambda a, b: module.native_matmul(a, b, module.NAIVE), (a, b))
    assert torch.autograd.gradgradcheck(lambda a, b: module.native_matmul(a, b, module.NAIVE), (a, b))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("batch", [(), (3,)])
def test_the_torch_operator_keeps_torchs_rules(batch: tuple[int, ...], device: str) -> None:
    a, b = (torch.randn(*batch, *s, device=device, requires_grad=True) for s in ((5, 7), (7, 3)))
    torch.library.opcheck(torch.ops.warpwatch.matmul.default, (a, b))


def views(a: Tensor) -> list[Tensor]:
    """The numbers of `a` lying otherwise in memory."""
    wide = a.new_zeros(*a.shape[:-1], 2 * a.shape[-1])
    wide[..., ::2] = a
    padded = a.new_zeros(*a.shape[:-1], a.shape[-1] + 3)
    padded[..., 3:] = a
    return [a, a.mT.contiguous().mT, wide[..., ::2], padded[..., 3:]]


RUNGS = [
    (device, version)
    for device in DEVICES
    for version in range(module.NAIVE, (module.NAIVE if device == "cpu" else module.SPLIT) + 1)
]


@pytest.mark.parametrize(("device", "version"), RUNGS)
@pytest.mark.parametrize("batch", [(), (2,)])
def test_views_are_multiplied_by_their_elements(batch: tuple[int, ...], version: int, device: str) -> None:
    """`is_contiguous` without a call is true of every tensor: the kernel would then read beside the view."""
    a, b = torch.randn(*batch, 37, 53, device=device), torch.randn(*batch, 53, 29, device=device)
    right = a.double() @ b.double()
    for x in views(a):
        for y in views(b):
            error = (module.native_matmul(x, y, version) - right).norm() / right.norm()
            assert error < (2e-3 if version == module.TENSOR else 1e-6)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("shape", [(8, 8, 8), (136, 72, 264), (520, 328, 136), (300, 1032, 1000), (37, 53, 29)])
def test_warpgroups_multiply_every_layout(shape: tuple[int, int, int], batch: tuple[int, ...], device: str) -> None:
    """Tiles end beyond every axis of these; what the copy engine cannot take is left to another rung."""
    m, k, n = shape
    a, b = (torch.randn(*batch, *s, device=device, dtype=torch.bfloat16) for s in ((m, k), (k, n)))
    right = a.double() @ b.double()
    for x in views(a):
        for y in views(b):
            error = (module.native_matmul(x, y, module.WARPGROUPS) - right).norm() / right.norm()
            assert error < 4e-3


def test_a_row_that_repeats_is_not_copied_wrongly(operator: Operator) -> None:
    row, b = torch.randn(1, 9), torch.randn(9, 4)
    torch.testing.assert_close(module.native_matmul(row.expand(5, 9), b, module.NAIVE), (row @ b).expand(5, 4))


@pytest.mark.parametrize(("device", "version"), RUNGS)
def test_tiles_are_masked_at_every_edge(version: int, device: str) -> None:
    """What lies beyond an operand is NaN here, so that one element read too far shows; the sums then are exact."""
    for m, k, n in ((1, 1, 1), (127, 9, 33), (33, 130, 129), (129, 33, 8)):
        a, b = (torch.full((rows + 2, columns + 2), float("nan"), device=device) for rows, columns in ((m, k), (k, n)))
        a[1:-1, 1:-1], b[1:-1, 1:-1] = 1, 2
        c = module.native_matmul(a[1:-1, 1:-1], b[1:-1, 1:-1], version)
        assert torch.equal(c, torch.full((m, n), 2.0 * k, device=device))


def test_shapes_that_do_not_fit_are_refused(operator: Operator) -> None:
    for a, b in (((2, 3), (4, 5)), ((2, 3), (3,)), ((2, 3, 4), (3, 4, 5)), ((2, 3, 4), (4, 5))):
        with pytest.raises(RuntimeError):
            module.native_matmul(torch.zeros(a), torch.zeros(b), module.NAIVE)
    with pytest.raises(RuntimeError, match="dtype"):
        module.native_matmul(torch.zeros(2, 2), torch.zeros(2, 2, dtype=torch.float64), module.NAIVE)


def test_costs() -> None:
    """Bytes grow with the square of the side and not with the side; they are counted once each."""
    for precision, size in (("f32", 4), ("bf16", 2)):
        forward, backward = (module.cost(c) for c in both_directions(case(precision, m=10, k=20, n=30))[:2])  # type: ignore[arg-type]
        assert (forward.flops, backward.flops) == (12000, 24000)
        assert (forward.bytes, backward.bytes) == (size * (200 + 600 + 300), size * (2 * (200 + 600) + 300))
    assert module.cost(case(m=4096, k=4096, n=4096)).bytes == 3 * 4 * 4096**2
