"""Runs of the self-tests, which plant faults to show that checks and timings can be trusted."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from warpwatch.db.database import storable
from warpwatch.db.models import DeviceRecord
from warpwatch.db.models.base import Base, created
from warpwatch.db.reads.query import fetch
from warpwatch.db.registry import ensure_device


class ProofRecord(Base):
    """One run of all adversaries of a kind on a device.

    `content` holds what became of each; see worker.proving.Proof.
    """

    __tablename__ = "proofs"
    __table_args__ = (Index(None, "device_id", "kind", "id"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id", ondelete="CASCADE"))
    kind: Mapped[str]
    version: Mapped[str]
    content: Mapped[dict[str, Any]]
    created_at: Mapped[datetime] = created()


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


@dataclass(frozen=True, slots=True)
class NewProof:
    """content: seeds, innocent, exhibits and accused as worker.proving.Proof has them."""

    kind: str
    version: str
    device_key: str
    device_kind: str
    device_name: str
    content: dict[str, Any]


def record_proof(s: Session, proof: NewProof) -> int:
    """The id of the new proof. A device that is known already keeps its name."""
    key = storable(proof.device_key)
    device_id = s.scalar(select(DeviceRecord.id).where(DeviceRecord.key == key))
    if device_id is None:
        device_id = ensure_device(s, key, proof.device_kind, storable(proof.device_name))
    row = ProofRecord(device_id=device_id, kind=proof.kind, version=storable(proof.version), content=proof.content)
    s.add(row)
    s.flush()
    return row.id
