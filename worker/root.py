"""The root that a child gets: what of the host it sees, and nothing else.

A list of what is hidden misses what nobody thought of: sockets bound by a relative path, FIFOs deep in a folder, the
home folders of other people. So a child's root is empty, and what it needs is mounted there: folders of the system,
interpreters with their packages, compilers, this package, and the folders of its commit. Paths are the same inside and
outside, because compilers and virtual environments store them.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from warpwatch.worker.devices import foreign_nodes
from warpwatch.worker.images import DRIVERS, ContainerImage, list_driver_files

SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/sys"),
    *("/nix/store", "/gnu/store", "/run/current-system", "/run/opengl-driver"),
)
"""Folders of the system, the last four of those whose packages lie in a store."""
SYSTEM_FILES = (
    *(
        "alternatives",
        "ld.so.cache",
        "ld.so.conf",
        "ld.so.conf.d",
        "localtime",
        "timezone",
        "locale.alias",
        "locale.conf",
    ),
    *("passwd", "group", "nsswitch.conf", "hosts", "host.conf", "protocols", "services", "mime.types", "magic"),
    *(
        "os-release",
        "lsb-release",
        "debian_version",
        "redhat-release",
        "fonts",
        "terminfo",
        "inputrc",
        "default/locale",
    ),
    *("ssl/certs", "ssl/openssl.cnf", "pki/tls", "pki/ca-trust", "ca-certificates", "crypto-policies"),
    *("OpenCL", "vulkan", "glvnd", "nvidia", "cuda", "libibverbs.d", "openmpi", "hwloc", "papersize", "python3"),
)
"""Files and folders of /etc that programs read when they start, and that hold no key and no password."""
COVERED = ("/sys/kernel/debug", "/sys/kernel/tracing", "/sys/kernel/security", "/sys/firmware", "/sys/fs/bpf")
"""Folders of /sys about the machine as a whole, which a root could read."""
EMPTY = ("/tmp", "/var/tmp", "/run")  # noqa: S108
"""Folders that programs expect to be there."""
TOOLS = (
    *("cc", "c++", "gcc", "g++", "clang", "clang++", "ld", "make", "cmake", "ninja", "git"),
    *("nvcc", "ptxas", "ncu", "compute-sanitizer", "nvidia-smi"),
)
"""Programs whose libraries and headers lie beside the folder that is on PATH."""
_FOLDER_VARIABLES = ("CUDA_HOME", "CUDA_PATH", "VIRTUAL_ENV")
_LIST_VARIABLES = ("PYTHONPATH", "LD_LIBRARY_PATH", "PATH")
_TOOL_VARIABLES = ("CC", "CXX")
_PARTS = ("bin", "lib", "lib64", "libexec", "include", "pyvenv.cfg")
"""The parts of a prefix that a program needs, where the prefix also holds other files of a person."""
_MAPPING = re.compile(r"^MAPPING\b[^=]*= *(\{.*\})", re.MULTILINE)
_UV_CACHE = re.compile(r"^(.+/archive-v\d+)/")
_LINKS = 40
"""Links that may lead from one path to a file."""


@dataclass(frozen=True, slots=True)
class RootEntry:
    """One thing in a child's root.

    kind: "bind" for what lies at `source` on the host, "link" for a link to `source`, "empty" for an empty folder where
    nothing else is, "own" for one that covers whatever is there, and "cover" for what must not be seen.
    """

    kind: str
    path: str
    source: str = ""


def plan_root(
    shown: Iterable[Path],
    covered: Iterable[Path],
    own: Path,
    words: Sequence[str],
    *,
    image: ContainerImage | None = None,
    is_cuda: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> list[tuple[str, str, str]]:
    """The root of a child that runs the command `words`, as confine.py lays it out: outer folders come first.

    shown: further files and folders of the host. covered: what stays hidden where it lies in a folder that is shown.
    own: the worker's folder, in which a child finds its own folders alone. image: whose files take the place of the
    host's system.
    """
    entries: dict[tuple[str, str], RootEntry] = {}
    if image is not None:
        _add_image(image, entries, is_cuda=is_cuda)
    else:
        programs = tuple(word for word in words if word.startswith("/") and os.access(word, os.X_OK))
        names = (*_FOLDER_VARIABLES, *_LIST_VARIABLES, *_TOOL_VARIABLES, "PYTHONUSERBASE", "PYTHONNOUSERSITE")
        variables = tuple((name, environ[name]) for name in names if environ.get(name))
        for path in _host_folders(programs, is_cuda, variables):
            if not path.startswith(f"{own}/"):
                _add(path, entries)
        entries |= {("empty", path): RootEntry("empty", path) for path in EMPTY}
    for path in map(str, shown):
        if not os.path.lexists(path):
            raise FileNotFoundError(f"a child should see {path}, which is not there")
        _add(path, entries)
    place = _follow(str(own), entries)
    entries["own", place] = RootEntry("own", place)
    # What the host hides is not in an image.
    covers = [*COVERED, *(map(str, covered) if image is None else ())]
    entries |= {("cover", path): RootEntry("cover", path) for path in map(os.path.realpath, covers) if path != "/"}
    return [(entry.kind, entry.path, entry.source) for entry in _arrange(entries.values())]


def device_nodes(patterns: Sequence[str]) -> list[str]:
    """Names below /dev that match, without the GPUs that this worker does not measure on."""
    foreign = foreign_nodes()
    paths = [path for pattern in patterns for path in sorted(Path("/dev").glob(pattern))]
    return [str(path.relative_to("/dev")) for path in paths if path.name not in foreign]


def _add_image(image: ContainerImage, entries: dict[tuple[str, str], RootEntry], *, is_cuda: bool) -> None:
    """The files of an image, with /sys and the driver of the host."""
    for entry in os.scandir(image.root):
        path = f"/{entry.name}"
        if entry.is_symlink():
            entries["link", path] = RootEntry("link", path, os.readlink(entry.path))  # noqa: PTH115
        elif entry.name not in ("proc", "sys", "dev"):
            entries["bind", path] = RootEntry("bind", path, entry.path)
    _add("/sys", entries)
    entries["empty", DRIVERS] = RootEntry("empty", DRIVERS)
    for file in list_driver_files() if is_cuda else ():
        path = f"{DRIVERS}/{os.path.basename(file)}"  # noqa: PTH119
        entries["bind", path] = RootEntry("bind", path, os.path.realpath(file))


@cache
def _host_folders(programs: tuple[str, ...], is_cuda: bool, variables: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    """The folders and files of the host that these programs need. The result is cached, because the folders of a
    process's children change too seldom to look each time."""
    environ = dict(variables)
    home = os.path.realpath(os.path.expanduser("~"))  # noqa: PTH111
    folders = [*SYSTEM, *(f"/etc/{name}" for name in SYSTEM_FILES)]
    for program in programs:
        folders += _interpreter_folders(program, home)
    for name in _LIST_VARIABLES:
        folders += environ.get(name, "").split(os.pathsep)
    folders += [environ[name] for name in _FOLDER_VARIABLES if name in environ]
    if not environ.get("PYTHONNOUSERSITE"):
        base = environ.get("PYTHONUSERBASE") or f"{home}/.local"
        folders += [f"{base}/lib", f"{base}/bin"]
    chosen = [environ[variable] for variable in _TOOL_VARIABLES if variable in environ]
    for name in (*chosen, *TOOLS):
        tool = shutil.which(name, path=environ.get("PATH"))
        if tool is not None:
            folders += _prefix(os.path.dirname(os.path.dirname(os.path.realpath(tool))), home)  # noqa: PTH120
    if is_cuda:
        folders += [os.path.dirname(file) for file in list_driver_files()]  # noqa: PTH120
    # A home folder is never shown as a whole, nor anything above it: it holds keys.
    return tuple(path for path in dict.fromkeys(folders) if path.startswith("/") and not _holds(path, home))


