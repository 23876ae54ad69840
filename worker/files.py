"""Reads files that kernel code wrote: regular ones alone, of limited size and number, following no links."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_COPY_BYTES = 2**20


def copy_regular(root: Path, name: str, target: Path, limit: int) -> None:
    """Copies the file `name` below `root`, which kernel code may have put there, to a new file.

    Raises OSError for what is no regular file of at most `limit` bytes, and for a link on the way to it.
    """
    with os.fdopen(_open_below(root, name), "rb") as reader, target.open("xb") as writer:
        status = os.fstat(reader.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
            raise OSError(f"{name} is no regular file of at most {limit} bytes")
        # The file may grow meanwhile, so no more is read than was there.
        remaining = status.st_size
        while remaining > 0 and (chunk := reader.read(min(remaining, _COPY_BYTES))):
            writer.write(chunk)
            remaining -= len(chunk)


def read_regular(root: Path, name: str, limit: int) -> bytes:
    """At most the first `limit` bytes of a file below `root`; OSError for what is no regular file."""
    with os.fdopen(_open_below(root, name), "rb") as reader:
        if not stat.S_ISREG(os.fstat(reader.fileno()).st_mode):
            raise OSError(f"{name} is no regular file")
        return reader.read(limit)


def _open_below(root: Path, name: str) -> int:
    """Opens each folder on the way by itself, because a link in place of one would lead to files of the host."""
    *folders, last = PurePosixPath(name).parts
    current = os.open(root, os.O_PATH | os.O_DIRECTORY)
    try:
        for folder in folders:
            below = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=current)
            os.close(current)
            current = below
        # A FIFO would block whoever opens it.
        return os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=current)
    finally:
        os.close(current)


def walk_regular(folder: Path, depth: int, limit: int) -> Iterator[tuple[Path, os.stat_result]]:
    """Regular files below a folder that kernel code wrote, at most `depth` folders down; follows no links.

    OSError where there are more than `limit` entries.
    """
    folders = [(folder, depth)]
    entries = 0
    while folders:
        current, remaining = folders.pop()
        with os.scandir(current) as scan:
            for entry in scan:
                entries += 1
                if entries > limit:
                    raise OSError(f"more than {limit} files")
                if entry.is_dir(follow_symlinks=False):
                    if remaining:
                        folders.append((Path(entry.path), remaining - 1))
                elif entry.is_file(follow_symlinks=False):
                    yield Path(entry.path), entry.stat(follow_symlinks=False)
