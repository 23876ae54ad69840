"""Reads lines of history: which stored commits a branch consists of, along first parents.

This is the one definition of what a page, a badge or a verdict says "of a branch": `on_line`. A line consists of the
commits of the branch since it left the watched branch, and of those of the watched branch up to there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from warpwatch.db.reads.query import Page, fetch, fetch_one, fetch_page


@dataclass(frozen=True, slots=True)
class HistoryLine:
    """The line of one branch, as parameters of queries. line_id: of the branch; None where no branch is known, as of
    imported results, so that every commit counts.

    trunk_id: the watched branch, whose commits up to the place fork_at belong to the line too; None for that branch.
    """

    name: str | None = None
    line_id: int | None = None
    trunk_id: int | None = None
    fork_at: int | None = None

    @property
    def parameters(self) -> dict[str, int | None]:
        return {"line_id": self.line_id, "trunk_id": self.trunk_id, "fork_at": self.fork_at}

    @property
    def branch(self) -> str | None:
        """The name to put into links: None for the watched branch, which needs none."""
        return self.name if self.trunk_id is not None else None


ALL_COMMITS = HistoryLine()


def on_line(
    commit_id: str,
    line: str = "CAST(:line_id AS bigint)",
    trunk: str = "CAST(:trunk_id AS bigint)",
    fork: str = "CAST(:fork_at AS bigint)",
) -> str:
    """SQL: whether a commit lies on a line. All arguments are SQL, by default the parameters of a HistoryLine."""
    return f"""
    ({line} IS NULL OR EXISTS (
        SELECT FROM branch_commits AS member WHERE member.commit_id = {commit_id}
          AND (member.branch_id = {line} OR (member.branch_id = {trunk} AND member.place <= {fork}))))
    """


def place_of(commit_id: str) -> str:
    """SQL: how many ancestors a commit has along first parents, itself included; NULL where no branch holds it."""
    return f"(SELECT min(member.place) FROM branch_commits AS member WHERE member.commit_id = {commit_id})"


def share_line(one: str, other: str) -> str:
    """SQL: whether two commits are on one branch, or no branch is known of either."""
    return f"""
    (EXISTS (SELECT FROM branch_commits AS a JOIN branch_commits AS b USING (branch_id)
             WHERE a.commit_id = {one} AND b.commit_id = {other})
     OR NOT EXISTS (SELECT FROM branch_commits AS c WHERE c.commit_id IN ({one}, {other})))
    """


def on_line_of(commit_id: str, newer_id: str) -> str:
    """SQL: whether a commit is on the line of a branch that a newer commit is on, or no branch is known of either."""
    member = on_line(commit_id, "branch.id", "trunk.id", "branch.fork_at")
    return f"""
    (EXISTS (SELECT FROM branch_commits AS newer_member JOIN branches AS branch ON branch.id = newer_member.branch_id
             LEFT JOIN branches AS trunk ON trunk.repository_id = branch.repository_id AND trunk.is_watched
                  AND trunk.id <> branch.id
             WHERE newer_member.commit_id = {newer_id} AND {member})
     OR NOT EXISTS (SELECT FROM branch_commits AS known WHERE known.commit_id IN ({commit_id}, {newer_id})))
    """


def line_of(commit_id: str) -> str:
    """SQL for a LATERAL: line_id, trunk_id and fork_at of the branch that a commit is on, the watched one first; no row
    where no branch holds it."""
    return f"""
    (SELECT branches.id AS line_id, trunk.id AS trunk_id, branches.fork_at, branches.name
     FROM branch_commits AS member JOIN branches ON branches.id = member.branch_id
     LEFT JOIN branches AS trunk ON trunk.repository_id = branches.repository_id AND trunk.is_watched
          AND trunk.id <> branches.id
     WHERE member.commit_id = {commit_id} ORDER BY branches.is_watched DESC, branches.id LIMIT 1)
    """


@dataclass(frozen=True, slots=True)
class BranchRow:
    """A branch with stored commits of its own. kind: contract.words.BranchKind.

    own: stored commits since it left the watched branch; measured: those with a result. newest_sha: the newest of the
    measured ones. fork_sha: where it left. merge_base_sha: what it is compared with. open: confirmed changes for the
    worse that nobody has settled. fork_at: place of the commit at which it left, see CommitRow.place.
    """

    id: int
    name: str
    kind: str
    is_watched: bool
    head_sha: str
    fork_at: int | None
    fork_sha: str | None
    merge_base_sha: str | None
    merged_sha: str | None
    own: int
    measured: int
    newest_sha: str | None
    open: int


_TRUNK = """
FROM branches
LEFT JOIN branches AS trunk ON trunk.repository_id = branches.repository_id AND trunk.is_watched
     AND trunk.id <> branches.id
WHERE branches.repository_id = :repository_id
"""
_LINE = f"SELECT branches.name, branches.id AS line_id, trunk.id AS trunk_id, branches.fork_at {_TRUNK}"
_LINES = f"""
SELECT branches.name, branches.id AS line_id, trunk.id AS trunk_id, branches.fork_at, branches.is_watched {_TRUNK}
  AND (branches.kind <> 'merged' OR branches.is_watched)