def _prefix(prefix: str, home: str) -> list[str]:
    """A prefix in which programs were installed; below a home folder, where other things may lie beside them, only what
    programs need of it."""
    is_shared = prefix == home or prefix.startswith(f"{home}/") or _holds(prefix, home)
    return [f"{prefix}/{part}" for part in _PARTS] if is_shared and home != "/" else [prefix]


def _holds(path: str, home: str) -> bool:
    """Whether `path` is the home folder or above it."""
    return path == "/" or f"{home}/".startswith(f"{os.path.realpath(path)}/")


def _interpreter_folders(program: str, home: str) -> list[str]:
    """The folders of an interpreter: its prefix and the prefixes that its prefix was made from, and folders outside
    these from which its packages were installed. An empty list for a program that is no Python.

    The interpreter is not asked, because the commit may have chosen it, and it would have to run outside a sandbox.
    """
    folders: list[str] = []
    waiting, seen = [program], set[str]()
    while waiting and len(seen) < _LINKS:
        path = os.path.normpath(waiting.pop())
        if path in seen:
            continue
        seen.add(path)
        place, prefix = os.path.dirname(path), os.path.dirname(os.path.dirname(path))  # noqa: PTH120
        if os.path.islink(path):  # noqa: PTH114
            # The folder of the link may be a link, too.
            waiting.append(os.path.join(os.path.realpath(place), os.readlink(path)))  # noqa: PTH115, PTH118
        settings = Path(prefix, "pyvenv.cfg")
        if settings.is_file():
            values = dict(_values(settings))
            waiting += [os.path.join(values["home"], "python3")] if "home" in values else []  # noqa: PTH118
        elif not any(Path(prefix).glob("lib*/python3*/os.py")):
            continue
        folders += [f"{prefix}/{part}" for part in _PARTS] if _holds(prefix, home) else [prefix]
        for site in Path(prefix).glob("lib*/python3*/*-packages"):
            folders += _linked_packages(site)
    return folders


