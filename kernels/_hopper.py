"""Tells whether kernels for Hopper's own instructions can run."""

from __future__ import annotations

import torch


def hopper_unsupported() -> str | None:
    """Why kernels with wgmma do not run on this machine's GPU; None without one, where nothing runs them."""
    if torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0):
        return "wgmma exists on compute capability 9.0 alone"
    return None
