"""The trace of the seeded service: one that torch's profiler wrote, and everything that a trace's page can show."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from tests.builders import energy
from warpwatch.contract.measurement import TraceKernel
from warpwatch.contract.messages import ProfileReply
from warpwatch.contract.words import Status


def real_trace() -> ProfileReply:
    """A Chrome trace that torch's profiler wrote on a CPU, with the operators it saw as kernel table."""
    path = Path(__file__).parent / "data" / "torch-trace.json.gz"
    text = gzip.decompress(path.read_bytes())
    spent: dict[str, list[float]] = {}
    for event in json.loads(text)["traceEvents"]:
        if event.get("cat") == "cpu_op":
            spent.setdefault(event["name"], []).append(event["dur"] * 1e3)
    total = sum(map(sum, spent.values()))
    kernels = [
        TraceKernel(name, len(all_ns), sum(all_ns), sum(all_ns) / len(all_ns), sum(all_ns) / total)
        for name, all_ns in spent.items()
    ]
    kernels.sort(key=lambda row: -row.total_ns)
    calls, report = {"cudaLaunchKernel": 2.0}, "cmVwb3J0"
    return ProfileReply(Status.OK, "", str(path), len(text), kernels, calls, _summary(kernels), report, energy(0.0123))


def _summary(kernels: list[TraceKernel]) -> dict[str, Any]:
    """Everything that a trace's page can show, as worker.harness.profile.summary lays it out."""
    name = "void at::native::elementwise_kernel<128, 2, at::native::copy(at::Iter&)::{lambda()#3}>(int, float*)"
    facts = {"grid": [8, 1, 1], "block": [128, 1, 1], "registers": 76, "shared_bytes": 20480}
    percents = dict.fromkeys(("sm_percent", "dram_percent", "occupancy_percent"), 41.5)
    kernels[0].details.update(
        facts, theoretical_occupancy=0.375, blocks_per_sm=6, occupancy_limit="registers", waves=0.01
    )
    return {
        "calls": 2,
        "plan": {"wait": 1, "warm_up": 1, "active": 2, "repeat": 2, "counters": True},
        "cycles": [2.1e5, 2.0e5],
        "sequence": [[row.name, row.mean_ns] for row in kernels],
        "table": "Name  Self CPU %  # of Calls " * 12,
        "launch": {
            "host_ns": 9e4,
            "launch_ns": 8e3,
            "launches": 2.0,
            "device_ns": 7e3,
            "bound": True,
        },
        "host_timer": {"issue_ns": 3.1e4, "call_ns": 4.9e4, "count": 20},
        "gaps": {
            "window_ns": 9e4,
            "idle_ns": 6e4,
            "share": 0.667,
            "count": 3,
            "largest": [{"ns": 4e4, "after": name, "before": name, "operator": None}],
        },
        "memory": {
            "device": "cuda",
            "base_bytes": 2**20,
            "peak_bytes": 5 * 2**20,
            "allocations": 4,
            "allocated_bytes": 4 * 2**20,
            "points": [[0.0, 2**20], [1e5, 5 * 2**20], [2e5, 2**20]],
        },
        "survey": [
            {
                "operator": "aten::mm",
                "shapes": [[33, 33], [33, 33]],
                "kernel": name,
                "launches": 4,
                "total_ns": 8e3,
                **facts,
            }
        ],
        "counters": {
            "message": "",
            "rows": [
                {
                    "kernel": name,
                    "grid": "(8, 1, 1)",
                    "block": "(128, 1, 1)",
                    "time_ns": 3424.0,
                    **percents,
                    "l2_hit_percent": None,
                    "stall_long_scoreboard": 3.4,
                    "stall_barrier": None,
                }
            ],
        },
    }
