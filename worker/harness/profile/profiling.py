"""Profiles one variant on one case: writes a Chrome trace and summarises it.

A trace may be large, so it is compressed and read in pieces and is never in memory as a whole.
"""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter_ns
from typing import Any

import torch
from torch.profiler import ProfilerActivity, schedule

from warpwatch.contract.activities import Activity
from warpwatch.contract.chrome_trace import CALL
from warpwatch.contract.measurement import Counter
from warpwatch.contract.messages import ProfileReply, Request
from warpwatch.contract.spec import PLAN_LIMITS, ProfilePlan
from warpwatch.contract.words import LaneUse, Status

from ..failures import WrongResultError
from ..guards.integrity import TamperGuard
from ..problem import CaseProblem
from ..timers.counts import count_energy
from ..timers.kernel import Profiler
from ..timers.rotation import Rotation, no_collection
from ..timers.warm_up import call_first
from ..turns import STOPWATCH
from .counters import HardwareCounters, count_hardware
from .events import join_traces, read_recording
from .summary import kernel_table, launch_sentence, runtime_calls, summarize

_CHUNK = 2**20
_TABLE_LIMIT = 16 * 2**20
"""Above this size of a trace in bytes, torch takes seconds to make its table."""
_TABLE_ROWS = 10
_HOST_CALLS, _HOST_NS = 20, 500_000_000
_FEW_HOST_CALLS, _FEW_HOST_NS = 5, 100_000_000
"""After this time so few calls do: the longer a call takes, the less one differs from the next."""


def profile_problem(problem: CaseProblem, request: Request, output: Path, guard: TamperGuard) -> ProfileReply:
    """Profiles the calls of the request's plan on two alternating input sets; writes the compressed trace to `output`.

    Of several children that profile, one at a time has the device. Raises ValueError for a plan outside PLAN_LIMITS.
    """
    plan = request.profile
    for name, (low, high) in PLAN_LIMITS.items():
        value = getattr(plan, name)
        if not low <= value <= high:
            raise ValueError(f"a profile's {name} must be from {low} to {high}, not {value}")
    if problem.turns.are_taken:
        call_first(problem, request.seed, guard)
    plain, kind = output.with_name(output.name + ".plain"), problem.device.type
    try:
        # A trace shows the host's time as well, in which no other child captures and no garbage is collected.
        with problem.turns.use(LaneUse.QUIET), problem.modes(), no_collection():
            rotation = Rotation(problem, request.seed, 2)
            # Compilation and lazy initialisation would hide the calls themselves.
            with STOPWATCH.measure(Activity.WARM_UP):
                for call in rotation.calls:
                    call()
                problem.synchronize()
            host_times = time_host(problem, rotation) if kind == "cuda" else None
            profiler, cycles = _record(problem, rotation, plain, plan)
            size = plain.stat().st_size
            older = _record_by_autograd(problem, rotation)
        # Collections would look at every event of a trace again and again, and find nothing to free.
        with STOPWATCH.measure(Activity.RECORD), no_collection():
            recording = read_recording(plain)
            if recording.is_mended:
                # No viewer opens a trace of which one event is no JSON.
                torn = plain.rename(plain.with_name(plain.name + ".torn"))
                join_traces([torn], plain)
                size = plain.stat().st_size
            with plain.open("rb") as source, gzip.open(output, "wb", compresslevel=6) as target:
                shutil.copyfileobj(source, target, _CHUNK)
            plan_as_json = {name: getattr(plan, name) for name in (*PLAN_LIMITS, "counters")}
            summary = summarize(recording, kind) | {"plan": plan_as_json}
            if recording.left_out:
                summary["left_out"] = recording.left_out
            if cycles:
                summary["cycles"] = cycles
            if size <= _TABLE_LIMIT:
                summary |= {"table": _table(profiler, kind), "autograd_table": _table(older, kind)}
            if host_times is not None:
                summary["host_timer"] = host_times
                if "launch" in summary:
                    is_bound, sentence = launch_sentence(summary["launch"], host_times["issue_ns"])
                    summary["launch"] |= {"bound": is_bound, "sentence": sentence}
            table = kernel_table(recording, kind)
            calls = runtime_calls(recording)
    finally:
        plain.unlink(missing_ok=True)
    energy: dict[str, Counter] = {}
    if request.energy and host_times is not None:
        energy = _count_energy(problem, request.seed, host_times["call_ns"])
    hardware: HardwareCounters | None = None
    if plan.counters:
        with problem.turns.use(LaneUse.DEVICE):
            hardware = count_hardware(request, problem.device, output.parent)
        summary["counters"] = {"message": hardware.message, "rows": hardware.rows}
    report = hardware.report if hardware is not None else None
    return ProfileReply(Status.OK, "", str(output), size, table, calls, summary, report, energy)


