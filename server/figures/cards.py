"""The physical cards of a device, each against the first of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from warpwatch.db.reads.cards import CardRow, OffsetRow, list_card_offsets, list_cards
from warpwatch.db.reads.query import Session
from warpwatch.server.verdicts.cards import CardOffset, pool_offset


@dataclass(frozen=True, slots=True)
class CardLine:
    """A card. facts: board, VBIOS, slot, host and the like. base: the card that the offset refers to, the first one of
    the device; None for that one. offset: over all series that both measured at the same commits, None for too few; it
    is agreed where it is in every operator."""

    id: int
    name: str
    device_key: str
    key: str
    facts: dict[str, str]
    created_at: datetime
    last_seen_at: datetime | None
    base: str | None
    offset: CardOffset | None


def list_card_lines(session: Session, device_id: int | None = None) -> list[CardLine]:
    """The cards of a device, or of all, in the order in which they came."""
    cards = list_cards(session, device_id)
    offsets = {id_: list_card_offsets(session, id_) for id_ in dict.fromkeys(card.device_id for card in cards)}
    firsts: dict[int, CardRow] = {}
    return [_line(card, firsts.setdefault(card.device_id, card), offsets[card.device_id]) for card in cards]


def _line(card: CardRow, first: CardRow, offsets: Sequence[OffsetRow]) -> CardLine:
    rows = [row for row in offsets if (row.card_id, row.other_card_id) == (card.id, first.id)]
    offset = pool_offset([log for row in rows for log in row.logs], is_agreed=all(row.is_agreed for row in rows))
    base = first.name if card.id != first.id else None
    seen = card.created_at, card.last_seen_at
    return CardLine(card.id, card.name, card.device_key, card.key, card.facts, *seen, base, offset)
