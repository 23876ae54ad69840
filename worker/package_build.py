"""Builds the package of a measured commit with its project's own command, in a jail.

The command runs in a copy of the commit's files, with a Python environment of its own that sees the interpreter's
packages. The files as it left them, and what it installed, are kept under the content that they were built from, so
commits with the same inputs share one build. Children run in the kept files: nothing is ever written into a worktree,
so a build can change, remove and replace what it likes, and the worktree still holds the commit. The command belongs to
the definitions and runs code of the commit, so it gets the jail and the limits of any untrusted code: no network, and
its own temporary folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import select
import shutil
import subprocess
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from warpwatch.contract.words import Fault
from warpwatch.worker import sandbox
from warpwatch.worker.line_reader import LineReader
from warpwatch.worker.reporter import Reporter, Stopped
from warpwatch.worker.trees import Limits, Tree, TreeError, TreeSizeError

TREE, ENVIRONMENT = "tree", "environment"
"""Folders of a build: the files of the commit as the command left them, and what it installed."""
MOST = Limits(depth=20, files=20_000, bytes=2 * 2**30)
"""Limits of one build, for each of the two folders."""
MOST_KEPT_BYTES = 10 * 2**30
"""Limit of the size of all builds of a home folder; the least recently used builds are deleted first."""
IN_USE_SECONDS = 24 * 3600.0
"""A build that was asked for so recently may belong to a child that runs."""
_FULL_BYTES = 2**20
"""Room that a folder has at most when a command failed for lack of it."""
_OFFLINE = re.compile(
    r"network is unreachable|temporary failure in name resolution|could not resolve host|"
    r"name or service not known|nodename nor servname provided|no route to host|failed to establish a new connection",
    re.IGNORECASE,
)
"""Messages of systems, resolvers and pip where there is no network. The words are theirs, and no exit status reports a
missing network."""
_TAIL_LINES = 40
_MOST_ERRORS = 5
_COMPILER_ERROR = re.compile(r"\berror: |: error |\berror\(", re.IGNORECASE)
"""As GCC, Clang and CMake, MSVC's linker, and nvcc write it."""
_LINE_BYTES = 8192
_POLL_SECONDS = 0.2
_SCRIPT = r"""
set -eu
"$1" -m venv --without-pip --system-site-packages "$TMPDIR/environment"
python="$TMPDIR/environment/bin/python"
"$1" -c 'import sysconfig; print(sysconfig.get_path("purelib")); print(sysconfig.get_path("platlib"))' \
  > "$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/interpreter.pth"
printf '#!/bin/sh\nexec "%s" -m pip "$@"\n' "$python" > "$TMPDIR/environment/bin/pip"
"$python" -c 'import pip' 2> /dev/null \
  || printf '#!/bin/sh\nexec uv pip "$@"\n' > "$TMPDIR/environment/bin/pip"
chmod +x "$TMPDIR/environment/bin/pip"
export VIRTUAL_ENV="$TMPDIR/environment" PATH="$TMPDIR/environment/bin:$(dirname "$1"):$PATH"
cp -R "$2/." "$TMPDIR/tree"
cd "$TMPDIR/tree"
exec sh -c "$3"
"""
_READ_ONLY = 0o444
_CPU_VARIABLES = {"TORCH_CUDA_ARCH_LIST": "8.0"}
"""Without a GPU, torch.utils.cpp_extension fails with "list index out of range" where it finds nvcc and no such list.
Projects compile their CUDA code together with what CPUs need."""
_VARIABLES = {"PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_CACHE_DIR": "1", "UV_OFFLINE": "1"}


class PackageBuildError(Exception):
    """The command failed, took too long or left too much; the message ends with its last lines.

    fault: what it lacked; None where it failed for a reason of its own.
    """

    def __init__(self, message: str, fault: Fault | None = None) -> None:
        super().__init__(message)
        self.fault = fault


@dataclass(frozen=True, slots=True)
class PackageBuild:
    """The files that one build left, in a folder that no other commit's child sees. folder: holds TREE and
    ENVIRONMENT."""

    folder: Path

    @property
    def tree(self) -> Tree:
        """The files of the commit as the command left them."""
        return Tree(self.folder / TREE)

    @property
    def site(self) -> Path:
        """The folder of everything that the command installed."""
        return self.folder / ENVIRONMENT

    def renew(self) -> bool:
        """Says that the build is in use; False where it was deleted meanwhile."""
        with contextlib.suppress(FileNotFoundError):
            os.utime(self.folder)
            return True
        return False


