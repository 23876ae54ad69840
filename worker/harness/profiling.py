"""Profiles one variant on one case: a Chrome trace, and what can be read from it.

The trace may be long, so it is compressed and read back piece by piece and is never in memory as a whole.
"""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from warpwatch.contract.messages import ProfileReply, Request
from warpwatch.contract.spec import PLAN_LIMITS, ProfilePlan
from warpwatch.contract.words import Status

from .counters import count_hardware
from .problem import CaseProblem
from .profile_summary import launch_sentence, summarize
from .rotation import Rotation
from .trace_events import CALL, read_recording
from .trace_tables import kernel_table, runtime_calls

_CHUNK = 2**20
_TABLE_LIMIT = 16 * 2**20
"""Bytes of a trace beyond which torch takes seconds to make its table."""
_TABLE_ROWS = 10
_HOST_CALLS, _HOST_NS = 20, 500_000_000


def profile_problem(problem: CaseProblem, request: Request, output: Path) -> ProfileReply:
    """The calls that the request's plan records, on two input sets in turn; the compressed trace goes to `output`."""
    plan = request.profile
    check_plan(plan)
    plain, kind = output.with_name(output.name + ".plain"), problem.device.type
    try:
        with problem.modes():
            rotation = Rotation(problem, request.seed, 2)
            # Compilation and lazy set-up would drown the calls themselves.
            for call in rotation.calls:
                call()
            problem.synchronize()
            timed = host_timer(problem, rotation) if kind == "cuda" else None
            recorded = _record(problem, rotation, plain, plan)
        size = plain.stat().st_size
        with plain.open("rb") as source, gzip.open(output, "wb", compresslevel=6) as target:
            shutil.copyfileobj(source, target, _CHUNK)
        recording = read_recording(plain)
        summary = summarize(recording, kind) | recorded | {"plan": _plain(plan)}
        if timed is not None:
            summary["host_timer"] = timed
            if "launch" in summary:
                bound, text = launch_sentence(summary["launch"], timed["issue_ns"])
                summary["launch"] |= {"bound": bound, "sentence": text}
        table = kernel_table(recording, kind)
        calls = runtime_calls(recording)
    finally:
        plain.unlink(missing_ok=True)
    counted = count_hardware(request, problem.device, output.parent) if plan.counters else None
    if counted is not None:
        summary["counters"] = {"message": counted.message, "rows": counted.rows}
    return ProfileReply(Status.OK, "", str(output), size, table, calls, summary, counted.report if counted else None)


def check_plan(plan: ProfilePlan) -> None:
    """ValueError for numbers of calls that cannot be, or that would make a trace nobody can open."""
    for name, (low, high) in PLAN_LIMITS.items():
        value = getattr(plan, name)
        if not low <= value <= high:
            raise ValueError(f"a profile's {name} is {low} to {high}, not {value}")


def host_timer(problem: CaseProblem, rotation: Rotation) -> dict[str, Any]:
    """{"issue_ns", "call_ns", "count"}: the host's clock stopped when a call returns, and when the device is done.

    On a GPU the first is the time to issue the work, which many take for the time of the call.
    """
    issued: list[int] = []
    done: list[int] = []
    begun = perf_counter_ns()
    while len(issued) < _HOST_CALLS and perf_counter_ns() - begun < _HOST_NS:
        (call,), _ = rotation.batch(1)
        problem.synchronize()
        start = perf_counter_ns()
        call()
        issued.append(perf_counter_ns() - start)
        problem.synchronize()
        done.append(perf_counter_ns() - start)
    return {"issue_ns": float(median(issued)), "call_ns": float(median(done)), "count": len(issued)}


def _record(problem: CaseProblem, rotation: Rotation, plain: Path, plan: ProfilePlan) -> dict[str, Any]:
    """Writes the trace; returns torch's own table, and the total time of each repetition when there are several."""
    kind = problem.device.type
    cycles: list[float] = []

    def keep(profiler: Any) -> None:
        profiler.export_chrome_trace(str(plain))
        if plan.repeat > 1:
            rows = kernel_table(read_recording(plain), kind)
            cycles.append(sum(row.total_ns for row in rows) / plan.active)

    scheduled = plan.wait or plan.warm_up or plan.repeat > 1
    steps = schedule(wait=plan.wait, warmup=plan.warm_up, active=plan.active, repeat=plan.repeat) if scheduled else None
    with profile(
        activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if kind == "cuda" else [])],
        schedule=steps,
        record_shapes=True,
        profile_memory=True,
        acc_events=True,
        on_trace_ready=keep,
    ) as profiler:
        for _ in range(plan.repeat * (plan.wait + plan.warm_up + plan.active)):
            (call,), _ = rotation.batch(1)
            with _marked(problem):
                call()
            problem.synchronize()
            profiler.step()
    found: dict[str, Any] = {"cycles": cycles} if cycles else {}
    if plain.stat().st_size <= _TABLE_LIMIT:
        by = "self_device_time_total" if kind == "cuda" else "self_cpu_time_total"
        averages = profiler.key_averages()
        found["table"] = averages.table(sort_by=by, row_limit=_TABLE_ROWS, max_name_column_width=60)
    return found


@contextmanager
def _marked(problem: CaseProblem) -> Iterator[None]:
    """A call marked in the trace, and on a GPU as an NVTX range for Nsight Systems and Compute."""
    name = f"{problem.operator.name}/{problem.variant.name}/{problem.case.key}"
    nvtx = torch.cuda.nvtx.range(name) if problem.device.type == "cuda" else nullcontext()
    with torch.profiler.record_function(CALL), nvtx:
        yield


def _plain(plan: ProfilePlan) -> dict[str, Any]:
    return {name: getattr(plan, name) for name in (*PLAN_LIMITS, "counters")}
