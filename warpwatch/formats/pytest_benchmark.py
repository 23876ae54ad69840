"""Reads the JSON of pytest-benchmark: `--benchmark-json=FILE`. Every round is a sample."""

from __future__ import annotations

from typing import Any

from warpwatch.formats.model import (
    ForeignBenchmark,
    ForeignResults,
    expect_version,
    invalid,
    name_of,
    number,
    objects,
    spread_by,
    text_of,
    timed,
    whole,
)

VERSIONS = (3, 4, 5)
_FACTS = ("machine", "system", "release", "python_implementation", "python_version", "python_compiler")


def read(values: dict[str, Any], _: dict[str, bytes]) -> ForeignResults:
    machine = values.get("machine_info")
    if not isinstance(machine, dict):
        raise invalid("it has no machine_info, so pytest-benchmark did not write it")
    version = text_of(values.get("version"), "version")
    major = version.partition(".")[0]
    expect_version(int(major) if major.isdigit() and len(major) < 5 else version, VERSIONS, "pytest-benchmark")
    cpu = machine.get("cpu")
    brand = cpu.get("brand_raw", "") if isinstance(cpu, dict) else ""
    facts = {name: machine[name] for name in _FACTS if name in machine} | {"cpu": brand}
    if isinstance(cpu, dict) and "count" in cpu:
        facts["cpus"] = cpu["count"]
    rows = objects(values, "benchmarks")
    names = [name_of(text_of(row.get("name"), "name")) for row in rows]
    if len(set(names)) != len(names):
        # Tests of one name in two files.
        names = [name_of(text_of(row.get("fullname"), "fullname")) for row in rows]
    benchmarks = [_benchmark(name, row) for name, row in zip(names, rows, strict=True)]
    return ForeignResults("pytest-benchmark", "cpu", brand if isinstance(brand, str) else "", facts, benchmarks)


def _benchmark(name: str, row: dict[str, Any]) -> ForeignBenchmark:
    stats = row.get("stats")
    if not isinstance(stats, dict):
        raise invalid(f"{name}: it has no stats")
    params = row.get("params")
    given = params if isinstance(params, dict) else {}
    sizes = {name_of(key): size for key, value in given.items() if (size := whole(value)) is not None}
    data = stats.get("data")
    if isinstance(data, list) and data:
        return timed(name, [number(value, f"{name}: stats.data") * 1e9 for value in data], sizes)
    benchmark = timed(name, [number(stats.get("median"), f"{name}: stats.median") * 1e9], sizes)
    rounds = whole(stats.get("rounds")) or 1
    return spread_by(benchmark, number(stats.get("stddev", 0), f"{name}: stats.stddev") * 1e9, rounds)
