"""Reads Bencher's BMF: an object of benchmarks, each an object of measures. The latency, in ns, counts."""

from __future__ import annotations

from math import inf
from typing import Any

from warpwatch.formats.model import (
    ForeignBenchmark,
    ForeignResults,
    bounded,
    invalid,
    number,
    read_rows,
    text_of,
    timed,
)

_LATENCY = "latency"


def read(values: dict[str, Any], _: dict[str, bytes]) -> ForeignResults:
    rows = [(name, measures) for name, measures in values.items() if isinstance(measures, dict)]
    if values and not rows:
        raise invalid("it holds no benchmark with measures, so it is no Bencher Metric Format")
    left_out = [f"{name[:60]}: expected an object of measures" for name in values if not isinstance(values[name], dict)]
    counted = [(name, measures[_LATENCY]) for name, measures in rows if _LATENCY in measures]
    others = sum(name != _LATENCY for _, measures in rows for name in measures)
    if others:
        left_out.append(f"{others} measures other than latency are no times")
    benchmarks = read_rows(counted, lambda row: text_of(row[0], "name of a benchmark"), _benchmark, left_out)
    return ForeignResults("bencher", "cpu", "", {}, benchmarks, left_out)


def _benchmark(name: str, row: tuple[str, Any]) -> ForeignBenchmark:
    metric = row[1]
    if not isinstance(metric, dict):
        raise invalid(f"{name}: latency: expected an object with a value")
    benchmark = timed(name, [number(metric.get("value"), f"{name}: latency: value")])
    low, high = (metric.get(end) for end in ("lower_value", "upper_value"))
    # Bencher allows one end alone, which bounds nothing from the other side.
    given = [number(end, f"{name}: latency: bounds") if end is not None else inf for end in (low, high)]
    return bounded(benchmark, *given)
