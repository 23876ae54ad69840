"""Hardware counters of one call, by Nsight Compute: the case is run once more in a process of its own, under `ncu`."""

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

from .problem import CaseProblem
from .rotation import Rotation

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
"""Nsight Compute's names and ours.

A stall is the number of warps that wait for that reason when an instruction is issued.
"""
REPORT_LIMIT = 32 * 2**20
"""Bytes of a report that travel with the reply: it holds the machine code of whole libraries.

The rows say the same in less.
"""
_SECONDS = 240
_BOOTSTRAP = Path(__file__).with_name("bootstrap.py")
_REFUSED = "ERR_NVGPUCTRPERM"


@dataclass(frozen=True, slots=True)
class HardwareCounters:
    """rows: one per kernel launched, in order.

    message: why there are none, as a sentence. report: ncu's file in base64.
    """

    message: str = ""
    rows: list[dict[str, Any]] = field(default_factory=list)
    report: str | None = None


def count_hardware(request: Request, device: torch.device, folder: Path) -> HardwareCounters:
    """The counters of one call of what the request names; what keeps them from being read is a message and no error."""
    if device.type != "cuda":
        return HardwareCounters("Hardware counters are read on NVIDIA GPUs only.")
    ncu = shutil.which("ncu")
    if ncu is None:
        return HardwareCounters("Nsight Compute is not installed here: there is no `ncu` on PATH.")
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        report = Path(scratch, "report.ncu-rep")
        words = [str(word) for word in (request.operator, request.variant, request.case, request.seed)]
        target = [sys.executable, "-P", str(_BOOTSTRAP), *sys.argv[1:], "--count", *words]
        options = [
            "--profile-from-start",
            "off",
            "--metrics",
            ",".join(METRICS),
            "--export",
            str(report),
            "--force-overwrite",
        ]
        try:
            output = _output([ncu, *options, *target])
            if _REFUSED in output:
                return HardwareCounters(
                    f"The driver lets only administrators read hardware counters ({_REFUSED}): load the kernel module nvidia with "
                    "NVreg_RestrictProfilingToAdminUsers=0, or run the worker as root."
                )
            if not report.is_file():
                return HardwareCounters(
                    f"Nsight Compute left no report: {output.strip().splitlines()[-1] if output.strip() else 'no output'}"
                )
            rows = parse_counters(
                _output([ncu, "--import", str(report), "--csv", "--page", "raw", "--print-units", "base"])
            )
        except subprocess.TimeoutExpired:
            return HardwareCounters(f"Nsight Compute took longer than {_SECONDS} s.")
        data = report.read_bytes() if report.stat().st_size <= REPORT_LIMIT else b""
    return HardwareCounters(
        "" if rows else "Nsight Compute saw no kernel.", rows, b64encode(data).decode() if data else None
    )


def parse_counters(text: str) -> list[dict[str, Any]]:
    """What `ncu --csv --page raw` prints, one row per kernel: its name, grid and block, and METRICS under our names.

    Lines before the header are ncu's own remarks; the line after it holds units.
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
        for theirs, ours in METRICS.items():
            row[ours] = _number(raw.get(theirs))
        rows.append(row)
    return rows


def run_counted(problem: CaseProblem, seed: int) -> None:
    """One call between cudaProfilerStart and cudaProfilerStop, after others that set everything up: what `ncu` looks
    at."""
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
    done = subprocess.run(
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
    return done.stdout


def _number(text: str | None) -> float | None:
    try:
        return float((text or "").replace(",", ""))
    except ValueError:
        return None
