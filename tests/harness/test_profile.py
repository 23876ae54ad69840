"""Profiles: traces, their summaries, the plan of recorded calls, and hardware counters."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
import zipfile
from base64 import b64decode
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.harness.child import BOOTSTRAP, ROOT, Harness
from warpwatch.contract.messages import ProfileReply, Request
from warpwatch.contract.spec import ProfilePlan
from warpwatch.contract.words import Status
from warpwatch.db.traces import KernelView, TraceDetail
from warpwatch.server.explanation.alignment import Alignment, align_traces
from warpwatch.worker.harness.profile import counters
from warpwatch.worker.harness.profile.events import Recording, join_traces, read_recording
from warpwatch.worker.harness.profile.profiling import time_host
from warpwatch.worker.harness.profile.summary import kernel_table, launch_sentence, occupancy, runtime_calls, summarize
from warpwatch.worker.harness.timers.kernel import Profiler, record_memory

H100 = {
    "warpSize": 32,
    "regsPerMultiprocessor": 65536,
    "sharedMemPerMultiprocessor": 233472,
    "maxThreadsPerMultiprocessor": 2048,
    "computeMajor": 9,
    "computeMinor": 0,
    "numSms": 132,
}


def profiled(harness: Harness, folder: Path, case: str = "n=33,f32,bwd", **plan: Any) -> ProfileReply:
    output = folder / "trace.json.gz"
    names = {"operator": "pair", "variant": "good", "case": case, "output": str(output), "profile": ProfilePlan(**plan)}
    return harness.ask(ProfileReply, "profile", **names)


def calls_in(folder: Path) -> int:
    events = json.loads(gzip.decompress((folder / "trace.json.gz").read_bytes()))["traceEvents"]
    return sum(event["name"] == "warpwatch call" and event.get("cat") == "user_annotation" for event in events)


def test_profile_writes_a_trace_and_its_table(harness: Harness, tmp_path: Path) -> None:
    reply = profiled(harness, tmp_path)
    assert (reply.status, reply.message, reply.path) == (Status.OK, "", str(tmp_path / "trace.json.gz"))
    assert len(gzip.decompress((tmp_path / "trace.json.gz").read_bytes())) == reply.size
    assert calls_in(tmp_path) == 2
    rows = {kernel.name: kernel for kernel in reply.kernels}
    assert rows["aten::mm"].calls == 4
    assert rows["aten::mm"].details["shapes"][0] == [33, 33]
    assert rows["aten::mm"].mean_ns == pytest.approx(rows["aten::mm"].total_ns / 4)
    assert sum(kernel.share for kernel in reply.kernels) == pytest.approx(1)
    assert [kernel.total_ns for kernel in reply.kernels] == sorted((k.total_ns for k in reply.kernels), reverse=True)
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json.gz"]


def test_a_profile_does_not_import_torchs_compilers(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own profiler does, which takes seconds: it asks torch for a module that is imported when asked for."""
    asked: list[str] = []

    def find(name: str) -> None:
        asked.append(name)
        raise AttributeError(name)

    monkeypatch.delitem(sys.modules, "torch._inductor", raising=False)
    monkeypatch.delitem(vars(torch), "_inductor", raising=False)
    monkeypatch.setattr(torch, "__getattr__", find)
    with Profiler() as profiler:
        torch.ones(3).sum()
    assert "aten::sum" in {row.key for row in profiler.key_averages()}
    assert "_inductor" not in asked
    assert torch.__getattr__ is find


@pytest.mark.parametrize(
    ("call", "held"),
    [
        (lambda x: x * x, 1_000_000),
        (lambda x: x * x * x, 2_000_000),
        (lambda x: (x * x).mul_(x), 1_000_000),
        (lambda x: x.view(500, 500), 0),
    ],
)
def test_the_memory_of_a_call_is_what_it_holds_at_most(call: Callable[[Tensor], Tensor], held: int) -> None:
    x = torch.ones(250_000)
    assert record_memory(lambda: call(x), x.device)[0] == held


