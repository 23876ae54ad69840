"""Watches: which operators and cases people keep an eye on."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from warpwatch.db.reads.query import Page
from warpwatch.db.reads.watches import WatchRow, list_watches, read_watch
from warpwatch.db.watches import unwatch
from warpwatch.server.api.code import RepositoryName
from warpwatch.server.api.schedules import named_repository
from warpwatch.server.http.problems import documented
from warpwatch.server.http.service import Before, Db, Limit, repository_or_404
from warpwatch.server.intake.watches import WatchRequest, create_watch

router = APIRouter(tags=["code"])
Text = Annotated[str | None, Query(max_length=200)]


@router.get("/watches", responses=documented(404, 422))
def get_watches(
    session: Db,
    repository: RepositoryName,
    person: Text = None,
    operator: Text = None,
    before: Before = None,
    limit: Limit = 50,
) -> Page[WatchRow]:
    """What people watch in a repository, newest first."""
    return list_watches(session, repository_or_404(session, repository).id, person, operator, before, limit)


@router.post("/watches", status_code=201, responses=documented(422))
def post_watch(session: Db, body: WatchRequest) -> WatchRow:
    """Watch an operator or one of its cases; `watcher` narrows overview and regressions to what a person watches."""
    watch_id = create_watch(session, named_repository(session, body.repository), body)
    row = read_watch(session, watch_id)
    assert row is not None
    return row


@router.delete("/watches/{watch_id}", status_code=204, responses=documented(404, 422))
def delete_watch(session: Db, watch_id: int) -> None:
    """Stop watching."""
    unwatch(session, watch_id)
