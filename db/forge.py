"""Code hosts: the link of a repository, its change requests, and the messages to the host."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, UniqueConstraint, text
from sqlalchemy.orm import Mapped, Session, mapped_column

from warpwatch.contract.words import ForgeKind, ForgeMessageKind, ForgeState
from warpwatch.db.callbacks import SUPERSEDED
from warpwatch.db.database import dumps, storable
from warpwatch.db.errors import NotFoundError
from warpwatch.db.models.base import Base, created, one_of
from warpwatch.db.reads.query import Page, fetch, fetch_one, fetch_page


class ForgeLinkRecord(Base):
    """A repository's project on a code host."""

    __tablename__ = "forge_links"
    __table_args__ = (one_of("forge", ForgeKind), one_of("state", ForgeState))
    repository_id: Mapped[int] = mapped_column(ForeignKey("repositories.id", ondelete="CASCADE"), primary_key=True)
    forge: Mapped[str]
    api_url: Mapped[str | None]
    """Of GitLab, such as https://gitlab.example/api/v4; GitHub's is a setting of the server, whose app's key goes
    there."""
    project: Mapped[str]
    """owner/name."""
    token: Mapped[str | None]
    """Of a GitLab project; for GitHub the server has a key."""
    files_issues: Mapped[bool] = mapped_column(server_default="false")
    issues_since: Mapped[datetime | None]
    """Regressions that were confirmed before this moment get no issue."""
    state: Mapped[str] = mapped_column(server_default="unknown")
    message: Mapped[str] = mapped_column(server_default="")
    """The last error."""
    checked_at: Mapped[datetime | None]
    paused_until: Mapped[datetime | None]
    """Until when the forge wants to be left alone."""
    created_at: Mapped[datetime] = created()


