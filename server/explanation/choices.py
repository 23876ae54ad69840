"""Says in words what autotuners chose, and what became of a choice from one commit to another."""

from __future__ import annotations

from typing import Any

from warpwatch.contract.codec import from_json
from warpwatch.contract.measurement import LaunchedCode, TunedChoice
from warpwatch.server.reports.formats import change


def settings_of(config: str) -> dict[str, str]:
    """The settings of a configuration as Triton writes it: `BLOCK: 128, num_warps: 4, maxnreg: None`."""
    pairs = (part.partition(": ") for part in config.split(", "))
    return {name: value for name, _, value in pairs if value and value != "None"}


def describe_choice(choice: TunedChoice | dict[str, Any]) -> str:
    """The settings in which the choice differs from others that were tried, and how close the second was.

    choice: as a result stores it, or read from there.
    """
    if isinstance(choice, dict):
        choice = from_json(TunedChoice, choice)
    own = settings_of(choice.config)
    others = [settings_of(other.config) for other in choice.candidates[1:]]
    telling = {name: value for name, value in own.items() if any(other.get(name) != value for other in others)} or own
    words = ", ".join(f"{name} {value}" for name, value in telling.items())
    said = f"{choice.kernel}: {words}, chosen of {choice.tried}"
    if len(choice.candidates) < 2:
        return said
    return f"{said}; the second takes {change(choice.candidates[1].ns / choice.candidates[0].ns)}"


def list_flips(before: LaunchedCode | None, after: LaunchedCode) -> list[str]:
    """Choices of kernels that both launch and that differ: `rows: BLOCK 128 → 64, 0.4 % apart`."""
    old = {choice.kernel: choice for choice in before.choices} if before is not None else {}
    return [
        _describe_flip(old[choice.kernel], choice)
        for choice in after.choices
        if choice.kernel in old and old[choice.kernel].config != choice.config
    ]


def _describe_flip(before: TunedChoice, after: TunedChoice) -> str:
    old, new = settings_of(before.config), settings_of(after.config)
    words = ", ".join(
        f"{name} {old.get(name, '–')} → {new.get(name, '–')}"
        for name in dict.fromkeys([*old, *new])
        if old.get(name) != new.get(name)
    )
    times = {item.config: item.ns for item in after.candidates}
    if before.config not in times or after.config not in times:
        return f"{after.kernel}: {words}"
    return f"{after.kernel}: {words}, {abs(times[before.config] / times[after.config] - 1):.1%} apart"
