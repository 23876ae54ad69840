"""Clocks, temperature, power and throttling of the GPU around a measurement, or the load of a CPU; nothing is ever set."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from .load import Load

# Reasons that mean the card could not do what it can; the power cap of a busy card is how it always works and is reported only.
_HELD_BACK = {0x8: "hardware slowdown", 0x20: "software thermal", 0x40: "hardware thermal", 0x80: "hardware power brake"}
_REASONS = {0x1: "idle", 0x2: "application clocks", 0x4: "software power cap", 0x10: "sync boost", 0x100: "display", **_HELD_BACK}


class Health:
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
        found: dict[str, Any] = {}
        for name, source in sources.items():
            with suppress(nvml.NVMLError):
                found[name] = source()
        return found

    def held_back(self) -> str:
        """Why the card runs slower than it can right now; empty when it does not, or cannot be known."""
        if self._nvml is None:
            return ""
        with suppress(self._nvml.NVMLError):
            return ", ".join(_names(self._bits(), _HELD_BACK))
        return ""

    def _bits(self) -> int:
        return int(self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle))


def _names(bits: int, table: dict[int, str]) -> list[str]:
    return [name for bit, name in table.items() if bits & bit]
