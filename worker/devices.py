"""Lists the devices of this machine without torch: the CPU, and every NVIDIA GPU that the driver shows."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class LocalDevice:
    """name: what `--device` takes, "cpu" or "cuda:0". model: its product name."""

    name: str
    model: str


def find_devices(environ: Mapping[str, str] = os.environ) -> list[LocalDevice]:
    """The CPU first, then the GPUs in the order torch numbers them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    models = _visible(_gpu_models(), environ.get("CUDA_VISIBLE_DEVICES"))
    gpus = [LocalDevice(f"cuda:{index}", model) for index, model in enumerate(models)]
    return [LocalDevice("cpu", f"{_cpu_model()}, {cores} cores"), *gpus]


def list_devices() -> list[str]:
    """Names of this machine's devices, as `--device` takes them."""
    return [device.name for device in find_devices()]


def choose_device(name_or_kind: str) -> str:
    """The device that `--device` means: "auto" is the first GPU if there is one, "cuda" the first GPU.

    ValueError when it is not here.
    """
    names = list_devices()
    if name_or_kind == "auto":
        return names[-1] if len(names) == 1 else names[1]
    name = "cuda:0" if name_or_kind == "cuda" else name_or_kind
    if name not in names:
        raise ValueError(f"this machine has no device {name_or_kind!r}; it has {', '.join(names)}")
    return name


def _gpu_models() -> list[str]:
    """One model name per GPU, from `nvidia-smi -L`; none when there is no driver or it does not answer."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        done = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = [line for line in done.stdout.splitlines() if line.startswith("GPU ")] if done.returncode == 0 else []
    return [line.partition(": ")[2].partition(" (UUID")[0] for line in lines]


def _visible(models: list[str], chosen: str | None) -> list[str]:
    """The models that CUDA_VISIBLE_DEVICES lets through: numbers, or UUIDs of which only the count is known."""
    if chosen is None:
        return models
    entries = [entry.strip() for entry in chosen.split(",") if entry.strip() not in ("", "-1")]
    return [models[int(e)] if e.isdigit() and int(e) < len(models) else models[0] for e in entries][: len(models)]


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