class ChangeRequestRecord(Base):
    """A pull or merge request, as the newest event tells it."""

    __tablename__ = "change_requests"
    __table_args__ = (UniqueConstraint("repository_id", "number"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    repository_id: Mapped[int] = mapped_column(ForeignKey("repositories.id", ondelete="CASCADE"))
    number: Mapped[int]
    head_sha: Mapped[str]
    head_at: Mapped[datetime | None]
    """When the forge says that it got this head; None where no event told."""
    is_fork: Mapped[bool]
    allowed_sha: Mapped[str | None]
    """The head that a member allowed to be measured."""
    allowed_by: Mapped[str | None]
    answer: Mapped[str] = mapped_column(server_default="")
    """To the newest command, in Markdown."""
    created_at: Mapped[datetime] = created()


class ForgeMessageRecord(Base):
    """Something that a forge is to be sent or asked, tried again until it is. What is sent is read when it is sent."""

    __tablename__ = "forge_messages"
    __table_args__ = (
        one_of("kind", ForgeMessageKind),
        Index(None, "repository_id", "subject", "id"),
        Index(None, "repository_id", "id"),
        Index(None, "submission_id", postgresql_where="submission_id IS NOT NULL"),
        Index(None, "change_id", postgresql_where="change_id IS NOT NULL"),
        Index(None, "regression_id", postgresql_where="regression_id IS NOT NULL"),
        Index("ix_forge_messages_due", "next_at", postgresql_where="sent_at IS NULL AND given_up_at IS NULL"),
        Index("ix_forge_messages_given_up", "given_up_at", postgresql_where="given_up_at IS NOT NULL"),
        Index("ix_forge_messages_open", "id", postgresql_where="concluded_at IS NULL"),
        Index("ix_forge_messages_claimed", "claimed_until", postgresql_where="claimed_until IS NOT NULL"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    repository_id: Mapped[int] = mapped_column(ForeignKey("forge_links.repository_id", ondelete="CASCADE"))
    kind: Mapped[str]
    subject: Mapped[str]
    """Subject of the message, such as `check_run:7`: of several messages about one subject only the newest is sent."""
    state: Mapped[str] = mapped_column(server_default="")
    """State that the message reports: pending, failing or final; open or closed."""
    fields: Mapped[dict[str, Any]] = mapped_column(server_default="{}")
    submission_id: Mapped[int | None] = mapped_column(ForeignKey("submissions.id", ondelete="CASCADE"))
    change_id: Mapped[int | None] = mapped_column(ForeignKey("change_requests.id", ondelete="CASCADE"))
    regression_id: Mapped[int | None] = mapped_column(ForeignKey("regressions.id", ondelete="CASCADE"))
    remote_id: Mapped[str | None]
    """The forge's id of the check run, comment or issue that the message made."""
    attempts: Mapped[int] = mapped_column(server_default="0")
    next_at: Mapped[datetime] = created()
    claimed_until: Mapped[datetime | None]
    message: Mapped[str] = mapped_column(server_default="")
    created_at: Mapped[datetime] = created()
    sent_at: Mapped[datetime | None]
    given_up_at: Mapped[datetime | None]
    concluded_at: Mapped[datetime | None] = created()
    """When the submission came to the end that it, or a later one, tells; None while that is awaited."""


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
    """Data that the server needs to call the forge of a repository: project, address and token."""

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
    """Messages and requests to the forge of a repository, newest first."""
    sql = f"""
    {_MESSAGES} WHERE message.repository_id = :repository_id
      AND (CAST(:before AS bigint) IS NULL OR message.id < :before) ORDER BY message.id DESC LIMIT :limit
    """
    return fetch_page(session, ForgeMessageRow, sql, limit, repository_id=repository_id, before=before)


def list_check_runs(session: Session, submission_id: int) -> list[ForgeMessageRow]:
    """Messages to the forge about a submission, oldest first."""
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


CLAIM_SECONDS = 300.0
"""How long one server has to send a message; afterwards another may. A command may have to fetch a repository."""
_CLAIM_LOCK = 7_241_004
PENDING, FAILING, FINAL = "pending", "failing", "final"
OPEN, CLOSED = "open", "closed"


@dataclass(frozen=True, slots=True)
class NewForgeLink:
    """See db.models.ForgeLinkRecord."""

    forge: ForgeKind
    project: str
    api_url: str | None = None
    token: str | None = None
    files_issues: bool = False


@dataclass(frozen=True, slots=True)
class DueForgeMessage:
    """A message that is to be sent now. remote_id: what the forge calls the thing that it is about, where an earlier
    message made it. attempts: how often sending failed before."""

    id: int
    repository_id: int
    kind: ForgeMessageKind
    subject: str
    state: str
    fields: dict[str, Any]
    submission_id: int | None
    change_id: int | None
    regression_id: int | None
    remote_id: str | None
    attempts: int


def set_link(s: Session, repository_id: int, new: NewForgeLink) -> None:
    """Links a repository, or changes its link; the link is tried out next.

    What was told of another project is forgotten, as its numbers mean something else there.
    """
    values = {
        "id": repository_id,
        "forge": new.forge,
        "project": new.project,
        "api_url": new.api_url,
        "token": new.token,
        "files_issues": new.files_issues,
    }
    moved = """
    DELETE FROM forge_links WHERE repository_id = :id
    AND (forge, project, coalesce(api_url, '')) <> (:forge, :project, coalesce(CAST(:api_url AS text), ''))
    RETURNING repository_id
    """
    if s.execute(text(moved), values).one_or_none() is not None:
        s.execute(text("DELETE FROM change_requests WHERE repository_id = :id"), values)
    sql = """
    INSERT INTO forge_links (repository_id, forge, project, api_url, token, files_issues, issues_since)
    VALUES (:id, :forge, :project, :api_url, :token, :files_issues, CASE WHEN :files_issues THEN now() END)
    ON CONFLICT (repository_id) DO UPDATE SET token = excluded.token, state = 'unknown', message = '',
        paused_until = NULL, files_issues = excluded.files_issues,
        issues_since = CASE WHEN excluded.files_issues THEN coalesce(forge_links.issues_since, now()) END
    """
    s.execute(text(sql), values)
    try_again(s, repository_id)


def try_again(s: Session, repository_id: int) -> None:
    """Tries the link out, and sends again what was given up within a day."""
    again = """
    UPDATE forge_messages SET given_up_at = NULL, attempts = 0, next_at = now()
    WHERE repository_id = :id AND given_up_at > now() - interval '1 day' AND message <> :superseded AND kind <> 'link'
    """
    s.execute(text(again), {"id": repository_id, "superseded": SUPERSEDED})
    s.execute(text("UPDATE forge_links SET paused_until = NULL WHERE repository_id = :id"), {"id": repository_id})
    queue_message(s, repository_id, ForgeMessageKind.LINK, "link")


def remove_link(s: Session, repository_id: int) -> None:
    """NotFoundError where the repository has none."""
    values = {"id": repository_id}
    removed = s.execute(text("DELETE FROM forge_links WHERE repository_id = :id RETURNING repository_id"), values)
    if removed.one_or_none() is None:
        raise NotFoundError("the repository is linked to no forge")
    s.execute(text("DELETE FROM change_requests WHERE repository_id = :id"), values)


def set_link_state(s: Session, repository_id: int, state: ForgeState, trouble: str, pause_seconds: float = 0) -> None:
    """Stores the result of a request to the forge, and for how many seconds the server makes no more requests."""
    sql = """
    UPDATE forge_links SET state = :state, message = :message, checked_at = now(),
           paused_until = CASE WHEN :pause > 0 THEN now() + make_interval(secs => :pause) END
    WHERE repository_id = :id
    """
    s.execute(text(sql), {"id": repository_id, "state": state, "message": storable(trouble), "pause": pause_seconds})


def record_change(
    s: Session, repository_id: int, number: int, head_sha: str, head_at: datetime | None, *, is_fork: bool
) -> int:
    """The id of a pull request; its head becomes `head_sha` unless a later event was told before.

    head_at: when the forge says that it got this head; None where the forge was asked just now and does not say so.
    """
    sql = """
    INSERT INTO change_requests (repository_id, number, head_sha, head_at, is_fork)
    VALUES (:repository_id, :number, :head_sha, :head_at, :is_fork)
    ON CONFLICT (repository_id, number) DO UPDATE SET head_sha = excluded.head_sha, is_fork = excluded.is_fork,
        head_at = CASE WHEN change_requests.head_sha = excluded.head_sha
                       THEN coalesce(change_requests.head_at, excluded.head_at) ELSE excluded.head_at END
    WHERE change_requests.head_at IS NULL OR excluded.head_at IS NULL
       OR change_requests.head_at <= excluded.head_at
    """
    values = {"repository_id": repository_id, "number": number, "head_sha": head_sha, "head_at": head_at}
    s.execute(text(sql), values | {"is_fork": is_fork})
    find = "SELECT id FROM change_requests WHERE repository_id = :repository_id AND number = :number"
    return int(s.execute(text(find), values).scalar_one())


def allow_head(s: Session, change_id: int, head_sha: str, person: str) -> None:
    """A member has looked at this head of a fork's pull request."""
    sql = "UPDATE change_requests SET allowed_sha = :sha, allowed_by = :person WHERE id = :id"
    s.execute(text(sql), {"id": change_id, "sha": head_sha, "person": storable(person)})


def answer_command(s: Session, change_id: int, answer: str) -> None:
    """Writes what the comment of a pull request says to the newest command."""
    s.execute(
        text("UPDATE change_requests SET answer = :answer WHERE id = :id"),
        {"id": change_id, "answer": storable(answer)},
    )


def attach_submission(s: Session, submission_id: int, change_id: int) -> bool:
    """Makes the comment of a pull request show a submission; whether it did not before."""
    sql = (
        "UPDATE submissions SET change_id = :change WHERE id = :id AND change_id IS DISTINCT FROM :change RETURNING id"
    )
    return s.execute(text(sql), {"id": submission_id, "change": change_id}).one_or_none() is not None


def queue_message(
    s: Session,
    repository_id: int,
    kind: ForgeMessageKind,
    subject: str,
    state: str = "",
    *,
    submission_id: int | None = None,
    change_id: int | None = None,
    regression_id: int | None = None,
    fields: dict[str, Any] | None = None,
    is_open: bool = False,
) -> None:
    """Stores a message for the forge of a repository, if it has one. is_open: whether a later one is to conclude it."""
    sql = """
    INSERT INTO forge_messages (repository_id, kind, subject, state, fields, submission_id, change_id, regression_id,
                                concluded_at)
    SELECT repository_id, :kind, :subject, :state, CAST(:fields AS jsonb), :submission_id, :change_id, :regression_id,
           CASE WHEN NOT :is_open THEN now() END
    FROM forge_links WHERE repository_id = :repository_id
    """
    values = {
        "repository_id": repository_id,
        "kind": kind,
        "subject": subject,
        "state": state,
        "fields": dumps(fields or {}),
        "submission_id": submission_id,
        "change_id": change_id,
        "regression_id": regression_id,
        "is_open": is_open,
    }
    s.execute(text(sql), values)


def queue_once(s: Session, repository_id: int, kind: ForgeMessageKind, subject: str, fields: dict[str, Any]) -> bool:
    """Stores a message unless there is one about the same thing; whether it is new."""
    s.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _CLAIM_LOCK})
    sql = "SELECT EXISTS (SELECT FROM forge_messages WHERE repository_id = :id AND subject = :subject)"
    if s.execute(text(sql), {"id": repository_id, "subject": subject}).scalar_one():
        return False
    queue_message(s, repository_id, kind, subject, fields=fields)
    return True


def queue_comment(s: Session, repository_id: int, change_id: int) -> None:
    """Brings the comment of a pull request up to date."""
    queue_message(s, repository_id, ForgeMessageKind.COMMENT, f"comment:{change_id}", change_id=change_id)


def queue_issue(s: Session, repository_id: int, regression_id: int, state: str) -> None:
    """Files the issue of a regression, or closes it."""
    subject = f"issue:{regression_id}"
    queue_message(s, repository_id, ForgeMessageKind.ISSUE, subject, state, regression_id=regression_id)


def queue_check_run(s: Session, repository_id: int, submission_id: int, state: str) -> None:
    """Tells the forge how a submission fares; a final state concludes what was told before."""
    if state == FINAL:
        sql = "UPDATE forge_messages SET concluded_at = now() WHERE submission_id = :id AND concluded_at IS NULL"
        s.execute(text(sql), {"id": submission_id})
    else:
        sql = """
        SELECT EXISTS (SELECT FROM forge_messages WHERE submission_id = :id AND concluded_at IS NULL
                       AND state = :state)
        """
        if s.execute(text(sql), {"id": submission_id, "state": state}).scalar_one():
            return
    subject = f"check_run:{submission_id}"
    kind = ForgeMessageKind.CHECK_RUN
    queue_message(s, repository_id, kind, subject, state, submission_id=submission_id, is_open=state != FINAL)
    sql = "SELECT change_id FROM submissions WHERE id = :id AND change_id IS NOT NULL"
    change_id = s.execute(text(sql), {"id": submission_id}).scalar()
    if change_id is not None:
        queue_comment(s, repository_id, change_id)


def reopen_check_run(s: Session, submission_id: int) -> None:
    """A submission that was told to its end is measured again."""
    sql = """
    SELECT repository_id, concluded_at FROM forge_messages
    WHERE submission_id = :id AND kind = 'check_run' ORDER BY id DESC LIMIT 1
    """
    last = s.execute(text(sql), {"id": submission_id}).one_or_none()
    if last is not None and last.concluded_at is not None:
        queue_check_run(s, last.repository_id, submission_id, PENDING)


def list_open(s: Session) -> list[tuple[int, int]]:
    """(repository, submission) of every check run that waits for its end, oldest first, locked so that one process
    alone ends each."""
    sql = """
    SELECT repository_id, submission_id FROM forge_messages
    WHERE concluded_at IS NULL ORDER BY id FOR UPDATE SKIP LOCKED
    """
    return list(dict.fromkeys((row.repository_id, row.submission_id) for row in s.execute(text(sql))))


def claim_message(s: Session) -> DueForgeMessage | None:
    """The message to send next, claimed for CLAIM_SECONDS; what it takes the place of is not sent any more."""
    sql = """
    SELECT due.id, due.repository_id, due.kind, due.subject, due.state, due.fields, due.submission_id, due.change_id,
           due.regression_id, due.attempts,
           (SELECT made.remote_id FROM forge_messages AS made
            WHERE made.repository_id = due.repository_id AND made.subject = due.subject
              AND made.remote_id IS NOT NULL ORDER BY made.id DESC LIMIT 1) AS remote_id
    FROM forge_messages AS due
    JOIN forge_links ON forge_links.repository_id = due.repository_id
    JOIN repositories ON repositories.id = due.repository_id
    WHERE due.sent_at IS NULL AND due.given_up_at IS NULL AND due.next_at <= now() AND deleted_at IS NULL
      AND (paused_until IS NULL OR paused_until <= now())
      AND NOT EXISTS (SELECT FROM forge_messages AS later WHERE later.repository_id = due.repository_id
                      AND later.subject = due.subject AND later.id > due.id)
      AND NOT EXISTS (SELECT FROM forge_messages AS claimed WHERE claimed.claimed_until > now()
                      AND claimed.repository_id = due.repository_id)
    ORDER BY due.next_at, due.id LIMIT 1
    """
    s.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _CLAIM_LOCK})
    row = s.execute(text(sql)).one_or_none()
    if row is None:
        return None
    values = {
        "id": row.id,
        "repository_id": row.repository_id,
        "subject": row.subject,
        "message": SUPERSEDED,
        "seconds": CLAIM_SECONDS,
    }
    older = """
    UPDATE forge_messages SET given_up_at = now(), message = :message
    WHERE repository_id = :repository_id AND subject = :subject AND id < :id
      AND sent_at IS NULL AND given_up_at IS NULL
    """
    s.execute(text(older), values)
    claim = "UPDATE forge_messages SET claimed_until = now() + make_interval(secs => :seconds) WHERE id = :id"
    s.execute(text(claim), values)
    return DueForgeMessage(**{**row._mapping, "kind": ForgeMessageKind(row.kind)})


def record_remote_id(s: Session, message_id: int, remote_id: str) -> None:
    """Stores the forge's id of the check run, comment or issue that a message made."""
    s.execute(
        text("UPDATE forge_messages SET remote_id = :remote WHERE id = :id"),
        {"id": message_id, "remote": storable(remote_id)},
    )
