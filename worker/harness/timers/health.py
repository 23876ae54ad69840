"""Reads clocks, temperature, power and throttling of a GPU, or the load of a CPU. It never changes a setting."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

_PAST_SECONDS, _READINGS = 1.0, 4
_CPU_FIELDS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")

_THROTTLED = {
    0x8: "hardware slowdown",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "hardware power brake",
}
"""Reasons that make the card slower than it can be. The power cap of a busy card is normal and only reported."""
_REASONS = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "software power cap",
    0x10: "sync boost",
    0x100: "display",
    **_THROTTLED,
}


class Load:
    """The load of the machine since this object was made, from /proc."""

    def __init__(self) -> None:
        self._ticks = _ticks()

    def read(self) -> dict[str, Any]:
        """The load now; facts that the system does not provide are left out.

        load: runnable tasks, the mean of the last minute. cores: CPUs of the machine. steal, idle: shares of all CPU
        time since this object was made that other virtual machines took, and that nothing used. pressure: share of the
        last ten seconds in which a task waited for a CPU.
        """
        facts: dict[str, Any] = {"cores": os.cpu_count() or 1}
        with suppress(OSError):
            facts["load"] = round(os.getloadavg()[0], 2)
        passed = {
            name: after - before for (name, after), before in zip(_ticks().items(), self._ticks.values(), strict=True)
        }
        total = sum(passed.values())
        if total:
            facts |= {name: round(passed[name] / total, 3) for name in ("steal", "idle")}
        with suppress(OSError, IndexError, ValueError):
            facts["pressure"] = float(Path("/proc/pressure/cpu").read_text().split("avg10=")[1].split()[0]) / 100
        return facts


def _ticks() -> dict[str, int]:
    """Clock ticks of all CPUs since boot by their use; empty where /proc is missing."""
    with suppress(OSError):
        words = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
        return {name: int(word) for name, word in zip(_CPU_FIELDS, words, strict=False)}
    return {}


class DeviceHealth:
    """The state of one GPU by NVML, or the load of the machine on a CPU. Without NVML only a note says why."""

    def __init__(self, device: torch.device) -> None:
        self._nvml: Any = None
        self._handle: Any = None
        self._note = ""
        self._load = Load() if device.type == "cpu" else None
        if device.type != "cuda":
            return
        try:
            import pynvml

            pynvml.nvmlInit()
            uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            self._nvml = pynvml
        except Exception as error:  # noqa: BLE001 - a missing or broken NVML raises many kinds of errors.
            self._note = f"NVML not available: {type(error).__name__}: {error}"

    def read(self) -> dict[str, Any]:
        """The state now: sm_mhz, memory_mhz, celsius, watts, throttle (a list of reasons), as far as the card has them.

        On a CPU: see Load.
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
            "throttle": lambda: self._reasons(_REASONS),
        }
        return _read_available(sources, nvml.NVMLError)

    def standing(self) -> dict[str, Any]:
        """The state before a measurement, as far as the card provides it.

        utilization: percent, the maximum over a second. others: process ids of other programs that use the card.
        celsius. limit_celsius: where the card slows down. held_back: reasons for throttling.
        """
        if self._nvml is None:
            return {"note": self._note}
        nvml, handle = self._nvml, self._handle
        sources: dict[str, Callable[[], Any]] = {
            "utilization": lambda: _most_of_a_second(lambda: int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)),
            "others": lambda: _other_programs([p.pid for p in nvml.nvmlDeviceGetComputeRunningProcesses(handle)]),
            "celsius": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
            "limit_celsius": lambda: nvml.nvmlDeviceGetTemperatureThreshold(
                handle, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
            ),
            "held_back": lambda: self._reasons(_THROTTLED),
        }
        return _read_available(sources, nvml.NVMLError)

    def throttle_reasons(self) -> str:
        """Why the card is throttled right now; empty when it is not, or when NVML cannot tell."""
        if self._nvml is None:
            return ""
        with suppress(self._nvml.NVMLError):
            return ", ".join(self._reasons(_THROTTLED))
        return ""

    def millijoules(self) -> int | None:
        """The energy that the whole card has taken since its driver was loaded; None where NVML does not count it."""
        if self._nvml is None:
            return None
        with suppress(self._nvml.NVMLError):
            return int(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle))
        return None

    def _reasons(self, table: dict[int, str]) -> list[str]:
        """The names in `table` of the throttle reasons that NVML reports now."""
        reasons = int(self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle))
        return [name for bit, name in table.items() if reasons & bit]


def _read_available(sources: dict[str, Callable[[], Any]], unavailable: type[Exception]) -> dict[str, Any]:
    """The value of each source, without those that raise `unavailable`."""
    values: dict[str, Any] = {}
    for name, source in sources.items():
        with suppress(unavailable):
            values[name] = source()
    return values


def _most_of_a_second(read: Callable[[], int]) -> int:
    """The largest of four readings over a second.

    The card reports the mean of the time just past, so a second without our own work comes first.
    """
    time.sleep(_PAST_SECONDS)
    readings = []
    for _ in range(_READINGS):
        time.sleep(_PAST_SECONDS / _READINGS)
        readings.append(read())
    return max(readings)


def _other_programs(processes: list[int]) -> list[int]:
    """The processes that are neither this one nor other children of its parent, which wait while this one works.

    In a container NVML may use other process ids. Then this process is not in the list, and the result is empty.
    """
    if os.getpid() not in processes:
        return []
    return [process for process in processes if process != os.getpid() and _parent_of(process) != os.getppid()]


def _parent_of(process: int) -> int:
    with suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    return 0
