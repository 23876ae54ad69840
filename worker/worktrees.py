"""Checks out what can influence a commit's operators, so that caches outlive commits that change something else.

That is operators, native sources and warpwatch.toml. Anything else at the root of the repository is checked out if a
file that is there names it: as an import, an #include, a link, a string that is a path, or a word of a file of
settings. So what is not part of the digest cannot be read, whatever the code does.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path, PurePosixPath

from warpwatch import git
from warpwatch.definitions import mirror_of
from warpwatch.project import FILE_NAME, IncompleteCommitError, MeasuredCode, Project
from warpwatch.sources import literal_prefix, matches, parse_python
from warpwatch.worker import sandbox
from warpwatch.worker.mirrors import MirroredCommit
from warpwatch.worker.trees import Limits, Tree, TreeEntry

_ENTRIES = 1000
"""Entries at the root; a repository with more is checked out whole."""
_FILES = 10_000
"""Files that are searched for names; of a repository with more, or with more text, everything is checked out."""
_BYTES = 2**24
_FILE_BYTES = 2**20
"""A longer file is data and not searched."""
_WHOLE = Limits(depth=10_000, files=2**62)
"""Git laid a worktree out, so its size is that of the commit."""
_NATIVE = {".cpp", ".cu", ".cuh", ".h", ".hpp"}
_SETTINGS = {".cfg", ".ini", ".json", ".toml", ".yaml", ".yml"}
_SUBMODULE = "160000 "
"""The mode of a submodule in a tree of git."""
_LFS = b"version https://git-lfs.github.com/spec/"
_POINTER_BYTES = 1024
"""More than what git LFS leaves in place of a file."""
_WORD = re.compile(r"[\w.-]+")
_INCLUDE = re.compile(r'#\s*include\s*["<]([^">\n]+)')
_UNDECODABLE = "\N{REPLACEMENT CHARACTER}"
_SERVICE = "warpwatch"
"""The package of this name comes from the service, whatever a commit holds under it."""


@dataclass(frozen=True, slots=True)
class CommitTrees:
    """Where the files of a commit lie. root: what defines its operators. commit: what they measure; None where they
    measure nothing else. content: digest of all. commit_content: digest of those of the commit. commits: the mirror and
    id of the commit that each folder holds."""

    root: Tree
    commit: Tree | None
    content: str
    commit_content: str
    commits: Mapping[Path, tuple[Path, str]]

    def measuring(self, built: Tree) -> CommitTrees:
        """The same with the files that a build of the commit left in place of the commit's own."""
        return replace(self, root=built if self.commit == self.root else self.root, commit=built)

    def differences(self) -> list[str]:
        """Files that differ from those of their commits. Files that were left out are no difference."""
        # Programs that attributes name are never run, and what is not checked out was left out on purpose.
        options = ("--no-ext-diff", "--no-textconv", "--ignore-submodules", "--no-renames", "--name-only", "-z")
        listings = [
            git.in_worktree(mirror, path, "diff", *options, "--diff-filter=d", sha)
            for path, (mirror, sha) in self.commits.items()
        ]
        return [name for listing in listings for name in listing.split("\0")[:-1]]


@contextmanager
def lay_out(commit: MirroredCommit, folder: Path) -> Iterator[CommitTrees]:
    """Checks out a commit, and its definitions where they lie beside it, as far as they can influence a result."""
    mirror, sha, project, definitions = commit.mirror, commit.sha, commit.project, commit.definitions
    measured = project.measured
    if definitions is None or measured is None:
        with git.empty_worktree(folder):
            content = _check_out_inputs(folder, mirror, sha, project)
            tree = Tree(folder)
            yield CommitTrees(tree, None if measured is None else tree, content, content, {folder: (mirror, sha)})
        return
    source, path = mirror_of(mirror, definitions), folder.with_name(f"{folder.name}-measured")
    with git.empty_worktree(folder), _source_tree(mirror, sha, path, measured) as commit_content:
        content = commit_content + _check_out_inputs(folder, source, definitions.sha, project)
        commits = {folder: (source, definitions.sha), path: (mirror, sha)}
        yield CommitTrees(Tree(folder), Tree(path), content, commit_content, commits)


def _check_out_inputs(root: Path, mirror: Path, sha: str, project: Project) -> str:
    """Checks out at `root` what the operators name; a digest of it."""
    listing = git.git("ls-tree", "-z", sha, cwd=mirror).split("\0")[:-1]
    entries = {line.partition("\t")[2]: line for line in listing}
    named = None
    # Git finds nothing at a folder that is empty, which others than git may commit.
    with suppress(git.GitError):
        named = _check_out_named(root, mirror, sha, set(entries), project)
    if named is None:
        git.check_out(mirror, root, sha)
    kept = listing if named is None else [entries[name] for name in sorted(named)]
    return hashlib.sha256("\0".join(kept).encode(errors="replace")).hexdigest()


