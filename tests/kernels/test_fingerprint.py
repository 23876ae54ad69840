"""Fingerprints of machine code: the same for what runs the same, another for anything that does not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from warpwatch import _fingerprint, native

pytestmark = pytest.mark.usefixtures("_fresh_native")
ARCHS = (80, 90)
"""Two show that each has its own fingerprint; a third takes a fifth of the time."""
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")

HOST = """#include <cmath>
#include <cstdio>
#define CHECK(x) do { if (!(x)) std::printf("%s:%d: %s\\n", __FILE__, __LINE__, #x); } while (0)
namespace { double scaled(double x) { return 3.0 * x; } }
extern "C" __attribute__((visibility("default"))) double answer(double x) {
  CHECK(x > 0);
  return std::sin(scaled(x));
}
"""
DEVICE = """#include <cuda_runtime.h>
namespace {
template <int N> __global__ void staged(float* y) {
  __shared__ float tile[N];
  tile[threadIdx.x] = y[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = 2.0f * tile[N - 1 - threadIdx.x];
}
__constant__ float table[2] = {1.0f, 2.0f};
__global__ void plain(float* y) { y[threadIdx.x] += table[threadIdx.x % 2]; }
}
const char* launch(float* y) {
  staged<64><<<1, 64>>>(y);
  plain<<<1, 32>>>(y);
  return cudaGetErrorString(cudaGetLastError());
}
"""
NOTHING_CHANGED = {
    "a comment": ("#include <c", "// why\n\n/* and\nhow */ #include <c"),
    "a message": ('"%s:%d: %s', '"%s, line %d: it failed: %s'),
    "a name": ("scaled", "tripled"),
}
SOMETHING_CHANGED = {
    "a constant in memory": ("3.0", "3.5"),
    "what is called": ("std::sin", "std::cos"),
    "an instruction": ("x > 0", "x >= 0"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def build(
    folder: Path, name: str, host: str, device: str | None = None, archs: tuple[int, ...] = ARCHS
) -> native.Built:
    """A library of these sources, from a checkout called `name`."""
    root = folder / name / "csrc" / "good"
    root.mkdir(parents=True)
    (root / "good.cpp").write_text(host)
    if device is not None:
        (root / "good.cu").write_text(device)
    native.configure(root.parent, folder / f"cache of {name}", "cpu" if device is None else "cuda", archs=archs)
    built = native.build("good")
    assert built.status == "ok", built.log
    return built


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> native.Built:
    """The library of HOST, which most tests compare another one with."""
    return build_for_all(tmp_path_factory.mktemp("plain"), HOST)


@pytest.fixture(scope="module")
def with_kernels(tmp_path_factory: pytest.TempPathFactory) -> native.Built:
    """The library of HOST and DEVICE."""
    return build_for_all(tmp_path_factory.mktemp("kernels"), HOST, DEVICE)


def build_for_all(folder: Path, host: str, device: str | None = None) -> native.Built:
    """A library for the tests of this file, which each restore the state that they begin with."""
    before = native._state
    try:
        return build(folder, "one", host, device)
    finally:
        native._state = before


@pytest.mark.parametrize(("old", "new"), NOTHING_CHANGED.values(), ids=NOTHING_CHANGED.keys())
def test_what_runs_the_same_has_the_same_fingerprint(plain: native.Built, folder: Path, old: str, new: str) -> None:
    second = build(folder, "another checkout", HOST.replace(old, new))
    assert plain.key != second.key
    assert plain.code_hash
    assert plain.code_hash == second.code_hash


@pytest.mark.parametrize(("old", "new"), SOMETHING_CHANGED.values(), ids=SOMETHING_CHANGED.keys())
def test_what_runs_differently_has_another(plain: native.Built, folder: Path, old: str, new: str) -> None:
    assert plain.code_hash != build(folder, "two", HOST.replace(old, new)).code_hash


def test_it_is_kept_with_the_library(folder: Path) -> None:
    first = build(folder, "one", HOST)
    again = native.build("good")
    assert again.cached
    assert (again.code_hash, again.compile_seconds) == (first.code_hash, first.compile_seconds)
    assert first.compile_seconds > 0
    (entry,) = first.resources
    assert (entry.name, entry.registers) == ("good.cpp", 0)
    assert entry.code_bytes > 50


def test_a_source_that_names_things_by_line_is_fingerprinted_with_its_lines(folder: Path) -> None:
    named = (
        HOST
        + "#define GLUE(a, b) a##b\n#define NAME(line) GLUE(unique_, line)\nint NAME(__LINE__);\nint NAME(__LINE__);\n"
    )
    first, moved = build(folder, "one", named), build(folder, "two", "\n" + named)
    assert first.code_hash
    assert first.code_hash != moved.code_hash


@needs_nvcc
def test_kernels_are_fingerprinted_one_by_one(with_kernels: native.Built, folder: Path) -> None:
    """Each build takes a second, so that the first changes a comment and a launch at once."""
    first = with_kernels
    commented = DEVICE.replace("template", "// staged in shared memory\ntemplate")
    wider = build(folder, "another checkout", HOST, commented.replace("<<<1, 64>>>", "<<<2, 64>>>"))
    changed = build(folder, "two", HOST, DEVICE.replace("2.0f *", "3.0f *"))
    filled = build(folder, "three", HOST, DEVICE.replace("{1.0f, 2.0f}", "{1.0f, 2.5f}"), archs=ARCHS[:1])
    codes, *others = ({(r.name, r.arch): r.code_hash for r in b.resources} for b in (first, wider, changed, filled))
    differences = [{place for place in other if codes[place] != other[place]} for other in others]
    host = ("good.cu", next(r.arch for r in first.resources if r.name == "good.cu"))
    assert differences[0] == {host}, "a launch is code for the CPU, and a comment is none"
    assert differences[1] == {("staged<64>", f"sm_{arch}") for arch in ARCHS}
    assert ("plain", f"sm_{ARCHS[0]}") in differences[2], "a constant is code of the kernel that reads it"
    assert all(r.code_hash and r.code_bytes > 0 for r in first.resources)
    assert {r.name for r in first.resources} == {"staged<64>", "plain", "good.cpp", "good.cu"}


@pytest.mark.parametrize("data", [b"", b"\x7fELF\x02\x01 cut off", b"no object file at all" * 9])
def test_what_is_no_object_file_is_refused(folder: Path, data: bytes) -> None:
    path = folder / "broken.o"
    path.write_bytes(data)
    with pytest.raises(ValueError, match="object file"):
        _fingerprint.host_code(path)
