"""Reads the JSON of Google Benchmark: `--benchmark_out=FILE --benchmark_out_format=json`.

The real time counts. Each repetition is a sample; a file with aggregates alone gives its median.
"""

from __future__ import annotations

from typing import Any

from warpwatch.contract.words import Status
from warpwatch.formats.model import (
    MESSAGE_LIMIT,
    ForeignBenchmark,
    ForeignResults,
    deviation,
    expect_version,
    host_class,
    invalid,
    number,
    objects,
    read_rows,
    spread_by,
    text_of,
    timed,
    unit_of,
    whole,
)

SCHEMAS = (1,)
_FITTED = ("BigO", "RMS")
"""Rows that `Complexity()` adds: a curve through the times of a family, and its error. They are no benchmarks."""
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
    left_out: list[str] = []
    groups: dict[tuple[object, ...], list[dict[str, Any]]] = {}
    for row in objects(values, "benchmarks", left_out):
        if row.get("aggregate_name") not in _FITTED:
            groups.setdefault(_identity(row), []).append(row)
    benchmarks = read_rows(groups.values(), _run_name, _benchmark, left_out)
    name = host_class(host) if isinstance(host, str) else ""
    return ForeignResults("google-benchmark", "cpu", name, facts, benchmarks, left_out)


def _identity(row: dict[str, Any]) -> tuple[object, ...]:
    """What the repetitions and aggregates of one benchmark share. Two families may have one name; files before version
    1.7 do not say the family."""
    family, instance = (whole(row.get(name)) for name in ("family_index", "per_family_instance_index"))
    return str(row.get("run_name", row.get("name"))), family, instance


def _run_name(rows: list[dict[str, Any]]) -> str:
    return text_of(rows[0].get("run_name", rows[0].get("name")), "benchmarks: name")


def _benchmark(name: str, rows: list[dict[str, Any]]) -> ForeignBenchmark:
    sizes = _sizes(name)
    failed = next((row for row in rows if row.get("error_occurred")), None)
    if failed is not None:
        message = str(failed.get("error_message") or "the benchmark failed")[:MESSAGE_LIMIT]
        return ForeignBenchmark(name, Status.CRASHED, message, sizes=sizes)
    skipped = next((row for row in rows if row.get("skipped")), None)
    if skipped is not None:
        message = str(skipped.get("skip_message") or "the benchmark skipped itself")[:MESSAGE_LIMIT]
        return ForeignBenchmark(name, Status.SKIPPED, message, sizes=sizes)
    samples = [_time(name, row) for row in rows if row.get("run_type", "iteration") == "iteration"]
    if samples:
        return timed(name, samples, sizes)
    aggregates = {str(row.get("aggregate_name")): row for row in rows if row.get("aggregate_unit", "time") == "time"}
    centre = aggregates.get("median")
    if centre is None:
        # A mean of repetitions is no median, and one series holds one of the two.
        raise invalid(f"{name}: neither iterations nor a median", "leave --benchmark_report_aggregates_only out")
    spread = aggregates.get("stddev", {})
    unit = unit_of(spread.get("time_unit", "ns"), f"{name}: time_unit")
    deviation_ns = None if (found := deviation(spread.get("real_time"))) is None else found * unit
    benchmark = timed(name, [_time(name, centre)], sizes)
    return spread_by(benchmark, deviation_ns, whole(centre.get("repetitions")) or 1)


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