ORDER BY branches.is_watched DESC, branches.id DESC LIMIT :limit
"""


def read_line(session: Session, repository_id: int, branch: str | None = None) -> HistoryLine | None:
    """The line of a branch, by default of the watched one; None for an unknown branch. Of a repository whose branches
    were never read, every commit is on the line."""
    if branch:
        return fetch_one(
            session, HistoryLine, _LINE + "AND branches.name = :branch", repository_id=repository_id, branch=branch
        )
    return fetch_one(session, HistoryLine, _LINE + "AND branches.is_watched", repository_id=repository_id) or (
        ALL_COMMITS
    )


def read_line_of(session: Session, commit_id: int) -> HistoryLine | None:
    """The line of the branch that a commit is on, the watched one first; None where no branch holds it."""
    sql = f"SELECT name, line_id, trunk_id, fork_at FROM {line_of(':commit_id')} AS line"
    return fetch_one(session, HistoryLine, sql, commit_id=commit_id)


_BRANCHES = """
SELECT branches.id, name, kind, is_watched, head_sha, fork_at, fork_sha, merge_base_sha, merged_sha,
       (SELECT count(*) FROM branch_commits WHERE branch_id = branches.id) AS own,
       (SELECT count(*) FROM branch_commits WHERE branch_id = branches.id
          AND EXISTS (SELECT FROM results WHERE results.commit_id = branch_commits.commit_id)) AS measured,
       (SELECT commits.sha FROM branch_commits JOIN commits ON commits.id = branch_commits.commit_id
        WHERE branch_id = branches.id AND EXISTS (SELECT FROM results WHERE results.commit_id = commits.id)
        ORDER BY place DESC LIMIT 1) AS newest_sha,
       (SELECT count(*) FROM branch_commits JOIN regressions ON regressions.head_commit_id = branch_commits.commit_id
        WHERE branch_id = branches.id AND verdict = 'confirmed' AND direction <> 'faster'
          AND state IN ('new', 'acknowledged') AND merged_as_id IS NULL) AS open
FROM branches WHERE repository_id = :repository_id
"""


def list_branches(session: Session, repository_id: int, before: int | None = None, limit: int = 50) -> Page[BranchRow]:
    """Branches with stored commits, newest first; `before` is the id of the last one of the page before."""
    sql = _BRANCHES + "AND (CAST(:before AS bigint) IS NULL OR id < :before) ORDER BY id DESC LIMIT :limit"
    return fetch_page(session, BranchRow, sql, limit, repository_id=repository_id, before=before)


def list_branches_named(session: Session, repository_id: int, names: Iterable[str]) -> list[BranchRow]:
    """The branches with these names, the watched one first."""
    sql = _BRANCHES + "AND (name = ANY(:names) OR is_watched) ORDER BY is_watched DESC, id"
    return fetch(session, BranchRow, sql, repository_id=repository_id, names=list(names))


def find_branch(session: Session, repository_id: int, name: str) -> BranchRow | None:
    return fetch_one(session, BranchRow, _BRANCHES + "AND name = :name", repository_id=repository_id, name=name)


MOST_CHOICES = 50
"""Branches that the switch offers; all others are on the page of branches."""


def read_lines(session: Session, repository_id: int) -> tuple[HistoryLine, dict[str, HistoryLine]]:
    """The line of the watched branch, as `read_line` reads it, and the lines of the branches that the switch offers, by
    name: of the watched branch, then of the newest others."""

    def line(is_watched: bool, **columns: Any) -> tuple[bool, HistoryLine]:
        return is_watched, HistoryLine(**columns)

    found = fetch(session, line, _LINES, repository_id=repository_id, limit=MOST_CHOICES)
    watched = next((item for is_watched, item in found if is_watched), ALL_COMMITS)
    return watched, {item.name or "": item for _, item in found}


@dataclass(frozen=True, slots=True)
class RepositorySource:
    """Stored state from which the branches of a repository are read. branch: the watched branch, None where it was
    not resolved yet.

    commits: number of stored commits, and the id of the newest commit.
    """

    id: int
    url: str
    branch: str | None
    branches_key: str | None
    commits: list[int] = field(default_factory=list)


def read_followed(session: Session, repository_id: int) -> RepositorySource | None:
    """None for a repository that does not exist."""
    sql = """
    SELECT id, url, branch, branches_key,
           (SELECT jsonb_build_array(count(*), max(id)) FROM commits
            WHERE repository_id = repositories.id AND patch_id IS NULL) AS commits
    FROM repositories WHERE id = :id
    """
    return fetch_one(session, RepositorySource, sql, id=repository_id)


def list_stored_commits(session: Session, repository_id: int) -> dict[str, int]:
    """The ordinal of every stored commit, by its full id, without those that patches make."""
    sql = "SELECT sha, ordinal FROM commits WHERE repository_id = :id AND patch_id IS NULL"
    return {row.sha: row.ordinal for row in session.execute(text(sql), {"id": repository_id})}
