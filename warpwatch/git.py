"""Reads repositories through the git command: mirrors, refs, history, files, worktrees.

Refs come from people. They never reach a shell, never become an option (`--end-of-options`), and only names that git
itself resolves to a commit are used any further. Standard library alone: `warpwatch run` needs it without a server.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

MAX_RANGE = 1000
"""Commits that one range may name."""
_SHA = re.compile(r"[0-9a-f]{40}")
_HEAD = "+HEAD:refs/warpwatch/HEAD"
"""HEAD belongs to no refspec of a mirror, yet people say HEAD; where it is detached, as in CI, no branch has its
commit."""
_FORMAT = "%H%x00%P%x00%an%x00%aI%x00%s"


class GitError(RuntimeError):
    """git could not do what was asked; the message is for people."""


class UnknownRefError(GitError):
    """A ref or range names no commit in the repository."""


@dataclass(frozen=True, slots=True)
class FileChange:
    """A file that differs between two commits; added and deleted lines are None where it is not text."""

    path: str
    added: int | None
    deleted: int | None


@dataclass(frozen=True, slots=True)
class CommitInfo:
    """What history says of one commit. ordinal is the number of its ancestors, itself included."""

    sha: str
    parent_sha: str | None
    ordinal: int
    author: str
    authored_at: datetime
    subject: str


def git(*arguments: str, cwd: Path | None = None, timeout: float = 120, text: str | None = None) -> str:
    """Output of one git command, given `text` on its standard input; GitError carries git's own last words."""
    executable = shutil.which("git")
    if executable is None:
        raise GitError("git is not installed; install it (Debian: apt install git) and try again")
    # Prompts would hang a service, and a user's own configuration must not change what is measured.
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0", "GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            [executable, "-c", "safe.directory=*", "-c", "core.hooksPath=/dev/null", *arguments],
            cwd=cwd,
            env=environment,
            input=text,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except FileNotFoundError:
        # A repository's mirror is made when it is first asked for, which another process may not have come to.
        raise GitError(f"git {arguments[0]} has no folder {cwd} to work in") from None
    except subprocess.TimeoutExpired:
        raise GitError(f"git {arguments[0]} took longer than {timeout:g} s") from None
    if done.returncode != 0:
        raise GitError(f"git {arguments[0]} failed: {done.stderr.strip()[-500:] or done.returncode}")
    return done.stdout


def mirror_path(url: str, home: Path) -> Path:
    return home / "mirrors" / (hashlib.sha256(url.encode()).hexdigest()[:16] + ".git")


def update_mirror(url: str, home: Path) -> Path:
    """A bare mirror of `url` below `home`, fetched just now; safe to call from several processes."""
    path = mirror_path(url, home)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path.with_suffix(".lock")):
        if not (path / "HEAD").exists():
            partial = path.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            git("clone", "--quiet", "--mirror", "--", url, str(partial), timeout=1800)
            git("fetch", "--quiet", "origin", _HEAD, cwd=partial)
            git("symbolic-ref", "HEAD", "refs/warpwatch/HEAD", cwd=partial)
            partial.rename(path)
        else:
            git("fetch", "--quiet", "--prune", "origin", "+refs/*:refs/*", _HEAD, cwd=path, timeout=1800)
    return path


def resolve(mirror: Path, ref: str) -> str:
    """The full id of the commit that `ref` names."""
    try:
        sha = git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}", cwd=mirror).strip()
    except GitError:
        raise UnknownRefError(f"no commit, branch or tag {ref!r} in this repository; push it, or check the spelling") from None
    if not _SHA.fullmatch(sha):
        raise UnknownRefError(f"{ref!r} names no single commit here")
    return sha


