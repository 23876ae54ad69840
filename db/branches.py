"""Branches of a repository as git has them: their stored commits, and the tags."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from sqlalchemy import delete, select, text, update
from sqlalchemy.orm import Session

from warpwatch.contract.words import BranchKind
from warpwatch.db.models import BranchRecord, RepositoryRecord
from warpwatch.db.registry import upsert


@dataclass(frozen=True, slots=True)
class NewBranch:
    """A branch along first parents. places: of its stored commits, by full id; see the columns of `branches`."""

    name: str
    kind: BranchKind
    is_watched: bool
    head_sha: str
    fork_at: int | None = None
    fork_sha: str | None = None
    merge_base_sha: str | None = None
    merged_sha: str | None = None
    places: dict[str, int] = field(default_factory=dict)


_REMOVE = """
DELETE FROM branch_commits AS member USING branches
WHERE branches.id = member.branch_id AND branches.repository_id = :repository_id
  AND NOT EXISTS (SELECT FROM unnest(CAST(:ids AS bigint[]), CAST(:shas AS text[])) AS kept(branch_id, sha)
                  JOIN commits ON commits.repository_id = :repository_id AND commits.sha = kept.sha
                  WHERE kept.branch_id = member.branch_id AND commits.id = member.commit_id)
"""
_ADD = """
INSERT INTO branch_commits (branch_id, commit_id, place)
SELECT kept.branch_id, commits.id, kept.place
FROM unnest(CAST(:ids AS bigint[]), CAST(:shas AS text[]), CAST(:places AS bigint[])) AS kept(branch_id, sha, place)
JOIN commits ON commits.repository_id = :repository_id AND commits.sha = kept.sha
ON CONFLICT (commit_id, branch_id) DO UPDATE SET place = excluded.place
WHERE branch_commits.place <> excluded.place
"""
_TAG = """
UPDATE commits SET tags = coalesce(CAST(:tags AS jsonb) -> sha, '[]')
WHERE repository_id = :repository_id AND tags <> coalesce(CAST(:tags AS jsonb) -> sha, '[]')
"""


def fix_watched_branch(s: Session, repository_id: int, name: str) -> None:
    """Stores the watched branch of a repository for which nobody has chosen another one meanwhile."""
    unset = RepositoryRecord.id == repository_id, RepositoryRecord.branch.is_(None)
    s.execute(update(RepositoryRecord).where(*unset).values(branch=name))


def replace_branches(
    s: Session,
    repository_id: int,
    branches: Sequence[NewBranch],
    tags: Mapping[str, list[str]],
    *,
    key: str,
    earlier_key: str | None,
) -> bool:
    """Stores the branches in place of the earlier ones, whose key was `earlier_key`.

    False, and nothing is written, when another process was faster. tags: names by full commit id.
    """
    # New commits and submissions refer to the repository; this lock does not keep them waiting.
    statement = select(RepositoryRecord).where(RepositoryRecord.id == repository_id).with_for_update(key_share=True)
    repository = s.scalars(statement).one()
    if repository.branches_key != earlier_key:
        return False
    repository.branches_key = key
    # At no time there are two watched branches, which the index forbids.
    of_repository = BranchRecord.repository_id == repository_id
    watched = [branch.name for branch in branches if branch.is_watched]
    s.execute(update(BranchRecord).where(of_repository, BranchRecord.name.not_in(watched)).values(is_watched=False))
    s.execute(delete(BranchRecord).where(of_repository, BranchRecord.name.not_in([item.name for item in branches])))
    rows = [{"repository_id": repository_id, **asdict(branch)} for branch in branches]
    for row in rows:
        del row["places"]
    refresh = [column for column in (rows[0] if rows else {}) if column not in ("repository_id", "name")]
    upsert(s, BranchRecord, rows, key=["repository_id", "name"], refresh=refresh)
    ids = {row.name: row.id for row in s.execute(select(BranchRecord.name, BranchRecord.id).where(of_repository))}
    members = [(ids[branch.name], sha, place) for branch in branches for sha, place in branch.places.items()]
    columns = [list(column) for column in zip(*members, strict=True)] or [[], [], []]
    kept = {"repository_id": repository_id, "ids": columns[0], "shas": columns[1], "places": columns[2]}
    s.execute(text(_REMOVE), kept)
    s.execute(text(_ADD), kept)
    s.execute(text(_TAG), {"repository_id": repository_id, "tags": json.dumps(dict(tags))})
    return True
