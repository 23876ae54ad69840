"""The one way to touch a tree that others laid out: a worktree, a build, the temporary folder of a child.

Code of a commit decides what lies there, and may swap it meanwhile. A link in place of a folder would make the worker
read or overwrite any file of its user, outside of every sandbox. So each folder on the way to a file is opened by
itself, beneath the one before, and no link is followed, neither on the way nor at its end. Only regular files are
opened: a FIFO would block whoever opens it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_COPY_BYTES = 2**20
_OF_THE_TREE = frozenset(
    {
        errno.EACCES,
        errno.EEXIST,
        errno.EINVAL,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.ENOENT,
        errno.ENOTDIR,
        errno.ENXIO,
        errno.EPERM,
    }
)
"""Error numbers of a name that is missing, a link, no file, or closed; all other numbers are about the machine."""
_IN_THE_WAY = frozenset({errno.EEXIST, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOTDIR})
"""The same where something is written: that the worker may not write there is about the machine."""


class TreeError(OSError):
    """A tree does not hold what is looked for, or too much. Whoever laid it out is to blame, and not the machine."""


class TreeSizeError(TreeError):
    """A tree holds more than is looked at."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of a tree is looked at. depth: folders below each other; deeper ones are left out. files: entries.
    bytes: of all regular files that are copied."""

    depth: int
    files: int
    bytes: int = 2**63


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """A file, folder or link, by its path below the tree."""

    name: str
    status: os.stat_result

    @property
    def is_file(self) -> bool:
        """Whether it is a regular file."""
        return stat.S_ISREG(self.status.st_mode)

    @property
    def is_link(self) -> bool:
        return stat.S_ISLNK(self.status.st_mode)

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.status.st_mode)


@dataclass(frozen=True, slots=True)
class Tree:
    """A folder whose content others laid out. Names are paths below it.

    place: where the folder itself lies, which the worker chose. It is for the command lines of git and of children;
    nothing below it is ever opened by its path.
    """

    place: Path

    def read(self, name: str, limit: int) -> bytes:
        """At most the first `limit` bytes of a file; TreeError for what is no regular file."""
        with self._opened(name) as descriptor, os.fdopen(descriptor, "rb", closefd=False) as reader:
            return reader.read(limit)

    def find(self, name: str) -> TreeEntry | None:
        """The entry of this name, links not followed; None where no entry has the name, or a link is on the way."""
        folder, last = _split(name)
        try:
            with self._folder(folder) as descriptor:
                return TreeEntry(name, os.stat(last, dir_fd=descriptor, follow_symlinks=False))
        except TreeError:
            return None
        except OSError as error:
            if error.errno in _OF_THE_TREE:
                return None
            raise

    def read_link(self, name: str) -> str:
        """Where a link leads; TreeError for what is none."""
        folder, last = _split(name)
        with self._folder(folder) as descriptor, _blaming_the_tree(name):
            return os.readlink(last, dir_fd=descriptor)

    def entries(self, name: str = "", limit: int = 2**20) -> list[TreeEntry]:
        """The entries of the folder `name`; TreeError where `name` is no folder, or holds more than `limit` entries."""
        return [*self._scan(name, limit, limit)]

    def walk(self, limits: Limits, start: str = "") -> Iterator[TreeEntry]:
        """Everything below a folder, each folder before what it holds; TreeError where that is too much."""
        pending = [(start, limits.depth)]
        remaining = limits.files
        while pending:
            folder, depth = pending.pop()
            for entry in self._scan(folder, remaining, limits.files):
                remaining -= 1
                if entry.is_folder and depth:
                    pending.append((entry.name, depth - 1))
                if depth or not entry.is_folder:
                    yield entry

    def copy(self, name: str, target: Tree, copied: str, limit: int, permissions: int = 0o644) -> None:
        """Copies a file to a new one of another tree, with its time and the right to execute it.

        TreeError for what is no regular file of at most `limit` bytes, and for what lies in the place of the copy.
        """
        folder, last = _split(copied)
        with self._opened(name) as source, target._folder(folder, is_made=True) as descriptor:
            status = os.fstat(source)
            if status.st_size > limit:
                raise TreeError(f"{name} is no regular file of at most {limit} bytes")
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            with _blaming_the_tree(copied, _IN_THE_WAY):
                copy = os.open(last, flags, 0o600, dir_fd=descriptor)
            try:
                # The file may grow meanwhile, so no more is read than was there.
                remaining = status.st_size
                while remaining > 0 and (chunk := os.read(source, min(remaining, _COPY_BYTES))):
                    remaining -= len(chunk)
                    while chunk:
                        chunk = chunk[os.write(copy, chunk) :]
                is_program = status.st_mode & stat.S_IXUSR
                os.fchmod(copy, permissions | (0o111 if is_program else 0))
                os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
            finally:
                os.close(copy)

    def copy_all(
        self,
        start: str,
        target: Tree,
        into: str,
        limits: Limits,
        permissions: int = 0o644,
        is_left_out: Callable[[TreeEntry], bool] = lambda _: False,
    ) -> None:
        """Copies the files, folders and links below a folder into one of another tree.

        A link keeps its words, and nothing here follows them. What is there already stays.
        """
        size = 0
        for entry in self.walk(limits, start):
            name = entry.name[len(start) :].lstrip("/")
            copied = f"{into}/{name}" if into else name
            if is_left_out(entry):
                continue
            if entry.is_folder:
                target.make_folder(copied)
            elif target.find(copied) is not None:
                continue
            elif entry.is_link:
                target.make_link(copied, self.read_link(entry.name))
            elif entry.is_file:
                size += entry.status.st_size
                if size > limits.bytes:
                    raise TreeSizeError(f"more than {limits.bytes >> 20} MiB")
                self.copy(entry.name, target, copied, entry.status.st_size, permissions)

    def make_folder(self, name: str) -> None:
        """Makes a folder, with those on the way to it, unless it is there."""
        with self._folder(PurePosixPath(name), is_made=True):
            return

    def make_link(self, name: str, words: str) -> None:
        """Makes a link with these words, with the folders on the way to it; TreeError where something is there."""
        folder, last = _split(name)
        with self._folder(folder, is_made=True) as descriptor, _blaming_the_tree(name, _IN_THE_WAY):
            os.symlink(words, last, dir_fd=descriptor)

    def rename(self, name: str, last: str) -> None:
        """Gives a file another last name, in place of what has it."""
        folder, before = _split(name)
        with self._folder(folder) as descriptor, _blaming_the_tree(name):
            os.replace(before, last, src_dir_fd=descriptor, dst_dir_fd=descriptor)

    def remove(self, name: str) -> None:
        """Removes a file or link, if there is one."""
        folder, last = _split(name)
        with suppress(TreeError), self._folder(folder) as descriptor, _blaming_the_tree(name):
            os.unlink(last, dir_fd=descriptor)

    def free_bytes(self) -> int:
        """Room in the file system of the tree."""
        status = os.statvfs(self.place)
        return status.f_bavail * status.f_frsize

    def _scan(self, folder: str, remaining: int, limit: int) -> Iterator[TreeEntry]:
        with self._folder(PurePosixPath(folder)) as descriptor, os.scandir(descriptor) as scan:
            for entry in scan:
                remaining -= 1
                if remaining < 0:
                    raise TreeSizeError(f"more than {limit} files")
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                yield TreeEntry(f"{folder}/{entry.name}" if folder else entry.name, status)

    @contextmanager
    def _opened(self, name: str) -> Iterator[int]:
        """A descriptor of a regular file."""
        folder, last = _split(name)
        with self._folder(folder) as descriptor, _blaming_the_tree(name):
            file = os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=descriptor)
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise TreeError(f"{name} is no regular file")
            yield file
        finally:
            os.close(file)

    @contextmanager
    def _folder(self, name: PurePosixPath, is_made: bool = False) -> Iterator[int]:
        """A descriptor of a folder. is_made: whether folders that are not there are made."""
        current = os.open(self.place, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for part in _parts(name):
                with _blaming_the_tree(str(name), _IN_THE_WAY if is_made else _OF_THE_TREE):
                    if is_made:
                        with suppress(FileExistsError):
                            os.mkdir(part, 0o755, dir_fd=current)
                    below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=current)
                os.close(current)
                current = below
            yield current
        finally:
            os.close(current)


def _split(name: str) -> tuple[PurePosixPath, str]:
    path = PurePosixPath(name)
    parts = _parts(path)
    if not parts:
        raise TreeError(f"{name!r} names no file")
    return path.parent, parts[-1]


def _parts(name: PurePosixPath) -> tuple[str, ...]:
    if name.is_absolute() or ".." in name.parts or "\0" in str(name):
        raise TreeError(f"{str(name)!r} is no name below a folder")
    return name.parts


@contextmanager
def _blaming_the_tree(name: str, numbers: frozenset[int] = _OF_THE_TREE) -> Iterator[None]:
    """Makes an error of one of these numbers a TreeError."""
    try:
        yield
    except TreeError:
        raise
    except OSError as error:
        if error.errno in numbers:
            raise TreeError(error.errno, error.strerror, name) from error
        raise
