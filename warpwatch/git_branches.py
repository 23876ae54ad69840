"""Reads the branches of a repository through the git command: its refs, their newest commits, and where they meet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from warpwatch.destinations import Destinations
from warpwatch.git import (
    ANY_NETWORK,
    FORMAT,
    GitError,
    UnreachableError,
    descendants,
    git,
    instant,
    named_branches,
    resolve,
    rows,
)

HEADS = "refs/heads/"
MIRRORED_HEAD = "refs/warpwatch/HEAD"
"""Where a mirror keeps HEAD of the repository that it was cloned from."""
_ORIGIN_HEAD, _ORIGIN = "refs/remotes/origin/HEAD", "refs/remotes/origin/"
_USUAL = ("main", "master", "trunk")
"""Names that a default branch usually has."""


@dataclass(frozen=True, slots=True)
class CommitSummary:
    """A commit as a list of choices shows it."""

    sha: str
    subject: str
    author: str
    authored_at: datetime


def list_branches(mirror: Path, limit: int) -> list[tuple[str, CommitSummary]]:
    """The branches with the newest commits, each with its newest."""
    fields = "%00".join(("%(refname)", "%(objectname)", "%(authorname)", "%(authordate:unix)", "%(subject)"))
    arguments = ("--sort=-committerdate", f"--count={limit}", f"--format={fields}%00", "refs/heads")
    output = git("for-each-ref", *arguments, cwd=mirror).replace("\0\n", "\0")
    return [
        (name.removeprefix("refs/heads/"), CommitSummary(sha, subject, author, instant(authored_at)))
        for name, sha, author, authored_at, subject in rows(output, 5)
    ]


def list_recent(mirror: Path, ref: str, limit: int) -> list[CommitSummary]:
    """The newest first-parent commits up to `ref`, newest first."""
    output = git(
        "log", "-z", "--first-parent", f"--max-count={limit}", f"--format={FORMAT}", resolve(mirror, ref), cwd=mirror
    )
    return _summaries(output)


def merged_commits(mirror: Path, start: str | None, line: Sequence[str], limit: int) -> tuple[int, list[CommitSummary]]:
    """How many commits came by merges to a line of first parents, and the newest `limit` of them.

    line: full ids, oldest first. start: what lies before the line and is no part of it; None where the line begins at a
    first commit.
    """
    since = [] if start is None else [f"^{start}"]
    every = git("rev-list", "--stdin", cwd=mirror, text="\n".join([line[-1], *since])).split()
    on_line = set(line)
    merged = [sha for sha in every if sha not in on_line]
    return len(merged), summarize(mirror, merged[:limit])


def summarize(mirror: Path, shas: Sequence[str]) -> list[CommitSummary]:
    """The commits with these full ids, in the same order."""
    if not shas:
        return []  # Without an id, git log would show HEAD.
    output = git("log", "-z", "--no-walk=unsorted", "--stdin", f"--format={FORMAT}", cwd=mirror, text="\n".join(shas))
    return _summaries(output)


def _summaries(output: str) -> list[CommitSummary]:
    """The commits of a log in FORMAT."""
    return [
        CommitSummary(sha, subject, author, instant(authored_at))
        for sha, _, author, authored_at, subject in rows(output, 5)
    ]


def first_parents_outside(mirror: Path, heads: Sequence[str], trunk: str) -> dict[str, str | None]:
    """The first parent of every commit that is reachable from `heads` and not from `trunk` (full ids), by one call."""
    lines = git("rev-list", "--parents", "--stdin", cwd=mirror, text="\n".join([*heads, f"^{trunk}"])).splitlines()
    return {sha: next(iter(parents), None) for sha, *parents in (line.split() for line in lines)}


def merged_at(mirror: Path, sha: str, trunk: str) -> str | None:
    """The oldest commit on the first-parent line of `trunk` that descends from `sha` (full ids); None without one."""
    descendants_of = descendants(mirror, sha, trunk)
    line = git("rev-list", "--first-parent", f"{sha}..{trunk}", cwd=mirror).split()
    return next((item for item in reversed(line) if item in descendants_of), None)


def list_refs(mirror: Path, *patterns: str) -> dict[str, str]:
    """Full names of the refs below `patterns`, such as refs/heads, with the id of the commit that each names."""
    fields = "%(refname)%00%(objecttype)%00%(objectname)%00%(*objecttype)%00%(*objectname)"
    lines = git("for-each-ref", f"--format={fields}", *patterns, cwd=mirror).splitlines()
    refs = {}
    for name, kind, sha, target_kind, target in (line.split("\0") for line in lines):
        if "commit" in (kind, target_kind):
            refs[name] = sha if kind == "commit" else target
    return refs


def default_branch(url: str, mirror: Path, destinations: Destinations = ANY_NETWORK) -> str | None:
    """The default branch of the repository at `url`, which `mirror` mirrors; None where it has no branch.

    A code host says in HEAD which branch that is. HEAD of a working copy is what somebody has checked out just now, so
    there the default branch of its origin counts, then init.defaultBranch, then the usual names.
    """
    refs = list_refs(mirror, HEADS, MIRRORED_HEAD)
    heads = {name.removeprefix(HEADS): sha for name, sha in refs.items() if name.startswith(HEADS)}
    try:
        named = named_branches(url, destinations)
    except UnreachableError:
        named = {}
    head = named.get("HEAD", "").removeprefix(HEADS)
    at_head = sorted(name for name, sha in heads.items() if sha == refs.get(MIRRORED_HEAD))
    folder = Path(url.removeprefix("file://"))
    if (folder / ".git").exists():
        origin = named.get(_ORIGIN_HEAD, "").removeprefix(_ORIGIN)
        candidates = [origin, _configured_branch(folder), *_USUAL, head, *at_head]
    else:
        candidates = [head, *(name for name in _USUAL if name in at_head), *at_head, *_USUAL]
    return next((name for name in candidates if name in heads), None)


def _configured_branch(folder: Path) -> str:
    """The name that git gives the first branch of a new repository, where its user has chosen one."""
    try:
        return git("config", "--get", "init.defaultBranch", cwd=folder).strip()
    except GitError:
        return ""


def parents_of(mirror: Path, sha: str) -> list[str]:
    """The parents of a commit (full id), the first one first."""
    return git("rev-list", "--parents", "--max-count=1", sha, cwd=mirror).split()[1:]
