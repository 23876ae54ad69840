"""Looks whether a device is fit to be measured on, before anything is: idle, cool, not held back, as fast as it was."""

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
"""Degrees that must be left to where the card slows itself down."""


def look(device: torch.device) -> CanaryReply:
    """What NVML and a short run say of a GPU; a CPU is shared by nature, and its load is recorded with every
    measurement instead."""
    health = DeviceHealth(device)
    if device.type == "cpu":
        return CanaryReply(Status.OK, facts=health.read())
    facts = health.standing()
    rates = measure_canary(device)
    # A card that is too hot or short of power shows it under load first.
    facts["held_back_under_load"] = [reason for reason in health.held_back().split(", ") if reason]
    return CanaryReply(Status.OK, troubles=troubles(facts), rates=rates, facts=facts)


def troubles(facts: dict[str, Any]) -> list[str]:
    """What speaks against measuring, from what Health.standing tells; what it does not tell speaks against nothing."""
    found = []
    if facts.get("utilization", 0) > _BUSY_PERCENT:
        others = facts.get("others") or []
        who = f" (processes {', '.join(map(str, others))} compute there)" if others else ""
        found.append(f"it is {facts['utilization']} % busy with something else{who}")
    reasons = dict.fromkeys([*facts.get("held_back", []), *facts.get("held_back_under_load", [])])
    if reasons:
        found.append(f"it is held back: {', '.join(reasons)}")
    limit = facts.get("limit_celsius", _HOT_CELSIUS + _BELOW_LIMIT) - _BELOW_LIMIT
    if facts.get("celsius", 0) > limit:
        found.append(f"it is {facts['celsius']} °C hot, more than {limit}")
    return found
