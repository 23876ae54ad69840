"""Who may speak as a worker: whoever shows a worker's key, for the workers that were registered with it and nothing
else."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Path, Request

from warpwatch.db.reads.query import Session
from warpwatch.db.worker_keys import KeyScope, find_use
from warpwatch.server.http.problems import Problem
from warpwatch.server.http.service import Db

Id = Annotated[int, Path(ge=1, le=2**62)]


def shown_key(request: Request) -> str:
    """The bearer of a request; 401 without one."""
    scheme, _, shown = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not shown:
        raise _key_needed()
    return shown


def use_of(session: Session, key: str, worker_id: int | None = None, run_id: int | None = None) -> KeyScope:
    """Whom a request is from; 401 for a key that is unknown or revoked, otherwise like `find_use`."""
    use = find_use(session, key, worker_id, run_id)
    if use is None:
        raise _key_needed()
    return use


def _key_needed() -> Problem:
    remedy = "send `Authorization: Bearer` with a key from `warpwatch key add`"
    detail = f"a worker's key is needed, and it must not be revoked; {remedy}"
    return Problem(401, detail, headers={"WWW-Authenticate": "Bearer"})


Key = Annotated[str, Depends(shown_key)]


def key_use(session: Db, key: Key) -> KeyScope:
    return use_of(session, key)


def worker_use(session: Db, key: Key, worker_id: Id) -> KeyScope:
    return use_of(session, key, worker_id)


def run_use(session: Db, key: Key, worker_id: Id, run_id: Id) -> KeyScope:
    return use_of(session, key, worker_id, run_id)


OfKey = Annotated[KeyScope, Depends(key_use)]
OfWorker = Annotated[KeyScope, Depends(worker_use)]
