"""Identifies the physical card behind a device: the GPU, or for a CPU the machine itself."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from warpwatch.contract.environment import Card
from warpwatch.worker.devices import gpu_ids

_MACHINE_IDS = ("/etc/machine-id", "/sys/class/dmi/id/product_uuid")
_DRIVER = Path("/proc/driver/nvidia/version")
_HASHED = "warpwatch card "
"""Goes into the hash of a machine's id, which must not leave the machine as it is."""


@cache
def read_card(device: str) -> Card | None:
    """The card of a device ("cpu", "cuda:0"); None where nothing identifies it.

    A container without an id of its machine has no card: a host name that changes with every start would make one card
    look like many.
    """
    if not device.startswith("cuda"):
        return _read_machine()
    ids, number = gpu_ids(), int(device.partition(":")[2] or 0)
    return _read_gpu(ids[number]) if number < len(ids) else None


def read_model(device: str) -> str:
    """The model of a GPU and its driver, on which the fastest configuration of a kernel depends beside its code and its
    compiler; "" for a CPU. A GPU that does not tell its model stands for itself."""
    card = read_card(device) if device.startswith("cuda") else None
    if card is None:
        return ""
    with suppress(OSError):
        return f"{card.facts.get('board', card.key)} {_DRIVER.read_text()}"
    return card.facts.get("board", card.key)


def _read_machine() -> Card | None:
    for path in map(Path, _MACHINE_IDS):
        with suppress(OSError):
            if machine := path.read_text().strip():
                key = sha256((_HASHED + machine).encode()).hexdigest()[:32]
                return Card(key, {"model": _cpu_fact("model name"), "microcode": _cpu_fact("microcode")} | _host())
    return None


def _read_gpu(uuid: str) -> Card:
    """The card of a GPU as NVML describes the GPU; only the UUID and the host where NVML is missing."""
    facts: dict[str, str] = {}
    try:
        import pynvml

        pynvml.nvmlInit()
        # The key is that of the whole GPU, also where the device is a slice of one.
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        handle = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle) if uuid.startswith("MIG-") else handle
        sources: dict[str, Callable[[], Any]] = {
            "uuid": lambda: pynvml.nvmlDeviceGetUUID(handle),
            "board": lambda: pynvml.nvmlDeviceGetBoardPartNumber(handle),
            "vbios": lambda: pynvml.nvmlDeviceGetVbiosVersion(handle),
            "slot": lambda: pynvml.nvmlDeviceGetPciInfo(handle).busId,
        }
        for name, source in sources.items():
            with suppress(pynvml.NVMLError):
                value = source()
                facts[name] = value.decode() if isinstance(value, bytes) else str(value)
    except Exception:  # noqa: BLE001 - a missing or broken NVML raises many kinds of errors.
        facts.setdefault("uuid", uuid)
    return Card(facts.get("uuid", uuid), facts | _host())


def _host() -> dict[str, str]:
    return {"host": socket.gethostname()}


def _cpu_fact(name: str) -> str:
    with suppress(OSError):
        match = re.search(rf"^{name}\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        return match.group(1).strip() if match else ""
    return ""
