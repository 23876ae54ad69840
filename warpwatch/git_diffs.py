"""Reads what differs between two commits of a mirror."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from warpwatch.git import git

EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
"""Git knows it in every repository; a commit without parents is compared with it."""


@dataclass(frozen=True, slots=True)
class FileChange:
    """A file that differs between two commits. added, deleted: numbers of lines, None for a binary file."""

    path: str
    added: int | None
    deleted: int | None


def changed_files(mirror: Path, base: str, head: str, paths: Sequence[str] = ()) -> list[FileChange]:
    """Files that differ between two commits (full ids), by path; only those below `paths` when given."""
    # With -z git does not quote names.
    words = ("diff", "--numstat", "--no-renames", "--no-ext-diff", "--no-textconv", "-z", base, head)
    output = git(*words, "--", *_literal(paths), cwd=mirror)
    lines = [line.split("\t", 2) for line in output.split("\0") if line]
    return [FileChange(path, *(int(count) if count.isdigit() else None for count in counts)) for *counts, path in lines]


def commits_touching(mirror: Path, base: str, head: str, paths: Sequence[str] = (), limit: int = 50) -> list[str]:
    """Commits after `base` up to `head` (full ids) that change a file below `paths`, newest first."""
    return git("rev-list", f"--max-count={limit}", f"{base}..{head}", "--", *_literal(paths), cwd=mirror).split()


def diff(mirror: Path, base: str, head: str, paths: Sequence[str] = ()) -> str:
    """The patch between two commits (full ids), with three lines around each change."""
    options = ("--no-color", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-prefix", "--unified=3")
    return git("diff", *options, base, head, "--", *_literal(paths), cwd=mirror)


def message_body(mirror: Path, sha: str) -> str:
    """The message of a commit (full id) below its subject."""
    return git("log", "-1", "--format=%b", sha, cwd=mirror).strip()


def _literal(paths: Sequence[str]) -> list[str]:
    """Paths that git does not read as patterns."""
    return [f":(literal){path}" for path in paths]
