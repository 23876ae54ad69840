"""Reads the JSON of pytest-benchmark: `--benchmark-json=FILE`. Every round is a sample."""

from __future__ import annotations

from collections import Counter
from typing import Any

from warpwatch.formats.model import (
    ForeignBenchmark,
    ForeignResults,
    commit_of,
    deviation,
    expect_version,
    host_class,
    invalid,
    name_of,
    number,
    objects,
    read_rows,
    spread_by,
    text_of,
    timed,
    whole,
)

VERSIONS = (2, 3, 4, 5)
_FACTS = ("machine", "system", "python_implementation", "python_version", "python_compiler")
"""Facts that change what is measured. The kernel's release changes every few days where runners are hosted."""


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
    left_out: list[str] = []
    rows = objects(values, "benchmarks", left_out)
    counts = Counter(str(row.get("name")) for row in rows)

    def name(row: dict[str, Any]) -> str:
        # Of tests of one name in two files only these are called by their files.
        is_alone = counts[str(row.get("name"))] == 1 or row.get("fullname") is None
        return text_of(row.get("name" if is_alone else "fullname"), "benchmarks: name")

    benchmarks = read_rows(rows, name, _benchmark, left_out)
    # Versions before 3.2 do not say the processor.
    node = machine.get("node")
    model = brand if isinstance(brand, str) and brand else host_class(node) if isinstance(node, str) else ""
    given = values.get("commit_info")
    info = given if isinstance(given, dict) else {}
    commit, is_dirty = commit_of(info.get("id")), bool(info.get("dirty"))
    return ForeignResults("pytest-benchmark", "cpu", model, facts, benchmarks, left_out, commit, is_dirty)


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
    found = deviation(stats.get("stddev"))
    return spread_by(benchmark, None if found is None else found * 1e9, whole(stats.get("rounds")) or 1)
