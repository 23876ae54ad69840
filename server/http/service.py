"""Dependencies of all endpoints and pages: one database session per request, paging, and look-ups that answer 404."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from fastapi import Depends, Query, Request

from warpwatch.db.database import Database
from warpwatch.db.errors import SchemaOutdatedError
from warpwatch.db.migrate import count_pending
from warpwatch.db.reads.code import OperatorRow, RepositoryRow, find_operator, find_repository
from warpwatch.db.reads.devices import DeviceRow, find_device
from warpwatch.db.reads.lines import HistoryLine, read_line
from warpwatch.db.reads.query import MAX_PAGE, Session
from warpwatch.server.http.access import PUBLIC
from warpwatch.server.http.alarm_cache import Alarms
from warpwatch.server.http.problems import Problem, not_found
from warpwatch.settings import Settings


def session(request: Request) -> Iterator[Session]:
    """One transaction for the request, committed before the answer is sent; 503 while the schema is behind."""
    require_schema(request)
    with database_of(request).session() as opened:
        yield opened


def require_schema(request: Request) -> None:
    """Asked until it is right once: migrations only go forward."""
    state = request.app.state
    if not state.schema_is_current:
        if count_pending(state.database):
            raise SchemaOutdatedError
        state.schema_is_current = True


def database_of(request: Request) -> Database:
    """The database, as the caller may see it."""
    state = request.app.state
    database: Database = state.published if request.state.caller is PUBLIC else state.database
    return database


def settings_of(request: Request) -> Settings:
    settings: Settings = request.app.state.settings
    return settings


def alarms_of(request: Request) -> Alarms:
    alarms: Alarms = request.app.state.alarms
    return alarms


# Committed when the endpoint returns, not after the answer was sent: what the answer says is true by then.
Db = Annotated[Session, Depends(session, scope="function")]
Config = Annotated[Settings, Depends(settings_of)]
Before = Annotated[int | None, Query(ge=1, le=2**62, description="`next_before` of the page before.")]
Branch = Annotated[
    str | None, Query(max_length=250, description="A branch or change request. Default: the watched branch.")
]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE, description="Rows of the page.")]


def repository_or_404(session: Session, name: str) -> RepositoryRow:
    found = find_repository(session, name)
    if found is None:
        raise not_found("repository", name, "register it with `warpwatch repository add NAME URL`")
    return found


def refuse_example(session: Session, name: str) -> None:
    """Problem for a repository whose history was measured elsewhere: its sources are not on this machine."""
    if repository_or_404(session, name).is_example:
        raise Problem(409, "example data cannot be measured here; choose a repository of yours")


def operator_or_404(session: Session, repository: RepositoryRow, name: str) -> OperatorRow:
    found = find_operator(session, repository.id, name)
    if found is None:
        raise not_found("operator", name, f"repository {repository.name} has none of that name yet")
    return found


def device_or_404(session: Session, key: str) -> DeviceRow:
    found = find_device(session, key)
    if found is None:
        raise not_found("device", key, "start a worker on it, or choose one of /api/v1/devices")
    return found


def line_or_404(session: Session, repository: RepositoryRow, branch: str | None) -> HistoryLine:
    """The line of a branch, by default of the watched one."""
    line = read_line(session, repository.id, branch or None)
    if line is None:
        remedy = "submit one of its commits first; branches with submitted commits are listed at /api/v1/branches"
        raise not_found("branch", branch or "", remedy)
    return line
