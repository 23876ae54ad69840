"""The diff of an operator's sources between two commits, and its page on the code host."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from pathlib import Path

from warpwatch import git
from warpwatch.contract.spec import DefinitionsVersion
from warpwatch.db.reads.code import CommitRow, RepositoryRow
from warpwatch.settings import Settings
from warpwatch.sources import Sources

MOST_LINES, MOST_COLUMNS = 400, 400
"""Lines of a diff that are shown, and characters of each."""
MOST_BODY = 5_000
"""Characters of a commit's message that are shown."""
READABLE_LINES = 20_000
"""Changed lines up to which a diff is read at all."""
_URL = re.compile(r"(?:https?|ssh|git)://(?:[^@/]*@)?(?P<host>[\w.-]+)(?::(?P<port>\d+))?/(?P<path>.+)")
_SHORT = re.compile(r"(?:[\w.-]+@)?(?P<host>[\w.-]+\.[\w.-]+):(?P<path>[^/].*)")
"""`git@host:owner/name.git`, as ssh has it."""


class DiffLineKind(StrEnum):
    """Kind of a line in a diff: a file name, the start of a hunk, an added, a removed or an unchanged line."""

    FILE = "file"
    HUNK = "hunk"
    ADDED = "added"
    REMOVED = "removed"
    SAME = "same"


@dataclass(frozen=True, slots=True)
class DiffLine:
    """One line of a diff, without the mark at its beginning."""

    kind: DiffLineKind
    text: str


@dataclass(frozen=True, slots=True)
class CommitSource:
    """Message and diff of a commit. body: the message below the subject. diff: from the commit's first parent."""

    body: str
    diff: SourceDiff


_MARKS = {"+": DiffLineKind.ADDED, "-": DiffLineKind.REMOVED, " ": DiffLineKind.SAME}


@dataclass(frozen=True, slots=True)
class SourceDiff:
    """url: the diff on the host of the repository, None where it has none. command: shows it in a checkout.

    paths: what makes the operator; empty where it is the whole commit. files: what changed of it. commits: ids of the
    commits that changed it, newest first. lines: the diff itself, at most MOST_LINES; is_cut: whether there are more.
    message: why none of it is known.
    """

    url: str | None
    command: str
    paths: list[str] = field(default_factory=list)
    files: list[git.FileChange] = field(default_factory=list)
    commits: list[str] = field(default_factory=list)
    message: str = ""
    lines: list[DiffLine] = field(default_factory=list)
    is_cut: bool = False


def read_source_diff(settings: Settings, repository: RepositoryRow, operator: str, base: str, head: str) -> SourceDiff:
    """The diff of an operator's sources between two commits, given by their full ids."""
    url = compare_url(repository.url, base, head)
    mirror = git.mirror_path(repository.url, settings.home)
    if not mirror.exists():
        return SourceDiff(url, _command(base, head, []), message="the repository was not fetched here yet")
    try:
        paths, files, commits, lines = _diff(mirror, repository.definitions, operator, base, head)
    except git.GitError as error:
        return SourceDiff(url, _command(base, head, []), message=str(error))
    command, is_cut = _command(base, head, paths), len(lines) > MOST_LINES
    return SourceDiff(url, command, paths, files, commits, lines=lines[:MOST_LINES], is_cut=is_cut)


@lru_cache(maxsize=256)
def _diff(
    mirror: Path, definitions: DefinitionsVersion | None, operator: str, base: str, head: str
) -> tuple[list[str], list[git.FileChange], list[str], list[DiffLine]]:
    """Cached, because commits do not change."""
    sources = Sources(mirror, definitions)
    sides = [sources.paths(base, operator), sources.paths(head, operator)]
    paths = list(dict.fromkeys(path for side in sides for path in side)) if all(sides) else []
    files, lines = _changes(mirror, base, head, paths)
    return paths, files, git.commits_touching(mirror, base, head, paths), lines


