"""Keys of workers, and the results that arrive in pieces."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import IO, Any

from sqlalchemy import ForeignKey, delete, func, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Mapped, Session, mapped_column

from warpwatch.contract.claims import WorkerDescription
from warpwatch.db import registry
from warpwatch.db.errors import NotFoundError, StaleRunError, StateError, UnusableValueError
from warpwatch.db.models import DeviceRecord, EnvironmentRecord, RunRecord, WorkerRecord
from warpwatch.db.models.base import Base, created
from warpwatch.db.reads.query import Page, fetch_page


class WorkerKeyRecord(Base):
    """Key that a worker shows to a server. The key was shown once; only its digest is stored."""

    __tablename__ = "worker_keys"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    digest: Mapped[str] = mapped_column(unique=True)
    """SHA-256, in hexadecimal digits."""
    created_at: Mapped[datetime] = created()
    last_used_at: Mapped[datetime | None]
    """To the minute."""
    revoked_at: Mapped[datetime | None]


class ResultChunkRecord(Base):
    """A piece of a results file that a running worker sends; gone once the run has ended."""

    __tablename__ = "result_chunks"
    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    start: Mapped[int] = mapped_column(primary_key=True)
    """The position of its first byte in the file."""
    data: Mapped[bytes]


@dataclass(frozen=True, slots=True)
class WorkerKeyRow:
    """workers: how many were registered with the key and have not stopped."""

    id: int
    name: str
    created_at: datetime
    last_used_at: datetime | None
    revoked_at: datetime | None
    workers: int


def list_keys(session: Session, before: int | None = None, limit: int = 50) -> Page[WorkerKeyRow]:
    """Keys, newest first, also revoked ones."""
    sql = """
    SELECT id, name, created_at, last_used_at, revoked_at,
           (SELECT count(*) FROM workers WHERE key_id = worker_keys.id AND stopped_at IS NULL) AS workers
    FROM worker_keys WHERE CAST(:before AS bigint) IS NULL OR id < :before ORDER BY id DESC LIMIT :limit
    """
    return fetch_page(session, WorkerKeyRow, sql, limit, before=before)


PREFIX = "wwk_"
"""How every key begins, so that people and scanners of leaked secrets know one."""
_RANDOM_BYTES = 32
_FIND = text("""
SELECT keys.id AS key_id, keys.name, workers.id AS worker_id, workers.device_id, devices.key AS device_key,
       runs.job_id, keys.last_used_at IS NULL OR keys.last_used_at < now() - interval '1 minute' AS is_stale
FROM worker_keys AS keys
LEFT JOIN workers ON workers.id = :worker_id AND workers.key_id = keys.id
LEFT JOIN devices ON devices.id = workers.device_id
LEFT JOIN runs ON runs.id = :run_id AND runs.worker_id = workers.id
WHERE keys.digest = :digest AND keys.revoked_at IS NULL
""")


@dataclass(frozen=True, slots=True)
class KeyScope:
    """A request with a key that is valid, and whom it is from. The last four are None before a worker registered."""

    key_id: int
    key_name: str
    worker_id: int | None
    device_id: int | None
    device_key: str | None
    job_id: int | None


def add_key(session: Session, name: str) -> str:
    """A new key, which nobody can read again; StateError when there is one of that name."""
    key = PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
    row = insert(WorkerKeyRecord).values(name=name, digest=_digest(key)).on_conflict_do_nothing()
    if session.scalar(row.returning(WorkerKeyRecord.id)) is None:
        raise StateError(f"there is a key called {name!r} already; choose another name")
    return key


def accept_key(session: Session, name: str, key: str) -> None:
    """Makes `key`, which somebody else made, the key of this name; UnusableValueError for one that could be guessed."""
    if not key.startswith(PREFIX) or len(key) < len(PREFIX) + _RANDOM_BYTES:
        raise UnusableValueError(
            f"WARPWATCH_WORKER_KEY is no key: it must be {PREFIX} and {_RANDOM_BYTES} random characters or more"
        )
    row = {"digest": _digest(key), "revoked_at": None}
    changed = insert(WorkerKeyRecord).values(name=name, **row)
    session.execute(changed.on_conflict_do_update(index_elements=["name"], set_=row))


def revoke_key(session: Session, name: str) -> None:
    """From now on the key opens nothing; its workers' jobs go back into the queue when their leases have run out."""
    revoked = func.coalesce(WorkerKeyRecord.revoked_at, func.now())
    statement = update(WorkerKeyRecord).where(WorkerKeyRecord.name == name).values(revoked_at=revoked)
    if session.scalar(statement.returning(WorkerKeyRecord.id)) is None:
        raise NotFoundError(f"there is no key called {name!r}")


