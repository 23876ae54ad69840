"""Reads the history that github-action-benchmark keeps: `data.js` of its page, or the same as JSON.

Each entry is a suite at a commit. Times count, and rates such as iter/sec as the time of an iteration.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import Any

from warpwatch.formats.model import (
    UNIT_NS,
    ForeignBenchmark,
    ForeignResults,
    FormatError,
    bounded,
    commit_of,
    invalid,
    moment_of,
    number,
    objects,
    read_rows,
    spread_by,
    text_of,
    timed,
)

_TIME = re.compile(r"(ns|us|µs|μs|ms|s|sec|nanoseconds|microseconds|milliseconds|seconds)(/\w+)?", re.IGNORECASE)
_RATE = re.compile(r"(iter|iters|iterations|op|ops|operations|calls)/(s|sec|second)", re.IGNORECASE)
_UNITS = {"μs": "us", "sec": "s", "nanoseconds": "ns", "microseconds": "us", "milliseconds": "ms", "seconds": "s"}
_RANGE = re.compile(r"(?:±|\+/-|\+-|stddev:)\s*([\d.,]+(?:e[+-]?\d+)?)\s*(%?)", re.IGNORECASE)
_SPREAD = re.compile(r"_(stddev|cv|BigO|RMS)$")
"""Ends of names of Google Benchmark's rows that are no times, though their unit is one."""
_HALF_INTERVALS: dict[object, float] = {"cargo": 0.5, "benchmarkjs": 1.0}
"""What half an interval is of a range, by tool: cargo writes the longest sample less the shortest one, and benchmark.js
a margin of error. Other tools write a standard deviation."""
_DEFAULT_SUITE = "Benchmark"


def read_history(values: dict[str, Any]) -> list[ForeignResults]:
    """The results of each commit. A suite that was run again at a commit is another one of its results."""
    entries = values.get("entries")
    if not isinstance(entries, dict):
        raise invalid("it has no entries, so github-action-benchmark did not write it")
    left_out: list[str] = []
    found: dict[tuple[str, int], ForeignResults] = {}
    others: Counter[str] = Counter()
    for suite in entries:
        runs: Counter[str] = Counter()
        for entry in _tolerant(entries, suite, left_out):
            about = entry.get("commit")
            commit = commit_of(about.get("id")) if isinstance(about, dict) else ""
            if not commit:
                left_out.append(f"{suite[:60]}: an entry without the id of a commit")
                continue
            results = _results(suite, entry, commit, others)
            left_out += results.left_out
            if not results.benchmarks:
                continue
            earlier = found.get((commit, runs[commit]))
            found[commit, runs[commit]] = (
                results if earlier is None else replace(earlier, benchmarks=[*earlier.benchmarks, *results.benchmarks])
            )
            runs[commit] += 1
    if others:
        left_out.append(f"{others.total()} values are no times: {', '.join(sorted(others)[:5])}")
    histories = list(found.values())
    if not histories:
        return [ForeignResults("github-action-benchmark", "cpu", "", {}, [], left_out)]
    return [replace(results, left_out=[] if index else left_out) for index, results in enumerate(histories)]


def _tolerant(values: dict[str, Any], key: str, left_out: list[str]) -> list[dict[str, Any]]:
    """The objects of the list at `key`; what is no object is left out, and so is what is no list."""
    try:
        return objects(values, key, left_out)
    except FormatError as error:
        left_out.append(error.message)
        return []


def _results(suite: str, entry: dict[str, Any], commit: str, others: Counter[str]) -> ForeignResults:
    """others: counts the values that are no times, by unit."""
    left_out: list[str] = []
    rows = _tolerant(entry, "benches", left_out)
    # Repetitions have one name.
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        spread = _SPREAD.search(str(row.get("name"))) if entry.get("tool") == "googlecpp" else None
        if spread is None and _factor(row.get("unit")) is not None:
            groups.setdefault(str(row.get("name")), []).append(row)
        else:
            others[spread[1] if spread else str(row.get("unit"))[:20]] += 1
    # The name of the suite that the action writes by itself says nothing.
    prefix = "" if suite == _DEFAULT_SUITE else f"{suite}/"
    tool = entry.get("tool")
    benchmarks = read_rows(
        groups.values(),
        lambda rows: prefix + text_of(rows[0].get("name"), "benches: name"),
        lambda name, rows: _benchmark(name, rows, tool),
        left_out,
    )
    when = moment_of(entry.get("date"))
    return ForeignResults("github-action-benchmark", "cpu", "", {}, benchmarks, left_out, commit, measured_at=when)


def _factor(unit: object) -> tuple[float, bool] | None:
    """Nanoseconds of a unit, and whether it is a rate; None for a unit of something else."""
    text = unit.strip() if isinstance(unit, str) else ""
    if match := _TIME.fullmatch(text):
        word = match[1].lower()
        return UNIT_NS[_UNITS.get(word, word)], False
    return (1e9, True) if _RATE.fullmatch(text) else None


def _benchmark(name: str, rows: list[dict[str, Any]], tool: object) -> ForeignBenchmark:
    benchmark = timed(name, [_time(name, row) for row in rows])
    if len(rows) > 1:
        return benchmark
    row = rows[0]
    factor, _ = _factor(row.get("unit")) or (1.0, False)
    written = row.get("range")
    spread = _RANGE.search(written) if isinstance(written, str) else None
    if spread is None:
        return benchmark
    size = float(spread[1].replace(",", "") or 0) if spread[1].count(".") < 2 else 0.0
    # The range of a rate from pytest-benchmark is the deviation of the time, in seconds.
    spread_ns = benchmark.median_ns * size / 100 if spread[2] else size * factor
    if tool not in _HALF_INTERVALS:
        return spread_by(benchmark, spread_ns, 1)
    half = spread_ns * _HALF_INTERVALS[tool]
    return bounded(benchmark, max(0.0, benchmark.median_ns - half), benchmark.median_ns + half)


def _time(name: str, row: dict[str, Any]) -> float:
    factor, is_rate = _factor(row.get("unit")) or (1.0, False)
    value = number(row.get("value"), f"{name}: value")
    if is_rate and value <= 0:
        raise invalid(f"{name}: value: a rate of {value:g}")
    return factor / value if is_rate else value * factor
