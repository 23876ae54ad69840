"""Definitions that lie beside the measured history: where they are, and which version of them is the newest.

Definitions are a git repository, by path or URL, or a plain folder. A folder is stored as a commit in a mirror of its
own, so that every version that measured anything can be read again. Mirrors of one home lie side by side.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from warpwatch import git
from warpwatch.contract.commit_ids import short_sha
from warpwatch.contract.spec import DefinitionsVersion
from warpwatch.destinations import Destinations
from warpwatch.project import FILE_NAME, parse_project

MOST_FILES, MOST_BYTES = 2000, 16 * 2**20
"""Limits of a plain folder of definitions: people read the definitions, and a whole home folder is a mistake."""
_FIXED_TIME = {"GIT_AUTHOR_DATE": "@0 +0000", "GIT_COMMITTER_DATE": "@0 +0000"}
_IDENTITY = ("user.name=warpwatch", "user.email=warpwatch@localhost")


class DefinitionsError(git.GitError):
    """Definitions cannot be used; the message says what to change."""


@dataclass(frozen=True, slots=True)
class DefinitionsSource:
    """Where definitions come from. ref: a branch, tag or commit of theirs; None means the newest."""

    url: str
    ref: str | None = None

    def __str__(self) -> str:
        return self.url if self.ref is None else f"{self.url}@{self.ref}"


def parse_source(text: str) -> DefinitionsSource:
    """The source in `PATH_OR_URL[@ref]`; an @ in front of a host belongs to the URL."""
    if Path(text).is_dir():
        # git runs in other folders, where a relative path would mean another place.
        return DefinitionsSource(str(Path(text).absolute()))
    place, _, ref = text.rpartition("@")
    is_host = "://" in ref or ":" in ref or (place.partition("://")[1] and "/" not in place.partition("://")[2])
    return DefinitionsSource(text) if not place or is_host or not ref else DefinitionsSource(place, ref)


def is_local_path(place: str) -> bool:
    """Whether a place is a path of this machine: no URL, and no host with a path, such as git@host:owner/name."""
    return "://" not in place and ":" not in place.partition("/")[0]


def mirror_of(mirror: Path, definitions: DefinitionsVersion) -> Path:
    """The mirror of definitions, which lies beside that of the measured repository."""
    return git.mirror_path(definitions.url, mirror.parent.parent)


def newest_version(
    source: DefinitionsSource,
    home: Path,
    destinations: Destinations = git.ANY_NETWORK,
    timeout: float = git.FETCH_SECONDS,
) -> DefinitionsVersion:
    """Brings the definitions up to date below `home` and returns their newest version.

    Raises GitError where they cannot be fetched, DefinitionsError and ProjectError where they cannot be used.
    """
    folder = Path(source.url)
    if is_local_path(source.url) and not folder.exists():
        raise DefinitionsError(
            f"the folder {source.url} does not exist; definitions are a folder, or the path or URL of a git repository"
        )
    if folder.is_dir() and not _is_repository(folder):
        mirror = git.mirror_path(source.url, home)
        if source.ref is None:
            sha = _store_folder(folder, mirror)
        elif git.holds(mirror, source.ref):
            # A command that repeats a measurement names the version that it was measured with.
            sha = source.ref
        else:
            raise DefinitionsError(f"{source.url} is no git repository, so it has no {source.ref!r}; leave out the ref")
    else:
        sha = git.resolve(git.update_mirror(source.url, home, destinations, timeout), source.ref or "HEAD")
    text = git.read_file(git.mirror_path(source.url, home), sha, FILE_NAME)
    if text is None:
        raise DefinitionsError(f"{source} holds no {FILE_NAME} at its root; write one that names [measured] packages")
    if parse_project(text).measured is None:
        raise DefinitionsError(f"{FILE_NAME} of {source} has no [measured] table; it must name the packages to measure")
    return DefinitionsVersion(source.url, sha)


def bring(version: DefinitionsVersion, home: Path) -> Path:
    """A mirror that holds this version of definitions; nothing is fetched where it is there already."""
    mirror = git.mirror_path(version.url, home)
    if not git.holds(mirror, version.sha):
        newest_version(DefinitionsSource(version.url), home)
        if not git.holds(mirror, version.sha):
            if not _is_repository(Path(version.url)) and Path(version.url).is_dir():
                raise DefinitionsError(
                    f"the folder {version.url} holds another version than {short_sha(version.sha)} by now"
                )
            git.fetch_commit(version.url, mirror, version.sha)
    return mirror


def _is_repository(folder: Path) -> bool:
    """Whether a folder is itself a git repository, and not one inside another."""
    return (folder / ".git").exists() or ((folder / "HEAD").is_file() and (folder / "objects").is_dir())


def _store_folder(folder: Path, mirror: Path) -> str:
    """The commit of what a folder holds now; the same files give the same id."""
    _expect_small(folder)
    if not (mirror / "HEAD").exists():
        mirror.parent.mkdir(parents=True, exist_ok=True)
        git.git("init", "--quiet", "--bare", "--initial-branch=main", str(mirror))
    with tempfile.TemporaryDirectory(prefix="warpwatch-definitions-") as scratch:
        index = Path(scratch) / "index"
        place = {"GIT_WORK_TREE": str(folder.absolute())}
        git.git("add", "--all", "--force", ".", ":!**/__pycache__", cwd=mirror, index=index, environment=place)
        tree = git.git("write-tree", cwd=mirror, index=index).strip()
    # The time is fixed, so that the same files are the same version.
    words = ("commit-tree", tree, "-m", "Definitions")
    sha = git.git(*words, cwd=mirror, config=_IDENTITY, environment=_FIXED_TIME).strip()
    git.git("update-ref", f"refs/versions/{sha}", sha, cwd=mirror)
    return sha


def _expect_small(folder: Path) -> None:
    """DefinitionsError for a folder that nobody wrote as definitions."""
    if not (folder / FILE_NAME).is_file():
        raise DefinitionsError(f"{folder} holds no {FILE_NAME}; write one that names [measured] packages")
    files = size = 0
    for path, _, names in os.walk(folder):
        files += len(names)
        size += sum(Path(path, name).lstat().st_size for name in names)
        if files > MOST_FILES or size > MOST_BYTES:
            raise DefinitionsError(
                f"{folder} holds more than {MOST_FILES} files or {MOST_BYTES >> 20} MB; give the definitions a folder "
                "of their own"
            )
