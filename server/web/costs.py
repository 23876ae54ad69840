"""Costs: what commits made worse beside the time, that no later commit gave back. A part of the inbox, and its JSON."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form, Path, Response
from fastapi.responses import RedirectResponse
from pydantic import BaseModel, ConfigDict, Field

from warpwatch.contract.report_facts import Trade
from warpwatch.db.reads.query import Page
from warpwatch.db.reads.trades import list_trades_of_line
from warpwatch.db.trades import accept_trade
from warpwatch.server.http.problems import documented
from warpwatch.server.http.service import Branch, Db, line_or_404, repository_or_404
from warpwatch.server.intake.triage import MAX_NAME
from warpwatch.server.verdicts.trades import open_costs
from warpwatch.server.web.code import RepositoryName
from warpwatch.server.web.render import PageScope

router = APIRouter()
api = APIRouter(tags=["regressions"])
TradeId = Annotated[int, Path(ge=1, le=2**62)]


@router.post("/costs/accept")
def accept_form(
    page: PageScope,
    trade: Annotated[int, Form(ge=1, le=2**62)],
    author: Annotated[str, Form(max_length=MAX_NAME)] = "",
    filters: Annotated[str, Form(max_length=2000)] = "",
) -> Response:
    """Accepts a cost where somebody signs. filters: the query of the inbox, to return to."""
    if author.strip():
        accept_trade(page.session, trade, author.strip())
    return RedirectResponse(f"/regressions?{filters}#costs", 303)


class CostPatch(BaseModel):
    """Who accepts a cost."""

    model_config = ConfigDict(extra="forbid")
    author: str = Field(min_length=1, max_length=MAX_NAME, examples=["ann"])


@api.get("/costs", responses=documented(404, 422))
def get_costs(session: Db, repository: RepositoryName, branch: Branch = None) -> Page[Trade]:
    """List what commits made worse beside the time, that no later commit gave back and nobody accepted: memory, machine
    code, errors, results that differ from run to run, rows that depend on others, and waiting times, which are
    suspected only. The newest come first."""
    row = repository_or_404(session, repository)
    line = line_or_404(session, row, branch)
    return Page(open_costs(list_trades_of_line(session, row.id, line)), None)


@api.post("/costs/{trade_id}/accept", status_code=204, responses=documented(404, 422))
def accept_cost(session: Db, trade_id: TradeId, body: CostPatch) -> None:
    """Accept a cost: it leaves the inbox and stays at its commit."""
    accept_trade(session, trade_id, body.author)
