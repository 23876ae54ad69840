"""What a child may see and take: its environment, its temporary folder, its limits, no network, and no life after its
parent's.

Kernel code is untrusted. How far it can be shut in depends on the host, so the best isolation the host allows is found
by trying:

full – own user, network, mount, PID, IPC and UTS namespaces: no network, no sight of other processes, the whole file
system read-only but for a temporary folder of limited size that vanishes with the child, an own /dev and /dev/shm;
other commits' files, databases, keys and sockets hidden.
user – the same with the host's /proc, for containers that forbid to mount another: the names and command lines of other
processes can be read.
network – own network namespace only, for a root that must reach other users' files.
none – limits and a scrubbed environment alone.

At every level a filter refuses the system calls that kernel code has no use for.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from pathlib import Path

from warpwatch.worker.groups import open_group, remove_group
from warpwatch.worker.images import ContainerImage, list_driver_files
from warpwatch.worker.masking import device_nodes, list_sockets
from warpwatch.worker.seccomp import build_filter

LEVELS = ("full", "user", "network", "none")
"""Every isolation, the strongest first."""
CONFINE = Path(__file__).with_name("confine.py")
BOOTSTRAP = Path(__file__).parent / "harness" / "child" / "bootstrap.py"
"""The program that every child runs."""
PACKAGE = Path(__file__).absolute().parents[1]
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
SECRETS = (
    ".ssh",
    ".aws",
    ".azure",
    ".config/gcloud",
    ".config/gh",
    ".config/git",
    ".config/pip",
    ".docker",
    ".git-credentials",
    ".gnupg",
    ".huggingface",
    ".cache/huggingface/token",
    ".kube",
    ".netrc",
    ".npmrc",
    ".pgpass",
    ".pypirc",
)
"""Folders and files below the home folder that hold keys, which no kernel needs."""
OWN_FOLDERS = ("worktrees", "mirrors", "libraries", "jit", "bytecode", "builds", "peaks", "logs")
"""Folders of the worker; a child sees its own worktree and libraries in them."""
DEVICES = {
    "cpu": ("null", "zero", "full", "random", "urandom"),
    "cuda": ("null", "zero", "full", "random", "urandom", "nvidia*", "dri", "dxg"),
}
"""Nodes of /dev that a child gets, by the kind of device it measures."""
MEMORY_SHARE = 4
"""A child's temporary folder and its /dev/shm each hold at most one part in so many of the machine's memory."""
_START_SECONDS = 60.0
SOCKET_FOLDERS = (Path("/run/postgresql"), Path("/var/run/postgresql"))
"""Where a PostgreSQL of the system listens; a socket needs no network."""
KILL_SECONDS = 10.0
USER = "warpwatch"
"""Name of the user as torch asks for it, to name folders."""
JIT = "jit"
"""Folder in a child's temporary folder that holds what compilers make at run time."""
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


class Protection(StrEnum):
    """What a host may be unable to keep from kernel code; docs/security.md says what each means."""

    NETWORK = "network"
    FILES = "files"
    PROCESSES = "processes"
    SYSTEM_CALLS = "system_calls"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class Confinement:
    """How children are shut in.

    memory_bytes: heap and private mappings that one may take, None for any. hidden: folders and files that it must not
    see. scratch: where a child with namespaces finds its temporary folder, the same path for all of them, because
    compilers store paths. scratch_bytes: its size. shared_bytes: the size of the child's own /dev/shm. devices:
    patterns of nodes below /dev. traceable: whether its processes may trace each other. filtered: whether its system
    calls are filtered. group: the control group in which each child gets its own, None for none. image: whose files
    a child sees in place of the host's, None for the host's.
    """

    isolation: str
    memory_bytes: int | None
    hidden: tuple[Path, ...]
    scratch: Path
    scratch_bytes: int
    shared_bytes: int
    devices: tuple[str, ...] = DEVICES["cpu"]
    traceable: bool = False
    filtered: bool = True
    group: Path | None = None
    image: ContainerImage | None = None

    @property
    def network_closed(self) -> bool:
        return self.isolation != "none"

    @property
    def has_namespaces(self) -> bool:
        return self.isolation in ("full", "user")

    def limits(self) -> dict[str, int]:
        limits = {"CORE": 0, "FSIZE": FILE_BYTES}
        if self.memory_bytes is not None:
            limits["DATA"] = self.memory_bytes
        if self.has_namespaces:
            # Only inside a user namespace does the count start at nought; elsewhere all of the user's processes would
            # count.
            limits["NPROC"] = PROCESSES
        return limits


