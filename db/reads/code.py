"""Reads repositories, commits, operators, cases and catalogues."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from warpwatch.contract.spec import DefinitionsVersion
from warpwatch.db.reads.lines import ALL_COMMITS, HistoryLine, on_line, place_of
from warpwatch.db.reads.query import IS_UNCHANGED, Page, fetch, fetch_one, fetch_page, fetch_scalar


def definitions_version(url: str | None, sha: str | None) -> DefinitionsVersion | None:
    return DefinitionsVersion(url, sha) if url is not None and sha is not None else None


@dataclass(frozen=True, slots=True)
class RepositoryRow:
    """branch: the watched branch, None before the repository was fetched. is_example: its history was shipped with
    Warpwatch. definitions_url, definitions_ref, definitions_sha: where its operators are defined, and the version that
    new jobs are measured with; None where each commit defines its own. is_public: whether anybody may read its results.

    The secret that signs webhooks is never returned, only whether one is set.
    """

    id: int
    name: str
    url: str
    commits: int
    branch: str | None = None
    status_url: str | None = None
    has_webhook_secret: bool = False
    has_status_token: bool = False
    is_example: bool = False
    definitions_url: str | None = None
    definitions_ref: str | None = None
    definitions_sha: str | None = None
    is_public: bool = False

    @property
    def definitions(self) -> DefinitionsVersion | None:
        return definitions_version(self.definitions_url, self.definitions_sha)


@dataclass(frozen=True, slots=True)
class CommitRow:
    """points: timings.

    wrong, broken: variants on a case and device that were wrong, or ended in another status than ok, wrong, unsupported
    or skipped. unchanged: operators that were not measured, because their sources are those of a commit that was.
    place: number of its ancestors along first parents, itself included; None where no branch holds it. branches: those
    that it is a commit of, the watched one first; a branch has the commits since it left that one. is_patch: whether it
    is a working tree that somebody sent, see db.models.patches.
    """

    id: int
    sha: str
    parent_sha: str | None
    ordinal: int
    author: str
    authored_at: datetime
    subject: str
    points: int = 0
    wrong: int = 0
    broken: int = 0
    unchanged: int = 0
    place: int | None = None
    tags: list[str] = field(default_factory=list)
    branches: list[str] = field(default_factory=list)
    is_patch: bool = False


@dataclass(frozen=True, slots=True)
class UnchangedRow:
    """An operator that was not measured at a commit, because its sources are those of the commit `since`, whose id is
    `since_id`."""

    operator: str
    since: str
    since_id: int


@dataclass(frozen=True, slots=True)
class OperatorRow:
    id: int
    name: str
    summary: str
    variants: list[str]
    cases: list[str]


@dataclass(frozen=True, slots=True)
class CaseRow:
    id: int
    key: str
    sizes: dict[str, Any]
    precision: str
    direction: str
    layout: str
    suites: list[str]
    flops: int
    bytes: int


_REPOSITORIES = """
SELECT id, name, url, branch, status_url,
       (SELECT count(*) FROM commits WHERE repository_id = repositories.id AND patch_id IS NULL) AS commits,
       webhook_secret IS NOT NULL AS has_webhook_secret, status_token IS NOT NULL AS has_status_token, is_example,
       definitions_url, definitions_ref, definitions_sha, is_public
FROM repositories WHERE deleted_at IS NULL
"""

_COMMIT_COLUMNS = f"""
commits.id, sha, parent_sha, ordinal, author, authored_at, subject,
coalesce(points, 0) AS points, coalesce(wrong, 0) AS wrong, coalesce(broken, 0) AS broken, left_out.unchanged, tags,
{place_of("commits.id")} AS place,
ARRAY(SELECT branches.name FROM branch_commits JOIN branches ON branches.id = branch_commits.branch_id
      WHERE branch_commits.commit_id = commits.id ORDER BY is_watched DESC, branches.id) AS branches,
