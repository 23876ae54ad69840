"""Lets one worker of a machine measure on a physical GPU, and names physical devices for the database.

The lock is an abstract UNIX socket: the kernel frees it with its process, no file is left behind, and workers of
different users and home folders see it. Workers in containers do not; an alarm finds those by the name of the device.
"""

from __future__ import annotations

import errno
import socket
import sys
from pathlib import Path

from warpwatch.worker.devices import gpu_ids, usable_cores
from warpwatch.worker.reporter import CannotRunError


def physical_id(device: str) -> str:
    """What two workers share that measure on the same hardware: the UUID of a GPU, or this machine with these cores."""
    if device.startswith("cuda:"):
        ids = gpu_ids()
        number = int(device.partition(":")[2])
        return ids[number] if number < len(ids) else f"{_machine()} {device}"
    return f"{_machine()} cores {','.join(map(str, usable_cores()))}"


def lock_device(device: str, physical: str) -> socket.socket | None:
    """Holds a GPU until the socket is closed or this process ends; CannotRunError when another worker holds it.

    None for a CPU: programs share it, and a bench waits until it is idle.
    """
    if not device.startswith("cuda:") or sys.platform != "linux":
        return None
    holder = socket.socket(socket.AF_UNIX)
    try:
        holder.bind(f"\0warpwatch/{physical}")
    except OSError as error:
        holder.close()
        if error.errno != errno.EADDRINUSE:
            raise
        raise CannotRunError(
            f"another worker of this machine measures on {device} ({physical}); two would disturb each other's times. "
            "Stop it, or choose another device",
            retry=False,
        ) from None
    return holder


def _machine() -> str:
    """The running kernel, which containers of one machine share, unlike their host names."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()
