"""Builds the package of a measured commit with its project's own command, in a jail.

The command runs in a copy of the commit's files, with a Python environment of its own that sees the interpreter's
packages. What it adds to the files or installs is kept under the content that it was built from, so commits with the
same inputs share one build. The command belongs to the definitions and runs code of the commit, so it gets the jail and
the limits of any untrusted code: no network, and its own temporary folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import select
import shutil
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from warpwatch.contract.words import Fault
from warpwatch.worker import sandbox
from warpwatch.worker.files import copy_regular, walk_regular
from warpwatch.worker.line_reader import LineReader
from warpwatch.worker.reporter import Reporter, Stopped

TREE, ENVIRONMENT = "tree", "environment"
"""Folders of a build: the files of the commit with what the command added, and what it installed."""
MOST_FILES, MOST_BYTES = 20_000, 2**30
"""What one build may leave."""
MOST_KEPT_BYTES = 10 * 2**30
"""What all builds of a home folder may take; the least recently used are deleted first."""
IN_USE_SECONDS = 24 * 3600.0
"""A build that was asked for so recently may belong to a child that runs."""
_FULL_BYTES = 2**20
"""Room that a folder has at most when a command failed for lack of it."""
_OFFLINE = re.compile(
    r"network is unreachable|temporary failure in name resolution|could not resolve host|"
    r"name or service not known|nodename nor servname provided|no route to host|failed to establish a new connection",
    re.IGNORECASE,
)
"""What systems, resolvers and pip say where there is no network; the words are theirs, and no exit status tells it."""
_DEPTH = 20
_TAIL_LINES = 40
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
_VARIABLES = {"PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_CACHE_DIR": "1", "UV_OFFLINE": "1"}


class BuildSizeError(OSError):
    """A build left more than may be kept."""


class PackageBuildError(Exception):
    """The command failed, took too long or left too much; the message ends with its last lines.

    fault: what it lacked; None where it failed for a reason of its own.
    """

    def __init__(self, message: str, fault: Fault | None = None) -> None:
        super().__init__(message)
        self.fault = fault


@dataclass(frozen=True, slots=True)
class PackageBuild:
    """What one build left, in a folder that no other commit's child sees. folder: holds TREE and ENVIRONMENT."""

    folder: Path

    @property
    def site(self) -> Path:
        """What the command installed."""
        return self.folder / ENVIRONMENT

    def lay_out(self, target: Path) -> None:
        """Adds what the command made to the files of a commit."""
        for source, _ in walk_regular(self.folder / TREE, _DEPTH, MOST_FILES):
            copy = target / source.relative_to(self.folder / TREE)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.unlink(missing_ok=True)
            os.link(source, copy)


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

    Raises PackageBuildError where the command fails, Stopped when the reporter asks to stop.
    """
    address = hashlib.sha256("\0".join((content, command, python)).encode()).hexdigest()
    folder = home / "builds" / address
    if folder.is_dir():
        reporter.log(f"build: unchanged, {address[:12]}")
        os.utime(folder)
        return PackageBuild(folder)
    reporter.log(f"build: {command}")
    begin = time.monotonic()
    jail = sandbox.Jail(confinement)
    try:
        process = _start(jail, [python, str(root), command], root)
        try:
            _wait(process, begin + seconds, seconds, reporter)
        except PackageBuildError as error:
            error.fault = error.fault or _find_full_disk(jail)
            raise
        finally:
            jail.kill(process.pid)
            process.wait()
        _keep(jail.folder(), root, folder)
        trim_builds(folder.parent)
    except OSError as error:
        fault = Fault.BUILD_FULL_DISK if isinstance(error, BuildSizeError) else None
        raise PackageBuildError(f"the build left nothing that can be used: {error}", fault) from error
    finally:
        jail.close()
    reporter.log(f"build: done in {time.monotonic() - begin:.1f} s")
    return PackageBuild(folder)


def trim_builds(builds: Path, limit: int = MOST_KEPT_BYTES) -> None:
    """Deletes the builds that were used longest ago until the others take at most `limit` bytes.

    Two workers may trim at once: what one of them deletes is gone for the other.
    """
    used: list[tuple[float, int, Path]] = []
    for folder in builds.iterdir():
        with contextlib.suppress(OSError):
            # Files may be linked from a worktree, where they stay; deleting the folder is right for those, too.
            size = sum(status.st_size for _, status in walk_regular(folder, _DEPTH + 1, 2 * MOST_FILES))
            used.append((folder.stat().st_mtime, size, folder))
    total, border = sum(size for _, size, _ in used), time.time() - IN_USE_SECONDS
    for used_at, size, folder in sorted(used):
        if total <= limit or used_at > border:
            return
        shutil.rmtree(folder, ignore_errors=True)
        total -= size


def _start(jail: sandbox.Jail, arguments: list[str], root: Path) -> subprocess.Popen[bytes]:
    words = jail.command(["/bin/sh", "-c", _SCRIPT, "build", *arguments], jail.inside, [root])
    try:
        return subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=jail.passed,
            env=jail.environment() | _VARIABLES,
            start_new_session=True,
            bufsize=0,
        )
    finally:
        jail.launched()


def _wait(process: subprocess.Popen[bytes], deadline: float, seconds: float, reporter: Reporter) -> None:
    """Logs what the command prints until it ends; PackageBuildError where it fails or takes too long."""
    assert process.stdout is not None
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    with process.stdout as output:
        lines = LineReader(output.fileno(), _LINE_BYTES)
        while not lines.ended:
            select.select([lines.descriptor], [], [], _POLL_SECONDS)
            lines.read()
            while (line := lines.take()) is not None:
                tail.append(line.decode(errors="replace").replace("\0", "").rstrip())
                reporter.log(tail[-1])
            reason = reporter.should_stop()
            if reason is not None:
                raise Stopped(reason)
            if time.monotonic() > deadline:
                message = f"the build took longer than {seconds:g} s"
                raise PackageBuildError("\n".join([message, *tail]), Fault.BUILD_TIMED_OUT)
        code = process.wait(timeout=max(1.0, deadline - time.monotonic()))
    if code != 0:
        fault = Fault.BUILD_OFFLINE if any(_OFFLINE.search(line) for line in tail) else None
        raise PackageBuildError("\n".join([f"the build command exited with status {code}", *tail]), fault)


def _find_full_disk(jail: sandbox.Jail) -> Fault | None:
    """BUILD_FULL_DISK where the temporary folder of a failed build has no room any more."""
    with contextlib.suppress(OSError):
        if shutil.disk_usage(jail.folder()).free < _FULL_BYTES:
            return Fault.BUILD_FULL_DISK
    return None


def _keep(made: Path, root: Path, folder: Path) -> None:
    """Takes what the command changed or installed; OSError where that is too much. The first of two builds wins."""
    partial = folder.with_name(f"{folder.name}.{os.getpid()}-{time.monotonic_ns()}")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    try:
        for name in (TREE, ENVIRONMENT):
            (partial / name).mkdir(parents=True)
        remaining = _copy_new(made / TREE, root, partial / TREE, MOST_BYTES)
        sites = sorted((made / ENVIRONMENT / "lib").glob("python3*")) or [made / ENVIRONMENT / "lib" / version]
        _copy_new(sites[0] / "site-packages", None, partial / ENVIRONMENT, remaining)
        if not folder.exists():
            with contextlib.suppress(FileExistsError):
                partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _copy_new(source: Path, root: Path | None, target: Path, limit: int) -> int:
    """Copies the files that are not the same below `root`; returns how many bytes may follow."""
    for path, status in walk_regular(source, _DEPTH, MOST_FILES):
        name = path.relative_to(source)
        if name.suffix == ".pth" or (root is not None and _is_same(path, root / name)):
            continue
        limit -= status.st_size
        if limit < 0:
            raise BuildSizeError(f"more than {MOST_BYTES >> 20} MB")
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy_regular(source, name.as_posix(), copy, status.st_size)
        copy.chmod(0o555)
    return limit


def _is_same(path: Path, original: Path) -> bool:
    if original.is_symlink() or not original.is_file() or path.stat().st_size != original.stat().st_size:
        return False
    return path.read_bytes() == original.read_bytes()
