"""Readers of results that other benchmark programs write, and of the histories that other services keep.

The standard library only. A file may come from anywhere, so every reader bounds what it takes and ends in
ForeignResults, or in a FormatError that says what is wrong by a FormatFault and what to do about it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from warpwatch.contract.catalogue import CaseEntry, OperatorEntry, VariantEntry
from warpwatch.contract.measurement import METRICS, Measurement
from warpwatch.contract.messages import BenchReply
from warpwatch.contract.outcome import Finding
from warpwatch.contract.words import Status
from warpwatch.formats import (
    asv,
    bencher,
    flashinfer_bench,
    github_action,
    google_benchmark,
    hf_kernels,
    nccl_tests,
    nvbench,
    plain,
    pytest_benchmark,
)
from warpwatch.formats.model import (
    FILE_LIMIT,
    SAMPLE_LIMIT,
    ForeignBenchmark,
    ForeignResults,
    FormatError,
    FormatFault,
    expect_usable,
    parse_json,
    parse_lines,
)
from warpwatch.formats.nvbench import EXPORT_TAG

__all__ = [
    "EXPORT_TAG",
    "FILE_LIMIT",
    "FORMATS",
    "PROGRAM_FORMATS",
    "SAMPLE_LIMIT",
    "VARIANT",
    "WHOLE",
    "ForeignBenchmark",
    "ForeignResults",
    "FormatError",
    "FormatFault",
    "case_entry",
    "list_findings",
    "operator_entry",
    "read_history",
    "read_results",
]


_READERS: dict[str, Callable[[dict[str, Any], dict[str, bytes]], ForeignResults]] = {
    "plain": plain.read,
    "nvbench": nvbench.read,
    "google-benchmark": google_benchmark.read,
    "pytest-benchmark": pytest_benchmark.read,
    "asv": asv.read,
    "bencher": bencher.read,
    "hf-kernels": hf_kernels.read,
    "flashinfer-bench": flashinfer_bench.read,
    "nccl-tests": nccl_tests.read,
}
_OF_LINES = ("flashinfer-bench", "nccl-tests")
"""Formats that are no JSON object, but lines that each stand for themselves."""
_HISTORIES: dict[str, Callable[[dict[str, Any]], list[ForeignResults]]] = {
    "github-action-benchmark": github_action.read_history
}
FORMATS = (*_READERS, *_HISTORIES)
PROGRAM_FORMATS = tuple(_READERS)
"""Formats that one run of a program writes; files of the others hold the results of many commits."""
SIDECARS_LIMIT = 256 * 2**20
"""Bytes of all files of samples of one JSON."""
Fetch = Callable[[str], bytes | None]
"""Reads a file of samples by its path relative to the JSON; None where there is none."""
VARIANT = "program"
"""The one variant of an operator that is a program."""
WHOLE = "all"
"""The case that stands for a whole program while none of its benchmarks is known."""


def read_history(name: str, data: bytes, fetch: Fetch = lambda _: None) -> list[ForeignResults]:
    """The results in `data`, a file of the format `name`, by commit; FormatError where nothing of it can be read.

    fetch: see read_results.
    """
    if name not in _HISTORIES:
        return [read_results(name, data, fetch)]
    usable, faults = [], []
    for results in _HISTORIES[name](parse_json(data)):
        try:
            usable.append(expect_usable(results))
        except FormatError as error:
            faults.append(error)
    if not usable:
        raise faults[0]
    left_out = [*usable[0].left_out, *(error.message for error in faults)]
    return [replace(usable[0], left_out=left_out), *usable[1:]]


def read_results(name: str, data: bytes, fetch: Fetch = lambda _: None) -> ForeignResults:
    """The results in `data`, a file of the format `name`; FormatError where nothing of it can be read.

    What precedes the JSON, such as a program's greeting, is left out.

    fetch: finds the files of samples that nvbench writes beside its JSON.
    """
    reader = _READERS.get(name)
    if reader is None:
        remedy = f"use {', '.join(PROGRAM_FORMATS if name in FORMATS else FORMATS)}"
        fault = "is of many commits" if name in FORMATS else "is unknown"
        raise FormatError(FormatFault.UNKNOWN_FORMAT, f"the format {name!r} {fault}", remedy)
    values = parse_lines(data) if name in _OF_LINES else parse_json(data)
    sidecars: dict[str, bytes] = {}
    for path in nvbench.sidecar_names(values) if name == "nvbench" else ():
        content = fetch(path)
        if content is not None:
            sidecars[path] = content
        if sum(map(len, sidecars.values())) > SIDECARS_LIMIT:
            message = f"its files of samples have more than {SIDECARS_LIMIT >> 20} MiB together"
            raise FormatError(FormatFault.TOO_LARGE, message, "measure fewer benchmarks per file")
    return expect_usable(reader(values, sidecars))


def list_findings(results: ForeignResults, device_kind: str) -> list[Finding]:
    """A finding per benchmark. Its time is stored as the metric of verdicts, under the protocol of the format."""
    return [_finding(benchmark, results.format, METRICS[device_kind][0]) for benchmark in results.benchmarks]


def _finding(benchmark: ForeignBenchmark, protocol: str, metric: str) -> Finding:
    if benchmark.status is not Status.OK:
        return Finding(VARIANT, benchmark.name, benchmark.status, benchmark.message)
    measurement = Measurement(
        metric,
        benchmark.samples_ns,
        benchmark.median_ns,
        benchmark.low_ns,
        benchmark.high_ns,
        benchmark.noise,
        dropped=benchmark.dropped,
        dropped_reason="shorter than any call" if benchmark.dropped else "",
        protocol=protocol,
    )
    return Finding(VARIANT, benchmark.name, Status.OK, bench=BenchReply(Status.OK, measurements=[measurement]))


def case_entry(key: str, sizes: dict[str, int] | None = None) -> CaseEntry:
    """A benchmark as a case. It has neither precision nor direction, and its cost is unknown."""
    return CaseEntry(key, dict(sizes or {}), "", "", "contiguous", ["quick", "full"], 0, 0)


def operator_entry(name: str, summary: str, cases: Iterable[CaseEntry]) -> OperatorEntry:
    """A program as an operator."""
    variant = VariantEntry(VARIANT, summary, "", ["cpu", "cuda"], native=False)
    return OperatorEntry(name, summary, [variant], list(cases))
