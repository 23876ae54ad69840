"""`warpwatch.load` in a program of its own, as torch registers an operator once per process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import warpwatch
from tests.libraries import quick_flags
from warpwatch import loading
from warpwatch.settings import library_cache, load_settings

ROOT = Path(__file__).parent.parent
ERRORS = """
import copy
import pickle
import sys
import torch
import warpwatch
from warpwatch import loading, native

before = native._state
square = warpwatch.load("square", device="cpu")
assert native._state is before
assert warpwatch.load("square") is square
for copied in (copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))):
    assert copied(square) is square and copied(square.v3) is square.v3
assert "kernels" not in sys.modules
a = torch.randn(3, 5, requires_grad=True)
assert set(square.v4.refusals) >= {"cpu"} and set(square.triton.refusals) >= {"cpu"} and not square.v2.refusals
for variant in (square.v4, square.triton):
    for call in (lambda: variant(a), lambda: variant(a=a)):
        try:
            call()
        except loading.UnsupportedDeviceError:
            continue
        raise AssertionError(variant)
assert not torch.cuda.is_available() or "cuda" in square.v3.refusals, "its library is for the CPU"
assert not hasattr(square, "v9")
try:
    warpwatch.load("kron", device="cuda")
except loading.UnavailableError:
    pass
else:
    raise AssertionError("a second device")
compiled = torch.compile(square.v3, backend="aot_eager", fullgraph=True)
for function in (square.v3, compiled, torch.ops.warpwatch.square):
    (gradient,) = torch.autograd.grad(function(a).sum(), a)
    torch.testing.assert_close(gradient, 2 * a)
assert square.v3.prepare(a=a) == {}
# Where a call is traced, it is refused as well, and how floats are multiplied is a constant that is looked up anew.
stencil, matmul = warpwatch.load("stencil1d"), warpwatch.load("cublas_matmul")
taps = torch.randn(7)
for n in (5, 9, 30):
    x = torch.randn(n)
    conv = torch.compile(stencil.v2, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(conv(x, taps), stencil.reference(x, taps))
    try:
        conv(x[:0], taps)
    except Exception as error:
        assert "takes no empty line" in str(error), error
    else:
        raise AssertionError("an empty line")
b = torch.randn(5, 4)
product = torch.compile(matmul.v3, backend="aot_eager", fullgraph=True)
for precision in ("highest", "high"):
    torch.set_float32_matmul_precision(precision)
    torch.testing.assert_close(product(a, b, False, False), a @ b)
torch.library.opcheck(torch.ops.warpwatch.square.default, (a,))
"""
NAMES = """
import importlib, os
import warpwatch
from warpwatch import loading

for name in loading.operator_names():
    operator = importlib.import_module(f"warpwatch.bundled.kernels.{name}").operator
    variants = {key: loading.LoadedVariant(operator, variant, "cpu") for key, variant in operator.variants.items()}
    loaded = loading.LoadedOperator(operator, variants)
    # No variant hides another attribute.
    assert (loaded.name, loaded.reference, dict(loaded.variants)) == (name, operator.reference, variants), name
    assert all(getattr(loaded, key) is variant for key, variant in variants.items()), name
print(len(loading.operator_names()))
# Beside the names, because each program takes two seconds to import torch.
os.environ |= {"PATH": os.getcwd(), "CXX": "", "WARPWATCH_HOME": os.getcwd()}
try:
    warpwatch.load("square", device="cpu")
except loading.UnavailableError as error:
    print(error)
"""


def example() -> str:
    """The example of the page on loading."""
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "using-kernels.md").read_text(), re.DOTALL)
    return program


def run(program: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    with quick_flags():
        environment = os.environ | {"WARPWATCH_HOME": str(load_settings().home)} | variables
    command = [sys.executable, "-c", program]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.nightly)])
def test_the_example_of_the_page_runs(tmp_path: Path, backend: str) -> None:
    """As it stands, with the backend that torch.compile has by default, and with one that calls no C++ compiler."""
    typed = "@torch.compile(fullgraph=True)"
    assert typed in example()
    done = run(example().replace(typed, f"@torch.compile(fullgraph=True, backend={backend!r})"), tmp_path)
    assert done.returncode == 0, done.stderr


def test_variants_refuse_devices_and_compile(tmp_path: Path) -> None:
    done = run(ERRORS, tmp_path)
    assert done.returncode == 0, done.stderr


def test_operators_are_imported_by_their_names_and_a_missing_compiler_is_an_error(tmp_path: Path) -> None:
    done = run(NAMES, tmp_path)
    assert done.returncode == 0, done.stderr
    operators = [path for path in (ROOT / "kernels").glob("*.py") if not path.name.startswith("_")]
    count, error = done.stdout.split("\n", 1)
    assert int(count) == len(operators)
    assert "g++" in error


def test_the_sdk_imports_neither_torch_nor_builds(tmp_path: Path) -> None:
    program = "import sys, warpwatch; print(*{'torch', 'warpwatch.loading', 'warpwatch.native'} & sys.modules.keys())"
    assert run(program, tmp_path).stdout == "\n"


def test_an_unknown_operator_names_the_nearest() -> None:
    with pytest.raises(loading.UnknownOperatorError, match="'kron'"):
        warpwatch.load("krom")
    for name in ("../kron", "_compiled", "__init__", ""):
        with pytest.raises(loading.UnknownOperatorError):
            warpwatch.load(name)


def test_libraries_lie_in_the_home_or_in_the_users_cache() -> None:
    assert library_cache({"WARPWATCH_HOME": "/data/home"}) == Path("/data/home/builds")
    assert library_cache({"XDG_CACHE_HOME": "/data/cache"}) == Path("/data/cache/warpwatch/builds")
    assert library_cache({}) == Path.home() / ".cache" / "warpwatch" / "builds"