def resolve_range(mirror: Path, text: str, limit: int = MAX_RANGE) -> list[str]:
    """Commits of `ref` (one) or `A..B` (first parents, oldest first, A left out); GitError when there are more than
    `limit`."""
    if ".." not in text:
        return [resolve(mirror, text)]
    low, _, high = text.partition("..")
    base, head = resolve(mirror, low or "HEAD"), resolve(mirror, high.removeprefix(".") or "HEAD")
    shas = git("rev-list", "--first-parent", "--reverse", f"{base}..{head}", cwd=mirror).split()
    if not shas:
        raise UnknownRefError(f"{text!r} holds no commits; write the older commit first")
    if len(shas) > limit:
        raise GitError(f"{text!r} holds {len(shas)} commits; ask for at most {limit} at once")
    return shas


def last_commits(mirror: Path, ref: str, count: int) -> list[str]:
    """The newest `count` first-parent commits up to `ref`, oldest first."""
    return git(
        "rev-list", "--first-parent", "--reverse", f"--max-count={count}", resolve(mirror, ref), cwd=mirror
    ).split()


def describe(mirror: Path, sha: str) -> CommitInfo:
    """What history says of the commit `sha` (a full id)."""
    line = git("log", "-1", f"--format={_FORMAT}", "--end-of-options", sha, cwd=mirror).rstrip("\n")
    found, parents, author, authored_at, subject = line.split("\0")
    ordinal = int(git("rev-list", "--count", sha, cwd=mirror))
    parent = parents.split()[0] if parents else None
    return CommitInfo(found, parent, ordinal, author, datetime.fromisoformat(authored_at), subject)


def describe_many(mirror: Path, shas: Sequence[str]) -> list[CommitInfo]:
    """What history says of each commit (full ids, parents before children); a few git calls however many there are."""
    lines = git(
        "log", "--no-walk=unsorted", "--stdin", f"--format={_FORMAT}", cwd=mirror, text="\n".join(shas)
    ).splitlines()
    ordinals: dict[str, int] = {}
    found = []
    for sha, parents, author, authored_at, subject in (line.split("\0") for line in lines):
        first, _, others = parents.partition(" ")
        is_next = first in ordinals and not others
        ordinals[sha] = ordinals[first] + 1 if is_next else int(git("rev-list", "--count", sha, cwd=mirror))
        found.append(
            CommitInfo(sha, first or None, ordinals[sha], author, datetime.fromisoformat(authored_at), subject)
        )
    return found


def is_ancestor(mirror: Path, older: str, newer: str) -> bool:
    """Whether commit `older` (a full id) is `newer` itself or one of its ancestors."""
    return git("merge-base", "--all", older, newer, cwd=mirror).split() == [older]


def merge_base(mirror: Path, one: str, other: str) -> str:
    """The newest commit that both commits (full ids) descend from; UnknownRefError where they share no history."""
    try:
        return git("merge-base", one, other, cwd=mirror).split()[0]
    except (GitError, IndexError):
        raise UnknownRefError(f"{one[:9]} and {other[:9]} have no commit in common") from None


def ancestors(mirror: Path, sha: str, oldest: str) -> set[str]:
    """`sha` and those of its ancestors that are not older than `oldest`, which is among them if it is an ancestor (full
    ids)."""
    found = set(git("rev-list", sha, f"^{oldest}", cwd=mirror).split()) | {sha}
    return found | {oldest} if is_ancestor(mirror, oldest, sha) else found


def descendants(mirror: Path, sha: str, newest: str) -> set[str]:
    """Every commit that descends from `sha` and that `newest` is or descends from (full ids); empty when `newest` does
    not."""
    return set(git("rev-list", "--ancestry-path", f"{sha}..{newest}", cwd=mirror).split())


def path(mirror: Path, base: str, head: str) -> list[str]:
    """One line of commits (full ids) from `base` to `head`, both included, each the parent of the next.

    Of a merge's parents that descend from `base` the first one is followed. GitError when `head` does not descend from
    `base`.
    """
    lines = git("rev-list", "--ancestry-path", "--parents", f"{base}..{head}", cwd=mirror).splitlines()
    parents = {sha: rest for sha, *rest in (line.split() for line in lines)}
    line = [head]
    while line[-1] != base:
        following = [parent for parent in parents.get(line[-1], []) if parent in parents or parent == base]
        if not following:
            raise GitError(f"{head[:9]} does not descend from {base[:9]}")
        line.append(following[0])
    return line[::-1]


