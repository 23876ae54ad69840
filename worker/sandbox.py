"""Confines a child: its environment, its temporary folder, its limits, no network, and no life after its parent's.

Kernel code is untrusted. How far the sandbox can shut in kernel code depends on the host:

full – own user, network, mount, PID, IPC and UTS namespaces: no network, no sight of other processes, a root that holds
what a child needs and nothing else, read-only but for a temporary folder of limited size that vanishes with the child,
an own /dev and /dev/shm.
user – the same with the host's /proc, for containers that forbid to mount another /proc: the names and command lines of
other processes can be read.
network – own network namespace only, for a root that must reach other users' files.
none – limits and a scrubbed environment alone.

At every level a filter refuses the system calls that kernel code has no use for. `levels.py` finds the level of a
host.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from warpwatch.worker.groups import open_group, remove_group
from warpwatch.worker.images import ContainerImage
from warpwatch.worker.root import device_nodes, plan_root
from warpwatch.worker.seccomp import build_filter

CONFINE = Path(__file__).with_name("confine.py")
BOOTSTRAP = Path(__file__).parent / "harness" / "child" / "bootstrap.py"
"""The program that every child runs."""
PACKAGE = Path(__file__).absolute().parents[1]
FILE_BYTES = 4 * 2**30
"""Largest file that a child may write."""
PROCESSES = 4096
"""Processes and threads of one child; a fork bomb ends there."""
FILES = 4096
"""Files that a process of a child may have open, and descriptors that all children of a user may have in flight."""
SIGNALS = 1024
"""Signals that may wait for a child."""
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
DEVICES = {
    "cpu": ("null", "zero", "full", "random", "urandom"),
    "cuda": (
        *("null", "zero", "full", "random", "urandom", "dri", "dxg"),
        *("nvidia[0-9]*", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"),
        *("nvidia-caps/nvidia-cap[3-9]", "nvidia-caps/nvidia-cap[1-9][0-9]*"),
    ),
}
"""Nodes of /dev that a child gets, by the kind of device it measures.

The first two capabilities of NVIDIA's driver configure and watch MIG; the others open slices of a GPU. Switches and
channels of IMEX reach other GPUs and machines.
"""
MEMORY_SHARE = 4
"""A child's temporary folder and its /dev/shm each hold at most one part in so many of the machine's memory."""
_START_SECONDS = 60.0
KILL_SECONDS = 10.0
USER = "warpwatch"
"""Name of the user as torch asks for it, to name folders."""
JIT = "jit"
"""Folder in a child's temporary folder that holds what compilers make at run time."""
OTHER = f"{JIT}/other"
"""The part of JIT for what asks for no folder of its own, such as torch for CUDA kernels that it compiles itself."""
BYTECODE_VARIABLE = "PYTHONPYCACHEPREFIX"
"""Names the folder in which Python looks for byte code, in place of the folders beside the sources."""
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
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
)
_SEARCHED = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH")
"""Lists of folders in which programs, libraries and modules are looked for."""


