"""The results of a program as what a job stores: an operator whose cases are the benchmarks, with one variant."""

from __future__ import annotations

from collections.abc import Iterable

from warpwatch.contract.catalogue import CaseEntry, OperatorEntry, VariantEntry
from warpwatch.contract.measurement import METRICS, Measurement
from warpwatch.contract.messages import BenchReply
from warpwatch.contract.outcome import Finding
from warpwatch.contract.words import Status
from warpwatch.formats.model import ForeignBenchmark, ForeignResults

VARIANT = "program"
"""The one variant of an operator that is a program."""
WHOLE = "all"
"""The case that stands for a whole program while none of its benchmarks is known."""


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
