"""Reads the branches of a repository through the git command: its refs, their newest commits, and where they meet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from warpwatch.git import FORMAT, descendants, git, instant, resolve, rows


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


def parents_of(mirror: Path, sha: str) -> list[str]:
    """The parents of a commit (full id), the first one first."""
    return git("rev-list", "--parents", "--max-count=1", sha, cwd=mirror).split()[1:]