def _count_energy(problem: CaseProblem, seed: int, call_ns: float) -> dict[str, Counter]:
    """The energy of a call, where this GPU counts it and the results are right: a wrong call is profiled as well."""
    with problem.modes(), suppress(WrongResultError):
        return dict(count_energy(problem, seed, call_ns).counters)
    return {}


def time_host(problem: CaseProblem, rotation: Rotation) -> dict[str, Any]:
    """{"issue_ns", "call_ns", "count"}: host time until a call returns, and until the device is idle.

    On a GPU the first is the time to issue the work, which is often mistaken for the time of the call.
    """
    issue_ns: list[int] = []
    call_ns: list[int] = []
    begin = perf_counter_ns()
    while len(issue_ns) < _HOST_CALLS:
        limit_ns = _HOST_NS if len(issue_ns) < _FEW_HOST_CALLS else _FEW_HOST_NS
        if perf_counter_ns() - begin >= limit_ns:
            break
        (call,), _ = rotation.batch(1)
        problem.synchronize()
        start = perf_counter_ns()
        call()
        issue_ns.append(perf_counter_ns() - start)
        problem.synchronize()
        call_ns.append(perf_counter_ns() - start)
    return {"issue_ns": float(median(issue_ns)), "call_ns": float(median(call_ns)), "count": len(issue_ns)}


def _record(problem: CaseProblem, rotation: Rotation, plain: Path, plan: ProfilePlan) -> tuple[Profiler, list[float]]:
    """Writes the trace of all repetitions to `plain`; returns the profiler, and of several repetitions the nanoseconds
    per call of each."""
    kind = problem.device.type
    parts: list[Path] = []
    cycles: list[float] = []

    def export(profiler: Any) -> None:
        parts.append(Path(folder) / str(len(parts)))
        profiler.export_chrome_trace(str(parts[-1]))
        if plan.repeat > 1:
            with STOPWATCH.measure(Activity.RECORD):
                rows = kernel_table(read_recording(parts[-1]), kind)
            cycles.append(sum(row.total_ns for row in rows) / plan.active)

    scheduled = plan.wait or plan.warm_up or plan.repeat > 1
    steps = schedule(wait=plan.wait, warmup=plan.warm_up, active=plan.active, repeat=plan.repeat) if scheduled else None
    with TemporaryDirectory(dir=plain.parent) as folder:
        with Profiler(
            activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if kind == "cuda" else [])],
            schedule=steps,
            record_shapes=True,
            profile_memory=True,
            # To keep the events of several repetitions, torch makes its objects of them while it still records.
            acc_events=plan.repeat > 1,
            on_trace_ready=export,
        ) as profiler:
            for _ in range(plan.repeat * (plan.wait + plan.warm_up + plan.active)):
                (call,), _ = rotation.batch(1)
                with _marked(problem):
                    call()
                problem.synchronize()
                profiler.step()
        if len(parts) == 1:
            parts[0].rename(plain)
        else:
            join_traces(parts, plain)
    return profiler, cycles


def _record_by_autograd(problem: CaseProblem, rotation: Rotation) -> torch.autograd.profiler.profile:
    """torch.autograd.profiler of one call: the older profiler, which programs still use."""
    profiler = torch.autograd.profiler.profile(use_device="cuda" if problem.device.type == "cuda" else None)
    with profiler:
        (call,), _ = rotation.batch(1)
        call()
        problem.synchronize()
    return profiler


def _table(profiler: Profiler | torch.autograd.profiler.profile, device_kind: str) -> str:
    """The table that torch prints of a profile. torch makes an object of every event first, which takes most of the
    time of a profile."""
    by = "self_device_time_total" if device_kind == "cuda" else "self_cpu_time_total"
    table: str = profiler.key_averages().table(sort_by=by, row_limit=_TABLE_ROWS, max_name_column_width=60)
    return table


@contextmanager
def _marked(problem: CaseProblem) -> Iterator[None]:
    """Marks a call in the trace, and on a GPU as an NVTX range for Nsight Systems and Nsight Compute."""
    name = f"{problem.operator.name}/{problem.variant.name}/{problem.case.key}"
    nvtx = torch.cuda.nvtx.range(name) if problem.device.type == "cuda" else nullcontext()
    with torch.profiler.record_function(CALL), nvtx:
        yield