class Jail:
    """The parent's side of one child's confinement: its temporary folder (`inside`, as the child sees it), and the end
    of all its processes."""

    def __init__(self, confinement: Confinement) -> None:
        self._confinement = confinement
        self._descriptors: list[int] = []
        self._receiver: socket.socket | None = None
        self._sender: socket.socket | None = None
        self._folder: Path | None = None
        # The arguments of a process have a limit, which a host with many sockets would reach.
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
        self.write_plan(folder, visible, os.getpid())
        return [sys.executable, "-I", "-S", str(CONFINE), str(self._plan.fileno()), *words]

    def write_plan(self, folder: Path, visible: Sequence[Path], parent: int, **more: object) -> None:
        """Writes what confine.py reads, for a child that starts in `folder`, sees the folders `visible` although one
        above them is hidden, and dies with the process `parent`."""
        confinement = self._confinement
        plan = {
            "isolation": confinement.isolation,
            "visible": [str(path.resolve()) for path in (*visible, *self._packages())],
            "hidden": [str(path.resolve()) for path in confinement.hidden if os.access(path, os.F_OK)],
            "masked": list_sockets() if confinement.has_namespaces else [],
            "devices": device_nodes(confinement.devices) if confinement.has_namespaces else [],
            "scratch": str(confinement.scratch),
            "scratch_bytes": confinement.scratch_bytes,
            "shared_bytes": confinement.shared_bytes,
            "channel": self._sender.fileno() if self._sender is not None else -1,
            "folder": str(folder),
            "limits": confinement.limits(),
            "filter": build_filter(confinement.traceable).hex() if confinement.filtered else "",
            "group": str(self._group or ""),
            "parent": parent,
            **self._image_plan(),
            **more,
        }
        self._plan.write(marshal.dumps(plan))
        self._plan.seek(0)

    def _packages(self) -> tuple[Path, ...]:
        """The folders of this package, which an image does not have."""
        # In a checkout, `worker` is a link out of the package.
        return (PACKAGE, Path(__file__).parent) if self.image is not None else ()

    def _image_plan(self) -> dict[str, object]:
        image, is_cuda = self.image, self._confinement.devices == DEVICES["cuda"]
        return {"image": str(image.root) if image else "", "drivers": list_driver_files() if image and is_cuda else []}

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


def confinement(
    home: Path,
    memory_bytes: int | None,
    hidden: tuple[Path, ...] = (),
    isolation: str = "auto",
    *,
    scratch_bytes: int | None = None,
    device_kind: str = "cpu",
    group: Path | None = None,
) -> Confinement:
    """The confinement asked for; "auto" is the strongest that this host allows and that still lets a child reach what
    it needs."""
    own = tuple(home / name for name in OWN_FOLDERS)
    secrets = tuple(Path.home() / name for name in SECRETS)
    return Confinement(
        strongest_isolation(home, device_kind) if isolation == "auto" else isolation,
        memory_bytes or usable_memory() * 3 // 4,
        (*own, *hidden, *secrets),
        home / "scratch",
        scratch_bytes or usable_memory() // MEMORY_SHARE,
        usable_memory() // MEMORY_SHARE,
        DEVICES[device_kind],
        filtered=filters_calls(),
        group=group,
    )


def missing_protections(confinement: Confinement) -> list[Protection]:
    """What kernel code is not kept from on this host."""
    present = {
        Protection.NETWORK: confinement.network_closed,
        Protection.FILES: confinement.has_namespaces,
        Protection.PROCESSES: confinement.isolation == "full",
        Protection.SYSTEM_CALLS: confinement.filtered,
        Protection.MEMORY: confinement.group is not None,
    }
    return [protection for protection, given in present.items() if not given]


def is_weaker(isolation: str, wanted: str) -> bool:
    """Whether one isolation promises less than another."""
    return LEVELS.index(isolation) > LEVELS.index(wanted)


@cache
def filters_calls() -> bool:
    """Whether this host lets a process filter its own system calls."""
    if not sys.platform.startswith("linux") or not build_filter():
        return False
    return run_confined(_weakest(Path("/"), filtered=True), [sys.executable, "-I", "-S", "-c", ""]).returncode == 0


@cache
def strongest_isolation(home: Path, device_kind: str = "cpu") -> str:
    """The strongest isolation in which children of this host can work.

    Not `user` on a GPU: CUDA names its threads in /proc, does not start where it cannot, and the host's /proc does not
    know the process ids of the child's namespace.
    """
    if not sys.platform.startswith("linux"):
        return "none"
    home.mkdir(parents=True, exist_ok=True)
    # A root without its powers may be shut out of folders that belong to others, so the probe looks at what a child
    # needs.
    look = "import os, sys; sys.exit(not all(os.access(p, os.R_OK | os.X_OK) for p in sys.argv[1:]))"
    needed = [sys.executable, str(home), str(CONFINE.parent / "harness")]
    for isolation in ("full", "network") if device_kind == "cuda" else ("full", "user", "network"):
        words = [sys.executable, "-I", "-S", "-c", look, *needed]
        if run_confined(replace(_weakest(home), isolation=isolation), words).returncode == 0:
            return isolation
    return "none"


def _weakest(home: Path, filtered: bool = False) -> Confinement:
    return Confinement("none", None, (), home / "scratch", 2**20, 2**20, filtered=filtered)


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
        "TORCHINDUCTOR_CACHE_DIR": str(jit / "inductor"),
        "TORCH_EXTENSIONS_DIR": str(jit / "extensions"),
        "CUDA_CACHE_PATH": str(jit / "cuda"),
        "XDG_CACHE_HOME": str(jit / "other"),
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
