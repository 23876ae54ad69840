"""Reads links to code hosts, their pull requests, and what is still to be filed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from warpwatch.db.reads.query import Page, Session, fetch, fetch_one, fetch_page

LOOKBACK_HOURS = 24
"""A regression that was confirmed longer ago is filed as no issue, for instance after the service stood still."""


@dataclass(frozen=True, slots=True)
class ForgeLinkRow:
    """A repository's project on a code host. state: contract.words.ForgeState; error: what went wrong last.

    waiting, given_up: messages. paused_until: the forge wants to be left alone until then. The token is never returned.
    """

    repository: str
    forge: str
    project: str
    api_url: str | None
    has_token: bool
    files_issues: bool
    state: str
    error: str
    checked_at: datetime | None
    paused_until: datetime | None
    waiting: int
    given_up: int


def read_link(session: Session, repository_id: int) -> ForgeLinkRow | None:
    sql = """
    SELECT repositories.name AS repository, forge, project, api_url, token IS NOT NULL AS has_token, files_issues,
           state, message AS error, checked_at, CASE WHEN paused_until > now() THEN paused_until END AS paused_until,
           (SELECT count(*) FROM forge_messages AS message WHERE message.repository_id = repositories.id
            AND sent_at IS NULL AND given_up_at IS NULL) AS waiting,
           (SELECT count(*) FROM forge_messages AS message WHERE message.repository_id = repositories.id
            AND given_up_at > now() - interval '1 day' AND NOT EXISTS (
                SELECT FROM forge_messages AS later WHERE later.repository_id = message.repository_id
                AND later.subject = message.subject AND later.id > message.id)) AS given_up
    FROM forge_links JOIN repositories ON repositories.id = repository_id WHERE repository_id = :id
    """
    return fetch_one(session, ForgeLinkRow, sql, id=repository_id)


@dataclass(frozen=True, slots=True)
class ForgeAccess:
    """What the server needs to speak to the forge of a repository."""

    repository_id: int
    repository: str
    repository_url: str
    forge: str
    project: str
    api_url: str | None
    token: str | None


def read_access(session: Session, repository_id: int) -> ForgeAccess | None:
    """The link of a repository with its token, which goes to the forge alone."""
    sql = """
    SELECT repository_id, repositories.name AS repository, repositories.url AS repository_url, forge, project, api_url,
           token
    FROM forge_links JOIN repositories ON repositories.id = repository_id WHERE repository_id = :id
    """
    return fetch_one(session, ForgeAccess, sql, id=repository_id)


@dataclass(frozen=True, slots=True)
class ForgeMessageRow:
    """Something that a forge was sent or asked. outcome: sent | waiting | given up | replaced, by a later message about
    the same thing before it was sent; error: what went wrong last."""

    id: int
    kind: str
    subject: str
    state: str
    outcome: str
    attempts: int
    error: str
    submission_id: int | None
    regression_id: int | None
    number: int | None
    created_at: datetime
    sent_at: datetime | None
    next_at: datetime | None


_MESSAGES = """
SELECT message.id, kind, subject, state,
       CASE WHEN sent_at IS NOT NULL THEN 'sent' WHEN given_up_at IS NULL THEN 'waiting'
            WHEN attempts = 0 THEN 'replaced' ELSE 'given up' END AS outcome,
       attempts, message.message AS error, submission_id, regression_id, number, message.created_at,
       sent_at, CASE WHEN sent_at IS NULL AND given_up_at IS NULL THEN next_at END AS next_at
