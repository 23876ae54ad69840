"""Reads Warpwatch's own plain JSON, which anything that can print can write.

    {"warpwatch_results": 1, "device": "AMD EPYC 9654", "device_kind": "cpu", "facts": {"compiler": "gcc 14.2"},
     "benchmarks": [{"name": "sum/n=1024", "value": 1.31, "unit": "us", "samples": [1.30, 1.31, 1.36],
                     "sizes": {"n": 1024}}]}

Only `warpwatch_results` and, of each benchmark, `name`, `unit` and one of `value` and `samples` must be there; `error`
stands instead of times where a benchmark failed.
"""

from __future__ import annotations

from typing import Any

from warpwatch.contract.words import Status
from warpwatch.formats.model import (
    MESSAGE_LIMIT,
    ForeignBenchmark,
    ForeignResults,
    expect_version,
    invalid,
    name_of,
    number,
    objects,
    read_rows,
    text_of,
    timed,
    unit_of,
    whole,
)

VERSIONS = (1,)
_KEYS = {"warpwatch_results", "device", "device_kind", "facts", "benchmarks"}
_BENCHMARK_KEYS = {"name", "value", "unit", "samples", "sizes", "error"}


def read(values: dict[str, Any], _: dict[str, bytes]) -> ForeignResults:
    if "warpwatch_results" not in values:
        raise invalid("warpwatch_results is missing", 'begin with {"warpwatch_results": 1, "benchmarks": […]}')
    expect_version(values["warpwatch_results"], VERSIONS, "the plain format")
    _expect_known(values, _KEYS, "the file")
    kind = values.get("device_kind", "cpu")
    if kind not in ("cpu", "cuda"):
        raise invalid("device_kind: expected cpu or cuda", "use one of the two")
    facts = values.get("facts", {})
    if not isinstance(facts, dict):
        raise invalid("facts: expected an object")
    device = values.get("device", "")
    name = text_of(device, "device") if device else ""
    left_out: list[str] = []
    rows = objects(values, "benchmarks", left_out)
    benchmarks = read_rows(rows, lambda row: text_of(row.get("name"), "benchmarks: name"), _benchmark, left_out)
    return ForeignResults("plain", kind, name, facts, benchmarks, left_out)


def _benchmark(name: str, item: dict[str, Any]) -> ForeignBenchmark:
    _expect_known(item, _BENCHMARK_KEYS, name)
    given = item.get("sizes", {})
    if not isinstance(given, dict):
        raise invalid(f"{name}: sizes: expected an object")
    sizes = {name_of(key): size for key, value in given.items() if (size := whole(value)) is not None}
    if item.get("error") is not None:
        message = text_of(item["error"], f"{name}: error")[:MESSAGE_LIMIT]
        return ForeignBenchmark(name, Status.CRASHED, message, sizes=sizes)
    samples = item.get("samples", [])
    if not isinstance(samples, list):
        raise invalid(f"{name}: samples: expected a list of numbers")
    factor = unit_of(item.get("unit"), f"{name}: unit")
    times = [number(value, f"{name}: samples") * factor for value in samples]
    centre = number(item["value"], f"{name}: value") * factor if "value" in item else None
    return timed(name, times or ([centre] if centre is not None else []), sizes, centre)


def _expect_known(values: dict[str, Any], known: set[str], what: str) -> None:
    unknown = sorted(set(values) - known)
    if unknown:
        raise invalid(f"{what}: unknown field {unknown[0][:60]!r}", f"known are {', '.join(sorted(known))}")
