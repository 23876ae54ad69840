"""Stores links to code hosts, their pull requests, and what is sent to them, with the result of each attempt.

A message says what it is about and in which state; its text is read when it is sent, so that it is never older than the
results. Of one repository only one message is claimed at a time, and a later message about the same thing takes the
place of earlier ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from warpwatch.contract.words import ForgeKind, ForgeMessageKind, ForgeState
from warpwatch.db.callbacks import SUPERSEDED
from warpwatch.db.database import dumps, storable
from warpwatch.db.errors import NotFoundError

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
    """What became of a request to the forge, and for how long it wants to be left alone."""
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
    """What the forge calls the thing that a message made."""
    s.execute(
        text("UPDATE forge_messages SET remote_id = :remote WHERE id = :id"),
        {"id": message_id, "remote": storable(remote_id)},
    )