def object_ids(mirror: Path, names: Sequence[str]) -> list[str | None]:
    """Ids of the files or folders called `<full commit id>:<path>`; None for what is not there.

    One git call for all.
    """
    lines = (
        git("cat-file", "--batch-check=%(objectname)", cwd=mirror, text="\n".join(names) + "\n").splitlines()
        if names
        else []
    )
    return [line if _SHA.fullmatch(line) else None for line in lines]


def changed_files(mirror: Path, base: str, head: str, paths: Sequence[str] = ()) -> list[FileChange]:
    """Files below `paths` (everywhere, without any) that differ between two commits (full ids), by path."""
    # Stats of quoted names would need unquoting; with -z they come as they are.
    told = git("diff", "--numstat", "--no-renames", "-z", base, head, "--", *_literal(paths), cwd=mirror)
    lines = [line.split("\t", 2) for line in told.split("\0") if line]
    return [FileChange(path, *(int(count) if count.isdigit() else None for count in counts)) for *counts, path in lines]


def commits_touching(mirror: Path, base: str, head: str, paths: Sequence[str] = (), limit: int = 50) -> list[str]:
    """Commits behind `base` up to `head` (full ids) that change something below `paths`, newest first."""
    return git("rev-list", f"--max-count={limit}", f"{base}..{head}", "--", *_literal(paths), cwd=mirror).split()


def _literal(paths: Sequence[str]) -> list[str]:
    """Paths in which git sees no patterns."""
    return [f":(literal){path}" for path in paths]


def read_file(mirror: Path, sha: str, path: str) -> str | None:
    """Text of `path` at commit `sha`; None when it is not there."""
    try:
        return git("show", "--end-of-options", f"{sha}:{path}", cwd=mirror)
    except GitError:
        return None


def list_folder(mirror: Path, sha: str, folder: str) -> list[str]:
    """Names directly inside `folder` at commit `sha`; empty when it is not there."""
    try:
        return git("ls-tree", "--name-only", sha, f"{folder.strip('/')}/", cwd=mirror).split("\n")[:-1]
    except GitError:
        return []


def entries(mirror: Path, sha: str, folder: str) -> dict[str, str]:
    """Names and object ids of what lies directly in `folder` at commit `sha`, "" being the root; empty where there is
    no such folder."""
    try:
        tree = git("ls-tree", f"{sha}:{folder.strip('/')}", cwd=mirror)
    except GitError:
        return {}
    return {name: line.split()[2] for line, name in (entry.split("\t", 1) for entry in tree.splitlines())}


def operator_names(mirror: Path, sha: str, folder: str) -> list[str]:
    """Operators of a commit: one per Python file in its operator folder that does not begin with an underscore."""
    return _operators(list_folder(mirror, sha, folder))


def operators_in(mirror: Path, tree: str) -> list[str]:
    """Operators in an operator folder, given by the id of its tree."""
    return _operators(git("ls-tree", "--name-only", tree, cwd=mirror).splitlines())


def _operators(paths: list[str]) -> list[str]:
    names = [Path(path).name for path in paths]
    return sorted(name.removesuffix(".py") for name in names if name.endswith(".py") and not name.startswith("_"))


@contextmanager
def worktree(mirror: Path, sha: str, path: Path) -> Iterator[Path]:
    """A checkout of `sha` at `path`, gone afterwards; what a killed process left there before is cleared first."""
    remove_worktree(mirror, path)
    path.parent.mkdir(parents=True, exist_ok=True)
    git("worktree", "add", "--quiet", "--detach", "--force", str(path), sha, cwd=mirror, timeout=600)
    try:
        yield path
    finally:
        remove_worktree(mirror, path)


def remove_worktree(mirror: Path, path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    git("worktree", "prune", cwd=mirror)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
