"""Reduces a worktree to what can influence its operators, so that caches outlive commits that change something else.

Operators, native sources and warpwatch.toml stay. Anything else at the root of the repository stays if a file that
stays names it: as an import, an #include, a link, a string that is a path, or a word of a file of settings. The rest is
removed from the worktree before any code of the commit runs. So what is not part of the digest cannot be read, whatever
the code does.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from warpwatch import git
from warpwatch.project import FILE_NAME, Project

_ENTRIES = 1000
"""Entries at the root; a repository with more stays whole."""
_FILES = 10_000
"""Files that are searched for names; a repository with more stays whole, and so does one with more text."""
_BYTES = 2**24
_FILE_BYTES = 2**20
"""A longer file is data and not searched."""
_NATIVE = {".cpp", ".cu", ".cuh", ".h", ".hpp"}
_SETTINGS = {".cfg", ".ini", ".json", ".toml", ".yaml", ".yml"}
_WORD = re.compile(r"[\w.-]+")
_INCLUDE = re.compile(r'#\s*include\s*["<]([^">\n]+)')
_SERVICE = "warpwatch"
"""The package of this name comes from the service, whatever a commit holds under it."""


def reduce_worktree(root: Path, mirror: Path, sha: str, project: Project) -> str:
    """Removes from the worktree at `root` what its operators do not name; a digest of what is left."""
    listing = git.git("ls-tree", "-z", sha, cwd=mirror).split("\0")[:-1]
    entries = {line.partition("\t")[2]: line for line in listing}
    kept = _kept(root, set(entries), project)
    removed = root.with_name(f"{root.name}-removed")
    removed.mkdir()
    # What lies there decides and not what git lists: a name that cannot be decoded would stay.
    for path in list(root.iterdir()):
        if path.name not in kept and path.name != ".git":
            path.rename(removed / path.name)
    git.remove_folder(removed)
    return hashlib.sha256("\0".join(entries[name] for name in sorted(kept)).encode(errors="replace")).hexdigest()


def _kept(root: Path, names: set[str], project: Project) -> set[str]:
    """The entries at the root that stay; all of them where the operators cannot be told from the rest, and where there
    are programs, which may read anything."""
    operators, native = (PurePosixPath(folder).parts[:1] for folder in (project.operators, project.native))
    if project.programs or len(names) > _ENTRIES or not operators or operators[0] not in names:
        return names
    # Attributes change the contents of the files that git checks out.
    kept = names & {*operators, *native, FILE_NAME, ".gitattributes"}
    pending = list(kept)
    files = size = 0
    while pending:
        for path in _files(root / pending.pop()):
            files, size = files + 1, size + path.lstat().st_size
            if files > _FILES or size > _BYTES:
                return names
            named = _named(path)
            new = {name for name in names - kept - {_SERVICE} if named & {name, name.partition(".")[0] or name}}
            kept |= new
            pending += new
    return kept


def _files(start: Path) -> Iterator[Path]:
    """The links, Python files, native sources and settings at or below `start`."""
    pending = [start]
    while pending:
        path = pending.pop()
        if path.is_symlink() or (path.suffix in {".py", *_NATIVE, *_SETTINGS} and path.is_file()):
            yield path
        elif path.is_dir():
            pending += path.iterdir()


def _named(path: Path) -> set[str]:
    """The words of a file that may be names of other files or modules."""
    if path.is_symlink():
        return set(PurePosixPath(path.readlink()).parts)
    if path.stat().st_size > _FILE_BYTES:
        return set()
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.suffix in _SETTINGS:
        return set(_WORD.findall(text))
    named = {part for included in _INCLUDE.findall(text) for part in PurePosixPath(included).parts}
    if path.suffix != ".py":
        return named
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        # It does not load as it is, so the others cannot need what it names.
        return named
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            named.update(part for module in modules for part in module.split("."))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value.split()) == 1:
            # A dotted string may be a module that is imported by name.
            named.update(PurePosixPath(node.value).parts, node.value.split("."))
    return named
