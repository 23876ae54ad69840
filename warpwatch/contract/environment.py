"""The fingerprint of everything besides the code that could change a number."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Card:
    """The physical card that a run was measured on: a GPU, or the machine of a CPU.

    key: the UUID of a GPU, a hash of the machine's id for a CPU. facts: uuid, board (part number), vbios and slot (PCI
    address) of a GPU, model and microcode of a CPU, and the host, as far as they are known.
    """

    key: str
    facts: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """A short name for legends and tables."""
        return card_name(self.key)


def card_name(key: str) -> str:
    """The short name of the card with this key: the beginning of its UUID."""
    return key.removeprefix("GPU-")[:8]


@dataclass(frozen=True, slots=True)
class Environment:
    """Everything besides the code that could change a number; `key` is the SHA-256 of `facts` as canonical JSON.

    facts: driver, CUDA, torch, compiler, Python, kernel, CPU model, thread count … as text or numbers.
    device_kind: cpu | cuda. device_name: "NVIDIA H100 80GB HBM3", "AMD EPYC, 2 cores".
    device_key: the same as a slug for URLs and queue names, "nvidia-h100-80gb-hbm3".
    card: which physical card of the device it was, None where that is not known. It is no part of `key`: one line of
    history holds all cards of a device that agree.
    """

    key: str
    device_kind: str
    device_key: str
    device_name: str
    facts: dict[str, Any]
    card: Card | None = None

    def with_facts(self, facts: Mapping[str, Any]) -> Environment:
        """The same environment with further facts, which is another one."""
        every = self.facts | dict(facts)
        return replace(self, key=key_of(every), facts=every)


def key_of(facts: Mapping[str, Any]) -> str:
    canonical = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
