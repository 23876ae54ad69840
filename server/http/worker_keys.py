"""Who may speak as a worker: whoever shows a worker's key, for the workers that were registered with it and nothing
else."""

from __future__ import annotations

from typing import Annotated

from anyio import CapacityLimiter
from fastapi import Depends, Path, Request

from warpwatch.db.reads.query import Session
from warpwatch.db.worker_keys import KeyScope, find_use
from warpwatch.server.http.problems import Problem

Id = Annotated[int, Path(ge=1, le=2**62)]


class WorkerThreads:
    """Threads for the requests of workers, however many there are: people's requests have others.

    readers: results files that are read at once. Each takes memory, and the interpreter reads one at a time anyway.
    """

    def __init__(self) -> None:
        self.requests = CapacityLimiter(12)
        self.readers = CapacityLimiter(2)


async def shown_key(request: Request) -> str:
    """The bearer of a request; 401 without one."""
    scheme, _, shown = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not shown:
        raise _key_needed()
    return shown


Key = Annotated[str, Depends(shown_key)]


def scope_of(session: Session, key: str, worker_id: int | None, run_id: int | None, *, must_own: bool) -> KeyScope:
    """Whom a request is from; 401 for a key that is unknown or revoked, otherwise like `find_use`."""
    scope = find_use(session, key, worker_id, run_id, must_own=must_own)
    if scope is None:
        raise _key_needed()
    return scope


def _key_needed() -> Problem:
    remedy = "send `Authorization: Bearer` with a key from `warpwatch key add`"
    detail = f"a worker's key is needed, and it must not be revoked; {remedy}"
    return Problem(401, detail, headers={"WWW-Authenticate": "Bearer"})