@contextmanager
def _source_tree(mirror: Path, sha: str, path: Path, measured: MeasuredCode) -> Iterator[str]:
    """Checks out those files of a measured commit that its operators declare as sources; a digest of them.

    So what does not count as a change of an operator cannot change it, and a mirror may lack the other files.
    """
    globs = measured.visible()
    listing = git.git("ls-tree", "-r", "-z", sha, cwd=mirror).split("\0")[:-1]
    kept = {line.partition("\t")[2]: line for line in listing if matches(line.partition("\t")[2], globs)}
    for name, line in kept.items():
        if line.startswith(_SUBMODULE):
            raise IncompleteCommitError(f"{name} is a submodule, which is not checked out; leave it out of `sources`")
    with git.empty_worktree(path):
        git.in_worktree(mirror, path, "read-tree", sha)
        git.in_worktree(mirror, path, "checkout-index", "-z", "--stdin", text="\0".join([*kept, ""]))
        tree = Tree(path)
        for name in kept:
            if _is_pointer(tree, name):
                raise IncompleteCommitError(f"git LFS keeps {name} elsewhere; leave it out of `sources`")
        yield hashlib.sha256("\0".join(sorted(kept.values())).encode(errors="replace")).hexdigest()


def _is_pointer(tree: Tree, name: str) -> bool:
    """Whether git LFS left a few lines in place of the file."""
    entry = tree.find(name)
    if entry is None or not entry.is_file or entry.status.st_size > _POINTER_BYTES:
        return False
    return tree.read(name, len(_LFS)) == _LFS


def _check_out_named(root: Path, mirror: Path, sha: str, names: set[str], project: Project) -> set[str] | None:
    """Checks out those of the entries at the root that the operators name, and returns them.

    None where all should be: the operators cannot be told from the rest, or there are programs, which may read
    anything.
    """
    operators, native = (PurePosixPath(folder).parts[:1] for folder in (project.operators, project.native))
    if project.programs or len(names) > _ENTRIES or not operators or operators[0] not in names:
        return None
    globs = project.measured.visible() if project.measured is not None else ()
    measured = {literal_prefix(glob).partition("/")[0] for glob in globs}
    if "" in measured:
        # What is measured, or what its build reads, may lie anywhere.
        return None
    # Several names that cannot be decoded look the same, and git would find none of them.
    names = {name for name in names if _UNDECODABLE not in name}
    # Attributes change the contents of the files that git checks out.
    new = names & {*operators, *native, *measured, FILE_NAME, ".gitattributes"}
    there: set[str] = set()
    tree = Tree(root)
    files = size = 0
    while new:
        git.check_out(mirror, root, sha, sorted(new))
        there |= new
        words: set[str] = set()
        for entry in (entry for name in new for entry in _files(tree, name)):
            files, size = files + 1, size + entry.status.st_size
            if files > _FILES or size > _BYTES:
                return None
            words |= _named(tree, entry)
        new = {name for name in names - there - {_SERVICE} if words & {name, name.partition(".")[0] or name}}
    return there


def _files(tree: Tree, name: str) -> Iterator[TreeEntry]:
    """The links, Python files, native sources and settings at or below a name."""
    start = tree.find(name)
    if start is None:
        return
    for entry in tree.walk(_WHOLE, name) if start.is_folder else [start]:
        if entry.is_link or (entry.is_file and PurePosixPath(entry.name).suffix in {".py", *_NATIVE, *_SETTINGS}):
            yield entry


def _named(tree: Tree, entry: TreeEntry) -> frozenset[str]:
    """The words of a file that may be names of other files or modules."""
    if entry.is_link:
        return frozenset(PurePosixPath(tree.read_link(entry.name)).parts)
    if entry.status.st_size > _FILE_BYTES:
        return frozenset()
    text = tree.read(entry.name, _FILE_BYTES).decode("utf-8", "replace")
    return _named_in(text, PurePosixPath(entry.name).suffix)


@lru_cache(maxsize=_FILES // 10)
def _named_in(text: str, suffix: str) -> frozenset[str]:
    """The same of its text. Commits that are checked out one after the other have most of their files in common."""
    if suffix in _SETTINGS:
        return frozenset(_WORD.findall(text))
    named = {part for included in _INCLUDE.findall(text) for part in PurePosixPath(included).parts}
    if suffix != ".py":
        return frozenset(named)
    try:
        nodes = list(ast.walk(parse_python(text)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        # It does not load as it is, so the others cannot need what it names.
        return frozenset(named)
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            named.update(part for module in modules for part in module.split("."))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value.split()) == 1:
            # A dotted string may be a module that is imported by name.
            named.update(PurePosixPath(node.value).parts, node.value.split("."))
    return frozenset(named)


def own_prefix() -> str:
    """The prefix of the names of this worker's worktree folders."""
    return f"{socket.gethostname()}-{os.getpid()}-"


def clear_worktrees(home: Path) -> None:
    """Removes worktrees that killed workers of this machine left behind."""
    for folder in (home / "worktrees").glob(f"{socket.gethostname()}-*"):
        owner = folder.name.removeprefix(f"{socket.gethostname()}-").partition("-")[0]
        if not sandbox.is_alive(owner):
            git.remove_folder(folder)
