"""Keeps the stored branches in line with the mirror. Git is read while no transaction is open."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from warpwatch import git, git_branches
from warpwatch.contract.words import BranchKind
from warpwatch.db.branches import NewBranch, fix_watched_branch, replace_branches
from warpwatch.db.database import Database
from warpwatch.db.reads.lines import RepositorySource, list_stored_commits, read_followed
from warpwatch.git_branches import HEADS, MIRRORED_HEAD
from warpwatch.settings import Settings

TAGS = "refs/tags/"
REQUESTS = {"refs/pull/": "/head", "refs/merge-requests/": "/head"}
"""Where GitHub and GitLab keep the newest commit of a change request, and how those refs end."""
_TRIES = 4


@dataclass(frozen=True, slots=True)
class BranchList:
    """The branches of a mirror with their stored commits, and the tags of commits by full id."""

    branches: list[NewBranch]
    tags: dict[str, list[str]]


def follow_branches(database: Database, settings: Settings, repository_id: int) -> None:
    """Stores the branches as the mirror has them now. It never fetches.

    A repository whose watched branch was never chosen gets its default branch, once: from then on, what somebody checks
    out at its source changes nothing.
    """
    for _ in range(_TRIES):
        with database.session() as session:
            followed = read_followed(session, repository_id)
        mirror = git.mirror_path(followed.url, settings.home) if followed else None
        if followed is None or mirror is None or not mirror.is_dir():
            return
        refs = git_branches.list_refs(mirror, HEADS, TAGS, *REQUESTS, MIRRORED_HEAD)
        key = hashlib.sha256(repr((sorted(refs.items()), followed.branch, followed.commits)).encode()).hexdigest()
        if followed.branch is None:
            name = git_branches.default_branch(followed.url, mirror, settings.destinations)
            if name is not None:
                with database.session() as session:
                    fix_watched_branch(session, repository_id, name)
                continue
        if key == followed.branches_key:
            return
        with database.session() as session:
            stored = list_stored_commits(session, repository_id)
        result = read_branches(mirror, refs, followed, stored)
        with database.session() as session:
            if replace_branches(
                session, repository_id, result.branches, result.tags, key=key, earlier_key=followed.branches_key
            ):
                return


def has_branch(settings: Settings, url: str, name: str) -> bool:
    """Whether the mirror has a branch of this name; True where nothing was fetched yet, so that nobody knows."""
    mirror = git.mirror_path(url, settings.home)
    return not mirror.is_dir() or HEADS + name in git_branches.list_refs(mirror, HEADS)


def read_branches(
    mirror: Path, refs: Mapping[str, str], followed: RepositorySource, stored: Mapping[str, int]
) -> BranchList:
    """Reads branches from git. refs: commit ids by full ref name. stored: ordinals of the commits that are stored."""
    tags: dict[str, list[str]] = {}
    for name, sha in refs.items():
        if name.startswith(TAGS) and sha in stored:
            tags.setdefault(sha, []).append(name.removeprefix(TAGS))
    name, head_sha = _watched(refs, followed)
    if head_sha is None:
        # A watched branch that does not exist has no commits, rather than those of all others.
        missing = [NewBranch(name, BranchKind.BRANCH, True, "")] if followed.branch is not None else []
        return BranchList(missing, tags)
    line = git.first_parents(mirror, head_sha)
    trunk = {sha: len(line) - index for index, sha in enumerate(line)}
    watched = NewBranch(name, BranchKind.BRANCH, True, head_sha, places=_stored(trunk, stored))
    sides = _unmerged(mirror, refs, watched, trunk, stored)
    known = {sha for branch in sides for sha in branch.places} | trunk.keys()
    sides += _merged(mirror, refs, watched, trunk, {sha: at for sha, at in stored.items() if sha not in known})
    return BranchList([watched, *sides], tags)


def _watched(refs: Mapping[str, str], followed: RepositorySource) -> tuple[str, str | None]:
    """Name and newest commit of the watched branch; HEAD where the repository has no branch at all."""
    if followed.branch is not None:
        return followed.branch, refs.get(HEADS + followed.branch)
    return "HEAD", refs.get(MIRRORED_HEAD)


def _unmerged(
    mirror: Path, refs: Mapping[str, str], watched: NewBranch, trunk: Mapping[str, int], stored: Mapping[str, int]
) -> list[NewBranch]:
    """Branches and change requests with a stored commit that the watched branch does not have."""
    heads = _heads(refs, watched.name)
    parents = git_branches.first_parents_outside(mirror, sorted(set(heads.values())), watched.head_sha) if heads else {}
    branches = []
    for name, sha in heads.items():
        own, here = [], sha
        while here in parents:
            own.append(here)
            here = parents[here] or ""
        # A branch may have left one that was merged since.
        own += _until(git.first_parents(mirror, here), trunk) if own and here and here not in trunk else []
        if any(item in stored for item in own):
            kind = BranchKind.REQUEST if name in _requests(refs) else BranchKind.BRANCH
            fork = _fork(mirror, own[-1], trunk)
            branch = _branch(name, kind, sha, own, fork, trunk, stored)
            branches.append(replace(branch, merge_base_sha=_merge_base(mirror, sha, watched.head_sha)))
    return branches


def _heads(refs: Mapping[str, str], watched: str) -> dict[str, str]:
    """Newest commits of branches and change requests, by short name; a request that is a branch here counts once."""
    branches = {name.removeprefix(HEADS): sha for name, sha in refs.items() if name.startswith(HEADS)}
    branches.pop(watched, None)
    held = set(branches.values())
    return branches | {name: sha for name, sha in _requests(refs).items() if sha not in held and name not in branches}


def _requests(refs: Mapping[str, str]) -> dict[str, str]:
    """Newest commits of change requests, by names such as pull/7."""
    return {
        name.removeprefix("refs/").removesuffix(end): sha
        for name, sha in refs.items()
        for start, end in REQUESTS.items()
        if name.startswith(start) and name.endswith(end)
    }


def _merged(
    mirror: Path, refs: Mapping[str, str], watched: NewBranch, trunk: Mapping[str, int], rest: dict[str, int]
) -> list[NewBranch]:
    """Stored commits that came to the watched branch by a merge. What no branch reaches any more is left out: it was
    rebased away, or its branch was deleted."""
    names = {sha: name for name, sha in _heads(refs, watched.name).items()}
    branches: list[NewBranch] = []
    while rest:
        sha = max(rest, key=lambda item: (rest[item], item))
        try:
            merge_sha = git_branches.merged_at(mirror, sha, watched.head_sha)
        except git.GitError:
            merge_sha = None  # The mirror does not have the commit any more.
        own = []
        if merge_sha is not None:
            own = _until(git.first_parents(mirror, sha), trunk)
            fork = _fork(mirror, own[-1] if own else sha, trunk)
            # No branch of git can have this name, because of the blank.
            name = names.get(sha, f"merged {sha[:12]}")
            kind = BranchKind.BRANCH if sha in names else BranchKind.MERGED
            branch = _branch(name, kind, sha, own, fork, trunk, rest)
            branches.append(replace(branch, merge_base_sha=fork, merged_sha=merge_sha))
        rest = {item: at for item, at in rest.items() if item != sha and item not in own}
    return branches


def _branch(
    name: str,
    kind: BranchKind,
    head_sha: str,
    own: list[str],
    fork: str | None,
    trunk: Mapping[str, int],
    stored: Mapping[str, int],
) -> NewBranch:
    """own: its commits since it left the trunk, newest first."""
    fork_at = trunk[fork] if fork else None
    places = {sha: (fork_at or 0) + len(own) - index for index, sha in enumerate(own)}
    return NewBranch(name, kind, False, head_sha, fork_at, fork, places=_stored(places, stored))


def _fork(mirror: Path, sha: str, trunk: Mapping[str, int]) -> str | None:
    """The newest commit of the trunk among `sha` and its first parents; None where they share none."""
    if sha in trunk or not sha:
        return sha or None
    return next((item for item in git.first_parents(mirror, sha) if item in trunk), None)


def _until(line: list[str], trunk: Mapping[str, int]) -> list[str]:
    return line[: next((index for index, sha in enumerate(line) if sha in trunk), len(line))]


def _merge_base(mirror: Path, sha: str, trunk_sha: str) -> str | None:
    try:
        return git.merge_base(mirror, sha, trunk_sha)
    except git.UnknownRefError:
        return None


def _stored(places: Mapping[str, int], stored: Mapping[str, int]) -> dict[str, int]:
    return {sha: place for sha, place in places.items() if sha in stored}
