"""The fingerprint of everything besides the code that could change a number."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Environment:
    """Everything besides the code that could change a number; `key` is the SHA-256 of `facts` as canonical JSON.

    facts: driver, CUDA, torch, compiler, Python, kernel, CPU model, thread count … as text or numbers.
    device_kind: cpu | cuda. device_name: "NVIDIA H100 80GB HBM3", "AMD EPYC, 2 cores".
    device_key: the same as a slug for URLs and queue names, "nvidia-h100-80gb-hbm3".
    """

    key: str
    device_kind: str
    device_key: str
    device_name: str
    facts: dict[str, Any]

    def with_facts(self, facts: Mapping[str, Any]) -> Environment:
        """The same environment with further facts, which is another one."""
        every = self.facts | dict(facts)
        return replace(self, key=key_of(every), facts=every)


def key_of(facts: Mapping[str, Any]) -> str:
    canonical = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
