"""Records runs of the adversaries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from warpwatch.db.database import storable
from warpwatch.db.models import DeviceRecord, ProofRecord
from warpwatch.db.registry import ensure_device


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
