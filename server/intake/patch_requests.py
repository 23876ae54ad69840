"""Takes in patches of working trees: applied once to be sure of them, then stored as commits that no branch holds."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass

from warpwatch import git
from warpwatch.contract.words import JobKind
from warpwatch.db.database import Database
from warpwatch.db.patches import NewPatch, PatchRow, find_patch, list_patches, read_content, store_patch
from warpwatch.db.reads.code import RepositoryRow
from warpwatch.db.reads.query import Session
from warpwatch.patches import PatchError, apply_patch
from warpwatch.server.history.commits import CommitHistory, fetch_repository
from warpwatch.server.history.definitions import refresh_definitions
from warpwatch.server.http.problems import FieldError, Problem
from warpwatch.server.intake.submission_request import SubmissionRequest
from warpwatch.settings import Settings
from warpwatch.sources import Sources

KINDS = (JobKind.CHECK, JobKind.COMPARE)
"""Kinds of jobs that a patch may request: none of these kinds adds a point to a history."""
_SHA = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class StoredPatch:
    """A patch that was taken in: the commit that it makes, to be submitted, and its files and operators that differ
    from the base."""

    sha: str
    base_sha: str
    files: list[str]
    operators: list[str]


def take_patch(
    database: Database, settings: Settings, repository: RepositoryRow, base: str, content: bytes
) -> StoredPatch:
    """Stores a patch on a commit that the repository holds; Problem names the field at fault."""
    repository = refresh_definitions(database, settings, repository)
    mirror = fetch_repository(settings, repository)
    try:
        base_sha = git.resolve(mirror, base)
    except git.UnknownRefError as error:
        raise _refused("base", str(error), "push the commit, or send the changes since one that was pushed") from error
    with database.session() as session:
        if find_patch(session, repository.id, base_sha) is not None:
            raise _refused("base", "is a working tree itself", "name a commit of the repository")
    try:
        commit = apply_patch(mirror, base_sha, content)
    except PatchError as error:
        remedy = "send the output of `git diff --binary BASE`, of regular files only"
        raise _refused("patch", str(error), remedy) from error
    info = git.describe(mirror, commit.sha)
    sources = Sources(mirror, repository.definitions)
    operators = [
        name for name in sources.operators(commit.sha) if sources.of(base_sha, name) != sources.of(commit.sha, name)
    ]
    with database.session() as session:
        store_patch(session, NewPatch(repository.id, base_sha, content, info))
    return StoredPatch(commit.sha, base_sha, commit.files, operators)


def restore_patch(database: Database, settings: Settings, repository: RepositoryRow, commits: str) -> None:
    """Makes the commit of a stored patch again where the mirror lost it: git deletes what no branch holds, and another
    server may have taken it in."""
    if _SHA.fullmatch(commits) is None:
        return
    mirror = git.mirror_path(repository.url, settings.home)
    with database.session() as session:
        patch = find_patch(session, repository.id, commits)
        content = read_content(session, patch.id) if patch is not None else b""
    if patch is None or git.holds(mirror, patch.sha):
        return
    # Where the base is gone too, the request names an unknown commit.
    with suppress(PatchError, git.GitError):
        apply_patch(fetch_repository(settings, repository), patch.base_sha, content)


def find_submitted_patch(
    session: Session,
    repository_id: int,
    history: CommitHistory,
    base: CommitHistory | None,
    request: SubmissionRequest,
) -> tuple[PatchRow | None, list[FieldError]]:
    """The patch that makes the requested commit, None without one, and what cannot be asked of a patch."""
    bases = [commit.sha for commit in base.commits] if base is not None else []
    patches = list_patches(session, repository_id, [*(commit.sha for commit in history.commits), *bases])
    if not patches:
        return None, []
    errors = []
    if len(patches) > 1 or len(history.commits) > 1:
        remedy = "submit one working tree alone, with a commit as its base"
        errors.append(FieldError(field="commits", message="a working tree is no part of a range", remedy=remedy))
    if any(patch.sha in bases for patch in patches):
        errors.append(FieldError(field="base", message="is a working tree", remedy="name a commit of the repository"))
    if not set(request.kinds) <= set(KINDS):
        message = "a working tree enters no history, so it is checked and compared only"
        errors.append(FieldError(field="kinds", message=message, remedy=f"choose from {', '.join(KINDS)}"))
    elif base is not None and JobKind.COMPARE not in request.kinds:
        message = "a working tree has no commit status"
        errors.append(FieldError(field="base", message=message, remedy="add kind compare, or leave out the base"))
    return patches[0], errors


def _refused(field: str, message: str, remedy: str) -> Problem:
    return Problem(422, "the patch was not stored", [FieldError(field=field, message=message, remedy=remedy)])
