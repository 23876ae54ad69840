"""Writes what commits changed beside their times, and who accepted what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psycopg.types.json import Jsonb
from sqlalchemy import func, text, update
from sqlalchemy.orm import Session

from warpwatch.contract.report_facts import Trade
from warpwatch.db.database import storable
from warpwatch.db.errors import NotFoundError
from warpwatch.db.live import announce
from warpwatch.db.models import TradeRecord

_FIELDS = ("is_exact", "is_faster", "tensor", "metric", "before", "after", "change", "cases", "passes", "since")
_SAVE = f"""
INSERT INTO trades (commit_id, operator_id, device_id, variant_id, case_id, kind, is_worse, {", ".join(_FIELDS)})
VALUES (:commit_id, :operator_id, :device_id,
        (SELECT id FROM variants WHERE operator_id = :operator_id AND name = :variant),
        (SELECT id FROM cases WHERE operator_id = :operator_id AND key = :case),
        :kind, :is_worse, {", ".join(f":{name}" for name in _FIELDS)})
ON CONFLICT ON CONSTRAINT uq_trades_place
DO UPDATE SET case_id = excluded.case_id, {", ".join(f"{name} = excluded.{name}" for name in _FIELDS)}
RETURNING id
"""
_REMOVE = """
DELETE FROM trades WHERE commit_id = :commit_id AND operator_id = :operator_id AND device_id = :device_id
  AND id <> ALL(:kept)
"""


def save_trades(s: Session, commit_id: int, operator_id: int, device_id: int, trades: Sequence[Trade]) -> None:
    """Replaces what is stored of a commit, of one operator on one device. What somebody accepted stays accepted."""
    place = {"commit_id": commit_id, "operator_id": operator_id, "device_id": device_id}
    kept = []
    for trade in trades:
        columns: dict[str, Any] = {name: getattr(trade, name) for name in (*_FIELDS, "kind", "is_worse")}
        columns |= {"variant": trade.variant, "case": trade.case, "passes": Jsonb(trade.passes)}
        kept.append(s.scalar(text(_SAVE), place | columns))
    s.execute(text(_REMOVE), place | {"kept": kept})


def accept_trade(s: Session, trade_id: int, author: str) -> None:
    """Says that what a commit cost may stay."""
    statement = update(TradeRecord).where(TradeRecord.id == trade_id)
    values = {"accepted_by": storable(author), "accepted_at": func.now()}
    if s.scalar(statement.values(values).returning(TradeRecord.id)) is None:
        raise NotFoundError(f"there is no trade {trade_id}")
    announce(s, "regression")
