"""The diff of an operator's sources between two commits, and its page on the code host."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from warpwatch import git
from warpwatch.db.reads.code import RepositoryRow
from warpwatch.settings import Settings
from warpwatch.sources import Sources

SHOWN_FILES = 40
_URL = re.compile(r"(?:https?|ssh|git)://(?:[^@/]*@)?(?P<host>[\w.-]+)(?::(?P<port>\d+))?/(?P<path>.+)")
_SHORT = re.compile(r"(?:[\w.-]+@)?(?P<host>[\w.-]+\.[\w.-]+):(?P<path>[^/].*)")
"""`git@host:owner/name.git`, as ssh has it."""


@dataclass(frozen=True, slots=True)
class SourceDiff:
    """url: the diff on the host of the repository, None where it has none. command: shows it in a checkout.

    paths: what makes the operator; empty where it is the whole commit. files: what changed of it. commits: ids of the
    commits that changed it, newest first. message: why neither is known.
    """

    url: str | None
    command: str
    paths: list[str] = field(default_factory=list)
    files: list[git.FileChange] = field(default_factory=list)
    commits: list[str] = field(default_factory=list)
    message: str = ""


def read_source_diff(settings: Settings, repository: RepositoryRow, operator: str, base: str, head: str) -> SourceDiff:
    """The diff of an operator's sources between two commits, given by their full ids."""
    url = compare_url(repository.url, base, head)
    mirror = git.mirror_path(repository.url, settings.home)
    if not mirror.exists():
        return SourceDiff(url, _command(base, head, []), message="the repository was not fetched here yet")
    try:
        paths, files, commits = _diff(mirror, operator, base, head)
    except git.GitError as error:
        return SourceDiff(url, _command(base, head, []), message=str(error))
    return SourceDiff(url, _command(base, head, paths), paths, files, commits)


@lru_cache(maxsize=256)
def _diff(mirror: Path, operator: str, base: str, head: str) -> tuple[list[str], list[git.FileChange], list[str]]:
    """Cached, because commits do not change."""
    sources = Sources(mirror)
    sides = [sources.paths(base, operator), sources.paths(head, operator)]
    paths = list(dict.fromkeys(path for side in sides for path in side)) if all(sides) else []
    return paths, git.changed_files(mirror, base, head, paths), git.commits_touching(mirror, base, head, paths)


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
