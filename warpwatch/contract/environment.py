"""The fingerprint of everything besides the code that could change a number."""

from __future__ import annotations

from dataclasses import dataclass
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
