"""Profiles one variant on one case: a Chrome trace, and the table of what ran in it.

The trace may be long, so it is compressed and read back piece by piece and is never in memory as a whole.
"""

from __future__ import annotations

import gzip
import json
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from ..protocol import ProfileReply, Status, TraceKernel
from .problem import Problem
from .rotation import Rotation

WAIT, WARM_UP, ACTIVE = 1, 1, 2
"""Calls that are skipped, run to warm up, and recorded."""
_CALL = "warpwatch call"
_CHUNK = 2**20
_DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
_RUNTIME_CATEGORIES = ("cuda_runtime", "cuda_driver")
_RUNTIME_NAMES = {"INVALID": "unknown"}
"""What the profiler calls functions that are newer than itself."""
_KERNEL_FACTS = {
    "grid": "grid",
    "block": "block",
    "registers per thread": "registers",
    "shared memory": "shared_bytes",
    "est. achieved occupancy %": "occupancy_percent",
    "bytes": "bytes",
}


@dataclass(slots=True)
class _Row:
    calls: int = 0
    total_ns: float = 0.0
    details: dict[str, Any] = field(default_factory=dict)


def profile_problem(problem: Problem, seed: int, output: Path) -> ProfileReply:
    """Two recorded calls on two input sets; the compressed trace goes to `output`."""
    plain = output.with_name(output.name + ".plain")
    try:
        with problem.modes():
            _record(problem, Rotation(problem, seed, 2), plain)
        size = plain.stat().st_size
        with plain.open("rb") as source, gzip.open(output, "wb", compresslevel=6) as target:
            shutil.copyfileobj(source, target, _CHUNK)
        kernels, runtime_calls = summarize_trace(plain, problem.device.type)
    finally:
        plain.unlink(missing_ok=True)
    return ProfileReply(Status.OK, "", str(output), size, kernels, runtime_calls)


def summarize_trace(path: Path, device_kind: str) -> tuple[list[TraceKernel], dict[str, float]]:
    """(kernel table by total time, CUDA runtime calls per recorded call) of an uncompressed Chrome trace."""
    rows: dict[str, _Row] = {}
    runtime: list[tuple[str, float]] = []
    windows: list[tuple[float, float]] = []
    operations = []
    for event in events_of(path):
        category = event.get("cat")
        if category in _DEVICE_CATEGORIES:
            _add(rows, event["name"], float(event["dur"]) * 1e3, _facts(event.get("args", {})))
        elif category in _RUNTIME_CATEGORIES:
            runtime.append((_RUNTIME_NAMES.get(event["name"], event["name"]), float(event["ts"])))
        elif category == "user_annotation" and event["name"] == _CALL:
            windows.append((float(event["ts"]), float(event["ts"]) + float(event["dur"])))
        elif category == "cpu_op" and device_kind == "cpu":
            operations.append((event["tid"], float(event["ts"]), float(event["dur"]), event["name"], event.get("args", {})))
    for name, self_us, arguments in _self_times(operations):
        shapes = arguments.get("Input Dims")
        _add(rows, name, self_us * 1e3, {"shapes": shapes} if shapes else {})
    total = sum(row.total_ns for row in rows.values()) or 1.0
    table = [
        TraceKernel(name, row.calls, row.total_ns, row.total_ns / row.calls, row.total_ns / total, row.details)
        for name, row in sorted(rows.items(), key=lambda item: -item[1].total_ns)
    ]
    # Outside the calls there is only the harness, waiting for the device.
    counts = Counter(name for name, at in runtime if any(start <= at <= end for start, end in windows))
    return table, {name: count / len(windows) for name, count in sorted(counts.items())}


def events_of(path: Path) -> Iterator[dict[str, Any]]:
    """Every trace event of a Chrome trace, read in pieces of 1 MiB."""
    decoder = json.JSONDecoder()
    with path.open(encoding="utf-8", errors="replace") as file:
        text = _skip_to_events(file.read(_CHUNK), file)
        while True:
            text = text.lstrip(" \n\r\t,")
            if text.startswith("]"):
                return
            try:
                event, end = decoder.raw_decode(text)
            except json.JSONDecodeError:
                more = file.read(_CHUNK)
                if not more:
                    return
                text += more
                continue
            yield event
            text = text[end:]


def _record(problem: Problem, rotation: Rotation, plain: Path) -> None:
    activities = [ProfilerActivity.CPU]
    if problem.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    steps = schedule(wait=WAIT, warmup=WARM_UP, active=ACTIVE, repeat=1)
    # Compilation and lazy set-up would drown the calls themselves.
    for call in rotation.calls:
        call()
    problem.synchronize()
    with profile(
        activities=activities,
        schedule=steps,
        record_shapes=True,
        acc_events=True,
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(plain)),
    ) as profiler:
        for _ in range(WAIT + WARM_UP + ACTIVE):
            (call,), _ = rotation.batch(1)
            with torch.profiler.record_function(_CALL):
                call()
            problem.synchronize()
            profiler.step()


def _skip_to_events(text: str, file: Any) -> str:
    while (start := text.find('"traceEvents"')) < 0:
        more = file.read(_CHUNK)
        if not more:
            return "]"
        text += more
    return text[text.index("[", start) + 1 :]


def _add(rows: dict[str, _Row], name: str, nanoseconds: float, details: dict[str, Any]) -> None:
    row = rows.setdefault(name, _Row(details=details))
    row.calls += 1
    row.total_ns += nanoseconds


def _facts(arguments: dict[str, Any]) -> dict[str, Any]:
    return {ours: arguments[theirs] for theirs, ours in _KERNEL_FACTS.items() if theirs in arguments}


def _self_times(operations: list[tuple[Any, float, float, str, dict[str, Any]]]) -> Iterator[tuple[str, float, dict[str, Any]]]:
    """(name, microseconds without the operations inside, arguments) of every torch operation, thread by thread."""
    open_ones: list[list[Any]] = []
    thread = None
    for tid, start, duration, name, arguments in sorted(operations, key=lambda o: (str(o[0]), o[1], -o[2])):
        while open_ones and (tid != thread or start >= open_ones[-1][0]):
            yield tuple(open_ones.pop()[1:])
        if open_ones:
            open_ones[-1][2] -= duration
        open_ones.append([start + duration, name, duration, arguments])
        thread = tid
    while open_ones:
        yield tuple(open_ones.pop()[1:])