patch_id IS NOT NULL AS is_patch
"""

# What was found at the commit all the same, asked for in another way, is no longer left out.
_LEFT_OUT = f"""
FROM jobs WHERE jobs.commit_id = commits.id AND kind <> 'compare' AND {IS_UNCHANGED}
     AND NOT EXISTS (SELECT FROM results WHERE results.commit_id = commits.id
          AND results.operator_id = jobs.operator_id)
"""

# Only the newest result per operator, variant, case, kind and device counts; what fails to check and to bench is broken
# once.
RESULT_COUNTS = """
    SELECT count(*) FILTER (WHERE kind = 'bench' AND status = 'ok') AS points,
           count(DISTINCT (variant_id, case_id, device_id)) FILTER (WHERE status = 'wrong') AS wrong,
           count(DISTINCT (variant_id, case_id, device_id))
               FILTER (WHERE status NOT IN ('ok', 'wrong', 'unsupported', 'skipped')) AS broken
    FROM (
        SELECT DISTINCT ON (operator_id, variant_id, case_id, kind, device_id) kind, status, variant_id, case_id,
             device_id
        FROM results WHERE commit_id = commits.id
        ORDER BY operator_id, variant_id, case_id, kind, device_id, id DESC
    ) AS newest
"""

_COMMIT_COUNTS = f"""
LEFT JOIN LATERAL (
    SELECT (counts ->> 'points')::bigint AS points, (counts ->> 'wrong')::bigint AS wrong,
           (counts ->> 'broken')::bigint AS broken WHERE counts IS NOT NULL
    UNION ALL SELECT * FROM ({RESULT_COUNTS}) AS counted WHERE counts IS NULL
) AS counted ON true
LEFT JOIN LATERAL (SELECT count(DISTINCT operator_id) AS unchanged {_LEFT_OUT}) AS left_out ON true
"""


def list_repositories(session: Session) -> list[RepositoryRow]:
    """Every repository, by name."""
    return fetch(session, RepositoryRow, _REPOSITORIES + "ORDER BY name")


def find_repository(session: Session, name: str) -> RepositoryRow | None:
    return fetch_one(session, RepositoryRow, _REPOSITORIES + "AND name = :name", name=name)


def read_webhook_secret(session: Session, name: str) -> str | None:
    """The secret that signs webhooks of the repository; None where the repository takes no webhooks."""
    found: str | None = fetch_scalar(session, "SELECT webhook_secret FROM repositories WHERE name = :name", name=name)
    return found


def list_commits(
    session: Session,
    repository_id: int,
    before: int | None = None,
    limit: int = 50,
    line: HistoryLine = ALL_COMMITS,
) -> Page[CommitRow]:
    """Commits in the order of history, newest first; `before` is the id of the last commit of the page before.

    line: of one branch; by default of all branches. What was rebased away is on none of them.
    """
    # The counts are taken after the page is cut, so that a long history costs no more than a short one.
    sql = f"""
    SELECT {_COMMIT_COLUMNS}
    FROM (
        SELECT * FROM commits
        WHERE repository_id = :repository_id AND patch_id IS NULL AND (CAST(:before AS bigint) IS NULL
              OR (ordinal, id) < (SELECT ordinal, id FROM commits AS last WHERE last.id = :before))
          AND {on_line("commits.id")}
          AND (EXISTS (SELECT FROM branch_commits WHERE branch_commits.commit_id = commits.id)
               OR NOT EXISTS (SELECT FROM branches WHERE branches.repository_id = :repository_id))
        ORDER BY ordinal DESC, id DESC LIMIT :limit
    ) AS commits
    {_COMMIT_COUNTS}
    ORDER BY ordinal DESC, commits.id DESC
    """
    return fetch_page(session, CommitRow, sql, limit, repository_id=repository_id, before=before, **line.parameters)


def find_commit(session: Session, repository_id: int, sha: str) -> CommitRow | None:
    """The commit with this id or a unique beginning of it, at least four digits long; None when there is none or more
    than one."""
    if len(sha) < 4 or not all(digit in "0123456789abcdef" for digit in sha):
        return None
    sql = f"""
    SELECT {_COMMIT_COLUMNS} FROM commits {_COMMIT_COUNTS}
    WHERE repository_id = :repository_id AND sha >= :sha AND sha < :sha || 'g' LIMIT 2
    """
    found = fetch(session, CommitRow, sql, repository_id=repository_id, sha=sha)
    return found[0] if len(found) == 1 else None


def list_unchanged(session: Session, commit_id: int) -> list[UnchangedRow]:
    """The operators that were not measured at the commit because they are those of another, by name."""
    sql = f"""
    SELECT operators.name AS operator, measured.sha AS since, measured.id AS since_id
    FROM commits
    CROSS JOIN LATERAL (
        SELECT DISTINCT ON (operator_id) operator_id, unchanged_since_commit_id {_LEFT_OUT}
        ORDER BY operator_id, jobs.id DESC
    ) AS left_out
    JOIN operators ON operators.id = left_out.operator_id
    JOIN commits AS measured ON measured.id = left_out.unchanged_since_commit_id
    WHERE commits.id = :commit_id ORDER BY operators.name
    """
    return fetch(session, UnchangedRow, sql, commit_id=commit_id)


_OPERATORS = """
SELECT id, name, summary,
       ARRAY(SELECT name FROM variants WHERE operator_id = operators.id ORDER BY id) AS variants,
       ARRAY(SELECT key FROM cases WHERE operator_id = operators.id ORDER BY id) AS cases
