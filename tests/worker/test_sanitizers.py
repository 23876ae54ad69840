"""Reports of sanitizers as the tools write them, and what stands in their way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from warpwatch.worker.sanitizers import Sanitizer, SanitizerMissingError, find_sanitizer, first_finding
from warpwatch.worker.trees import Tree

ASAN = """\
=================================================================
==19==ERROR: AddressSanitizer: heap-buffer-overflow on address 0x60e0000148a4 at pc 0x7f1f6c4f0f7d bp 0x7ffd sp 0x7ffd
WRITE of size 4 at 0x60e0000148a4 thread T0
    #0 0x7f1f6c4f0f7c in run csrc/stencil/stencil.cpp:36
SUMMARY: AddressSanitizer: heap-buffer-overflow csrc/stencil/stencil.cpp:36 in run
Shadow bytes around the buggy address:
"""
RACECHECK = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Read access \
at void row_sums<(bool)1>(const float *, float *, long)+0x2d0 in total.cu:20
=========     and Write access \
at void row_sums<(bool)1>(const float *, float *, long)+0x180 in total.cu:16 [1020 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
MEMCHECK = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at past_end(float *, int)+0x70 in k.cu:5
=========     by thread (31,0,0) in block (3,0,0)
=========     Address 0x7f4fe2000200 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f4fe2000000 of size 512 bytes
=========
========= ERROR SUMMARY: 1 error
"""
QUIET = """\
========= COMPUTE-SANITIZER
========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)
========= ERROR SUMMARY: 0 errors
"""


@pytest.mark.parametrize(
    ("name", "report", "words"),
    [
        ("address", ASAN, ["address sanitizer: heap-buffer-overflow csrc/stencil/stencil.cpp:36 in run"]),
        ("racecheck", RACECHECK, ["racecheck: Error: Race reported", "row_sums", "total.cu:20", "and Write access"]),
        (
            "memcheck",
            MEMCHECK,
            ["memcheck: Invalid __global__ write of size 4 bytes; at past_end", "by thread (31,0,0)"],
        ),
    ],
)
def test_the_first_finding_names_hazard_and_kernel(tmp_path: Path, name: str, report: str, words: list[str]) -> None:
    (tmp_path / "sanitizer.log").write_text(report)
    found = first_finding(name, Tree(tmp_path))
    assert found is not None
    assert "\n" not in found
    assert [word for word in words if word not in found] == []


@pytest.mark.parametrize("name", ["address", "racecheck", "memcheck", "initcheck"])
def test_nothing_found_is_nothing_said(tmp_path: Path, name: str) -> None:
    assert first_finding(name, Tree(tmp_path)) is None
    (tmp_path / "sanitizer.log").write_text(QUIET)
    assert first_finding(name, Tree(tmp_path)) is None


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(SanitizerMissingError, match="choose from memcheck, racecheck, initcheck, address"):
        find_sanitizer("valgrind", "cpu")
    with pytest.raises(SanitizerMissingError, match="racecheck looks at CUDA code; for this device there is address"):
        find_sanitizer("racecheck", "cpu")
    with pytest.raises(SanitizerMissingError, match="for this device there is memcheck, racecheck, initcheck"):
        find_sanitizer("address", "cuda")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("warpwatch.worker.sanitizers._TOOLKIT", tmp_path)
    with pytest.raises(SanitizerMissingError, match="compute-sanitizer is not installed"):
        find_sanitizer("memcheck", "cuda")
    with pytest.raises(SanitizerMissingError, match=r"no C\+\+ compiler"):
        find_sanitizer("address", "cpu")


def test_compute_sanitizer_wraps_the_child(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "compute-sanitizer"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    found = find_sanitizer("memcheck", "cuda")
    assert isinstance(found, Sanitizer)
    words = found.wrap(["python", "x"], Path("/t"))
    assert words[:3] == [str(program), "--tool", "memcheck"]
    assert words[-2:] == ["python", "x"]
    assert "/t/sanitizer.log" in words
    # Otherwise a write into a neighbour in torch's own cache would be as good as one into the tensor.
    assert found.variables(Path("/t")) == {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}


def test_address_sanitizer_comes_before_all_libraries() -> None:
    variables = find_sanitizer("address", "cpu").variables(Path("/t"))
    first, second = variables["LD_PRELOAD"].split()
    assert "libasan" in first
    assert "libstdc++" in second
    assert "log_path=/t/sanitizer" in variables["ASAN_OPTIONS"]


def test_a_report_that_is_no_file_is_not_read(tmp_path: Path) -> None:
    """Kernel code can put a FIFO there, which blocks, or a link to a device that never ends."""
    os.mkfifo(tmp_path / "sanitizer.fifo")
    (tmp_path / "sanitizer.zero").symlink_to("/dev/zero")
    (tmp_path / "sanitizer.folder").mkdir()
    (tmp_path / "sanitizer.log").write_text("SUMMARY: AddressSanitizer: heap-buffer-overflow")
    assert first_finding("address", Tree(tmp_path)) == "address sanitizer: heap-buffer-overflow"
