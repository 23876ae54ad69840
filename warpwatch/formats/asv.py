"""Reads a results file of asv (airspeed velocity), one of `results/MACHINE/COMMIT-ENVIRONMENT.json`.

A benchmark of times, by asv's rule for their names, is as many benchmarks as it has combinations of parameters. The
median counts, with asv's interval; all samples where asv recorded them.
"""

from __future__ import annotations

from collections import Counter
from itertools import product
from math import isnan
from typing import Any, NamedTuple

from warpwatch.contract.words import Status
from warpwatch.formats.model import (
    BENCHMARK_LIMIT,
    ForeignBenchmark,
    ForeignResults,
    FormatError,
    FormatFault,
    bounded,
    commit_of,
    expect_version,
    host_class,
    invalid,
    moment_of,
    number,
    read_rows,
    timed,
    whole,
)

VERSIONS = (1, 2)
_FACTS = ("arch", "num_cpu", "python")
"""Facts of the machine that change what is measured; the release of its kernel and its memory do not."""


class _Row(NamedTuple):
    """One combination of parameters of a benchmark: the values of asv's columns at its place."""

    name: str
    parameters: tuple[str, ...]
    columns: dict[str, Any]
    place: int

    def value(self, column: str) -> Any:
        """None where asv stored nothing."""
        values = self.columns.get(column)
        if not isinstance(values, list):
            return values if self.place == 0 else None
        return values[self.place] if self.place < len(values) else None


def read(values: dict[str, Any], _: dict[str, bytes]) -> ForeignResults:
    results, machine = values.get("results"), values.get("params")
    if not isinstance(results, dict) or not isinstance(machine, dict):
        raise invalid("it has no results and params, so asv did not write it")
    expect_version(values.get("version", 1), VERSIONS, "the results of asv")
    left_out: list[str] = []
    rows: list[_Row] = []
    kinds: Counter[str] = Counter()
    for name, stored in results.items():
        kind = name.rpartition(".")[2].partition("_")[0].lower()
        if kind not in ("time", "timeraw"):
            kinds[kind[:20]] += 1
        else:
            rows += _rows(name, stored, values.get("result_columns"), left_out)
        # A short file may name millions of combinations.
        if len(rows) > BENCHMARK_LIMIT:
            message = f"it holds more than {BENCHMARK_LIMIT} benchmarks"
            raise FormatError(FormatFault.TOO_LARGE, message, "measure fewer benchmarks per file")
    if kinds:
        left_out.append(f"{kinds.total()} benchmarks measure no time: {', '.join(sorted(kinds)[:5])}")
    benchmarks = read_rows(rows, _name, _benchmark, left_out)
    host = machine.get("machine")
    device = machine.get("cpu") or (host_class(host) if isinstance(host, str) else "")
    facts = {key: machine[key] for key in _FACTS if key in machine}
    facts |= {key: values[key] for key in ("env_name", "requirements", "env_vars") if values.get(key)}
    started = [row.columns.get("started_at") for row in rows]
    measured_at = max((moment for item in started if (moment := moment_of(item))), default=None)
    commit = commit_of(values.get("commit_hash"))
    name = device if isinstance(device, str) else ""
    return ForeignResults("asv", "cpu", name, facts, benchmarks, left_out, commit, measured_at=measured_at)


def _rows(name: str, stored: Any, columns: Any, left_out: list[str]) -> list[_Row]:
    if isinstance(stored, list) and isinstance(columns, list):
        # Columns at the end are missing where asv stored nothing in them.
        by_column = {str(column): value for column, value in zip(columns, stored, strict=False)}
    elif isinstance(stored, list):
        left_out.append(f"{name[:60]}: a value for each of result_columns, which are not there")
        return []
    else:
        by_column = _of_first_version(stored)
    given = by_column.get("params") or []
    if not isinstance(given, list) or not all(isinstance(axis, list) for axis in given):
        left_out.append(f"{name[:60]}: params: expected a list of lists")
        return []
    count = 1
    for axis in given:
        count *= len(axis)
    if count > BENCHMARK_LIMIT:
        left_out.append(f"{name[:60]}: more than {BENCHMARK_LIMIT} combinations of parameters")
        return []
    combinations = product(*([str(value) for value in axis] for axis in given))
    return [_Row(name, parameters, by_column, place) for place, parameters in enumerate(combinations)]


def _of_first_version(stored: Any) -> dict[str, Any]:
    """The same by column, of a file of version 1: an object, or a result alone."""
    if not isinstance(stored, dict):
        return {"result": stored}
    stats = stored.get("stats")
    ends = [_ends(item) for item in stats] if isinstance(stats, list) else []
    return stored | {"stats_ci_99_a": [low for low, _ in ends], "stats_ci_99_b": [high for _, high in ends]}


def _ends(stats: Any) -> tuple[Any, Any]:
    ends = stats.get("ci_99") if isinstance(stats, dict) else None
    return (ends[0], ends[1]) if isinstance(ends, list) and len(ends) == 2 else (None, None)


def _name(row: _Row) -> str:
    return f"{row.name}({','.join(row.parameters)})" if row.parameters else row.name


def _benchmark(name: str, row: _Row) -> ForeignBenchmark:
    numbers = {f"arg{index}": whole(text.strip("'")) for index, text in enumerate(row.parameters, start=1)}
    sizes = {key: size for key, size in numbers.items() if size is not None}
    result = row.value("result")
    if result is None:
        return ForeignBenchmark(name, Status.CRASHED, "asv says that it failed", sizes=sizes)
    if isinstance(result, float) and isnan(result):
        return ForeignBenchmark(name, Status.SKIPPED, "asv skipped it", sizes=sizes)
    centre = number(result, f"{name}: result") * 1e9
    samples = row.value("samples")
    if isinstance(samples, list) and samples:
        return timed(name, [number(value, f"{name}: samples") * 1e9 for value in samples], sizes, centre)
    benchmark = timed(name, [centre], sizes)
    ends = row.value("stats_ci_99_a"), row.value("stats_ci_99_b")
    low, high = (end * 1e9 if isinstance(end, int | float) else float("inf") for end in ends)
    return bounded(benchmark, low, high)
