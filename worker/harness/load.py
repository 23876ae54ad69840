"""How busy the machine is besides what is measured: load average, stolen time, pressure.

Read from /proc, where it is.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

_CPU_FIELDS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")


class Load:
    """The machine's load since this was made."""

    def __init__(self) -> None:
        self._ticks = _ticks()

    def read(self) -> dict[str, Any]:
        """load: runnable tasks, the mean of the last minute.

        cores: CPUs they share. steal, idle: shares of all CPU time since this was made that went to other machines of
        the host, and to nobody. pressure: share of the last ten seconds in which a task waited for a CPU. What the
        system does not tell is left out.
        """
        found: dict[str, Any] = {"cores": os.cpu_count() or 1}
        with suppress(OSError):
            found["load"] = round(os.getloadavg()[0], 2)
        passed = {
            name: after - before for (name, after), before in zip(_ticks().items(), self._ticks.values(), strict=True)
        }
        total = sum(passed.values())
        if total:
            found |= {name: round(passed[name] / total, 3) for name in ("steal", "idle")}
        with suppress(OSError, IndexError, ValueError):
            found["pressure"] = float(Path("/proc/pressure/cpu").read_text().split("avg10=")[1].split()[0]) / 100
        return found


def _ticks() -> dict[str, int]:
    """Clock ticks of all CPUs since the start of the machine, by what they went to; nothing where /proc is not."""
    with suppress(OSError):
        words = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
        return {name: int(word) for name, word in zip(_CPU_FIELDS, words, strict=False)}
    return {}
