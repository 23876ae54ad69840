"""What compilers make at run time (Triton, Inductor, load_inline, the driver), kept between children.

Kernel code writes these caches, so an entry may hold anything. A cache therefore belongs to one content: every file of
the commit that a child can read (`worktrees`), and the interpreter with its packages. A child works on a copy in its
temporary folder, and the parent takes what is new once the child has ended. So the code of one commit reads what the
same code wrote, and nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from warpwatch.worker.files import copy_regular, walk_regular

LIMIT_BYTES = 2**30
"""Size of one cache; what is beyond is compiled again by each child."""
LIMIT_FILES = 20_000
LIMIT_CACHES = 200
"""Contents whose caches are kept, the least recently used are removed first."""
_DEPTH = 12
_LOCKS = (".lock", "lock")
"""Ends of the names of lock files; one left by a killed child would block the next for ever."""


@dataclass(frozen=True, slots=True)
class CodeCache:
    """The cache of one content, in a folder that no child sees."""

    folder: Path

    def fill(self, target: Path) -> None:
        """Copies everything into a new child's folder, before it runs any code of the commit. OSError when it does
        not fit."""
        if self.folder.is_dir():
            os.utime(self.folder)
            for source, _ in walk_regular(self.folder, _DEPTH, LIMIT_FILES):
                copy = target / source.relative_to(self.folder)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, copy)

    def keep(self, source: Path) -> None:
        """Takes what an ended child added or changed. OSError, with nothing taken, when that is beyond the limits."""
        if source.is_symlink() or not source.is_dir():
            return
        files = [pair for pair in walk_regular(source, _DEPTH, LIMIT_FILES) if not pair[0].name.endswith(_LOCKS)]
        size = sum(status.st_size for _, status in files)
        if size > LIMIT_BYTES:
            raise OSError(f"{size} bytes are more than a cache may have")
        for path, status in files:
            name = path.relative_to(source).as_posix()
            target = self.folder / name
            if _is_current(target, status):
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            partial = target.with_name(f"{target.name[:100]}.{os.getpid()}-{time.monotonic_ns()}")
            try:
                copy_regular(source, name, partial, status.st_size)
                os.utime(partial, ns=(status.st_mtime_ns, status.st_mtime_ns))
                partial.replace(target)
            finally:
                partial.unlink(missing_ok=True)


def cache_of(home: Path, *content: str) -> CodeCache:
    """The cache of the content that these words identify."""
    digest = hashlib.sha256("\0".join(content).encode()).hexdigest()
    return CodeCache(home / "jit" / digest)


def remove_unused(home: Path) -> None:
    """Removes the caches that have not been used for longest."""
    with contextlib.suppress(OSError):
        _remove(sorted((home / "jit").iterdir(), key=lambda folder: folder.stat().st_mtime)[:-LIMIT_CACHES])


def _remove(folders: Sequence[Path]) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _is_current(target: Path, status: os.stat_result) -> bool:
    with contextlib.suppress(OSError):
        kept = target.stat()
        return (kept.st_size, kept.st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    return False