def _values(file: Path) -> Iterator[tuple[str, str]]:
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        name, _, value = line.partition("=")
        yield name.strip(), value.strip()


def _linked_packages(site: Path) -> Iterator[str]:
    """Folders outside of site-packages that packages are imported from: of editable installs, and of caches that files
    are links to.

    Only files of this user or of root are believed: a commit may choose an interpreter that others have made.
    """
    with contextlib.suppress(OSError):
        for file in (*site.glob("*.pth"), *site.glob("__editable__*_finder.py"), *site.glob("*.dist-info/RECORD")):
            if file.stat(follow_symlinks=False).st_uid not in (0, os.getuid()):
                continue
            if file.name == "RECORD":
                cache_folder = _UV_CACHE.match(os.path.realpath(file)) if file.is_symlink() else None
                if cache_folder is not None:
                    yield cache_folder[1]
                continue
            text = file.read_text(encoding="utf-8", errors="replace")
            if file.suffix == ".pth":
                lines = [
                    line.strip() for line in text.splitlines() if not line.startswith(("import ", "import\t", "#"))
                ]
                yield from (str(site / line) for line in lines if line and (site / line).exists())
            elif mapping := _MAPPING.search(text):
                with contextlib.suppress(ValueError, SyntaxError):
                    yield from map(str, ast.literal_eval(mapping[1]).values())


def _add(path: str, entries: dict[tuple[str, str], RootEntry]) -> None:
    """Adds a file or folder of the host, if it is there, with the links that lead to it."""
    links: dict[tuple[str, str], RootEntry] = {}
    place = _follow(path, links)
    if place != "/" and os.path.lexists(place):
        entries |= links
        entries["bind", place] = RootEntry("bind", place, place)


def _follow(path: str, links: dict[tuple[str, str], RootEntry]) -> str:
    """The real path of a file or folder; adds the links that lead to it."""
    place, left, count = "", [part for part in path.split("/") if part not in ("", ".")], 0
    while left:
        name = left.pop(0)
        if name == "..":
            place = place.rpartition("/")[0]
            continue
        here = f"{place}/{name}"
        try:
            target = os.readlink(here)  # noqa: PTH115
        except OSError:
            place = here
            continue
        count += 1
        if count > _LINKS:
            return "/"
        links["link", here] = RootEntry("link", here, target)
        place = "" if target.startswith("/") else place
        left = [*(part for part in target.split("/") if part not in ("", ".")), *left]
    return place or "/"


def _arrange(entries: Iterable[RootEntry]) -> Iterator[RootEntry]:
    """Outer folders first, without what a folder above shows anyway, and without covers of what is not shown."""
    around: list[RootEntry] = []
    order = {"empty": 0, "bind": 1, "link": 2, "own": 3, "cover": 4}
    for entry in sorted(entries, key=lambda entry: (entry.path.split("/"), order[entry.kind])):
        while around and not f"{entry.path}/".startswith(f"{around[-1].path}/"):
            around.pop()
        outer = around[-1] if around and around[-1].kind == "bind" else None
        if outer is not None:
            shown = outer.source + entry.path.removeprefix(outer.path)
            if entry.kind in ("empty", "link") or entry.source == shown:
                continue
        elif entry.kind == "cover":
            continue
        elif entry.kind == "own":
            entry = RootEntry("empty", entry.path)
        if entry.kind in ("bind", "own", "cover"):
            around.append(entry)
        yield entry
