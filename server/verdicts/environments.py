"""Cause of a step where the environment of a device changed, by readings of one commit in both environments.

Code is ruled out: the commit is the same. Readings of separate runs suggest a step; paired rounds in both environments
decide it, where a toolchain of a worker still gives the old one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, sqrt
from statistics import median
from typing import Any

from warpwatch.contract.words import StepCause, Verdict
from warpwatch.db.environment_changes import EnvironmentReading
from warpwatch.db.reads.observed import RoundsRow
from warpwatch.server.verdicts.attribution import judge_toolchains
from warpwatch.server.verdicts.noise import Reading, detectable, learn
from warpwatch.server.verdicts.paired import severity
from warpwatch.server.verdicts.thresholds import kind_of_time

PROTOCOL = "protocol"
OF_HOST = frozenset(
    {"driver", "kernel", "machine", "cpu", "cpu_capability", "cores", "threads", "gpu", "capability", "sm_count"}
    | {"memory_bytes", "l2_bytes", "image", "openmp_spin", "openmp_threads", "freed_memory", PROTOCOL}
)
"""Facts that no toolchain of a worker brings back."""
MOST_PAIRS = 8
"""Cells that the comparison of two environments measures: those that moved farthest."""
_SURE = 1.96


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """The step of a cell in its series in the new environment. Both environments have one series, unless the method
    changed. ratio: new over old, with its 95 % interval."""

    series_id: int
    variant: str
    case: str
    cause: StepCause
    ratio: float
    low: float
    high: float
    is_decided: bool = False

    def columns(self) -> dict[str, Any]:
        names = ("series_id", "cause", "ratio", "low", "high", "is_decided")
        return {name: getattr(self, name) for name in names}


def name_steps(
    readings: Iterable[EnvironmentReading],
    base_environment_id: int,
    earlier: Mapping[int, Sequence[EnvironmentReading]],
    changed: Collection[str],
    device_kind: str,
) -> list[MeasuredStep]:
    """The step of every cell that was read on both sides.

    readings: of one commit in both environments. earlier: readings in the old environment, by series, in order of
    history. changed: names of the facts in which the environments differ.
    """
    cells: dict[tuple[str, str, str], tuple[list[EnvironmentReading], list[EnvironmentReading]]] = {}
    for row in readings:
        sides = cells.setdefault((row.variant, row.case, row.metric), ([], []))
        sides[row.environment_id != base_environment_id].append(row)
    return [
        _name_step(base, head, earlier.get(base[-1].series_id, []), changed, device_kind)
        for base, head in cells.values()
        if base and head
    ]


def _name_step(
    base: Sequence[EnvironmentReading],
    head: Sequence[EnvironmentReading],
    earlier: Sequence[EnvironmentReading],
    changed: Collection[str],
    device_kind: str,
) -> MeasuredStep:
    level = median(row.median_ns for row in base)
    ratio = median(row.median_ns for row in head) / level
    time_kind = kind_of_time(device_kind, base[-1].metric, base[-1].protocol)
    noise = learn([_noted(row) for row in earlier], time_kind)
    reach = exp(_SURE * noise.spread * sqrt(1 / len(base) + 1 / len(head)))
    cause = StepCause.NOISE
    if severity(ratio) > 1 + detectable(noise, time_kind, level):
        cause = _cause_of(changed, {row.card_id for row in base}, {row.card_id for row in head})
    return MeasuredStep(head[-1].series_id, head[-1].variant, head[-1].case, cause, ratio, ratio / reach, ratio * reach)


def _cause_of(changed: Collection[str], base_cards: set[int | None], head_cards: set[int | None]) -> StepCause:
    """What alone differs between both sides; unknown where several things do."""
    known = None not in base_cards | head_cards
    if known and not base_cards & head_cards:
        return StepCause.UNKNOWN
    if PROTOCOL not in changed:
        return StepCause.TOOLCHAIN
    return StepCause.METHOD if set(changed) == {PROTOCOL} else StepCause.UNKNOWN


def choose_pairs(steps: Iterable[MeasuredStep], changed: Collection[str]) -> list[tuple[str, str]]:
    """The variants and cases that a comparison of both environments measures; none where nothing moved, or no toolchain
    can give the old environment."""
    if not changed or OF_HOST & set(changed):
        return []
    moved = sorted((step for step in steps if step.cause != StepCause.NOISE), key=lambda step: -severity(step.ratio))
    return list(dict.fromkeys((step.variant, step.case) for step in moved))[:MOST_PAIRS]


def decide_steps(rounds: Iterable[RoundsRow], device_kind: str) -> list[MeasuredStep]:
    """What paired rounds in both environments decided, for each series that they measured well."""
    steps = []
    causes = {Verdict.CONFIRMED: StepCause.TOOLCHAIN, Verdict.DISMISSED: StepCause.NOISE}
    for row in rounds:
        if row.status != "ok" or row.reason is not None:
            continue
        effect = judge_toolchains(row.base_ns, row.head_ns, kind_of_time(device_kind, row.metric, row.protocol))
        if effect.ratio is not None and effect.low is not None and effect.high is not None:
            cause = causes.get(effect.verdict, StepCause.UNKNOWN)
            measured = effect.ratio, effect.low, effect.high
            steps.append(MeasuredStep(row.series_id, row.variant, row.case, cause, *measured, is_decided=True))
    return steps


def _noted(row: EnvironmentReading) -> Reading:
    return Reading(row.ordinal, row.commit_id, row.environment_id, row.median_ns, row.low_ns, row.high_ns)
