"""Reads what `kernels benchmark` of Hugging Face saves: the mean of each workload, with its deviation."""

from __future__ import annotations

from typing import Any

from warpwatch.formats.model import (
    ForeignBenchmark,
    ForeignResults,
    commit_of,
    deviation,
    invalid,
    number,
    objects,
    read_rows,
    spread_by,
    text_of,
    timed,
    whole,
)

_FACTS = ("backend", "cudaVersion", "pytorchVersion", "cpu")
_NO_GPU = ("", "N/A")


def read(values: dict[str, Any], _: dict[str, bytes]) -> ForeignResults:
    machine = values.get("machineInfo")
    if not isinstance(machine, dict) or "results" not in values:
        raise invalid("it has no results and machineInfo, so `kernels benchmark` did not write it")
    left_out: list[str] = []
    rows = objects(values, "results", left_out)
    benchmarks = read_rows(rows, lambda row: text_of(row.get("workload"), "results: workload"), _benchmark, left_out)
    facts = {name: machine[name] for name in _FACTS if name in machine}
    gpu, cpu = (item if isinstance(item := machine.get(key), str) else "" for key in ("gpu", "cpu"))
    kind, device = ("cpu", cpu) if gpu in _NO_GPU else ("cuda", gpu)
    commit = commit_of(values.get("kernelCommitSha"))
    return ForeignResults("hf-kernels", kind, device, facts, benchmarks, left_out, commit)


def _benchmark(name: str, row: dict[str, Any]) -> ForeignBenchmark:
    times = row.get("timingResults")
    if not isinstance(times, dict):
        raise invalid(f"{name}: it has no timingResults")
    benchmark = timed(name, [number(times.get("mean_ms"), f"{name}: mean_ms") * 1e6])
    spread = deviation(times.get("std_ms"))
    return spread_by(benchmark, None if spread is None else spread * 1e6, whole(times.get("iterations")) or 1)
