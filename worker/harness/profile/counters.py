"""Reads hardware counters of one call with Nsight Compute, which runs the case again in a process under `ncu`."""

from __future__ import annotations

import csv
import io
import os
import shutil
import subprocess
import sys
import tempfile
from base64 import b64encode
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from warpwatch.contract.messages import Request

from ..problem import CaseProblem
from ..timers.rotation import Rotation

_STALLS = (
    "long_scoreboard",
    "short_scoreboard",
    "barrier",
    "math_pipe_throttle",
    "mio_throttle",
    "lg_throttle",
    "wait",
    "no_instruction",
)
METRICS = {
    "gpu__time_duration.sum": "time_ns",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "sm_percent",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": "dram_percent",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "occupancy_percent",
    "lts__t_sector_hit_rate.pct": "l2_hit_percent",
    **{f"smsp__average_warps_issue_stalled_{name}_per_issue_active.ratio": f"stall_{name}" for name in _STALLS},
}
"""Maps Nsight Compute's names to ours.

A stall is the mean number of warps that wait for that reason when an instruction is issued.
"""
REPORT_LIMIT = 32 * 2**20
"""The largest report in bytes that a reply carries. A report holds the machine code of whole libraries."""
_SECONDS = 240
_BOOTSTRAP = Path(__file__).absolute().parents[1] / "child" / "bootstrap.py"
_REFUSED = "ERR_NVGPUCTRPERM"


@dataclass(frozen=True, slots=True)
class HardwareCounters:
    """Hardware counters of one call.

    message: a sentence that says why there are no rows. rows: one per launched kernel, in order. report: ncu's file in
    base64, None when it is too large.
    """

    message: str = ""
    rows: list[dict[str, Any]] = field(default_factory=list)
    report: str | None = None


def count_hardware(request: Request, device: torch.device, folder: Path) -> HardwareCounters:
    """Counts one call of the variant and case that the request names; when that fails, the message says why."""
    if device.type != "cuda":
        return HardwareCounters("Only NVIDIA GPUs have hardware counters.")
    ncu = shutil.which("ncu")
    if ncu is None:
        return HardwareCounters("Nsight Compute is not installed: put `ncu` on PATH.")
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        report = Path(scratch, "report.ncu-rep")
        words = [str(word) for word in (request.operator, request.variant, request.case, request.seed)]
        target = [sys.executable, "-P", str(_BOOTSTRAP), *sys.argv[1:], "--count", *words]
        options = ["--profile-from-start", "off", "--metrics", ",".join(METRICS)]
        try:
            output = _output([ncu, *options, "--export", str(report), "--force-overwrite", *target])
            if _REFUSED in output:
                return HardwareCounters(
                    f"The driver lets only administrators read hardware counters ({_REFUSED}): load the kernel module "
                    "nvidia with NVreg_RestrictProfilingToAdminUsers=0, or run the worker as root."
                )
            if not report.is_file():
                last_line = output.strip().splitlines()[-1] if output.strip() else "no output"
                return HardwareCounters(f"Nsight Compute wrote no report: {last_line}")
            csv_options = ["--csv", "--page", "raw", "--print-units", "base"]
            rows = parse_counters(_output([ncu, "--import", str(report), *csv_options]))
        except subprocess.TimeoutExpired:
            return HardwareCounters(f"Nsight Compute took longer than {_SECONDS} s.")
        data = report.read_bytes() if report.stat().st_size <= REPORT_LIMIT else b""
    message = "" if rows else "Nsight Compute recorded no kernel."
    return HardwareCounters(message, rows, b64encode(data).decode() if data else None)


def parse_counters(text: str) -> list[dict[str, Any]]:
    """Parses the output of `ncu --csv --page raw`: one row per kernel with name, grid, block and our METRICS.

    ncu prints remarks before the header line, and units in the line after it.
    """
    lines = text.splitlines()
    start = next((index for index, line in enumerate(lines) if '"Kernel Name"' in line), None)
    if start is None:
        return []
    rows = []
    for raw in list(csv.DictReader(io.StringIO("\n".join(lines[start:]))))[1:]:
        row: dict[str, Any] = {
            "kernel": raw["Kernel Name"],
            "grid": raw.get("Grid Size"),
            "block": raw.get("Block Size"),
        }
        for ncu_name, name in METRICS.items():
            row[name] = _number(raw.get(ncu_name))
        rows.append(row)
    return rows


def run_counted(problem: CaseProblem, seed: int) -> None:
    """Makes one call between cudaProfilerStart and cudaProfilerStop, which `ncu` records, after two warm-up calls."""
    with problem.modes():
        rotation = Rotation(problem, seed, 2)
        for call in rotation.calls:
            call()
        problem.synchronize()
        torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
        rotation.calls[0]()
        problem.synchronize()
        torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]


def _output(command: list[str]) -> str:
    result = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=_SECONDS,
        env=dict(os.environ),
        text=True,
        errors="replace",
        check=False,
    )
    return result.stdout


def _number(text: str | None) -> float | None:
    try:
        return float((text or "").replace(",", ""))
    except ValueError:
        return None
