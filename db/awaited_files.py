"""Files of results that wait for a commit that the repository does not hold yet."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from warpwatch.contract.words import AwaitedState
from warpwatch.db.database import storable
from warpwatch.db.models import AwaitedFileRecord
from warpwatch.db.reads.query import fetch, fetch_scalar

SHOWN_DAYS = 7
"""A refused file is listed for so long."""
_LISTED = 100


@dataclass(frozen=True, slots=True)
class AwaitedFileRow:
    """A file that waits for its commit, or was refused. state: contract.words.AwaitedState. message: why it was
    refused."""

    id: int
    repository: str
    commit_sha: str
    state: str
    message: str
    name: str
    format: str
    program: str | None
    device: str | None
    created_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class AwaitedFile:
    """A file that waits, without its content."""

    id: int
    repository_id: int
    repository: str
    repository_url: str
    commit_sha: str
    name: str
    format: str
    program: str | None
    device: str | None
    confirm: bool
    created_at: datetime


@dataclass(frozen=True, slots=True)
class NewAwaitedFile:
    """A file to keep. sha256: digest of all that was asked."""

    repository_id: int
    sha256: str
    commit_sha: str
    name: str
    format: str
    program: str | None
    device: str | None
    confirm: bool
    data: bytes


def await_commit(s: Session, file: NewAwaitedFile) -> bool:
    """Keeps a file until its commit is there; False where the same file is kept already. What was refused waits
    anew."""
    values = {
        "repository_id": file.repository_id,
        "sha256": file.sha256,
        "commit_sha": file.commit_sha,
        "name": storable(file.name),
        "format": file.format,
        "program": file.program,
        "device": file.device,
        "confirm": file.confirm,
        "content": zlib.compress(file.data),
    }
    anew = {"state": AwaitedState.WAITING, "message": "", "content": values["content"], "ended_at": None}
    statement = insert(AwaitedFileRecord).values(values)
    statement = statement.on_conflict_do_update(
        index_elements=["sha256"],
        set_=anew | {"created_at": func.now()},
        where=AwaitedFileRecord.state != AwaitedState.WAITING,
    )
    return s.scalar(statement.returning(AwaitedFileRecord.id)) is not None


def count_waiting(s: Session, repository_id: int) -> int:
    sql = "SELECT count(*) FROM awaited_files WHERE repository_id = :id AND state = 'waiting'"
    return int(fetch_scalar(s, sql, id=repository_id) or 0)


def list_awaited_files(s: Session, repository_id: int) -> list[AwaitedFileRow]:
    """The files of a repository that wait, and those that were refused lately, the newest first."""
    sql = """
    SELECT file.id, repositories.name AS repository, commit_sha, state, message, file.name, format, program, device,
           file.created_at, ended_at
    FROM awaited_files AS file JOIN repositories ON repositories.id = file.repository_id
    WHERE repository_id = :id
      AND (state = 'waiting' OR state = 'refused' AND ended_at > now() - make_interval(days => :days))
    ORDER BY file.id DESC LIMIT :limit
    """
    return fetch(s, AwaitedFileRow, sql, id=repository_id, days=SHOWN_DAYS, limit=_LISTED)


def list_waiting(s: Session) -> list[AwaitedFile]:
    """All files that wait, by repository, the oldest first."""
    sql = """
    SELECT file.id, repository_id, repositories.name AS repository, url AS repository_url, commit_sha, file.name,
           format, program, device, confirm, file.created_at
    FROM awaited_files AS file JOIN repositories ON repositories.id = file.repository_id
    WHERE state = 'waiting' AND deleted_at IS NULL ORDER BY repository_id, file.id
    """
    return fetch(s, AwaitedFile, sql)


def read_content(s: Session, file_id: int) -> bytes | None:
    """The file itself; None where it waits no more."""
    content = s.scalar(select(AwaitedFileRecord.content).where(AwaitedFileRecord.id == file_id))
    return None if content is None else zlib.decompress(content)


def end_waiting(
    s: Session, file_id: int, state: AwaitedState, message: str = "", submission_id: int | None = None
) -> None:
    """Writes what became of a file that waited, and forgets its content."""
    values = {"state": state, "message": storable(message), "submission_id": submission_id, "content": None}
    waiting = (AwaitedFileRecord.id == file_id, AwaitedFileRecord.state == AwaitedState.WAITING)
    s.execute(update(AwaitedFileRecord).where(*waiting).values(**values, ended_at=func.now()))
