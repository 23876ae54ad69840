"""Clocks, temperature, power and throttling of the GPU around a measurement, or the load of a CPU; nothing is ever set."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from .load import Load

_PAST_SECONDS, _READINGS = 1.0, 4

# Reasons that mean the card could not do what it can; the power cap of a busy card is how it always works and is
# reported only.
_HELD_BACK = {
    0x8: "hardware slowdown",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "hardware power brake",
}
_REASONS = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "software power cap",
    0x10: "sync boost",
    0x100: "display",
    **_HELD_BACK,
}


class DeviceHealth:
    """NVML's view of one GPU; without NVML it knows nothing and says so. On a CPU, how busy the machine is."""

    def __init__(self, device: torch.device) -> None:
        self._nvml: Any = None
        self._handle: Any = None
        self._note = ""
        self._load = Load() if device.type == "cpu" else None
        if device.type == "cuda":
            self._connect(device)

    def _connect(self, device: torch.device) -> None:
        try:
            import pynvml

            pynvml.nvmlInit()
            uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            self._nvml = pynvml
        except Exception as error:  # noqa: BLE001 - NVML's errors are no class of its own when the package is missing or broken
            self._note = f"NVML not available: {type(error).__name__}: {error}"

    def read(self) -> dict[str, Any]:
        """Now: sm_mhz, memory_mhz, celsius, watts, throttle (list of reasons); what the card does not tell is left out.

        On a CPU: see load.Load.
        """
        if self._load is not None:
            return self._load.read()
        if self._nvml is None:
            return {"note": self._note}
        nvml, handle = self._nvml, self._handle
        sources: dict[str, Callable[[], Any]] = {
            "sm_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            "memory_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
            "celsius": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
            "watts": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            "throttle": lambda: _names(self._bits(), _REASONS),
        }
        return _ask(sources, nvml.NVMLError)

    def standing(self) -> dict[str, Any]:
        """Before anything is measured: utilization (percent, the most of a second), others (ids of processes of other
        programs that compute there), celsius, limit_celsius (where the card slows down), held_back.

        What the card does not tell is left out.
        """
        if self._nvml is None:
            return {"note": self._note}
        nvml, handle = self._nvml, self._handle
        sources: dict[str, Callable[[], Any]] = {
            "utilization": lambda: max(_sampled(lambda: int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu))),
            "others": lambda: _strangers(
                [process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)]
            ),
            "celsius": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
            "limit_celsius": lambda: nvml.nvmlDeviceGetTemperatureThreshold(
                handle, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
            ),
            "held_back": lambda: _names(self._bits(), _HELD_BACK),
        }
        return _ask(sources, nvml.NVMLError)

    def held_back(self) -> str:
        """Why the card runs slower than it can right now; empty when it does not, or cannot be known."""
        if self._nvml is None:
            return ""
        with suppress(self._nvml.NVMLError):
            return ", ".join(_names(self._bits(), _HELD_BACK))
        return ""

    def _bits(self) -> int:
        return int(self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle))


def _ask(sources: dict[str, Callable[[], Any]], refusal: type[Exception]) -> dict[str, Any]:
    """What each source tells, without those that refuse."""
    found: dict[str, Any] = {}
    for name, source in sources.items():
        with suppress(refusal):
            found[name] = source()
    return found


def _sampled(read: Callable[[], int]) -> list[int]:
    """Readings over a second, after one in which nothing of ours ran: the card reports the mean of the time just past."""
    time.sleep(_PAST_SECONDS)
    found = []
    for _ in range(_READINGS):
        time.sleep(_PAST_SECONDS / _READINGS)
        found.append(read())
    return found


def _strangers(processes: list[int]) -> list[int]:
    """Those that are neither this process nor other children of its parent, which wait while this one works.

    In a container NVML may number processes in another way; then this one is not among them and nothing can be told
    apart.
    """
    if os.getpid() not in processes:
        return []
    return [process for process in processes if process != os.getpid() and _parent_of(process) != os.getppid()]


def _parent_of(process: int) -> int:
    with suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def _names(bits: int, table: dict[int, str]) -> list[str]:
    return [name for bit, name in table.items() if bits & bit]
