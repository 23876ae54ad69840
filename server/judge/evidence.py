"""What git says of the commits that verdicts are about. Nothing here may run while a transaction is open."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from warpwatch import git, git_branches
from warpwatch.db.database import Database
from warpwatch.db.reads import judging
from warpwatch.db.reads.judging import JobOrigin
from warpwatch.server.history.mirror import Mirror
from warpwatch.server.verdicts.context import CommitPath, PathCommit
from warpwatch.server.verdicts.suspicion import CodeDifference, CommitPair, SeriesWindow


def read_path(mirror: Mirror, operator: str, base_sha: str, head_sha: str) -> CommitPath:
    """The commits from base to head, and at which of them the operator has other sources."""
    try:
        shas = git.path(mirror.path, base_sha, head_sha)
    except git.GitError as error:
        return CommitPath((), str(error))
    fingerprints = [mirror.sources.of(sha, operator) for sha in shas]
    differs = [False] + [before != after for before, after in pairwise(fingerprints)]
    commits = zip(shas, differs, fingerprints, strict=True)
    return CommitPath(tuple(PathCommit(sha, differ, item is not None) for sha, differ, item in commits))


def read_merge(mirror: Mirror, operator: str, base_sha: str, head_sha: str) -> tuple[CommitPath, ...]:
    """The branches that a merge commit brought to one of its parents, each from their newest common commit on; none
    where the commit is no merge."""
    try:
        parents = git_branches.parents_of(mirror.path, head_sha)
    except git.GitError as error:
        return (CommitPath((), str(error)),)
    if base_sha not in parents:
        return ()
    return tuple(_read_branch(mirror, operator, base_sha, parent) for parent in parents if parent != base_sha)


def _read_branch(mirror: Mirror, operator: str, base_sha: str, tip_sha: str) -> CommitPath:
    try:
        merge_base = git.merge_base(mirror.path, base_sha, tip_sha)
    except git.UnknownRefError as error:
        return CommitPath((), str(error))
    return read_path(mirror, operator, merge_base, tip_sha)


def compare_code(
    database: Database, mirror: Mirror, origin: JobOrigin, operator_id: int, pairs: Iterable[CommitPair]
) -> dict[CommitPair, CodeDifference]:
    """Which variants of an operator have other code at one commit than at the other, for every pair.

    Where only native sources differ, other variants are the same; so are native ones whose machine code is.
    """
    differences = {pair: _compare_sources(mirror, origin.operator, pair) for pair in pairs}
    native_pairs = [pair for pair, difference in differences.items() if difference is None]
    if native_pairs:
        with database.session() as session:
            for pair in native_pairs:
                hashes = [
                    judging.read_code_hash(session, operator_id, commit_id, pair.environment_id)
                    for commit_id in (pair.base_commit_id, pair.head_commit_id)
                ]
                is_same = bool(hashes[0]) and hashes[0] == hashes[1]
                names = set() if is_same else judging.list_native(session, pair.head_commit_id, origin.operator)
                differences[pair] = CodeDifference(all=False, names=frozenset(names))
    return {
        pair: CodeDifference(difference.all, difference.names, _is_comparable(mirror, pair))
        for pair, difference in differences.items()
        if difference is not None
    }


def read_shifts(
    mirror: Mirror, operator: str, sha: str, windows: Sequence[SeriesWindow], common: float
) -> tuple[str | None, list[float]]:
    """The fingerprint of an operator's sources at a new point, and by how much log time each series lay off its level
    there, where the sources are those of the commit before. common: what was taken off the times already."""
    try:
        sources = mirror.sources.of(sha, operator)
        before = [window.before() for window in windows]
        is_same = [level is not None and mirror.same_sources(operator, level.sha, sha) for level in before]
    except git.GitError:
        return None, []
    shifts = [window.shift() for window, same in zip(windows, is_same, strict=True) if same]
    return sources, [shift + common for shift in shifts if shift is not None]


def _compare_sources(mirror: Mirror, operator: str, pair: CommitPair) -> CodeDifference | None:
    """The difference by the sources; None where only native sources differ, so that the machine code decides."""
    before, after = (mirror.sources.parts(sha, operator) for sha in (pair.base_sha, pair.head_sha))
    if before is None or after is None or before[0] != after[0]:
        return CodeDifference(all=True)
    return CodeDifference(all=False) if before[1] == after[1] else None


def _is_comparable(mirror: Mirror, pair: CommitPair) -> bool:
    return mirror.sources.runtime(pair.base_sha) == mirror.sources.runtime(pair.head_sha)
