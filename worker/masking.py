"""Finds what a read-only file system does not keep from a child: nodes of devices, and sockets of other programs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from warpwatch.worker.devices import foreign_nodes

_SOCKET_DEPTH = {"/run": 4, "/var/run": 4, "/tmp": 2}  # noqa: S108
"""Folders in which other programs offer sockets and FIFOs, and how deep."""
_SOCKET_LIMIT = 10_000
"""Entries that are looked at in such a folder."""


def device_nodes(patterns: Sequence[str]) -> list[str]:
    """Names below /dev that match, without the GPUs that this worker does not measure on."""
    foreign = foreign_nodes()
    paths = [path for pattern in patterns for path in sorted(Path("/dev").glob(pattern))]
    return [str(path.relative_to("/dev")) for path in paths if path.name not in foreign]


def list_sockets() -> list[str]:
    """Sockets and FIFOs of other programs; a read-only file system does not keep anybody from using them."""
    named: set[str] = set()
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/unix").read_text(errors="replace").splitlines():
            path = line.split(maxsplit=7)[-1]
            if path.startswith("/") and os.path.lexists(path):
                named.add(path)
    for folder, depth in _SOCKET_DEPTH.items():
        named |= set(_special_files(folder, depth))
    return sorted(named)


def _special_files(folder: str, depth: int) -> Iterator[str]:
    # Every start of a child waits for this, and a Path for each of thousands of folders doubles its time.
    folders = [(folder, depth)]
    entries = 0
    while folders and entries < _SOCKET_LIMIT:
        current, remaining = folders.pop()
        with contextlib.suppress(OSError), os.scandir(current) as scan:
            for entry in scan:
                entries += 1
                if entry.is_dir(follow_symlinks=False):
                    if remaining:
                        folders.append((entry.path, remaining - 1))
                elif not entry.is_file(follow_symlinks=False) and not entry.is_symlink():
                    yield entry.path