FROM operators WHERE repository_id = :repository_id
"""


def list_operators(session: Session, repository_id: int) -> list[OperatorRow]:
    """Every operator that any commit of the repository had, with every variant and case it ever had."""
    return fetch(session, OperatorRow, _OPERATORS + "ORDER BY name", repository_id=repository_id)


def find_operator(session: Session, repository_id: int, name: str) -> OperatorRow | None:
    return fetch_one(session, OperatorRow, _OPERATORS + "AND name = :name", repository_id=repository_id, name=name)


def find_operator_ids(session: Session, repository_id: int | None, name: str | None) -> list[int]:
    """Operators of a repository, or of all, by this name, or by any."""
    sql = """
    SELECT id FROM operators
    WHERE (CAST(:repository_id AS bigint) IS NULL OR repository_id = :repository_id)
      AND (CAST(:name AS text) IS NULL OR name = :name)
    """
    return list(session.execute(text(sql), {"repository_id": repository_id, "name": name}).scalars())


def list_cases(session: Session, operator_id: int) -> list[CaseRow]:
    sql = """
    SELECT id, key, sizes, precision, direction, layout, suites, flops, bytes FROM cases
    WHERE operator_id = :operator_id ORDER BY id
    """
    return fetch(session, CaseRow, sql, operator_id=operator_id)


def list_suites(session: Session, repository_id: int) -> list[str]:
    """Names of the suites that any case of the repository belongs to."""
    sql = """
    SELECT DISTINCT suite FROM cases JOIN operators ON operators.id = cases.operator_id
    CROSS JOIN LATERAL jsonb_array_elements_text(cases.suites) AS suite
    WHERE operators.repository_id = :repository_id ORDER BY suite
    """
    return list(session.execute(text(sql), {"repository_id": repository_id}).scalars())


def read_operator_entry(
    session: Session, repository_id: int, operator: str, line: HistoryLine = ALL_COMMITS
) -> dict[str, Any] | None:
    """The catalogue entry of the operator at the newest commit of a line whose file loaded, as JSON; None when no file
    loaded. See contract.catalogue.OperatorEntry."""
    sql = f"""
    SELECT entry FROM commits CROSS JOIN LATERAL jsonb_array_elements(catalogue -> 'operators') AS entry
    WHERE repository_id = :repository_id AND catalogue IS NOT NULL
      AND entry ->> 'name' = :operator AND entry ->> 'error' IS NULL
      AND {on_line("commits.id")}
    ORDER BY ordinal DESC, commits.id DESC LIMIT 1
    """
    found: dict[str, Any] | None = fetch_scalar(
        session, sql, repository_id=repository_id, operator=operator, **line.parameters
    )
    return found
