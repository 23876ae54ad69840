"""The physical cards of devices, and how far they lie apart."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from warpwatch.contract.environment import card_name
from warpwatch.db.models import CardOffsetRecord
from warpwatch.db.reads.query import fetch
from warpwatch.db.registry import upsert

DRIFT_DAYS = 30
"""For how many days the drift that a bench showed counts."""


@dataclass(frozen=True, slots=True)
class CardRow:
    """A physical card: a GPU of a device's model, or a machine. facts: see contract.environment.Card.

    last_seen_at: when its newest run started.
    """

    id: int
    device_id: int
    device_key: str
    device_kind: str
    key: str
    facts: dict[str, Any]
    created_at: datetime
    last_seen_at: datetime | None

    @property
    def name(self) -> str:
        return card_name(self.key)


@dataclass(frozen=True, slots=True)
class OffsetRow:
    """Log times of a card over those of another one, one per series and commit of an operator that both measured.
    is_agreed: whether they make one line there."""

    card_id: int
    other_card_id: int
    logs: list[float]
    is_agreed: bool


@dataclass(frozen=True, slots=True)
class DriftRow:
    """How the unchanged series of one operator moved on a card, in log time, as its newest bench showed."""

    card_id: int
    card_key: str
    device_key: str
    device_kind: str
    operator: str
    job_id: int
    log_ratios: list[float]
    since: datetime


def list_cards(session: Session, device_id: int | None = None, limit: int = 200) -> list[CardRow]:
    """The cards of a device, or of all, in the order in which they came."""
    sql = """
    SELECT cards.id, cards.device_id, devices.key AS device_key, devices.kind AS device_kind, cards.key, cards.facts,
           cards.created_at,
           (SELECT started_at FROM runs WHERE card_id = cards.id ORDER BY id DESC LIMIT 1) AS last_seen_at
    FROM cards JOIN devices ON devices.id = cards.device_id
    WHERE CAST(:device_id AS bigint) IS NULL OR cards.device_id = :device_id ORDER BY cards.id LIMIT :limit
    """
    return fetch(session, CardRow, sql, device_id=device_id, limit=limit)


def list_card_offsets(session: Session, device_id: int) -> list[OffsetRow]:
    """The offsets between the cards of a device, as every operator shows them."""
    sql = """
    SELECT card_id, other_card_id, logs, is_agreed FROM card_offsets
    WHERE card_id IN (SELECT id FROM cards WHERE device_id = :device_id) ORDER BY card_id, other_card_id, operator_id
    """
    return fetch(session, OffsetRow, sql, device_id=device_id)


def list_agreed_cards(session: Session, series_id: int) -> list[OffsetRow]:
    """The cards that agree about the operator of a series, on its device."""
    sql = """
    SELECT card_id, other_card_id, logs, is_agreed FROM card_offsets JOIN cards ON cards.id = card_id
    JOIN series ON series.operator_id = card_offsets.operator_id AND series.device_id = cards.device_id
    WHERE series.id = :series_id AND is_agreed ORDER BY card_id, other_card_id
    """
    return fetch(session, OffsetRow, sql, series_id=series_id)


def read_card_names(session: Session, ids: Collection[int]) -> dict[int, str]:
    """The short names of cards, by id."""
    rows = session.execute(text("SELECT id, key FROM cards WHERE id = ANY(:ids)"), {"ids": list(ids)})
    return {row.id: card_name(row.key) for row in rows}


def list_other_drifts(session: Session, card_id: int, operator_id: int) -> list[float]:
    """How unchanged series of other operators moved on a card, in log time, by the newest bench of each."""
    sql = """
    SELECT drift::float FROM (
        SELECT DISTINCT ON (operator_id) operator_id, drifts FROM job_sources
        WHERE card_id = :card_id AND operator_id <> :operator_id ORDER BY operator_id, job_id DESC
    ) AS newest CROSS JOIN LATERAL jsonb_array_elements(drifts) AS drift
    """
    rows = session.execute(text(sql), {"card_id": card_id, "operator_id": operator_id})
    return [row.drift for row in rows]


def list_drifts(session: Session, now: datetime) -> list[DriftRow]:
    """The drift of unchanged code in the newest bench of every operator on each card."""
    sql = f"""
    SELECT newest.card_id, cards.key AS card_key, devices.key AS device_key, devices.kind AS device_kind,
           operators.name AS operator, newest.job_id, newest.drifts AS log_ratios, newest.drifts_since AS since
    FROM (
        SELECT DISTINCT ON (job_sources.card_id, job_sources.operator_id) job_sources.* FROM job_sources
        JOIN runs ON runs.job_id = job_sources.job_id
        WHERE job_sources.card_id IS NOT NULL AND runs.finished_at > :now - interval '{DRIFT_DAYS} days'
        ORDER BY job_sources.card_id, job_sources.operator_id, job_sources.job_id DESC
    ) AS newest
    JOIN cards ON cards.id = newest.card_id JOIN devices ON devices.id = cards.device_id
    JOIN operators ON operators.id = newest.operator_id
    WHERE newest.drifts_since IS NOT NULL ORDER BY newest.card_id, newest.operator_id
    """
    return fetch(session, DriftRow, sql, now=now)


def save_card_offset(
    s: Session, operator_id: int, card_id: int, other_card_id: int, logs: Sequence[float], *, is_agreed: bool
) -> None:
    """Writes log times of a card over those of another one in the series of an operator, in place of older ones."""
    if card_id < other_card_id:
        card_id, other_card_id, logs = other_card_id, card_id, [-value for value in logs]
    key = {"operator_id": operator_id, "card_id": card_id, "other_card_id": other_card_id}
    values = {"logs": list(logs), "is_agreed": is_agreed}
    upsert(s, CardOffsetRecord, [key | values], key=[*key], refresh=[*values])