def test_a_profile_tells_memory_order_and_torchs_own_table(harness: Harness, tmp_path: Path) -> None:
    summary = profiled(harness, tmp_path, case="n=33,f32,fwd").summary
    assert summary["plan"] == {"wait": 1, "warm_up": 1, "active": 2, "repeat": 1, "counters": False}
    assert summary["calls"] == 2
    assert "aten::mm" in [name for name, _ in summary["sequence"]]
    memory = summary["memory"]
    assert memory["device"] == "cpu"
    assert memory["allocations"] >= 2, "every call makes its result"
    assert memory["peak_bytes"] - memory["base_bytes"] >= 33 * 33 * 4
    assert memory["points"][0] == [0.0, memory["base_bytes"]]
    assert "aten::mm" in summary["table"]
    assert "Self CPU" in summary["table"]
    assert "aten::mm" in summary["autograd_table"]
    assert "launch" not in summary
    assert "counters" not in summary


def test_the_plan_says_which_calls_are_recorded(harness: Harness, tmp_path: Path) -> None:
    scheduled = profiled(harness, tmp_path, wait=3, warm_up=1, active=4)
    assert (scheduled.status, calls_in(tmp_path)) == (Status.OK, 4)
    text = gzip.decompress((tmp_path / "trace.json.gz").read_bytes()).decode()
    assert sorted(set(re.findall(r"ProfilerStep#(\d+)", text))) == ["4", "5", "6", "7"], (
        "the first four calls are not recorded"
    )
    unscheduled = profiled(harness, tmp_path, wait=0, warm_up=0, active=3)
    assert (unscheduled.status, calls_in(tmp_path)) == (Status.OK, 3)
    repeated = profiled(harness, tmp_path, active=2, repeat=3)
    assert (repeated.status, calls_in(tmp_path)) == (Status.OK, 6), "every repetition is kept"
    assert len(repeated.summary["cycles"]) == 3
    mean = sum(kernel.total_ns for kernel in repeated.kernels) / 6
    assert sum(repeated.summary["cycles"]) / 3 == pytest.approx(mean), "the trace has the calls of every repetition"
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json.gz"]


@pytest.mark.parametrize("plan", [{"active": 0}, {"active": 101}, {"repeat": 0}, {"wait": -1}])
def test_a_plan_that_cannot_be_says_so(harness: Harness, tmp_path: Path, plan: dict[str, Any]) -> None:
    reply = profiled(harness, tmp_path, **plan)
    assert reply.status is Status.CRASHED
    assert "a profile's" in reply.message
    assert list(tmp_path.iterdir()) == []


def test_counters_that_cannot_be_read_are_a_sentence(harness: Harness, tmp_path: Path) -> None:
    reply = profiled(harness, tmp_path, counters=True)
    assert reply.status is Status.OK
    assert reply.summary["counters"] == {"message": "Only NVIDIA GPUs have hardware counters.", "rows": []}
    assert reply.report is None


# --- synthetic traces -----------------------------------------------------------------------------------------


def recording(folder: Path, events: list[dict[str, Any]], device: dict[str, Any] | None = None) -> Recording:
    path = folder / "trace.json"
    path.write_text(json.dumps({"deviceProperties": [device] if device else [], "traceEvents": events}))
    return read_recording(path)


def call(start: float, duration: float) -> dict[str, Any]:
    return {"cat": "user_annotation", "name": "warpwatch call", "ts": start, "dur": duration}


def launch(start: float, correlation: int, name: str = "cudaLaunchKernel") -> dict[str, Any]:
    return {
        "cat": "cuda_runtime",
        "name": name,
        "ts": start,
        "dur": 1,
        "args": {"correlation": correlation, "External id": correlation},
    }


