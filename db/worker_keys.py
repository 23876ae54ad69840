"""Keys of workers: who may register, claim and send results over HTTP, and for which runs."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from sqlalchemy import func, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from warpwatch.contract.claims import WorkerDescription
from warpwatch.db import leases
from warpwatch.db.errors import NotFoundError, StaleRunError, StateError, UnusableValueError
from warpwatch.db.models import DeviceRecord, EnvironmentRecord, RunRecord, WorkerKeyRecord, WorkerRecord

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
    worker_id, _ = leases.register(session, worker)
    session.execute(update(WorkerRecord).where(WorkerRecord.id == worker_id).values(key_id=use.key_id))
    last = session.scalar(select(func.max(RunRecord.id)).where(RunRecord.worker_id == worker_id))
    return worker_id, last or 0


def _digest(key: str) -> str:
    # A key is 256 random bits, so that a slow hash would protect nothing more.
    return sha256(key.encode("utf-8", "replace")).hexdigest()