FROM forge_messages AS message LEFT JOIN change_requests ON change_requests.id = change_id
"""


def list_messages(
    session: Session, repository_id: int, before: int | None = None, limit: int = 50
) -> Page[ForgeMessageRow]:
    """What the forge of a repository was sent or asked, newest first."""
    sql = f"""
    {_MESSAGES} WHERE message.repository_id = :repository_id
      AND (CAST(:before AS bigint) IS NULL OR message.id < :before) ORDER BY message.id DESC LIMIT :limit
    """
    return fetch_page(session, ForgeMessageRow, sql, limit, repository_id=repository_id, before=before)


def list_check_runs(session: Session, submission_id: int) -> list[ForgeMessageRow]:
    """What the forge was told of a submission, oldest first."""
    sql = f"{_MESSAGES} WHERE submission_id = :id ORDER BY message.id LIMIT 200"
    return fetch(session, ForgeMessageRow, sql, id=submission_id)


@dataclass(frozen=True, slots=True)
class ChangeRequestRow:
    """A pull or merge request; see db.models.ChangeRequestRecord."""

    id: int
    repository_id: int
    number: int
    head_sha: str
    head_at: datetime | None
    is_fork: bool
    allowed_sha: str | None
    allowed_by: str | None
    answer: str


_CHANGES = """
SELECT id, repository_id, number, head_sha, head_at, is_fork, allowed_sha, allowed_by, answer FROM change_requests
"""


def read_change(session: Session, change_id: int) -> ChangeRequestRow | None:
    return fetch_one(session, ChangeRequestRow, f"{_CHANGES} WHERE id = :id", id=change_id)


def find_change(session: Session, repository_id: int, number: int) -> ChangeRequestRow | None:
    sql = f"{_CHANGES} WHERE repository_id = :id AND number = :number"
    return fetch_one(session, ChangeRequestRow, sql, id=repository_id, number=number)


@dataclass(frozen=True, slots=True)
class ChangeSubmissionRow:
    """A submission of the head of a pull request. operators: those that a member asked for; empty for all."""

    id: int
    operators: list[str]


def list_change_submissions(session: Session, change_id: int) -> list[ChangeSubmissionRow]:
    """The newest submissions of the head of a pull request, oldest first."""
    sql = """
    SELECT id, operators FROM (
        SELECT submissions.id, coalesce(request -> 'operators', '[]') AS operators
        FROM submissions JOIN change_requests ON change_requests.id = change_id
        WHERE change_id = :id AND request ->> 'commits' = head_sha ORDER BY submissions.id DESC LIMIT 20) AS newest
    ORDER BY id
    """
    return fetch(session, ChangeSubmissionRow, sql, id=change_id)


def read_operators_of(session: Session, submission_id: int) -> list[str]:
    """The operators that a submission asked for; empty for all."""
    sql = "SELECT id, coalesce(request -> 'operators', '[]') AS operators FROM submissions WHERE id = :id"
    row = fetch_one(session, ChangeSubmissionRow, sql, id=submission_id)
    return row.operators if row is not None else []


@dataclass(frozen=True, slots=True)
class RegressionToFile:
    """A regression of a repository whose issue is to be filed, or closed."""

    repository_id: int
    regression_id: int


def list_unfiled(session: Session, limit: int = 20) -> list[RegressionToFile]:
    """Confirmed regressions of watched branches that are filed as no issue yet, oldest first."""
    sql = """
    SELECT forge_links.repository_id, regressions.id AS regression_id
    FROM regressions JOIN operators ON operators.id = regressions.operator_id
    JOIN forge_links ON forge_links.repository_id = operators.repository_id
    WHERE files_issues AND verdict = 'confirmed' AND direction <> 'faster'
      AND regressions.state IN ('new', 'acknowledged')
      AND decided_at > now() - make_interval(hours => :hours) AND decided_at > issues_since
      AND EXISTS (SELECT FROM branch_commits JOIN branches ON branches.id = branch_id
                  WHERE commit_id = head_commit_id AND is_watched)
      AND NOT EXISTS (SELECT FROM forge_messages WHERE regression_id = regressions.id AND kind = 'issue')
    ORDER BY regressions.id LIMIT :limit
    """
    return fetch(session, RegressionToFile, sql, hours=LOOKBACK_HOURS, limit=limit)


def list_mended(session: Session, limit: int = 20) -> list[RegressionToFile]:
    """Regressions whose issue is open although they are closed here, oldest first."""
    sql = """
    SELECT filed.repository_id, filed.regression_id
    FROM forge_messages AS filed JOIN regressions ON regressions.id = filed.regression_id
    WHERE filed.kind = 'issue' AND filed.state = 'open' AND filed.regression_id IS NOT NULL
      AND NOT (verdict = 'confirmed' AND regressions.state IN ('new', 'acknowledged'))
      AND NOT EXISTS (SELECT FROM forge_messages AS closed WHERE closed.regression_id = filed.regression_id
                      AND closed.kind = 'issue' AND closed.state = 'closed')
    ORDER BY filed.id LIMIT :limit
    """
    return fetch(session, RegressionToFile, sql, limit=limit)
