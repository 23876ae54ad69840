"""The native build: what is kept, what is built again, and how it fails."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from warpwatch import _fingerprint, _ptxas, _toolchain, native
from warpwatch.cli.app import app

from .conftest import ROOT

pytestmark = pytest.mark.usefixtures("_fresh_native")

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")

ANSWER = (
    '#include "common/answer.h"\nextern "C" __attribute__((visibility("default"))) int answer() { return ANSWER; }\n'
)
BROKEN = 'extern "C" int answer() { return undeclared_name; }\n'
KERNEL = """#include <cuda_runtime.h>
template <int N> __global__ void staged(float* y) {
  __shared__ float tile[N];
  tile[threadIdx.x] = y[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = tile[N - 1 - threadIdx.x];
}
const char* launch(float* y) { staged<64><<<1, 64>>>(y); return cudaGetErrorString(cudaGetLastError()); }
"""


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """Native sources of two operators, `good` and `other`, that share a header; native is configured for them on the
    CPU."""
    root = tmp_path / "csrc"
    write(root / "common" / "answer.h", "#define ANSWER 42\n")
    write(root / "good" / "good.cpp", ANSWER)
    write(root / "other" / "other.cpp", ANSWER)
    native.configure(root, tmp_path / "cache", "cpu")
    return root


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def answer_of(built: native.Built) -> int:
    assert built.status == "ok", built.log
    result: int = ctypes.CDLL(str(built.path)).answer()
    return result


def test_the_shared_runtime_is_used_where_a_linker_prefers_the_static_one(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapper = tmp_path / "prefers-static"
    wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("g++")} -static-libstdc++ "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("CXX", str(wrapper))
    code = '#include <sstream>\nextern "C" int answer() { std::ostringstream s; s << 42; return s.str().size(); }\n'
    write(sources / "good" / "good.cpp", code)
    built = native.build("good")
    assert built.path is not None, built.log
    needed = subprocess.run(
        ["readelf", "--dynamic", str(built.path)], capture_output=True, text=True, check=True
    ).stdout
    assert "libstdc++.so" in needed
    defined = subprocess.run(
        ["nm", "--dynamic", "--defined-only", str(built.path)], capture_output=True, text=True, check=True
    )
    assert "basic_ostream" not in defined.stdout


def test_a_library_is_built_once(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = native.build("good")
    assert answer_of(first) == 42
    assert not first.cached
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: pytest.fail(f"ran {args}"))
    second = native.build("good")
    assert (second.cached, second.key, second.path) == (True, first.key, first.path)


def test_fingerprints_can_be_left_out(sources: Path, tmp_path: Path) -> None:
    """Then the code counts as unknown, and C++ is compiled once."""
    assert native.build("good").code_hash
    native.configure(sources, tmp_path / "quick", "cpu", fingerprints=False)
    built = native.build("good")
    assert answer_of(built) == 42
    assert [(entry.name, entry.code_hash) for entry in built.resources] == [("good.cpp", "")]
    assert built.code_hash == ""
    assert built.path is not None
    assert not list(built.path.parent.rglob("*.print.o"))


def test_another_checkout_with_the_same_sources_shares_the_library(sources: Path, tmp_path: Path) -> None:
    first = native.build("good")
    shutil.copytree(sources, tmp_path / "elsewhere")
    native.configure(tmp_path / "elsewhere", tmp_path / "cache", "cpu")
    assert native.build("good").cached
    assert native.build("good").key == first.key


@pytest.mark.parametrize(
    ("file", "text"), [("good/good.cpp", ANSWER.replace("ANSWER;", "7;")), ("common/answer.h", "#define ANSWER 7\n")]
)
def test_a_changed_source_or_shared_header_is_built_again(sources: Path, file: str, text: str) -> None:
    first = native.build("good")
    write(sources / file, text)
    second = native.build("good")
    assert second.key != first.key
    assert not second.cached
    assert answer_of(second) == 7


def test_what_does_not_go_into_a_library_does_not_change_its_key(sources: Path) -> None:
    first = native.build("good")
    write(sources / "other" / "other.cpp", BROKEN)
    write(sources / "good" / "good.cu", "not compiled on a CPU")
    write(sources / "good" / "README.md", "read by people only")
    assert native.build("good").key == first.key


@pytest.mark.parametrize("what", ["cpu_model", "torch"])
def test_the_key_holds_cpu_and_torch(sources: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = native.build("good")
    torch = _toolchain.torch()
    changed = {"cpu_model": "another CPU", "torch": _toolchain.Torch("9.9.9", torch.include, torch.libraries)}
    monkeypatch.setattr(_toolchain, what, lambda: changed[what])
    assert native.build("good").key != first.key


def test_a_newer_compiler_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "bin" / "c++"
    monkeypatch.setenv("CXX", str(compiler))
    for version in ("compiler 12", "compiler 13 is longer"):
        write(compiler, f"#!/bin/sh\necho {version}\n")
        compiler.chmod(0o755)
        assert _toolchain.cxx_compiler(tmp_path).version.strip() == version


def test_a_compile_error_costs_its_own_operator_only(sources: Path) -> None:
    write(sources / "good" / "good.cpp", BROKEN)
    failed = native.build("good")
    assert (failed.status, failed.path) == ("build_failed", None)
    assert "csrc/good/good.cpp:1" in failed.log
    assert "undeclared_name" in failed.log
    assert answer_of(native.build("other")) == 42
    with pytest.raises(native.NativeUnavailable, match="undeclared_name") as caught:
        native.load("good")
    assert caught.value.status == "build_failed"


def test_a_missing_function_is_found_when_linking(sources: Path) -> None:
    write(sources / "good" / "good.cpp", "int elsewhere(); int answer() { return elsewhere(); }\n")
    failed = native.build("good")
    assert failed.status == "build_failed"
    assert "elsewhere" in failed.log


def test_no_compiler_names_the_remedy(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("CXX", raising=False)
    failed = native.build("good")
    assert failed.status == "build_failed"
    assert "apt install g++" in failed.log


def test_without_nvcc_only_cuda_sources_are_unsupported(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_toolchain, "cuda_compiler", lambda cache: None)
    write(sources / "good" / "good.cu", KERNEL)
    native.configure(sources, tmp_path / "cache", "cuda:0")
    assert native.build("good").status == "skipped"
    with pytest.raises(native.NativeUnavailable, match="no CUDA compiler") as caught:
        native.load("good")
    assert caught.value.status == "unsupported"
    assert answer_of(native.build("other")) == 42


def test_an_operator_without_native_sources_is_skipped(sources: Path) -> None:
    assert native.build("nothing").status == "skipped"
    assert native.build("../csrc/good").status == "skipped"
    assert native.operators() == ["good", "other"]


def test_what_a_killed_build_left_is_not_taken_for_a_library(sources: Path, tmp_path: Path) -> None:
    key = native.build("good").key
    cache = tmp_path / "cache"
    unfinished = (cache / key).rename(cache / f"{key}.unfinished")
    (unfinished / "record.json").unlink()
    (unfinished / "library.so").write_text("half a library")
    again = native.build("good")
    assert not again.cached
    assert answer_of(again) == 42
    assert not unfinished.exists()


def test_two_processes_build_it_once(sources: Path, tmp_path: Path) -> None:
    script = (
        "from pathlib import Path; from warpwatch import native; "
        f"native.configure(Path({str(sources)!r}), Path({str(tmp_path / 'cache')!r}), 'cpu'); "
        "print(native.build('good').cached)"
    )
    command = [sys.executable, "-c", script]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) for _ in range(2)]
    assert sorted(process.communicate()[0].strip() for process in both) == ["False", "True"]


@needs_nvcc
def test_cuda_code_compiles_for_every_architecture_without_a_gpu(sources: Path, tmp_path: Path) -> None:
    write(sources / "good" / "good.cu", KERNEL)
    write(sources / "good" / "good.cpp", ANSWER + "#if defined(WARPWATCH_NO_CUDA)\n#error CUDA is missing\n#endif\n")
    native.configure(sources, tmp_path / "cache", "cuda")
    built = native.build("good")
    assert answer_of(built) == 42
    assert [(r.name, r.arch, r.shared_bytes, r.spill_bytes) for r in built.resources if r.arch == "sm_90"] == [
        ("staged<64>", "sm_90", 256, 0)
    ]
    kernels = [r for r in built.resources if r.arch.startswith("sm_")]
    assert all(r.registers > 0 for r in kernels)
    assert [r.arch for r in kernels] == ["sm_80", "sm_90", "sm_100"]
    assert built.path is not None
    assert b".target sm_100\n" in built.path.read_bytes(), "later cards compile this"
    again = native.build("good")
    assert (again.cached, again.resources) == (True, built.resources)


@needs_nvcc
def test_cuda_code_may_be_built_for_some_architectures(sources: Path, tmp_path: Path) -> None:
    write(sources / "good" / "good.cu", KERNEL)
    native.configure(sources, tmp_path / "cache", "cuda", archs=[90])
    built = native.build("good")
    assert answer_of(built) == 42
    assert [r.arch for r in built.resources if r.arch.startswith("sm_")] == ["sm_90"]
    assert built.path is not None
    assert b".target sm_90\n" not in built.path.read_bytes(), "code for later cards is that of the newest architecture"
    native.configure(sources, tmp_path / "cache", "cuda", archs=[80, 90])
    assert native.find_key("good").key != built.key


@needs_nvcc
def test_a_cuda_error_leaves_the_cpu_alone(sources: Path, tmp_path: Path) -> None:
    write(sources / "good" / "good.cu", "__global__ void kernel() { undeclared_name; }\n")
    assert answer_of(native.build("good")) == 42
    native.configure(sources, tmp_path / "cache", "cuda")
    failed = native.build("good")
    assert failed.status == "build_failed"
    assert "csrc/good/good.cu" in failed.log


MANGLED = "_ZN46_GLOBAL__N__82202f5f_13_vector_add_cu_83b781f918vector_add_threadsIiEEvPKT_S3_PS1_l"
PTXAS = f"""[1/3] nvcc good.cu.o
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '{MANGLED}' for 'sm_80'
ptxas info    : Function properties for {MANGLED}
    8 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 8 bytes cumulative stack size, 49152 bytes smem, 384 bytes cmem[0]
good.cu(3): warning #177-D: variable "x" was declared but never referenced
ptxas info    : Compiling entry function 'plain' for 'sm_90a'
ptxas info    : Function properties for plain
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, used 0 barriers
"""


def test_the_assemblers_report_becomes_resources() -> None:
    codes = {_fingerprint.KernelFingerprint("plain", "sm_90"): _fingerprint.MachineCode(640, "0123456789abcdef")}
    assert _ptxas.parse(PTXAS, codes) == [
        ("vector_add_threads<int>", "sm_80", 255, 49152, 32, 0, ""),
        ("plain", "sm_90", 12, 0, 0, 640, "0123456789abcdef"),
    ]
    log = _ptxas.without_report(PTXAS)
    assert "ptxas" not in log
    assert "warning #177-D" in log


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("_Z6squareIfEvPKfPfi", "square<float>"),
        ("_ZN4kron5fusedILi32ELb1EEEvPKfPf", "kron::fused<32, true>"),
        ("_Z8multiplyIf7ProductIfEEvPT_", "multiply<float, Product<float>>"),
        ("plain_c_name", "plain_c_name"),
    ],
)
def test_kernel_names_are_short(symbol: str, name: str) -> None:
    assert _ptxas.short_name(symbol) == name


def test_the_build_command_fails_when_a_build_fails(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WARPWATCH_HOME", str(tmp_path / "home"))
    write(tmp_path / "warpwatch.toml", "contract = 1\n")
    good = CliRunner().invoke(app, ["build", "good"])
    assert good.exit_code == 0, good.output
    targets = [row.split("│")[2].strip() for row in good.output.splitlines() if "│ good" in row and " ok " in row]
    assert targets == ["cpu", "cuda"]
    alone = CliRunner().invoke(app, ["build", "good", "--target", "cpu"])
    assert alone.exit_code == 0, alone.output
    assert "cuda" not in alone.output
    write(sources / "other" / "other.cpp", BROKEN)
    bad = CliRunner().invoke(app, ["build"])
    assert bad.exit_code == 1
    assert "undeclared_name" in bad.output
    unknown = CliRunner().invoke(app, ["build", "nothing"])
    assert unknown.exit_code == 2
    assert "good, other" in unknown.output
    unknown = CliRunner().invoke(app, ["build", "good", "--arch", "75"])
    assert unknown.exit_code == 2
    assert "choose from 80, 90, 100" in unknown.output
