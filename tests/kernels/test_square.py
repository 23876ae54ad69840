"""square: every variant against the oracle and the golden example, and the library's torch operators."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernels import square as module
from warpwatch.contract.words import Status
from warpwatch.operator import Case, Operator, both_directions
from warpwatch.worker.harness.checks.check import check
from warpwatch.worker.harness.checks.probes import ProbeHistory
from warpwatch.worker.harness.problem import CaseProblem

from .conftest import DEVICES, check_variant, runnable, sized

EDGES = both_directions(*(sized("f32", "fwd", size=size) for size in ((1, 1), (17, 15), (16, 16), (1, 4097), (0, 3))))


@pytest.mark.parametrize(("name", "case", "device"), runnable(module.operator, [sized("f32", "fwd", size=(2, 3))]))
def test_the_golden_example(operator: Operator, name: str, case: Case, device: str) -> None:
    variant, a = operator.variants[name], torch.tensor([[1.0, 2, 3], [4, 5, 6]], device=device)
    y = variant.function(a, **(variant.prepare(a=a) if variant.prepare else {}))
    assert y.tolist() == [[1, 4, 9], [16, 25, 36]]


@pytest.mark.parametrize(("name", "case", "device"), runnable(module.operator, (*module.QUICK, *EDGES)))
def test_every_variant_is_right(operator: Operator, name: str, case: Case, device: str) -> None:
    reply = check_variant(operator, name, case, device)
    assert reply.status is Status.OK, reply.message


@pytest.mark.parametrize(
    ("name", "case", "device"), runnable(module.operator, [sized("f32", "bwd", size=(17, 15))], compiled=True)
)
def test_torch_compile_is_right(operator: Operator, name: str, case: Case, device: str) -> None:
    assert check_variant(operator, name, case, device).status is Status.OK


@pytest.mark.parametrize("device", DEVICES)
def test_the_gradient_is_that_of_the_function(operator: Operator, device: str) -> None:
    a = torch.randn(5, 7, dtype=torch.float64, device=device, requires_grad=True)
    assert torch.autograd.gradcheck(module.v3, (a,))


@pytest.mark.parametrize("device", DEVICES)
def test_the_torch_operators_keep_torchs_rules(operator: Operator, device: str) -> None:
    a, g = torch.randn(5, 7, device=device, requires_grad=True), torch.randn(5, 7, device=device)
    torch.library.opcheck(torch.ops.warpwatch.square.default, (a,))
    torch.library.opcheck(torch.ops.warpwatch.square_backward.default, (g, a.detach()))


def test_views_are_squared_by_their_elements(operator: Operator) -> None:
    a = torch.arange(24, dtype=torch.float32).view(4, 6)
    for view in (a.t(), a[:, 1::2], a[1:, 1:]):
        assert torch.equal(module.v3(view), view * view)


def test_special_numbers_are_those_of_torch(operator: Operator) -> None:
    a = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e-30, 1e30])
    torch.testing.assert_close(module.v3(a), a * a, equal_nan=True, rtol=0, atol=0)


BUILT = SimpleNamespace(product=lambda factor, a, b: factor * a * b, __file__=__file__)
"""What stands for the module that load_inline makes."""


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """What load_inline was called with, beside the PATH then; instead of CUDA it gives a product of torch's."""
    from torch.utils import cpp_extension

    calls: list[dict[str, Any]] = []

    def load_inline(name: str, *sources: str, **options: Any) -> Any:
        calls.append({"sources": sources, "path": os.environ["PATH"], **options})
        return BUILT

    monkeypatch.setattr(cpp_extension, "load_inline", load_inline)
    module._inline.cache_clear()
    yield calls
    module._inline.cache_clear()


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_inline_source_is_compiled_once_and_outside_of_calls(compiled: list[dict[str, Any]], direction: Any) -> None:
    here = replace(module.operator.variants["load_inline"], unsupported=lambda case, device: None)
    problem = CaseProblem(module.operator, here, sized("f32", direction, size=(17, 15)), torch.device("cpu"))
    path = os.environ["PATH"]
    with problem.modes():
        problem.prepared(problem.data(1))
        assert len(compiled) == 1
    assert check(problem, 7, ProbeHistory(), lambda done, total, text: None).status is Status.OK
    assert len(compiled) == 1
    assert os.environ["PATH"] == path
    assert shutil.which("ninja", path=compiled[0]["path"])
    assert not list(Path(compiled[0]["build_directory"]).iterdir())


def test_inline_source_is_compiled_once_for_all_processes_with_the_same_extensions(
    compiled: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found: list[Path] = []

    def load(name: str, path: Path) -> Any:
        found.append(path)
        return BUILT

    monkeypatch.setattr(module, "_load_extension", load)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "extensions"))
    for _ in range(2):
        module._inline("cpu")
        module._inline.cache_clear()
    assert len(compiled) == 1
    (kept,) = (tmp_path / "extensions").iterdir()
    assert found == [kept]
    assert kept.read_bytes() == Path(BUILT.__file__).read_bytes()
    monkeypatch.setattr(module, "INLINE_LOOP", "another source")
    module._inline("cpu")
    assert len(compiled) == 2


def test_inline_source_says_what_it_needs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    case, variant = module.QUICK[0], module.operator.variants["load_inline"]
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert "install g++" in (variant.reason_unsupported(case, "cpu") or "")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    if not Path("/usr/local/cuda/bin/nvcc").exists():
        assert "install a CUDA toolkit" in (variant.reason_unsupported(case, "cuda") or "")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvcc").touch()
    assert variant.reason_unsupported(case, "cuda") is None


def test_costs() -> None:
    forward, backward = module.cost(sized("f32", "fwd", size=(10, 10))), module.cost(sized("f32", "bwd", size=(10, 10)))
    assert (forward.bytes, backward.bytes) == (800, 1200)
