"""Writes how far two cards of a device lie apart."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.orm import Session

from warpwatch.db.models import CardOffsetRecord
from warpwatch.db.registry import upsert


def save_card_offset(
    s: Session, operator_id: int, card_id: int, other_card_id: int, logs: Sequence[float], *, is_agreed: bool
) -> None:
    """Writes log times of a card over those of another one in the series of an operator, in place of older ones."""
    if card_id < other_card_id:
        card_id, other_card_id, logs = other_card_id, card_id, [-value for value in logs]
    key = {"operator_id": operator_id, "card_id": card_id, "other_card_id": other_card_id}
    values = {"logs": list(logs), "is_agreed": is_agreed}
    upsert(s, CardOffsetRecord, [key | values], key=[*key], refresh=[*values])
