"""What the adversaries came to."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


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