@dataclass(frozen=True, slots=True)
class Confinement:
    """How children are shut in.

    memory_bytes: heap and private mappings that one may take, None for any. hidden: folders and files that it must not
    see, also in a folder that it sees. home: the folder of the worker, of which it sees its own folders alone.
    scratch_bytes: size of its temporary folder. shared_bytes: the size of the child's own /dev/shm. devices: patterns
    of nodes below /dev. traceable: whether its processes may trace each other. filtered: whether its system calls are
    filtered. group: the control group in which each child gets its own, None for none. image: whose files a child sees
    in place of the host's, None for the host's. shown: further folders and files of the host that it sees.
    """

    isolation: str
    memory_bytes: int | None
    hidden: tuple[Path, ...]
    home: Path
    scratch_bytes: int
    shared_bytes: int
    devices: tuple[str, ...] = DEVICES["cpu"]
    traceable: bool = False
    filtered: bool = True
    group: Path | None = None
    image: ContainerImage | None = None
    shown: tuple[Path, ...] = ()

    @property
    def scratch(self) -> Path:
        """Where a child with namespaces finds its temporary folder, the same path for all, because compilers store
        paths."""
        return self.home / "scratch"

    @property
    def network_closed(self) -> bool:
        return self.isolation != "none"

    @property
    def has_namespaces(self) -> bool:
        return self.isolation in ("full", "user")

    def limits(self) -> dict[str, int]:
        """The resource limits of a child. The kernel counts files in flight, locked memory, queues and signals for all
        processes of a user, so those limits are below the limits of this process."""
        limits = {
            "CORE": 0,
            "FSIZE": FILE_BYTES,
            "NOFILE": min(FILES, _own_limit(resource.RLIMIT_NOFILE) // 2),
            "SIGPENDING": min(SIGNALS, _own_limit(resource.RLIMIT_SIGPENDING) // 2),
            "MSGQUEUE": _own_limit(resource.RLIMIT_MSGQUEUE) // 2,
            "RTPRIO": 0,
        }
        if self.memory_bytes is not None:
            limits["DATA"] = self.memory_bytes
            limits["MEMLOCK"] = self.memory_bytes
        if self.has_namespaces:
            # Only inside a user namespace does the count start at nought; elsewhere all of the user's processes would
            # count.
            limits["NPROC"] = min(PROCESSES, _own_limit(resource.RLIMIT_NPROC) // 2)
        return limits


class Jail:
    """The parent's side of one child's confinement: its temporary folder (`inside`, as the child sees it), and the end
    of all its processes."""

    def __init__(self, confinement: Confinement) -> None:
        self._confinement = confinement
        # Children may hold descriptors in flight up to half of the hard limit. This process sends some, too.
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        self._descriptors: list[int] = []
        self._receiver: socket.socket | None = None
        self._sender: socket.socket | None = None
        self._folder: Path | None = None
        self._plan = tempfile.TemporaryFile()  # noqa: SIM115 - closed once the child has it
        self._group = confinement.group and open_group(confinement.group, confinement.memory_bytes, PROCESSES)
        if confinement.has_namespaces:
            confinement.scratch.mkdir(parents=True, exist_ok=True)
            self._receiver, self._sender = socket.socketpair()
            self.inside = confinement.scratch
        else:
            self._folder = self.inside = make_temp()

    @property
    def image(self) -> ContainerImage | None:
        """Whose files the child sees in place of the host's."""
        return self._confinement.image

    @property
    def shared_temp(self) -> Path | None:
        """The temporary folder as each child of this kind sees it, None where each has another path."""
        return self.inside if self._confinement.has_namespaces else None

    @property
    def passed(self) -> list[int]:
        """Descriptors that the confining process must inherit: of its plan and, with namespaces, of the channel."""
        sender = [self._sender.fileno()] if self._sender is not None else []
        return [self._plan.fileno(), *sender]

    def command(self, words: Sequence[str], folder: Path, visible: Sequence[Path] = ()) -> list[str]:
        """`words` (the first an absolute path), confined, as this process's child; folder, visible as `write_plan`."""
        self.write_plan(words, folder, visible, os.getpid())
        return [sys.executable, "-I", "-S", str(CONFINE), str(self._plan.fileno()), *words]

    def write_plan(
        self, words: Sequence[str], folder: Path, visible: Sequence[Path], parent: int, **more: object
    ) -> None:
        """Writes what confine.py reads, for a child that runs `words` in `folder`, sees `visible` and what its programs
        need, and dies with the process `parent`."""
        confinement = self._confinement
        plan = {
            "isolation": confinement.isolation,
            "root": self._plan_root(words, visible) if confinement.has_namespaces else [],
            "devices": device_nodes(confinement.devices) if confinement.has_namespaces else [],
            "scratch": str(confinement.scratch.resolve()),
            "scratch_bytes": confinement.scratch_bytes,
            "shared_bytes": confinement.shared_bytes,
            "channel": self._sender.fileno() if self._sender is not None else -1,
            "words": list(words),
            "folder": str(folder),
            "limits": confinement.limits(),
            "filter": build_filter(confinement.traceable).hex() if confinement.filtered else "",
            "group": str(self._group or ""),
            "parent": parent,
            **more,
        }
        self._plan.write(marshal.dumps(plan))
        self._plan.seek(0)

    def _plan_root(self, words: Sequence[str], visible: Sequence[Path]) -> list[tuple[str, str, str]]:
        confinement = self._confinement
        return plan_root(
            # In a checkout, `worker` is a link out of the package.
            (*visible, *confinement.shown, PACKAGE, Path(__file__).parent),
            (*confinement.hidden, Path(os.path.expanduser("~"))),  # noqa: PTH111 - there may be none
            confinement.home,
            words,
            image=self.image,
            is_cuda=confinement.devices == DEVICES["cuda"],
        )

    def environment(self) -> dict[str, str]:
        """The environment of the child: in a container, what its image says takes the place of the host's."""
        image = self.image
        return environment(self.inside) if image is None else environment(self.inside, image.environment(os.environ))

    def launched(self) -> None:
        """Call it once the process has been started, or could not be."""
        self._plan.close()
        if self._sender is not None:
            self._sender.close()
            self._sender = None

    def folder(self) -> Path:
        """The temporary folder as this process reaches it, also after the child's end; OSError where the child never
        had one."""
        if self._folder is None:
            if self._receiver is None:
                raise FileNotFoundError("the child ended before it had a temporary folder")
            self._receiver.settimeout(_START_SECONDS)
            self._descriptors = socket.recv_fds(self._receiver, 1, 2)[1]
            self._receiver.close()
            self._receiver = None
            if not self._descriptors:
                raise FileNotFoundError("the child ended before it had a temporary folder")
            self._folder = Path(f"/proc/self/fd/{self._descriptors[0]}")
        return self._folder

    def kill(self, group: int) -> None:
        """Kills the process group and everything that it started. Nothing of it is left when this returns."""
        with contextlib.suppress(OSError):
            self.folder()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
        if self._confinement.has_namespaces:
            for first in self._descriptors[1:]:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(first, signal.SIGKILL)
                # The first process of a namespace is gone only when all others are.
                waiting = select.poll()
                waiting.register(first, select.POLLIN)
                waiting.poll(KILL_SECONDS * 1000)
        else:
            _kill_carrying(self.inside)

    def close(self) -> None:
        """Removes the temporary folder."""
        self.launched()
        if self._receiver is not None:
            self._receiver.close()
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = []
        if not self._confinement.has_namespaces:
            _remove(self.inside)
        if self._group is not None:
            remove_group(self._group)


def run_confined(
    confinement: Confinement, words: Sequence[str], folder: Path = Path("/"), visible: Sequence[Path] = ()
) -> subprocess.CompletedProcess[str]:
    """Runs a short command, confined, to its end."""
    jail = Jail(confinement)
    try:
        command = jail.command(words, folder, visible)
        return subprocess.run(
            command, pass_fds=jail.passed, capture_output=True, text=True, errors="replace", timeout=60, check=False
        )
    finally:
        jail.close()


def _own_limit(kind: int) -> int:
    hard = resource.getrlimit(kind)[1]
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


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


def environment(temp: Path, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """A child's environment: what finds compilers, Python and the GPU, and nothing that could hold a secret.

    Home and temp folder are the child's own. What compilers make at run time (Triton, Inductor, load_inline, the
    driver) goes into folders of which `caches` keeps copies.
    """
    passed = {name: environ[name] for name in _PASSED if name in environ}
    for name in _SEARCHED:
        # Any other entry means the current folder, which is that of the commit: `$X:/folder` has one where X is unset.
        entries = [entry for entry in passed.pop(name, "").split(os.pathsep) if entry.startswith("/")]
        passed |= {name: os.pathsep.join(entries)} if entries else {}
    # `pip install --user` lies below the real home folder, which the child does not get.
    user_base = environ.get("PYTHONUSERBASE") or str(Path(environ.get("HOME", "/")) / ".local")
    jit = temp / JIT
    return {
        "PATH": os.defpath,
        **passed,
        "PYTHONUSERBASE": user_base,
        "PYTHONUNBUFFERED": "1",
        # The profiler would announce each of its starts and stops in the log.
        "KINETO_LOG_LEVEL": "99",
        "PYTHONFAULTHANDLER": "1",
        "PYTHONNOUSERSITE": environ.get("PYTHONNOUSERSITE", ""),
        "HOME": str(temp),
        "LOGNAME": USER,
        "TMPDIR": str(temp),
        **SHORT_SPIN,
        **KEEP_FREED_MEMORY,
        # A compiler cache that one commit can write to and another reads would carry machine code between them.
        "CCACHE_DISABLE": "1",
        "TRITON_CACHE_DIR": str(jit / "triton"),
        # An autotuner that chooses anew in each process may choose differently, and takes most of the time of a job.
        "TRITON_CACHE_AUTOTUNING": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(jit / "inductor"),
        "TORCH_EXTENSIONS_DIR": str(jit / "extensions"),
        "CUDA_CACHE_PATH": str(jit / "cuda"),
        "XDG_CACHE_HOME": str(temp / OTHER),
    }


def make_temp() -> Path:
    """A new temp folder, named after this process so that another can tell when it was left behind."""
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))


def clear_leftovers() -> None:
    """Ends what the children of killed parents left behind: processes that escaped and temp folders."""
    for temp in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        pid = temp.name.removeprefix(_PREFIX).partition("-")[0]
        # Another worker, which starts at the same time or ends, may have removed it since it was listed.
        with contextlib.suppress(FileNotFoundError):
            if temp.stat().st_uid == os.getuid() and not is_alive(pid):
                _kill_carrying(temp)
                _remove(temp)


def is_alive(pid: str) -> bool:
    return Path("/proc", pid).exists()


def _kill_carrying(temp: Path) -> None:
    # Again and again, because a process may start another while it is being killed, and takes a moment to be gone.
    deadline = time.monotonic() + KILL_SECONDS
    while (pids := list(_carrying(temp))) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _remove(folder: Path) -> None:
    # A folder in a folder, a thousand times, ends the recursion of rmtree.
    with contextlib.suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)


def _carrying(temp: Path) -> Iterator[int]:
    """Processes of ours whose environment names `temp` as their temp folder."""
    needle = f"TMPDIR={temp}".encode() + b"\0"
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            carries = needle in (entry / "environ").read_bytes()
        except OSError:
            continue
        if carries:
            yield int(entry.name)
