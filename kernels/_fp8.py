"""Tells whether tensor cores can multiply FP8 codes of a case."""

from __future__ import annotations

import torch

from warpwatch.operator import Case, DeviceKind


def fp8_unsupported(case: Case, device: DeviceKind) -> str | None:
    """Why FP8 tensor cores cannot compute a case. Hopper's keep about 14 bits of a sum, which no tolerance of f32
    allows."""
    if device == "cpu":
        return None
    if torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 9):
        return "FP8 tensor cores exist from compute capability 8.9 on"
    return "FP8 tensor cores do not sum in f32" if case.precision == "f32" else None
