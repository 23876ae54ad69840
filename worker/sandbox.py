"""What a child may see and take: its environment, its temp folder, its limits, no network, and no life after its
parent's.

Kernel code is untrusted. How far it can be shut in depends on the host, so the best isolation the host allows is found
by trying:

full – own user, network, mount, PID, IPC and UTS namespaces: no network, no sight of other processes, the whole file
system read-only but for the child's temp folder and the build cache, an own /dev/shm, database folders and keys hidden.
user – own user, network and mount namespaces: no network, no powers over the host's processes, the same folders hidden.
network – own network namespace only, for a root that must reach other users' files.
none – limits and a scrubbed environment alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

CONFINE = Path(__file__).with_name("confine.py")
FILE_BYTES = 4 * 2**30
"""Largest file that a child may write."""
PROCESSES = 4096
"""Processes and threads of one child; a fork bomb ends there."""
SHORT_SPIN = {"GOMP_SPINCOUNT": "1000"}
"""How long an OpenMP thread of GNU's spins for its next loop, some 10 µs.

One that spins on keeps its core from the very thread it waits for as soon as anything else runs on the machine, and
calls of 20 µs take milliseconds; one that sleeps at once is woken for every loop, which makes calls of 6 µs take 60.
"""
KEEP_FREED_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 * 2**20), "MALLOC_TRIM_THRESHOLD_": str(2**40)}
"""glibc then keeps what is freed, in blocks of up to 32 MiB (its limit), instead of giving it back and paying a page
fault per 4 KiB when it is taken again.

Whether it gives back depends on what happens to lie at the end of its heap, so the same code ran at either of two
speeds, up to ten times apart.
"""
_SECRET_FOLDERS = (".ssh", ".aws", ".azure", ".config/gcloud", ".docker", ".gnupg", ".kube")
"""Folders below the home folder that hold keys, which no kernel needs."""
SOCKET_FOLDERS = (Path("/run/postgresql"), Path("/var/run/postgresql"))
"""Where a PostgreSQL of the system listens; a socket needs no network."""
_KILL_SECONDS = 10.0
_PREFIX = "warpwatch-temp-"
_PASSED = (
    "PATH",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "VIRTUAL_ENV",
    "CC",
    "CXX",
    "CCACHE_DIR",
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
)


@dataclass(frozen=True, slots=True)
class Confinement:
    """How a child is shut in.

    memory_bytes: heap and private mappings it may take, None for any; hidden: folders it must not see.
    """

    isolation: str
    memory_bytes: int | None
    hidden: tuple[Path, ...] = ()

    @property
    def network_closed(self) -> bool:
        return self.isolation != "none"

    def wrap(self, command: list[str], writable: Sequence[Path]) -> list[str]:
        """`command` (its first word an absolute path), confined, as this very process's child.

        With the isolation "full" it can write into the folders in `writable` and nowhere else.
        """
        limits = {"CORE": 0, "FSIZE": FILE_BYTES}
        if self.memory_bytes is not None:
            limits["DATA"] = self.memory_bytes
        if self.isolation in ("full", "user"):
            # Only inside a user namespace does the count start at nought; elsewhere all of the user's processes would
            # count.
            limits["NPROC"] = PROCESSES
        plan = {
            "isolation": self.isolation,
            "hidden": [str(path) for path in self.hidden if path.is_dir()],
            "writable": [str(path) for path in writable],
            "limits": limits,
            "parent": os.getpid(),
        }
        return [sys.executable, "-I", "-S", str(CONFINE), json.dumps(plan), *command]


def confinement(
    home: Path, memory_bytes: int | None, hidden: tuple[Path, ...] = (), isolation: str = "auto"
) -> Confinement:
    """The confinement asked for; "auto" is the strongest that this host allows and that still lets a child reach what
    it needs."""
    chosen = strongest_isolation(home) if isolation == "auto" else isolation
    secrets = tuple(Path.home() / name for name in _SECRET_FOLDERS)
    return Confinement(chosen, memory_bytes or usable_memory() * 3 // 4, (*hidden, *secrets))


@cache
def strongest_isolation(home: Path) -> str:
    if not sys.platform.startswith("linux"):
        return "none"
    home.mkdir(parents=True, exist_ok=True)
    # A root without its powers may be shut out of folders that belong to others, so the probe looks at what a child
    # needs.
    look = "import os, sys; sys.exit(not all(os.access(p, os.R_OK | os.X_OK) for p in sys.argv[1:]))"
    needed = [sys.executable, str(home), str(CONFINE.parent / "harness")]
    for isolation in ("full", "user", "network"):
        plan = json.dumps({"isolation": isolation, "hidden": [], "writable": [str(home)], "limits": {}, "parent": None})
        command = [sys.executable, "-I", "-S", str(CONFINE), plan, sys.executable, "-I", "-S", "-c", look, *needed]
        if subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0:
            return isolation
    return "none"


def usable_memory() -> int:
    """Bytes of memory of this machine, or of the container it is limited to."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(name).read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            return min(physical, int(text))
    return physical


def environment(temp: Path, build_cache: Path, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """A child's environment: what finds compilers, Python and the GPU, and nothing that could hold a secret.

    Home and temp folder are the child's own. Caches that take minutes to fill (Triton, Inductor, ccache) lie beside the
    builds.
    """
    passed = {name: environ[name] for name in _PASSED if name in environ}
    # `pip install --user` lies below the real home folder, which the child does not get.
    user_base = environ.get("PYTHONUSERBASE") or str(Path(environ.get("HOME", "/")) / ".local")
    return {
        "PATH": os.defpath,
        "CCACHE_DIR": str(build_cache / "ccache"),
        **passed,
        "PYTHONUSERBASE": user_base,
        "PYTHONUNBUFFERED": "1",
        # The profiler would announce each of its starts and stops in the log.
        "KINETO_LOG_LEVEL": "99",
        "PYTHONFAULTHANDLER": "1",
        "PYTHONNOUSERSITE": environ.get("PYTHONNOUSERSITE", ""),
        "HOME": str(temp),
        "TMPDIR": str(temp),
        **SHORT_SPIN,
        **KEEP_FREED_MEMORY,
        "TRITON_CACHE_DIR": str(build_cache / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(build_cache / "inductor"),
    }


def make_temp() -> Path:
    """A new temp folder, named after this process so that another can tell when it was left behind."""
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))


def kill_group(group: int, temp: Path) -> None:
    """Kills a child's process group, then whatever left the group but still carries the child's temp folder; removes
    the folder."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
    _clear(temp)


def clear_leftovers() -> None:
    """Ends what the children of killed parents left behind: processes that escaped and temp folders."""
    for temp in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        owner = temp.name.removeprefix(_PREFIX).partition("-")[0]
        if temp.stat().st_uid == os.getuid() and not is_alive(owner):
            _clear(temp)


def is_alive(pid: str) -> bool:
    return Path("/proc", pid).exists()


def _clear(temp: Path) -> None:
    # Again and again, because a process may start another while it is being killed, and takes a moment to be gone.
    deadline = time.monotonic() + _KILL_SECONDS
    while (pids := list(_carrying(temp))) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    shutil.rmtree(temp, ignore_errors=True)


def _carrying(temp: Path) -> Iterator[int]:
    """Processes of ours whose environment names `temp` as their temp folder."""
    needle = f"TMPDIR={temp}".encode() + b"\0"
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            found = needle in (entry / "environ").read_bytes()
        except OSError:
            continue
        if found:
            yield int(entry.name)
