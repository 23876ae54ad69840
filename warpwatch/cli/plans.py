"""How profiles and sanitizers are asked for on the command line."""

from __future__ import annotations

import typer

NAMES = ("wait", "warm_up", "active", "repeat")
HELP = "Calls a profile skips, warms up with and records, and how often: WAIT,WARM_UP,ACTIVE[,REPEAT], such as 3,1,4."
SANITIZE_HELP = "Check under memcheck, racecheck or initcheck (GPU) or address (CPU, native code)."
COUNTERS_HELP = "Ask Nsight Compute for hardware counters in profiles too."


def profile_plan(words: str | None, counters: bool) -> dict[str, int | bool]:
    """What is different from the default plan (see contract.protocol.ProfilePlan); typer.BadParameter for what is no
    plan."""
    plan: dict[str, int | bool] = {"counters": True} if counters else {}
    if words is None:
        return plan
    numbers = words.split(",")
    if len(numbers) not in (3, 4) or not all(number.strip().isdigit() for number in numbers):
        raise typer.BadParameter(
            f"{words!r} is no plan; give three or four numbers such as 3,1,4", param_hint="--profile"
        )
    return plan | {name: int(number) for name, number in zip(NAMES, numbers, strict=False)}


def expect_sanitizer(name: str | None, kinds: list[str]) -> None:
    """ValueError for a sanitizer that there is not, or one beside anything but checks."""
    from warpwatch.worker.sanitizers import TOOLS

    if name is not None and name not in TOOLS:
        raise ValueError(f"there is no sanitizer {name!r}; choose from {', '.join(TOOLS)}")
    if name is not None and kinds != ["check"]:
        raise ValueError(
            "a sanitizer goes with checks alone, since nothing it slows down can be timed: add --kinds check"
        )
