"""The operator kron: its mathematics against the dense Kronecker matrix, its cost by counting, its torch operators by
opcheck."""

from __future__ import annotations

import importlib.util
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels import kron
from warpwatch.contract.words import Status
from warpwatch.operator import Case, Operator, Precision, both_directions, case
from warpwatch.worker.harness.problem import SeededMaker

from .conftest import DEVICES, check_variant, ready, runnable

EDGES = both_directions(
    case("f32", batch=2, factors=(127, 31)),
    case("f64", batch=3, factors=(7, 5, 11)),
    case("f32", batch=2, factors=(5,)),
    case("f64", batch=5, factors=(16, 8, 9)),
    case("f32", batch=2, factors=(128, 128)),
)

# One of everything that CUDA does differently: plans of each size, clusters, slices, mixed factors, incomplete blocks,
# rows, tiles.
CUDA_PATHS = both_directions(
    *(
        case("f32", batch=b, factors=f)
        for b, f in ((3, (8, 8)), (5, (8,) * 4), (300, (8,) * 4), (2, (8,) * 5), (1, (16,) * 4))
    ),
    *(case("f32", batch=b, factors=f) for b, f in ((2, (32,) * 3), (300, (32, 32)), (3, (64, 64)), (600, (64, 64)))),
    *(
        case("f32", batch=b, factors=f)
        for b, f in ((2, (128, 128)), (140, (128, 128)), (1, (128, 128, 16)), (3, (16, 32)))
    ),
    *(case("f32", batch=b, factors=f) for b, f in ((3000, (3, 5)), (3, (128,)), (2, (61, 67)), (1, (31, 33, 35)))),
    *(
        case("f64", batch=b, factors=f)
        for b, f in ((2, (32,) * 3), (2, (128, 128)), (140, (128, 128)), (3, (16, 64)), (2, (8, 8)))
    ),
    *(
        case("tf32", batch=b, factors=f)
        for b, f in ((2, (32,) * 3), (2, (128, 128)), (140, (128, 128)), (600, (64, 64)))
    ),
)
# Batches of v6 and v7: cut into quarters, planes of both sizes, and more rows than clusters run at once.
IN_PAIRS = (
    *both_directions(case("f32", batch=1, factors=(128, 128)), case("f32", batch=33, factors=(128, 128))),
    *(case(p, batch=1024, factors=f) for p in ("f32", "tf32") for f in ((64, 64), (32, 32, 32))),
)
ON_CUDA = [
    entry
    for entry in runnable(kron.operator, (*CUDA_PATHS, *IN_PAIRS))
    if entry.values[2] == "cuda" and entry.values[0] in ("v3", "v4", "v5", "v6", "v7")
]


GRADIENTS = ["grad x", "grad w1", "grad w2"]
RESULTS = {"fwd": ["y"], "bwd": GRADIENTS, "step": ["y", *GRADIENTS]}


@pytest.fixture(scope="module", autouse=True)
def operator(build_cache: Path) -> Operator:
    return ready(kron.operator, build_cache)


def data(**sizes: Any) -> dict[str, Any]:
    precision = sizes.pop("precision", "f64")
    return kron.inputs(case(precision, **sizes), SeededMaker(3, torch.device("cpu"), precision))


def dense(w: Tensor, factors: tuple[int, ...]) -> Tensor:
    """W_K ⊗ … ⊗ W_1, the N x N matrix that a layer stands for."""
    return reduce(torch.kron, reversed(kron.unpack(w, factors)))


@pytest.mark.parametrize("factors", [(3, 4), (2, 5, 3), (6,)])
def test_reference_multiplies_by_the_dense_kronecker_matrix(factors: tuple[int, ...]) -> None:
    given = data(batch=4, factors=factors)
    y = given["x"].reshape(4, -1) @ dense(given["w1"], factors) @ dense(given["w2"], factors)
    torch.testing.assert_close(kron.reference(**given).reshape(4, -1), y)


@pytest.mark.parametrize(("name", "case", "device"), runnable(kron.operator, (*kron.QUICK, *EDGES)))
def test_every_variant_is_right(operator: Operator, name: str, case: Case, device: str) -> None:
    reply = check_variant(operator, name, case, device)
    assert (reply.status, reply.message) == (Status.OK, "")
    assert [t.name for t in reply.tensors] == RESULTS[case.direction]


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "case", "device"), ON_CUDA)
def test_every_cuda_path_is_right(operator: Operator, name: str, case: Case, device: str) -> None:
    reply = check_variant(operator, name, case, device)
    assert (reply.status, reply.message) == (Status.OK, "")


@pytest.mark.parametrize(
    ("name", "case", "device"), runnable(kron.operator, both_directions(kron.QUICK[4]), compiled=True)
)
def test_torch_compile_is_right(operator: Operator, name: str, case: Case, device: str) -> None:
    assert check_variant(operator, name, case, device).status is Status.OK


def test_native_gradients_pass_gradcheck() -> None:
    given = data(batch=3, factors=(2, 5, 3))
    leaves = [given[name].requires_grad_() for name in ("x", "w1", "w2")]
    assert torch.autograd.gradcheck(lambda x, w1, w2: kron.v3(x, w1, w2, given["factors"]), leaves)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("precision", ["f32", "f64"])
