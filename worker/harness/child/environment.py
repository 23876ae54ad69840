"""Reads everything besides the code that could change a number, with a fingerprint that restarts leave unchanged."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from warpwatch.contract.environment import Environment, key_of
from warpwatch.contract.measurement import PROTOCOLS

from ..timers.cpu import find_cores


def read_environment(device: torch.device, threads: int, cores: int) -> Environment:
    """The environment of `device`; cores: CPUs that this process may use, threads: how many of them it uses."""
    # Stored values; a change of the texts would start every CPU series anew.
    freed_memory = "kept" if os.environ.get("MALLOC_TRIM_THRESHOLD_") else "given back"
    cpu_facts = {
        "openmp_spin": os.environ.get("GOMP_SPINCOUNT", ""),
        "openmp_threads": "one per core" if find_cores() else "",
        "freed_memory": freed_memory,
    }
    facts = _host_facts(device, threads, cores) | (_cuda_facts(device) if device.type == "cuda" else cpu_facts)
    name = facts["gpu"] if device.type == "cuda" else f"{facts['cpu']}, {cores} core{'s' if cores != 1 else ''}"
    return Environment(key_of(facts), device.type, slug(name), name, facts)


def slug(name: str) -> str:
    """Turns a device name into a key for URLs and queues: "NVIDIA H100 80GB HBM3" → "nvidia-h100-80gb-hbm3"."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _host_facts(device: torch.device, threads: int, cores: int) -> dict[str, Any]:
    return {
        "protocol": PROTOCOLS[device.type],
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu": _cpu_model(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cores": cores,
        "threads": threads,
        "compiler": next(iter(_output(os.environ.get("CXX", "g++"), "--version")), ""),
    }


def read_versions(modules: list[str]) -> dict[str, str]:
    """The versions of the distributions that installed modules come from, by name."""
    by_module = metadata.packages_distributions() if modules else {}
    names = sorted({name for module in modules for name in by_module.get(module, [])})
    return {name: metadata.version(name) for name in names}


def _cuda_facts(device: torch.device) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(device)
    return {
        "gpu": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "sm_count": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "l2_bytes": properties.L2_cache_size,
        "cuda": str(torch.version.cuda),
        "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        "driver": _driver_version(),
        "nvcc": next(reversed(_output("nvcc", "--version")), ""),
    }


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    model = match.group(1) if match else platform.processor() or platform.machine()
    return re.sub(r"\((R|TM|r|tm)\)|\s+@.*$|\s+CPU\b", "", model).strip()


def _driver_version() -> str:
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return next(iter(_output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")), "")
    match = re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", text)
    return match.group(1) if match else ""


def _output(*command: str) -> list[str]:
    """Lines that a command prints; empty when it is missing or fails."""
    path = shutil.which(command[0])
    if path is None:
        return []
    try:
        result = subprocess.run([path, *command[1:]], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in result.stdout.splitlines() if line.strip()] if result.returncode == 0 else []
