"""Keeps between children the files that compilers make at run time (Triton, Inductor, load_inline, the driver).

Kernel code writes these caches, so an entry may hold anything. A cache therefore belongs to one content: every file of
the commit that a child can read (`worktrees`), and the interpreter with its packages. A child works on a copy in its
temporary folder, and the parent takes the new files once the child has ended. So the code of one commit reads what the
same code wrote, and nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from warpwatch.worker.trees import Limits, Tree, TreeSizeError

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

    def fill(self, temp: Tree, name: str) -> None:
        """Copies everything into a folder of a new child's temporary folder. OSError when it does not fit.

        No request was sent to the child, but a commit may have named any program of this machine as its interpreter,
        and that one may run code of the commit by now.
        """
        if self.folder.is_dir():
            os.utime(self.folder)
            temp.make_folder(name)
            Tree(self.folder).copy_all("", temp, name, Limits(_DEPTH, LIMIT_FILES))

    def keep(self, temp: Tree, name: str) -> None:
        """Takes what an ended child added or changed in that folder. OSError, with nothing taken, when that is beyond
        the limits."""
        start = temp.find(name)
        if start is None or not start.is_folder:
            return
        limits = Limits(_DEPTH, LIMIT_FILES)
        files = [entry for entry in temp.walk(limits, name) if entry.is_file and not entry.name.endswith(_LOCKS)]
        size = sum(entry.status.st_size for entry in files)
        if size > LIMIT_BYTES:
            raise TreeSizeError(f"{size} bytes are more than a cache may have")
        kept = Tree(self.folder)
        for entry in files:
            target = entry.name.removeprefix(f"{name}/")
            old, new = kept.find(target), entry.status
            if old is not None and (old.status.st_size, old.status.st_mtime_ns) == (new.st_size, new.st_mtime_ns):
                continue
            self.folder.mkdir(parents=True, exist_ok=True)
            folder, _, last = target.rpartition("/")
            partial = "/".join(filter(None, (folder, f"{last[:100]}.{os.getpid()}-{time.monotonic_ns()}")))
            try:
                temp.copy(entry.name, kept, partial, entry.status.st_size)
                kept.rename(partial, last)
            finally:
                kept.remove(partial)


def cache_of(home: Path, *content: str) -> CodeCache:
    """The cache of the content that these words identify."""
    digest = hashlib.sha256("\0".join(content).encode()).hexdigest()
    return CodeCache(home / "jit" / digest)


def remove_unused(home: Path) -> None:
    """Removes the caches that have not been used for longest."""
    with contextlib.suppress(OSError):
        for folder in sorted((home / "jit").iterdir(), key=lambda folder: folder.stat().st_mtime)[:-LIMIT_CACHES]:
            shutil.rmtree(folder, ignore_errors=True)
