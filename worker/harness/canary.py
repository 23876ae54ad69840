"""Tests whether a device is fit for measurements: idle, cool, not throttled, and as fast as before."""

from __future__ import annotations

from typing import Any

import torch

from warpwatch.contract.messages import CanaryReply
from warpwatch.contract.words import Status

from .ceilings import measure_canary
from .health import DeviceHealth

_BUSY_PERCENT = 5
_HOT_CELSIUS = 85
_BELOW_LIMIT = 5
"""The margin in degrees below the temperature at which the card slows down."""


def inspect(device: torch.device) -> CanaryReply:
    """Reads NVML and runs a short copy and product on a GPU.

    A CPU is always shared, so it has no troubles: its load is stored with every measurement instead.
    """
    health = DeviceHealth(device)
    if device.type == "cpu":
        return CanaryReply(Status.OK, facts=health.read())
    facts = health.standing()
    rates = measure_canary(device)
    # A card that is too hot or short of power throttles under load first.
    facts["held_back_under_load"] = [reason for reason in health.throttle_reasons().split(", ") if reason]
    return CanaryReply(Status.OK, troubles=troubles(facts), rates=rates, facts=facts)


def troubles(facts: dict[str, Any]) -> list[str]:
    """Reasons not to measure, from the facts of DeviceHealth.standing; a missing fact is no reason."""
    reasons = []
    if facts.get("utilization", 0) > _BUSY_PERCENT:
        others = facts.get("others") or []
        by = f" (processes {', '.join(map(str, others))})" if others else ""
        reasons.append(f"other work keeps it {facts['utilization']} % busy{by}")
    throttling = dict.fromkeys([*facts.get("held_back", []), *facts.get("held_back_under_load", [])])
    if throttling:
        reasons.append(f"it is throttled: {', '.join(throttling)}")
    limit = facts.get("limit_celsius", _HOT_CELSIUS + _BELOW_LIMIT) - _BELOW_LIMIT
    if facts.get("celsius", 0) > limit:
        reasons.append(f"it is at {facts['celsius']} °C, above {limit} °C")
    return reasons
