"""Keys of workers: made, listed and revoked by whoever has the token."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import BaseModel, ConfigDict, Field

from warpwatch.db.reads.query import Page
from warpwatch.db.worker_keys import WorkerKeyRow, add_key, list_keys, revoke_key
from warpwatch.server.http.problems import documented
from warpwatch.server.http.service import Before, Db, Limit

api = APIRouter(tags=["devices"])


class NewKey(BaseModel):
    """name: stands in front of the names of the workers that use the key."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(min_length=1, max_length=60, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", examples=["cluster-a"])


class KeyReply(BaseModel):
    """key: shown this once; only its digest is stored."""

    name: str
    key: str


@api.get("/worker-keys", responses=documented(422))
def get_keys(session: Db, before: Before = None, limit: Limit = 50) -> Page[WorkerKeyRow]:
    """Keys of workers, newest first, also revoked ones. The keys themselves are not stored."""
    return list_keys(session, before, limit)


@api.post("/worker-keys", status_code=201, responses=documented(409, 422))
def create_key(session: Db, body: NewKey) -> KeyReply:
    """Make a key that lets workers register, claim jobs and send results, and opens nothing else."""
    return KeyReply(name=body.name, key=add_key(session, body.name))


@api.delete("/worker-keys/{name}", status_code=204, responses=documented(404, 422))
def delete_key(session: Db, name: Annotated[str, Path(max_length=60)]) -> None:
    """Revoke a key. Its workers end, and their jobs go back into the queue when their leases have run out."""
    revoke_key(session, name)
