"""Reads the JSON of Google Benchmark: `--benchmark_out=FILE --benchmark_out_format=json`.

The real time counts. Each repetition is a sample; a file with aggregates alone gives its median, else its mean.
"""

from __future__ import annotations

from itertools import groupby
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
    unit_of,
    whole,
)

SCHEMAS = (1,)
_FACTS = ("num_cpus", "cpu_scaling_enabled", "aslr_enabled", "caches", "library_version", "library_build_type")
"""Facts that stay the same between two runs on one machine; date, load and clock do not."""


def read(values: dict[str, Any], _: dict[str, bytes]) -> ForeignResults:
    context = values.get("context")
    if not isinstance(context, dict):
        raise invalid("it has no context, so Google Benchmark did not write it")
    # Files before version 1.8 do not say their schema, which is the first.
    expect_version(context.get("json_schema_version", 1), SCHEMAS, "the schema of Google Benchmark")
    facts = {name: context[name] for name in _FACTS if name in context}
    host = context.get("host_name")
    rows = objects(values, "benchmarks")
    named = sorted(((_run_name(row), row) for row in rows), key=lambda item: item[0])
    by_name = {name: [row for _, row in group] for name, group in groupby(named, key=lambda item: item[0])}
    order = list(dict.fromkeys(_run_name(row) for row in rows))
    benchmarks = [_benchmark(name, by_name[name]) for name in order]
    return ForeignResults("google-benchmark", "cpu", host if isinstance(host, str) else "", facts, benchmarks)


def _run_name(row: dict[str, Any]) -> str:
    return name_of(text_of(row.get("run_name", row.get("name")), "name"))


def _benchmark(name: str, rows: list[dict[str, Any]]) -> ForeignBenchmark:
    sizes = _sizes(name)
    failed = next((row for row in rows if row.get("error_occurred")), None)
    if failed is not None:
        return ForeignBenchmark(
            name, sizes=sizes, error=str(failed.get("error_message") or "the benchmark failed")[:2000]
        )
    skipped = next((row for row in rows if row.get("skipped")), None)
    if skipped is not None:
        message = str(skipped.get("skip_message") or "the benchmark skipped itself")[:2000]
        return ForeignBenchmark(name, sizes=sizes, error=message, skipped=True)
    samples = [_time(name, row) for row in rows if row.get("run_type", "iteration") == "iteration"]
    if samples:
        return timed(name, samples, sizes)
    aggregates = {str(row.get("aggregate_name")): row for row in rows if row.get("aggregate_unit", "time") == "time"}
    centre = aggregates.get("median") or aggregates.get("mean")
    if centre is None:
        raise invalid(
            f"{name}: neither iterations nor a median or mean", "leave --benchmark_report_aggregates_only out"
        )
    benchmark = timed(name, [_time(name, centre)], sizes)
    deviation = aggregates.get("stddev")
    repetitions = whole(centre.get("repetitions")) or 1
    return benchmark if deviation is None else spread_by(benchmark, _time(name, deviation), repetitions)


def _time(name: str, row: dict[str, Any]) -> float:
    factor = unit_of(row.get("time_unit", "ns"), f"{name}: time_unit")
    return number(row.get("real_time"), f"{name}: real_time") * factor


def _sizes(name: str) -> dict[str, int]:
    """The numbers of a name such as `BM_sort/n:1024/8`; arguments without a name count from one."""
    sizes: dict[str, int] = {}
    for part in name.split("/")[1:]:
        key, colon, value = part.rpartition(":")
        size = whole(value)
        if size is not None:
            sizes[key if colon else f"arg{len(sizes) + 1}"] = size
    return sizes