def _changes(mirror: Path, base: str, head: str, paths: list[str]) -> tuple[list[git.FileChange], list[DiffLine]]:
    files = git.changed_files(mirror, base, head, paths)
    changed_lines = sum((file.added or 0) + (file.deleted or 0) for file in files)
    # A generated file of a million lines is not read for the sake of its first ones.
    return files, read_lines(git.diff(mirror, base, head, paths)) if changed_lines <= READABLE_LINES else []


def read_commit_source(settings: Settings, repository: RepositoryRow, commit: CommitRow) -> CommitSource:
    """The message of a commit and what it changed."""
    url = compare_url(repository.url, commit.parent_sha, commit.sha) if commit.parent_sha else None
    command = shlex.join(["git", "show", commit.sha[:12]])
    mirror = git.mirror_path(repository.url, settings.home)
    if not mirror.exists():
        return CommitSource("", SourceDiff(url, command, message="the repository was not fetched here yet"))
    try:
        body, files, lines = _commit(mirror, commit.parent_sha or git.EMPTY_TREE, commit.sha)
    except git.GitError as error:
        return CommitSource("", SourceDiff(url, command, message=str(error)))
    is_cut = len(lines) > MOST_LINES or bool(files and not lines)
    return CommitSource(body, SourceDiff(url, command, files=files, lines=lines[:MOST_LINES], is_cut=is_cut))


@lru_cache(maxsize=256)
def _commit(mirror: Path, base: str, sha: str) -> tuple[str, list[git.FileChange], list[DiffLine]]:
    """Cached, because commits do not change."""
    return git.message_body(mirror, sha)[:MOST_BODY], *_changes(mirror, base, sha, [])


def read_lines(patch: str) -> list[DiffLine]:
    """The lines of a patch as git prints it, at most one more than MOST_LINES."""
    lines: list[DiffLine] = []
    in_hunk = False
    for line in patch.split("\n"):
        if line.startswith("diff --git "):
            in_hunk = False
        elif line.startswith("@@"):
            in_hunk = True
            lines.append(DiffLine(DiffLineKind.HUNK, line[:MOST_COLUMNS]))
        elif not in_hunk and line.startswith(("+++ ", "--- ")):
            # A file that is new or gone has one name only.
            name = line[4:].rstrip("\t")
            if name != "/dev/null" and (not lines or lines[-1] != DiffLine(DiffLineKind.FILE, name)):
                lines.append(DiffLine(DiffLineKind.FILE, name[:MOST_COLUMNS]))
        elif in_hunk and line[:1] in _MARKS:
            lines.append(DiffLine(_MARKS[line[:1]], line[1 : MOST_COLUMNS + 1]))
        if len(lines) > MOST_LINES:
            break
    return lines


def _command(base: str, head: str, paths: list[str]) -> str:
    return shlex.join(["git", "diff", base[:12], head[:12], *(["--", *paths] if paths else [])])


def compare_url(url: str, base: str, head: str) -> str | None:
    """The page that shows the diff on GitHub, GitLab or a Gitea; None for hosts whose pages are not known and for
    folders.

    Everything in the URL besides scheme, host, port and path, such as a token, is dropped.
    """
    match = _URL.fullmatch(url) or (None if "://" in url else _SHORT.fullmatch(url))
    if match is None:
        return None
    host, path = match["host"].lower(), match["path"].rstrip("/").removesuffix(".git")
    # The port of ssh is not that of the pages.
    port = f":{match['port']}" if url.startswith("http") and match["port"] else ""
    place = f"{'http' if url.startswith('http:') else 'https'}://{host}{port}/{path}"
    if not re.fullmatch(r"[\w.~/-]+", path) or ".." in path:
        return None
    if re.search(r"(^|\.)github\.", host):
        return f"{place}/compare/{base}...{head}"
    if re.search(r"(^|\.)gitlab\.", host):
        return f"{place}/-/compare/{base}...{head}"
    return f"{place}/compare/{base}...{head}" if re.search(r"(^|\.)(codeberg|gitea|forgejo)\.", host) else None