def build_package(
    home: Path,
    root: Path,
    content: str,
    command: str,
    python: str,
    confinement: sandbox.Confinement,
    seconds: float,
    reporter: Reporter,
) -> PackageBuild:
    """Builds the files at `root` unless the same `content` was built with this command and interpreter.

    Raises PackageBuildError where the command fails, or leaves what cannot be kept; Stopped when the reporter asks to
    stop. Any other OSError is about the machine.
    """
    address = hashlib.sha256("\0".join((content, command, python)).encode()).hexdigest()
    build = PackageBuild(home / "builds" / address)
    if build.renew():
        reporter.log(f"build: unchanged, {address[:12]}")
        return build
    reporter.log(f"build: {command}")
    begin = time.monotonic()
    jail = sandbox.Jail(confinement)
    try:
        variables = _CPU_VARIABLES if confinement.devices == sandbox.DEVICES["cpu"] else {}
        process = _start(jail, [python, str(root), command], root, variables)
        try:
            _wait(process, begin + seconds, seconds, reporter)
        except PackageBuildError as error:
            # A jail that did not even start has no folder, which says nothing about the command.
            error.fault = error.fault or (
                Fault.BUILD_FULL_DISK if Tree(jail.folder()).free_bytes() < _FULL_BYTES else None
            )
            raise
        finally:
            jail.kill(process.pid)
            process.wait()
        _keep(Tree(jail.folder()), build.folder)
    except TreeError as error:
        fault = Fault.BUILD_FULL_DISK if isinstance(error, TreeSizeError) else None
        raise PackageBuildError(f"the build left what cannot be kept: {error}", fault) from error
    finally:
        jail.close()
    trim_builds(build.folder.parent)
    reporter.log(f"build: done in {time.monotonic() - begin:.1f} s")
    return build


def trim_builds(builds: Path, limit: int = MOST_KEPT_BYTES) -> None:
    """Deletes the builds that were used longest ago until the others take at most `limit` bytes.

    Two workers may trim at once: what one of them deletes is gone for the other.
    """
    used: list[tuple[float, int, Path]] = []
    for folder in builds.iterdir():
        with contextlib.suppress(OSError):
            entries = Tree(folder).walk(Limits(MOST.depth + 1, 3 * MOST.files))
            size = sum(entry.status.st_size for entry in entries if entry.is_file)
            used.append((folder.stat().st_mtime, size, folder))
    total, border = sum(size for _, size, _ in used), time.time() - IN_USE_SECONDS
    for used_at, size, folder in sorted(used):
        if total <= limit or used_at > border:
            return
        shutil.rmtree(folder, ignore_errors=True)
        total -= size


def _start(
    jail: sandbox.Jail, arguments: list[str], root: Path, variables: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    words = jail.command(["/bin/sh", "-c", _SCRIPT, "build", *arguments], jail.inside, [root])
    try:
        return subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=jail.passed,
            env={**jail.environment(), **_VARIABLES, **variables},
            start_new_session=True,
            bufsize=0,
        )
    finally:
        jail.launched()


def _wait(process: subprocess.Popen[bytes], deadline: float, seconds: float, reporter: Reporter) -> None:
    """Logs what the command prints until it ends; PackageBuildError where it fails or takes too long."""
    assert process.stdout is not None
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    errors: list[str] = []
    with process.stdout as output:
        lines = LineReader(output.fileno(), _LINE_BYTES)
        while not lines.ended:
            select.select([lines.descriptor], [], [], _POLL_SECONDS)
            lines.read()
            while (line := lines.take()) is not None:
                text = line.decode(errors="replace").replace("\0", "").rstrip()
                if len(errors) < _MOST_ERRORS and _COMPILER_ERROR.search(text):
                    errors.append(text)
                tail.append(text)
                reporter.log(text)
            reason = reporter.should_stop()
            if reason is not None:
                raise Stopped(reason)
            if time.monotonic() > deadline:
                message = f"the build took longer than {seconds:g} s, the limit that WARPWATCH_BUILD_TIMEOUT sets"
                raise PackageBuildError("\n".join([message, *tail]), Fault.BUILD_TIMED_OUT)
        code = process.wait(timeout=max(1.0, deadline - time.monotonic()))
    if code != 0:
        fault = Fault.BUILD_OFFLINE if any(_OFFLINE.search(line) for line in tail) else None
        # Builders of Python print a long traceback behind the error of a compiler.
        cut = [line for line in errors if line not in tail]
        raise PackageBuildError("\n".join([f"the build command exited with status {code}", *cut, *tail]), fault)


def _keep(made: Tree, folder: Path) -> None:
    """Keeps what the command left, as a whole; TreeError where that is too much. The first of two builds wins."""
    partial = folder.with_name(f"{folder.name}.{os.getpid()}-{time.monotonic_ns()}")
    try:
        for name in (TREE, ENVIRONMENT):
            (partial / name).mkdir(parents=True)
        made.copy_all(TREE, Tree(partial), TREE, MOST, _READ_ONLY)
        if site := _find_site(made):
            # What adds folders to the path of modules names those of the build, which are gone by then.
            paths = re.compile(rf"{re.escape(site)}/[^/]*\.pth")
            made.copy_all(
                site, Tree(partial), ENVIRONMENT, MOST, _READ_ONLY, lambda entry: bool(paths.fullmatch(entry.name))
            )
        if not folder.exists():
            with contextlib.suppress(FileExistsError):
                partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _find_site(made: Tree) -> str | None:
    """Where packages were installed, below what the command made."""
    with contextlib.suppress(TreeError):
        names = sorted(entry.name for entry in made.entries(f"{ENVIRONMENT}/lib") if "/python3" in entry.name)
        return f"{names[0]}/site-packages" if names else None
    return None
