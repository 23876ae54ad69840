"""Reads the newest run of each kind of adversary on each device."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from warpwatch.db.reads.query import Session, fetch


@dataclass(frozen=True, slots=True)
class PlantedFaultView:
    """One adversary. outcome: caught | otherwise (found, but not named) | survived | not_run (message says why)."""

    operator: str
    variant: str
    fault: str
    expected: str
    outcome: str
    caught_by: str
    case: str
    message: str


@dataclass(frozen=True, slots=True)
class FalseAlarmView:
    """A variant that is right and was called wrong."""

    operator: str
    variant: str
    case: str
    seed: int
    message: str


@dataclass(frozen=True, slots=True)
class ProofView:
    """One run of all mutants or cheaters on a device.

    innocent: runs of right variants, over `seeds` seeds, that found nothing.
    """

    id: int
    kind: str
    device_key: str
    device_kind: str
    device_name: str
    version: str
    seeds: int
    innocent: int
    exhibits: list[PlantedFaultView]
    accused: list[FalseAlarmView]
    created_at: datetime


def list_proofs(session: Session) -> list[ProofView]:
    """The newest proof of every device and kind, by device; mutants before cheaters."""
    sql = """
    SELECT DISTINCT ON (devices.key, proofs.kind) proofs.id, proofs.kind, version, content, proofs.created_at,
           devices.key AS device_key, devices.kind AS device_kind, devices.name AS device_name
    FROM proofs JOIN devices ON devices.id = proofs.device_id
    ORDER BY devices.key, proofs.kind DESC, proofs.id DESC
    """
    return fetch(session, _view, sql)


def _view(content: dict[str, Any], created_at: datetime, **fields: Any) -> ProofView:
    return ProofView(
        seeds=content["seeds"],
        innocent=content["innocent"],
        exhibits=[PlantedFaultView(**exhibit) for exhibit in content["exhibits"]],
        accused=[FalseAlarmView(**accused) for accused in content["accused"]],
        created_at=created_at,
        **fields,
    )