def test_the_torch_operators_keep_torchs_rules(precision: str, keep: bool, device: str) -> None:
    given = data(batch=3, factors=(5, 4), precision=precision)
    leaves = [given[name].to(device).requires_grad_() for name in ("x", "w1", "w2")]
    torch.library.opcheck(torch.ops.warpwatch.kron.default, (*leaves, [5, 4], kron.LAYER, keep))
    x, w1, w2 = (leaf.detach() for leaf in leaves)
    states = torch.ops.warpwatch.kron(x, w1, w2, [5, 4], kron.LAYER, True)[1]
    torch.library.opcheck(torch.ops.warpwatch.kron_backward.default, (torch.randn_like(x), x, states, w1, w2, [5, 4]))


def test_states_are_kept_only_for_gradients() -> None:
    given = data(batch=3, factors=(5, 4))
    x, w1, w2 = given["x"], given["w1"], given["w2"].requires_grad_()
    assert torch.ops.warpwatch.kron(x, w1, w2, [5, 4], kron.LAYER, False)[1].shape == (0, 3, 4, 5)
    states = torch.ops.warpwatch.kron(x, w1, w2, [5, 4], kron.LAYER, True)[1]
    assert states.shape == (3, 3, 4, 5)
    assert not states.requires_grad


def test_gradients_come_without_kept_states() -> None:
    given = data(batch=3, factors=(5, 4))
    leaves = [given[name].requires_grad_() for name in ("x", "w1", "w2")]
    gradient = torch.randn_like(given["x"])
    without = torch.autograd.grad(torch.ops.warpwatch.kron(*leaves, [5, 4], kron.LAYER, False)[0], leaves, gradient)
    for got, expected in zip(without, torch.autograd.grad(kron.reference(**given), leaves, gradient), strict=True):
        torch.testing.assert_close(got, expected)


def test_native_takes_views_that_are_not_contiguous() -> None:
    given = data(batch=6, factors=(8, 4))
    x = given["x"].transpose(0, 1).contiguous().transpose(0, 1)[::2]
    w1 = torch.stack([given["w1"], given["w1"]], dim=1)[:, 0]
    assert not x.is_contiguous()
    assert not w1.is_contiguous()
    y = kron.v3(x, w1, given["w2"], given["factors"])
    torch.testing.assert_close(y, kron.reference(x, w1, given["w2"], given["factors"]))


def test_native_takes_an_empty_batch() -> None:
    given = data(batch=0, factors=(4, 4))
    leaves = [given[name].requires_grad_() for name in ("x", "w1", "w2")]
    y = kron.v3(**given)
    gradients = torch.autograd.grad(y, leaves, torch.ones_like(y))
    assert y.shape == (0, 4, 4)
    assert [float(g.abs().sum()) for g in gradients] == [0, 0, 0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"factors": (4, 5)}, "x must be"),
        ({"w1": torch.zeros(3, dtype=torch.float64)}, "packed weights"),
        ({"w2": torch.zeros(41, dtype=torch.float32)}, "dtype of x"),
    ],
)
def test_native_refuses_operands_that_do_not_fit(change: dict[str, Any], message: str) -> None:
    given = data(batch=2, factors=(5, 4))
    with pytest.raises(RuntimeError, match=message):
        kron.v3(**(given | change))


def test_cost_counts_what_the_legacy_command_prints() -> None:
    forward = kron.cost(case("f32", batch=32, factors=(128, 128)))
    # The bracketed number of the legacy command, 1.342e+08, is the multiply-adds of one layer.
    assert forward.flops == 2 * 2 * 134_217_728
    assert forward.bytes == 4 * (2 * 32 * 16384 + 2 * 2 * 16384)
    backward = kron.cost(case("f32", "bwd", batch=32, factors=(128, 128)))
    assert backward.flops == 2 * forward.flops
    assert backward.bytes == 4 * (3 * 32 * 16384 + 2 * 2 * 2 * 16384)


def test_tf32_is_a_precision_of_its_own() -> None:
    tf32 = case("tf32", batch=32, factors=(128, 128))
    assert kron.operator.variants["v3"].reason_unsupported(tf32, "cuda") == "computes in f32: see the f32 case"


@pytest.mark.parametrize(
    ("name", "precision", "factors", "reason"),
    [
        ("v6", "f32", (128, 128), None),
        ("v6", "f32", (64, 64), None),
        ("v6", "f32", (64, 128), "takes 64 x 64, 128 x 128 or 32 x 32 x 32"),
        ("v6", "tf32", (64, 64), "splits floats: see the f32 case"),
        ("v6", "f64", (64, 64), "splits floats: see the f32 case"),
        ("v7", "tf32", (32, 32, 32), None),
        ("v7", "tf32", (128, 128), "takes 64 x 64 or 32 x 32 x 32"),
        ("v7", "f32", (64, 64), "its tensor cores round to tf32: see the tf32 case"),
    ],
)
def test_v6_and_v7_take_what_their_kernels_are_built_for(
    name: str, precision: Precision, factors: tuple[int, ...], reason: str | None
) -> None:
    entry = case(precision, batch=1024, factors=factors)
    assert kron.operator.variants[name].reason_unsupported(entry, "cuda") == reason


@pytest.mark.skipif(
    importlib.util.find_spec("linear_operator") is None, reason="GPyTorch's linear_operator is not installed"
)
def test_gpytorch_agrees() -> None:
    given = data(batch=4, factors=(3, 5))
    torch.testing.assert_close(kron.gpytorch(**given), kron.reference(**given))


def test_an_absent_peer_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    reason = kron.operator.variants["gpytorch"].reason_unsupported(kron.QUICK[0], "cpu")
    assert reason is not None
    assert "pip install gpytorch" in reason
