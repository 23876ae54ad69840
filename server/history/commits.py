"""Resolves refs and ranges to commits, and reads which operators each commit has."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from warpwatch import git
from warpwatch.db.reads.code import RepositoryRow
from warpwatch.project import FILE_NAME, Project, ProjectError, parse_project
from warpwatch.server.http.problems import FieldError, Problem
from warpwatch.settings import Settings
from warpwatch.sources import Sources

PARENT, MERGE_BASE = "parent", "merge-base"
"""Words for the baseline of a commit; a branch of that name is written refs/heads/parent."""


@dataclass(frozen=True, slots=True)
class CommitHistory:
    """Commits, oldest first, and the names of the operators at each."""

    commits: list[git.CommitInfo]
    operators: dict[str, list[str]]
    folder: str
    """Where the newest commit keeps its operators."""
    misplaced: dict[str, str] = field(default_factory=dict)
    """Commits without operators whose operator folder is a file or a link, and its name."""


CommitsRead = tuple[CommitHistory, CommitHistory | None, list[FieldError]]
"""The requested commits, the baseline where one is requested, and the errors of either field."""


def fetch_repository(settings: Settings, repository: RepositoryRow) -> Path:
    """The mirror of the repository as it is now; Problem when git cannot fetch it."""
    try:
        return git.update_mirror(repository.url, settings.home, settings.destinations, git.REQUEST_SECONDS)
    except git.GitError as error:
        detail = f"repository {repository.name!r} cannot be fetched"
        remedy = "check that the server can reach it without a password"
        raise Problem(502, detail, [FieldError(field="repository", message=f"{error}", remedy=remedy)]) from error


def read_commits(
    settings: Settings, repository: RepositoryRow, commits: str, base: str | None, branch: str | None = None
) -> CommitsRead:
    """The requested commits, the baseline when `base` is given, and the errors of either field.

    base: a ref, PARENT, or MERGE_BASE, which is where the commit left `branch`, by default the one that is watched.
    """
    return read_mirror(fetch_repository(settings, repository), repository, commits, base, branch)


def read_mirror(
    mirror: Path, repository: RepositoryRow, commits: str, base: str | None, branch: str | None = None
) -> CommitsRead:
    """The same from the mirror as it is, without fetching."""
    errors: list[FieldError] = []
    sources = Sources(mirror, repository.definitions)
    history = _read(mirror, sources, "commits", commits, errors)
    baseline = None
    if base in (PARENT, MERGE_BASE) and len(history.commits) == 1:
        baseline = _read_relative(mirror, sources, history.commits[0], base, branch, repository.branch, errors)
    elif base is not None and base not in (PARENT, MERGE_BASE):
        baseline = _read(mirror, sources, "base", base, errors)
    if base is not None and (len(history.commits) > 1 or (baseline is not None and len(baseline.commits) > 1)):
        remedy = "name one commit in `commits` and one in `base`"
        errors.append(FieldError(field="base", message="a comparison takes two single commits", remedy=remedy))
    return history, baseline, errors


def operator_folder(settings: Settings, url: str, sha: str | None) -> str:
    """Where a commit keeps its operators; the default where nobody fetched the repository yet."""
    mirror = git.mirror_path(url, settings.home)
    (file,) = git.object_ids(mirror, [f"{sha}:{FILE_NAME}"], "blob") if sha is not None and mirror.is_dir() else [None]
    return _folder(_project(mirror, file))


def _read_relative(
    mirror: Path,
    sources: Sources,
    head: git.CommitInfo,
    base: str,
    branch: str | None,
    watched: str | None,
    errors: list[FieldError],
) -> CommitHistory:
    """The parent of a commit, or where it left the branch; a commit that lies on the branch is compared with its
    parent."""
    base_sha = head.parent_sha
    if base == MERGE_BASE:
        try:
            merge_base = git.merge_base(mirror, head.sha, git.resolve(mirror, branch or watched or "HEAD"))
        except git.UnknownRefError as error:
            field = "branch" if branch else "base"
            errors.append(
                FieldError(
                    field=field, message=str(error), remedy="name the branch that the commit is to be merged into"
                )
            )
            return CommitHistory([], {}, "")
        base_sha = merge_base if merge_base != head.sha else base_sha
    if base_sha is None:
        errors.append(
            FieldError(field="base", message="the first commit has none before it", remedy="choose a later commit")
        )
        return CommitHistory([], {}, "")
    return _read(mirror, sources, "base", base_sha, errors)


def _read(mirror: Path, sources: Sources, field: str, text: str, errors: list[FieldError]) -> CommitHistory:
    try:
        commits = git.describe_many(mirror, git.resolve_range(mirror, text))
    except git.UnknownRefError as error:
        errors.append(FieldError(field=field, message=str(error)))
    except git.GitError as error:
        errors.append(FieldError(field=field, message=str(error), remedy="submit a shorter range"))
    else:
        return with_operators(mirror, commits, sources)
    return CommitHistory([], {}, "")


def with_operators(mirror: Path, commits: list[git.CommitInfo], sources: Sources) -> CommitHistory:
    """Commits with their operators.

    Most share their description and their operator folder, so each distinct one is read once. Of definitions beside
    the commits, a commit has the operators whose sources it holds.
    """
    shas = [commit.sha for commit in commits]
    if sources.definitions is not None:
        sources.prepare(shas)
        return CommitHistory(commits, {sha: sources.operators(sha) for sha in shas}, sources.folder(shas[-1]))
    files = git.object_ids(mirror, [f"{sha}:{FILE_NAME}" for sha in shas], "blob")
    projects = {file: _project(mirror, file) for file in set(files)}
    folders = {file: _folder(project) for file, project in projects.items()}
    names = [f"{sha}:{folders[file]}" for sha, file in zip(shas, files, strict=True)]
    trees = git.object_ids(mirror, names, "tree")
    operators = {tree: git.operators_in(mirror, tree) if tree else [] for tree in set(trees)}
    placed = zip(shas, files, trees, strict=True)
    by_sha = {sha: projects[file].with_programs(operators[tree]) for sha, file, tree in placed}
    others = git.object_ids(mirror, names, "blob") if None in trees else []
    misplaced = {sha: folders[file] for sha, file, other in zip(shas, files, others, strict=False) if other}
    return CommitHistory(commits, by_sha, folders[files[-1]], misplaced)


def _project(mirror: Path, file: str | None) -> Project:
    """Settings of a warpwatch.toml; the defaults if the file cannot be used. The worker reports the file's error."""
    try:
        return parse_project(git.git("cat-file", "blob", file, cwd=mirror) if file else None)
    except ProjectError:
        return Project()


def _folder(project: Project) -> str:
    """The operator folder as git names it."""
    return project.operators.strip("/").removeprefix(".").strip("/")
