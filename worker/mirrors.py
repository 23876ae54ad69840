"""Brings the commits of jobs to this machine, and asks git what no file of a worktree says."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from warpwatch import CONTRACT, git
from warpwatch.contract.commit_ids import short_sha
from warpwatch.contract.spec import DefinitionsVersion, SourcePatch
from warpwatch.definitions import bring
from warpwatch.patches import PatchError, apply_patch
from warpwatch.project import FILE_NAME, Project, ProjectError, parse_project
from warpwatch.settings import Settings
from warpwatch.worker.levels import is_weaker
from warpwatch.worker.reporter import CannotRunError
from warpwatch.worker.trees import Limits, Tree, TreeError

_OPERATOR_FILES = Limits(depth=20, files=10_000)
_FILE_BYTES = 2**20
_SINCE = b"since"
_REF = re.compile(rb"""["']([\w./~^@+-]{1,200})["']""")
_MOST_COMMITS = 200
"""Commits that operator files name; what they name beyond that counts as unknown."""


class UntrustedCommitError(CannotRunError):
    """A commit may not run in the isolation of this host."""


@dataclass(frozen=True, slots=True)
class MirroredCommit:
    """A commit that a mirror of this machine holds. definitions: what defines its operators, None where the commit
    does. project: how it is measured, by its own warpwatch.toml or that of the definitions."""

    mirror: Path
    sha: str
    project: Project
    definitions: DefinitionsVersion | None = None


def mirror_commit(
    settings: Settings, isolation: str, url: str, sha: str, definitions: DefinitionsVersion | None = None
) -> MirroredCommit:
    """Brings a commit and its definitions to this machine. UntrustedCommitError for a commit that anybody may have
    pushed, where `isolation` cannot shut it in; ProjectError where its project cannot be used."""
    mirror = _mirror_with(url, sha, settings.home)
    wanted = settings.fork_isolation
    if is_weaker(isolation, wanted):
        branches = git.git("for-each-ref", "--count=1", f"--contains={sha}", "refs/heads", cwd=mirror)
        if not branches.strip():
            raise UntrustedCommitError(
                f"no branch holds commit {short_sha(sha)}, and this worker has the isolation {isolation!r} instead of "
                f"{wanted!r}: measure it on another worker, or set WARPWATCH_FORK_ISOLATION"
            )
    return MirroredCommit(mirror, sha, project_of(settings.home, mirror, sha, definitions), definitions)


def bring_patch(home: Path, url: str, patch: SourcePatch, sha: str) -> None:
    """Makes the commit of a patch in the mirror; CannotRunError where it is another one than the server made."""
    mirror = _mirror_with(url, patch.base_sha, home)
    if git.holds(mirror, sha):
        return
    try:
        made = apply_patch(mirror, patch.base_sha, patch.content)
    except PatchError as error:
        raise CannotRunError(str(error)) from error
    if made.sha != sha:
        raise CannotRunError(f"the patch makes commit {short_sha(made.sha)} here and {short_sha(sha)} on the server")


def project_of(home: Path, mirror: Path, sha: str, definitions: DefinitionsVersion | None) -> Project:
    """The project that says how a commit is measured: its own, or that of the definitions. ProjectError also when it
    was written for a contract that this service does not know."""
    place = (mirror, sha) if definitions is None else (bring(definitions, home), definitions.sha)
    project = parse_project(git.read_file(*place, FILE_NAME))
    if project.contract != CONTRACT:
        raise ProjectError(f"{FILE_NAME} asks for contract {project.contract}; this service knows contract {CONTRACT}")
    return project


def find_ancestors(commit: MirroredCommit, root: Tree) -> dict[str, bool]:
    """Every commit that an operator file below `root` may name with `since`, as it is written there, and whether
    `commit` descends from it.

    Which text is an argument of `since` only running the file shows, and then nobody asks git any more. So every string
    that names a commit counts, in files that have the word.
    """
    refs: dict[str, None] = {}
    try:
        for entry in root.walk(_OPERATOR_FILES, commit.project.operators):
            if entry.is_file and entry.name.endswith(".py"):
                text = root.read(entry.name, _FILE_BYTES)
                if _SINCE in text:
                    refs |= dict.fromkeys(ref.decode("ascii") for ref in _REF.findall(text))
    except TreeError:
        # There is no folder of operators, or it is no folder.
        return {}
    ids = git.object_ids(commit.mirror, [f"{ref}^{{commit}}" for ref in refs])
    named = {ref: item for ref, item in zip(refs, ids, strict=True) if item is not None}
    descends = dict.fromkeys(list(dict.fromkeys(named.values()))[:_MOST_COMMITS], False)
    for item in descends:
        with suppress(git.UnknownRefError):
            descends[item] = git.merge_base(commit.mirror, item, commit.sha) == item
    return {ref: descends[item] for ref, item in named.items() if item in descends}


def _mirror_with(url: str, sha: str, home: Path) -> Path:
    """A mirror that holds `sha`.

    Nothing is fetched when it is there already: most jobs are about a commit just seen.
    """
    mirror = git.mirror_path(url, home)
    if not git.holds(mirror, sha):
        git.update_mirror(url, home)
        if not git.holds(mirror, sha):
            # A commit that no branch holds, such as a detached HEAD, must be asked for by name.
            git.fetch_commit(url, mirror, sha)
    return mirror
