"""Brings the commits of jobs to this machine, and reads how they are measured."""

from __future__ import annotations

from pathlib import Path

from warpwatch import CONTRACT, git
from warpwatch.contract.spec import DefinitionsVersion, SourcePatch
from warpwatch.definitions import bring
from warpwatch.patches import PatchError, apply_patch
from warpwatch.project import FILE_NAME, Project, ProjectError, parse_project
from warpwatch.settings import Settings
from warpwatch.worker.levels import is_weaker
from warpwatch.worker.reporter import CannotRunError


class UntrustedCommitError(CannotRunError):
    """A commit may not run in the isolation of this host."""


def trusted_mirror(settings: Settings, isolation: str, url: str, sha: str) -> Path:
    """A mirror that holds `sha`; UntrustedCommitError for a commit that anybody may have pushed, where `isolation`
    cannot shut it in."""
    mirror = _mirror_with(url, sha, settings.home)
    wanted = settings.fork_isolation
    if is_weaker(isolation, wanted):
        branches = git.git("for-each-ref", "--count=1", f"--contains={sha}", "refs/heads", cwd=mirror)
        if not branches.strip():
            raise UntrustedCommitError(
                f"no branch holds commit {sha[:12]}, and this worker has the isolation {isolation!r} instead of "
                f"{wanted!r}: measure it on another worker, or set WARPWATCH_FORK_ISOLATION"
            )
    return mirror


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
        raise CannotRunError(f"the patch makes commit {made.sha[:12]} here and {sha[:12]} on the server")


def read_project(mirror: Path, sha: str) -> Project:
    """The commit's project; ProjectError also when it was written for a contract that this service does not know."""
    project = parse_project(git.read_file(mirror, sha, FILE_NAME))
    if project.contract != CONTRACT:
        raise ProjectError(f"{FILE_NAME} asks for contract {project.contract}; this service knows contract {CONTRACT}")
    return project


def project_of(home: Path, mirror: Path, sha: str, definitions: DefinitionsVersion | None) -> Project:
    """The project that says how a commit is measured: its own, or that of the definitions; see read_project."""
    if definitions is None:
        return read_project(mirror, sha)
    return read_project(bring(definitions, home), definitions.sha)


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
