"""Reads files that kernel code wrote: regular ones alone, of limited size and number, following no links."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

_COPY_BYTES = 2**20


def copy_regular(source: Path, target: Path, limit: int) -> None:
    """Copies a file that kernel code may have put there.

    Raises OSError for what is no regular file of at most `limit` bytes.
    """
    descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as reader, target.open("xb") as writer:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
            raise OSError(f"{source.name} is no regular file of at most {limit} bytes")
        # The file may grow meanwhile, so no more is read than was there.
        remaining = status.st_size
        while remaining > 0 and (chunk := reader.read(min(remaining, _COPY_BYTES))):
            writer.write(chunk)
            remaining -= len(chunk)


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
