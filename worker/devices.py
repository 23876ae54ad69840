"""Lists the devices of this machine without torch: the CPU, and every NVIDIA GPU that the driver shows."""

from __future__ import annotations

import errno
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from warpwatch.worker.reporter import CannotRunError, Reporter, Stopped

_TURN_SECONDS = 0.1


def physical_id(device: str) -> str:
    """The identity of a device's hardware, equal for two workers that measure on the same hardware: the UUID of a GPU,
    or this machine with these cores."""
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
    if not _bind(holder, physical):
        holder.close()
        raise CannotRunError(
            f"another worker of this machine measures on {device} ({physical}); two would disturb each other's times. "
            "Stop it, or choose another device",
            retry=False,
        )
    return holder


@contextmanager
def device_turn(device: str, physical: str, reporter: Reporter) -> Iterator[None]:
    """Holds a GPU for one job. While another process of this machine has it, a worker or a command, the job waits: two
    that measure at once read up to six times as long. Raises Stopped when told to.

    None of it for a CPU, see lock_device.
    """
    if not device.startswith("cuda:") or sys.platform != "linux":
        yield
        return
    with socket.socket(socket.AF_UNIX) as holder:
        if not _bind(holder, f"{physical}/job"):
            reporter.log(f"waiting for {device}: another process of this machine measures on it")
            while not _bind(holder, f"{physical}/job"):
                if (reason := reporter.should_stop()) is not None:
                    raise Stopped(reason)
                time.sleep(_TURN_SECONDS)
        yield


def _bind(holder: socket.socket, name: str) -> bool:
    """Whether no other process has the name, which the kernel frees with the socket, however its process ends."""
    try:
        holder.bind(f"\0warpwatch/{name}")
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    return True


def _machine() -> str:
    """The running kernel, which containers of one machine share, unlike their host names."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


_GPUS = Path("/proc/driver/nvidia/gpus")
_GPU_FACT = re.compile(r"^([\w ]+):[ \t]*(\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class LocalDevice:
    """name: what `--device` takes, "cpu" or "cuda:0". model: its product name."""

    name: str
    model: str


def usable_cores() -> list[int]:
    """The numbers of the cores that this process may use; all of them where the system does not say."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def find_devices(environ: Mapping[str, str] = os.environ) -> list[LocalDevice]:
    """The CPU first, then the GPUs in the order torch numbers them."""
    visible = _visible(_gpus(), environ.get("CUDA_VISIBLE_DEVICES"))
    gpus = [LocalDevice(f"cuda:{index}", model) for index, (model, _) in enumerate(visible)]
    return [LocalDevice("cpu", f"{_cpu_model()}, {len(usable_cores())} cores"), *gpus]


def gpu_ids(environ: Mapping[str, str] = os.environ) -> list[str]:
    """The UUIDs of the GPUs, in the order torch numbers them."""
    return [uuid for _, uuid in _visible(_gpus(), environ.get("CUDA_VISIBLE_DEVICES"))]


def list_devices() -> list[str]:
    """Names of this machine's devices, as `--device` takes them."""
    return [device.name for device in find_devices()]


def choose_device(name_or_kind: str, environ: MutableMapping[str, str] = os.environ) -> str:
    """The device that `--device` means: "auto" is the first GPU if there is one, "cuda" the first GPU.

    From then on this process and its children see no other GPU, so a GPU is always "cuda:0". ValueError when the device
    is not here.
    """
    names = [device.name for device in find_devices(environ)]
    name = {"auto": names[min(1, len(names) - 1)], "cuda": "cuda:0"}.get(name_or_kind, name_or_kind)
    if name not in names:
        raise ValueError(f"this machine has no device {name_or_kind!r}; it has {', '.join(names)}")
    if name == "cpu":
        return name
    environ["CUDA_VISIBLE_DEVICES"] = gpu_ids(environ)[names.index(name) - 1]
    return "cuda:0"


def foreign_nodes(environ: Mapping[str, str] = os.environ, folder: Path = _GPUS) -> frozenset[str]:
    """Names below /dev of the GPUs that this process does not use.

    An empty set where CUDA_VISIBLE_DEVICES names no GPU by its UUID, as with slices of a GPU, or where the driver lists
    no GPU.
    """
    nodes: dict[str, str] = {}
    for file in folder.glob("*/information"):
        facts = dict(_GPU_FACT.findall(file.read_text(errors="replace")))
        nodes[facts.get("GPU UUID", "")] = f"nvidia{facts.get('Device Minor', '')}"
    own = nodes.get(environ.get("CUDA_VISIBLE_DEVICES", ""))
    return frozenset(nodes.values()) - {own} if own else frozenset()


def _gpus() -> list[tuple[str, str]]:
    """(model, UUID) of each GPU, from `nvidia-smi -L`; none when there is no driver or it does not answer."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        done = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = [line for line in done.stdout.splitlines() if line.startswith("GPU ")] if done.returncode == 0 else []
    parts = [line.partition(": ")[2].partition(" (UUID: ") for line in lines]
    return [(model, uuid.removesuffix(")")) for model, _, uuid in parts]


def _visible(gpus: list[tuple[str, str]], chosen: str | None) -> list[tuple[str, str]]:
    """The GPUs that CUDA_VISIBLE_DEVICES lets through: numbers, or UUIDs, which may be those of slices of a GPU."""
    if chosen is None or not gpus:
        return gpus
    entries = [entry.strip() for entry in chosen.split(",") if entry.strip() not in ("", "-1")]
    named = [
        gpus[int(entry)]
        if entry.isdigit() and int(entry) < len(gpus)
        else next((gpu for gpu in gpus if gpu[1].startswith(entry)), (gpus[0][0], entry))
        for entry in entries
    ]
    return named[: len(gpus)]


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
