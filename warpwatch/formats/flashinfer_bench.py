"""Reads traces of flashinfer-bench, JSON Lines: the latency of a solution on a workload, which is a benchmark.

A workload is called by its axes and the start of its id, because several of a definition have the same axes. Of two
traces of one benchmark the later line counts: flashinfer-bench appends to its files.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from warpwatch.contract.words import Status
from warpwatch.formats.model import (
    ForeignBenchmark,
    ForeignResults,
    FormatError,
    invalid,
    name_of,
    number,
    read_rows,
    text_of,
    timed,
    whole,
)

_STATUSES = {"COMPILE_ERROR": Status.BUILD_FAILED, "TIMEOUT": Status.TIMED_OUT}


def read(values: dict[str, Any], _: dict[str, bytes]) -> ForeignResults:
    left_out: list[str] = []
    rows: dict[str, dict[str, Any]] = {}
    unmeasured = 0
    for number_of_line, line in enumerate(values["lines"], start=1):
        try:
            trace = _object(json.loads(line, parse_constant=float), "trace")
            if not trace.get("evaluation"):
                unmeasured += 1
            else:
                rows[_name(trace)] = trace
        except FormatError as error:
            left_out.append(f"line {number_of_line}: {error.message}")
        except (ValueError, RecursionError):
            left_out.append(f"line {number_of_line}: it is not JSON")
    if unmeasured:
        left_out.append(f"{unmeasured} workloads have no evaluation")
    benchmarks = read_rows(rows.items(), lambda row: row[0], lambda name, row: _benchmark(name, row[1]), left_out)
    libraries = [_environment(trace).get("libs") for trace in rows.values()]
    facts = next((item for item in libraries if isinstance(item, dict)), {})
    return ForeignResults("flashinfer-bench", "cuda", "", facts, benchmarks, left_out)


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise invalid(f"{where}: expected an object")
    return value


def _environment(trace: dict[str, Any]) -> dict[str, Any]:
    evaluation = trace["evaluation"]
    environment = evaluation.get("environment") if isinstance(evaluation, dict) else None
    return environment if isinstance(environment, dict) else {}


def _axes(trace: dict[str, Any]) -> dict[str, Any]:
    return _object(_object(trace.get("workload"), "workload").get("axes", {}), "workload: axes")


def _name(trace: dict[str, Any]) -> str:
    names = [text_of(trace.get(key), key) for key in ("definition", "solution")]
    axes = ",".join(f"{axis}={size}" for axis, size in _axes(trace).items())
    identity = trace["workload"].get("uuid")
    return "/".join([*names, f"{axes}#{identity[:8]}" if isinstance(identity, str) and identity else axes])


def _benchmark(name: str, trace: dict[str, Any]) -> ForeignBenchmark:
    evaluation = _object(trace["evaluation"], f"{name}: evaluation")
    sizes = {name_of(axis): size for axis, value in _axes(trace).items() if (size := whole(value)) is not None}
    environment = _environment(trace)
    model = environment.get("hardware", environment.get("device"))
    device = model if isinstance(model, str) else ""
    status = text_of(evaluation.get("status"), f"{name}: status")
    if status != "PASSED":
        fault = Status.WRONG if status.startswith("INCORRECT") else _STATUSES.get(status, Status.CRASHED)
        return ForeignBenchmark(name, fault, f"flashinfer-bench says {status[:60]}", sizes=sizes, device=device)
    performance = _object(evaluation.get("performance"), f"{name}: performance")
    latency = number(performance.get("latency_ms"), f"{name}: latency_ms")
    return replace(timed(name, [latency * 1e6], sizes), device=device)