def kernel(
    name: str, start: float, duration: float, correlation: int, grid: int = 1, device: int = 0
) -> dict[str, Any]:
    facts = {
        "device": device,
        "grid": [grid, 1, 1],
        "block": [128, 1, 1],
        "registers per thread": 76,
        "shared memory": 20480,
    }
    return {
        "cat": "kernel",
        "name": name,
        "ts": start,
        "dur": duration,
        "args": {"correlation": correlation, "External id": correlation, **facts},
    }


def test_the_table_counts_no_time_twice(tmp_path: Path) -> None:
    spans = [("outer", 1, 0, 10), ("inner", 1, 2, 3), ("inner", 1, 6, 1), ("outer", 1, 20, 5), ("elsewhere", 2, 3, 4)]
    events = [{"cat": "cpu_op", "name": name, "tid": tid, "ts": ts, "dur": dur} for name, tid, ts, dur in spans]
    table = kernel_table(recording(tmp_path, events), "cpu")
    assert [(row.name, row.calls, row.total_ns) for row in table] == [
        ("outer", 2, 11e3),
        ("inner", 2, 4e3),
        ("elsewhere", 1, 4e3),
    ]


def test_runtime_calls_outside_the_measured_calls_do_not_count(tmp_path: Path) -> None:
    events = [
        launch(1, 1),
        launch(9, 2, "cudaDeviceSynchronize"),
        launch(12, 3),
        launch(13, 4, "INVALID"),
        call(0, 5),
        call(10, 5),
    ]
    trace = recording(tmp_path, [*events, kernel("k", 3, 2, 1), kernel("k", 14, 2, 3)])
    assert runtime_calls(trace) == {"cudaLaunchKernel": 1.0, "unknown": 0.5}
    (row,) = kernel_table(trace, "cuda")
    assert (row.calls, row.mean_ns, row.share, row.details["registers"]) == (2, 2000.0, 1.0, 76)


def test_kernels_belong_to_the_call_that_launched_them(tmp_path: Path) -> None:
    """Both calls are issued before the device starts; a short kernel overlaps a long one, and each call has one gap."""
    events = [call(0, 10), call(20, 10)]
    for base, first in ((0, 1), (20, 11)):
        events += [launch(base + 1, first), launch(base + 3, first + 1), launch(base + 5, first + 2)]
        at = 100 + 5 * base
        events += [kernel("a", at, 18, first), kernel("b", at + 5, 3, first + 1), kernel("c", at + 20, 5, first + 2)]
        events.append(
            {"cat": "cpu_op", "name": "aten::c", "tid": 1, "ts": base + 4, "dur": 3, "args": {"External id": first + 2}}
        )
    summary = summarize(recording(tmp_path, events, H100), "cuda")
    assert summary["sequence"] == [["a", 18e3], ["b", 3e3], ["c", 5e3]]
    assert summary["launch"] == {"host_ns": 10e3, "launch_ns": 3e3, "launches": 3.0, "device_ns": 23e3}
    gaps = summary["gaps"]
    assert (gaps["window_ns"], gaps["idle_ns"], gaps["share"], gaps["count"]) == (50e3, 4e3, 0.08, 2)
    assert gaps["largest"][0] == {"ns": 2e3, "after": "a", "before": "c", "operator": "aten::c"}
    named = {row["kernel"]: row for row in summary["survey"]}
    assert (named["c"]["operator"], named["c"]["launches"], named["c"]["grid"]) == ("aten::c", 2, [1, 1, 1])
    assert named["a"]["operator"] is None


def test_busy_and_idle_times_are_those_of_each_device(tmp_path: Path) -> None:
    """While one device works the other waits: together they would look busy all the time."""
    events = [call(0, 40), launch(1, 1), launch(2, 2), launch(3, 3), launch(4, 4)]
    events += [kernel("a", 10, 10, 1, device=0), kernel("b", 20, 10, 2, device=1)]
    events += [kernel("c", 30, 5, 3, device=0), kernel("d", 31, 1, 4, device=0)]
    summary = summarize(recording(tmp_path, events), "cuda")
    assert (summary["launch"]["device_ns"], summary["launch"]["devices_ns"]) == (15e3, {"0": 15e3, "1": 10e3})
    gaps = summary["gaps"]
    assert (gaps["window_ns"], gaps["idle_ns"], gaps["count"]) == (35e3, 10e3, 1)
    assert gaps["largest"] == [{"ns": 10e3, "after": "a", "before": "c", "operator": None, "device": "0"}]