def find_use(
    session: Session, key: str, worker_id: int | None = None, run_id: int | None = None, *, must_own: bool = True
) -> KeyScope | None:
    """Whom a request is from; None for a key that is unknown or revoked.

    NotFoundError for a worker that was not registered with the key, StaleRunError for a run that is not the
    worker's, if it must own one.
    """
    row: Any = session.execute(_FIND, {"digest": _digest(key), "worker_id": worker_id, "run_id": run_id}).one_or_none()
    if row is None:
        return None
    if worker_id is not None and row.worker_id is None:
        raise NotFoundError(f"there is no worker {worker_id} of this key; register first")
    if must_own and run_id is not None and row.job_id is None:
        raise StaleRunError
    if row.is_stale:
        # Of many workers that notice it at once, one writes and nobody waits.
        free = select(WorkerKeyRecord.id).where(WorkerKeyRecord.id == row.key_id)
        free = free.with_for_update(key_share=True, skip_locked=True)
        used = update(WorkerKeyRecord).where(WorkerKeyRecord.id.in_(free))
        session.execute(used.values(last_used_at=func.clock_timestamp()))
    return KeyScope(row.key_id, row.name, row.worker_id, row.device_id, row.device_key, row.job_id)


def register_with_key(session: Session, use: KeyScope, worker: WorkerDescription) -> tuple[int, int]:
    """The id of the worker, which starts now, and of the last run that its predecessor of the same name had, or 0.

    StateError where the environment is known as that of another device: every result of it would move there.
    """
    environment = worker.environment
    known = session.scalar(
        select(DeviceRecord.key)
        .join(EnvironmentRecord, EnvironmentRecord.device_id == DeviceRecord.id)
        .where(EnvironmentRecord.key == environment.key)
    )
    if known is not None and known != environment.device_key:
        raise StateError(f"this environment is known as that of the device {known}, not {environment.device_key}")
    environment_id, device_id = registry.ensure_environment(session, environment, worker.peaks)
    facts = {
        "device": worker.device,
        "isolation": worker.isolation,
        "missing_protections": worker.missing_protections,
        "toolchains": worker.toolchains,
        "physical": worker.physical,
        "environment_id": environment_id,
    }
    worker_id = registry.register_worker(session, worker.name, device_id, worker.version, facts)
    session.execute(update(WorkerRecord).where(WorkerRecord.id == worker_id).values(key_id=use.key_id))
    last = session.scalar(select(func.max(RunRecord.id)).where(RunRecord.worker_id == worker_id))
    return worker_id, last or 0


def _digest(key: str) -> str:
    # A key is 256 random bits, so that a slow hash would protect nothing more.
    return sha256(key.encode("utf-8", "replace")).hexdigest()


_DELETE_ENDED = text("""
DELETE FROM result_chunks USING runs WHERE runs.id = result_chunks.run_id AND runs.state <> 'running'
""")


def add_chunk(session: Session, run_id: int, start: int, data: bytes) -> int:
    """Stores the piece if it begins where the others end; where the next one begins."""
    end = ResultChunkRecord.start + func.octet_length(ResultChunkRecord.data)
    received = session.scalar(select(func.max(end)).where(ResultChunkRecord.run_id == run_id)) or 0
    if start != received:
        return received
    session.execute(insert(ResultChunkRecord).values(run_id=run_id, start=start, data=data).on_conflict_do_nothing())
    return start + len(data)


def copy_chunks(session: Session, run_id: int, target: IO[bytes]) -> None:
    """Writes the file to `target`, one piece in memory at a time."""
    starts = session.scalars(
        select(ResultChunkRecord.start).where(ResultChunkRecord.run_id == run_id).order_by(ResultChunkRecord.start)
    ).all()
    for start in starts:
        piece = (ResultChunkRecord.run_id == run_id, ResultChunkRecord.start == start)
        target.write(session.scalars(select(ResultChunkRecord.data).where(*piece)).one())


def forget_chunks(session: Session, run_id: int) -> None:
    """Drops the pieces of a run: they are recorded, or must be sent anew."""
    session.execute(delete(ResultChunkRecord).where(ResultChunkRecord.run_id == run_id))


def forget_ended_chunks(session: Session) -> None:
    """Drops the pieces of runs that ended without them."""
    session.execute(_DELETE_ENDED)
