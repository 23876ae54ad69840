"""Regressions: confirmed changes, and what people make of them."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from db.reads.regressions import list_regressions, read_regression
from db.reads.rows import Page, RegressionDetail, RegressionRow
from db.regressions import set_triage
from server.api.code import RepositoryName
from server.problems import documented, not_found
from server.service import Before, Db, Limit, repository_or_404
from server.tables import CSV_ANSWER, csv_response

router = APIRouter(tags=["regressions"])
VerdictName = Literal["suspected", "confirmed", "dismissed", "unsure"]
State = Literal["new", "acknowledged", "accepted", "fixed", "invalid"]
Direction = Literal["slower", "faster"]


class TriageRequest(BaseModel):
    """A new state with a note that says why."""

    model_config = ConfigDict(extra="forbid")
    state: State
    note: str = Field(default="", max_length=5000)
    author: str = Field(min_length=1, max_length=200)


@router.get("/regressions", responses=documented(404, 422))
def get_regressions(
    session: Db,
    repository: RepositoryName,
    verdict: VerdictName = "confirmed",
    state: State | None = None,
    direction: Direction | None = None,
    before: Before = None,
    limit: Limit = 50,
) -> Page[RegressionRow]:
    """Changes with that verdict, newest first; only confirmed ones are regressions or improvements."""
    found = repository_or_404(session, repository)
    return list_regressions(session, found.id, verdict, state, direction, before, limit)


@router.get("/regressions.csv", responses=documented(404, 422) | CSV_ANSWER, response_class=Response)
def get_regressions_csv(
    session: Db,
    repository: RepositoryName,
    verdict: Annotated[VerdictName, Query()] = "confirmed",
    state: State | None = None,
    direction: Direction | None = None,
    before: Before = None,
    limit: Limit = 200,
) -> Response:
    """The same list as CSV."""
    rows = get_regressions(session, repository, verdict, state, direction, before, limit).items
    return csv_response(RegressionRow, rows, f"{repository}-regressions")


@router.get("/regressions/{regression_id}", responses=documented(404, 422))
def get_regression(session: Db, regression_id: int) -> RegressionDetail:
    """One change with every series that shows it, the paired rounds, both traces, notes and a command that measures it again."""
    found = read_regression(session, regression_id)
    if found is None:
        raise not_found("regression", regression_id)
    return found


@router.post("/regressions/{regression_id}/triage", responses=documented(404, 409, 422))
def triage_regression(session: Db, regression_id: int, body: TriageRequest) -> RegressionDetail:
    """Acknowledge, accept, mark as fixed or invalid, or open again."""
    get_regression(session, regression_id)
    set_triage(session, regression_id, body.state, author=body.author, note=body.note)
    return get_regression(session, regression_id)