def test_calls_that_differ_have_no_common_order(tmp_path: Path) -> None:
    events = [call(0, 5), call(10, 5), launch(1, 1), launch(11, 2), kernel("a", 2, 1, 1), kernel("b", 12, 1, 2)]
    assert "sequence" not in summarize(recording(tmp_path, events), "cuda")


@pytest.mark.parametrize(("issue", "bound"), [(50e3, True), (5e3, False)])
def test_launch_bound_is_said_with_its_figures(issue: float, bound: bool) -> None:
    is_bound, text = launch_sentence({"host_ns": 90e3, "launch_ns": 4e3, "launches": 1.0, "device_ns": 20e3}, issue)
    assert is_bound is bound
    assert all(figure in text for figure in (f"{issue / 1e3:.1f} µs", "20.0 µs", "90.0 µs", "1 launch or"))
    assert ("waits for the host" in text) is bound


def test_memory_outside_the_calls_does_not_count(tmp_path: Path) -> None:
    def event(when: float, total: int, change: int, kind: int) -> dict[str, Any]:
        arguments = {"Total Allocated": total, "Bytes": change, "Device Type": kind, "Device Id": 0}
        return {"cat": "cpu_instant_event", "name": "[memory]", "ts": when, "args": arguments}

    events = [
        call(10, 10),
        event(1, 900, 900, 1),
        event(12, 1900, 1000, 1),
        event(13, 50, 50, 0),
        event(15, 900, -1000, 1),
        event(30, 5000, 4100, 1),
    ]
    memory = summarize(recording(tmp_path, events), "cuda")["memory"]
    assert (memory["base_bytes"], memory["peak_bytes"], memory["allocations"], memory["allocated_bytes"]) == (
        900,
        1900,
        1,
        1000,
    )
    assert memory["points"] == [[0.0, 900], [2e3, 1900], [5e3, 900]]


def test_a_long_timeline_keeps_its_peaks(tmp_path: Path) -> None:
    arguments = {"Bytes": 1, "Device Type": 0, "Device Id": -1}
    events = [call(0, 10_000)]
    for index in range(5000):
        total = 77_777 if index == 3470 else index
        events.append({"name": "[memory]", "ts": index + 1, "args": {**arguments, "Total Allocated": total}})
    memory = summarize(recording(tmp_path, events), "cpu")["memory"]
    assert len(memory["points"]) <= 400
    assert max(total for _, total in memory["points"]) == 77_777
    assert memory["points"][-1] == [5000e3, 4999]


