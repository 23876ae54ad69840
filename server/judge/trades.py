"""Stores what commits changed beside their times."""

from __future__ import annotations

from warpwatch.db.database import Database
from warpwatch.db.reads.trades import list_next_commits, read_trade_facts
from warpwatch.db.trades import save_trades
from warpwatch.server.verdicts.trades import find_trades


def record_trades(database: Database, commit_id: int, operator_id: int, device_id: int) -> None:
    """Stores what a commit traded, and what the commits did whose results are held against its results."""
    place = operator_id, device_id
    with database.session() as session:
        for held in (commit_id, *list_next_commits(session, commit_id, *place)):
            save_trades(session, held, *place, find_trades(read_trade_facts(session, held, *place)))