def test_a_name_with_quotes_empties_no_profile_and_the_stored_trace_opens(tmp_path: Path) -> None:
    """torch writes names of record_function without escaping their quotes."""
    with Profiler(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for name in ("warpwatch call", 'the "first" step'):
            with torch.profiler.record_function(name):
                torch.ones(8).add(1)
    plain, mended = tmp_path / "plain.json", tmp_path / "mended.json"
    profiler.export_chrome_trace(str(plain))
    trace = read_recording(plain)
    assert {span.name for span in trace.operations} >= {"aten::ones", "aten::add"}
    assert (len(trace.calls), trace.left_out) == (1, 0)
    join_traces([plain], mended)
    assert 'the "first" step' in {event.get("name") for event in json.loads(mended.read_bytes())["traceEvents"]}


def test_events_that_no_clock_shows_are_left_out_and_counted(tmp_path: Path) -> None:
    sound = kernel("add", 5, 10, 1)
    broken: list[dict[str, Any]] = [
        {name: value for name, value in sound.items() if name != "dur"},
        sound | {"dur": 1e18},
        sound | {"ts": "soon"},
    ]
    trace = recording(tmp_path, [call(0, 100), launch(1, 1), sound, *broken, sound | {"args": None}])
    assert (len(trace.work), trace.left_out) == (2, 3)


# --- traces of an H100 ----------------------------------------------------------------------------------------


def test_h100_traces_are_read_whole(tmp_path: Path) -> None:
    """The figures of the summaries are consistent in traces of a real GPU."""
    with zipfile.ZipFile(ROOT / "docs" / "example" / "h100.wwb") as bundle:
        names = sorted(name for name in bundle.namelist() if name.startswith("traces/"))[::7]
        for name in names:
            path = tmp_path / "trace.json"
            path.write_bytes(gzip.decompress(bundle.read(name)))
            trace = read_recording(path)
            table, summary = kernel_table(trace, "cuda"), summarize(trace, "cuda")
            assert len(trace.calls) == 2
            assert all(span.call is not None for span in trace.work), "every kernel was launched by a call"
            per_call = sum(row.total_ns for row in table) / 2
            assert sum(ns for _, ns in summary["sequence"]) == pytest.approx(per_call)
            assert sum(row["total_ns"] for row in summary["survey"]) == pytest.approx(2 * per_call)
            assert summary["launch"]["device_ns"] <= per_call * 1.0001
            assert summary["launch"]["launches"] == sum(row.calls for row in table) / 2
            assert summary["gaps"]["window_ns"] - summary["gaps"]["idle_ns"] == pytest.approx(
                2 * summary["launch"]["device_ns"]
            )
            for row in table:
                assert 0 < row.details.get("theoretical_occupancy", 1) <= 1
    assert len(names) > 20


@pytest.mark.parametrize(
    ("block", "registers", "shared", "expected"),
    [
        (128, 76, 20480, (0.375, 6, "registers")),
        (256, 32, 0, (1.0, 8, "warps")),
        (32, 16, 0, (0.5, 32, "blocks")),
        (256, 32, 100 * 1024, (0.25, 2, "shared memory")),
        (1024, 255, 0, (0.0, 0, "registers")),
    ],
)
def test_occupancy(block: int, registers: int, shared: int, expected: tuple[float, int, str]) -> None:
    """Expected values computed by hand from NVIDIA's limits for compute capability 9.0."""
    result = occupancy(H100, [264, 1, 1], [block, 1, 1], registers, shared)
    assert result is not None
    assert (result.share, result.blocks, result.limit) == expected
    assert result.waves == (pytest.approx(264 / (132 * result.blocks)) if result.blocks else 0)
    assert occupancy({}, [1], [32], 8, 0) is None


# --- Nsight Compute -------------------------------------------------------------------------------------------

NCU = """#!/bin/sh
case "$*" in *--import*) cat "$0.csv"; exit 0;; esac
while [ $# -gt 0 ]; do case "$1" in --export) report=$2;; esac; shift; done
if [ -f "$0.error" ]; then cat "$0.error"; exit 1; fi
printf report > "$report"
"""
CSV = """==PROF== Connected to process 42
"ID","Kernel Name","Block Size","Grid Size","gpu__time_duration.sum",\
"sm__throughput.avg.pct_of_peak_sustained_elapsed","lts__t_sector_hit_rate.pct"
"","","","","ns","%","%"
"0","void kron<float, 4>(float*)","(128, 1, 1)","(8, 1, 1)","3,424","41.5","n/a"
"""


def count(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: str | None = None, table: str = CSV
) -> counters.HardwareCounters:
    script = folder / "ncu"
    script.write_text(NCU)
    script.chmod(0o755)
    (folder / "ncu.csv").write_text(table)
    if error is not None:
        (folder / "ncu.error").write_text(error)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return counters.count_hardware(Request(1, "profile", "kron", "v3", "n=1"), torch.device("cuda"), folder)


def test_counters_become_rows_and_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = count(tmp_path, monkeypatch)
    assert result.message == ""
    (row,) = result.rows
    assert (row["kernel"], row["grid"], row["block"]) == ("void kron<float, 4>(float*)", "(8, 1, 1)", "(128, 1, 1)")
    assert (row["time_ns"], row["sm_percent"], row["l2_hit_percent"], row["dram_percent"]) == (3424.0, 41.5, None, None)
    assert b64decode(result.report or "") == b"report"


def test_why_there_are_no_counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = count(tmp_path, monkeypatch, "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n")
    assert "NVreg_RestrictProfilingToAdminUsers=0" in refused.message
    broken = count(tmp_path, monkeypatch, "==PROF== x\n==ERROR== The application returned an error code (1).\n")
    assert broken.message.endswith("The application returned an error code (1).")
    assert (broken.rows, broken.report) == ([], None)
    monkeypatch.setenv("PATH", "/nonexistent")
    missing = counters.count_hardware(Request(1, "profile"), torch.device("cuda"), tmp_path)
    assert "put `ncu` on PATH" in missing.message


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU runs it to its end")
def test_the_process_that_ncu_starts_gets_as_far_as_the_call(cache: Path, repository: Path) -> None:
    """Everything before the first CUDA call runs on a CPU as well."""
    names = ["--count", "pair", "good", "n=33,f32,fwd", "0"]
    command = [
        sys.executable,
        "-P",
        str(BOOTSTRAP),
        "--root",
        str(repository),
        "--libraries",
        str(cache),
        "--threads",
        "1",
        *names,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "in run_counted" in done.stderr
    assert "not compiled with CUDA" in done.stderr


def test_the_host_timer_stops_when_a_call_returns() -> None:
    """Most of this call is waiting for the device, which only the call time includes."""
    from time import sleep

    class Slow:
        def synchronize(self) -> None:
            sleep(0.002)

        def batch(self, count: int) -> tuple[list[Any], int]:
            return [lambda: None], 0

    times = time_host(Slow(), Slow())  # type: ignore[arg-type]
    assert 1 < times["count"] <= 20, "a busy host has time for fewer"
    assert times["issue_ns"] * 5 < times["call_ns"]


# --- comparison of two traces ---------------------------------------------------------------------------------


def aligned(a: ProfileReply, b: ProfileReply) -> Alignment:
    """The server's alignment of two replies."""

    def detail(reply: ProfileReply) -> TraceDetail:
        kernels = [KernelView(k.name, k.calls, k.total_ns, k.mean_ns, k.share, k.details) for k in reply.kernels]
        now = datetime.now(UTC)
        return TraceDetail(
            1, "r", "pair", "v1", "n=1", "a" * 40, "cpu", 1, 1, "", reply.runtime_calls, now, kernels, reply.summary
        )

    return align_traces(detail(a), detail(b))


def test_two_profiles_of_the_same_code_hold_the_same_steps(harness: Harness, tmp_path: Path) -> None:
    first, second = (profiled(harness, tmp_path, case="n=33,f32,fwd") for _ in range(2))
    alignment = aligned(first, second)
    assert alignment.ordered
    assert {row.state for row in alignment.rows} <= {"same", "longer", "shorter"}
    assert all(row.a_name == row.b_name and row.a_count == row.b_count for row in alignment.rows)


def test_other_steps_are_added_and_removed(harness: Harness, tmp_path: Path) -> None:
    forward, backward = (profiled(harness, tmp_path, case=f"n=33,f32,{direction}") for direction in ("fwd", "bwd"))
    alignment = aligned(forward, backward)
    assert any(row.state == "added" for row in alignment.rows)
    assert sum(row.a_ns for row in alignment.rows) == pytest.approx(alignment.a_ns)
    assert sum(row.b_ns for row in alignment.rows) == pytest.approx(alignment.b_ns)
