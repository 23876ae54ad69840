"""Cause of a step where the environment of a device changed, or its card, by readings of one commit on both sides.

Code is ruled out: the commit is the same. Readings of separate runs suggest a step; paired rounds in both environments
decide it, where a toolchain of a worker still gives the old one. They measure the last commit before the change and the
first one after it in both, so that they tell what the code and what the toolchain did.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, sqrt
from statistics import median
from typing import Any

from warpwatch.contract.words import ChangeOrigin, StepCause, Verdict
from warpwatch.db.environment_changes import EnvironmentReading, StepEffect
from warpwatch.db.reads.observed import RoundsRow
from warpwatch.server.verdicts.attribution import OriginEffect, attribute, judge_toolchains
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


ROUNDS = 24
"""Of four cells. Of 400 planted changes of 3 to 45 % these decide 386, all of them rightly; 12 rounds decide 338."""


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """The step of a cell in its series in the new environment. Both environments have one series, unless the method
    changed. ratio: new over old, with its 95 % interval. code, toolchain: what either did, where both are known."""

    series_id: int
    variant: str
    case: str
    cause: StepCause
    ratio: float
    low: float
    high: float
    is_decided: bool = False
    code: StepEffect | None = None
    toolchain: StepEffect | None = None

    def columns(self) -> dict[str, Any]:
        names = ("series_id", "cause", "ratio", "low", "high", "is_decided")
        parts = {"code": self.code, "toolchain": self.toolchain}
        return {name: getattr(self, name) for name in names} | {
            f"{part}_{name}": None if effect is None else getattr(effect, name)
            for part, effect in parts.items()
            for name in ("ratio", "low", "high")
        }


def name_steps(
    readings: Iterable[EnvironmentReading],
    earlier: Mapping[int, Sequence[EnvironmentReading]],
    changed: Collection[str],
    device_kind: str,
) -> list[MeasuredStep]:
    """The step of every cell that was read on both sides.

    readings: of one commit on both sides; of two, where the code changed as well. earlier: readings in the old
    environment, by series, in order of history. changed: names of the facts in which the environments differ.
    """
    cells: dict[tuple[str, str, str], tuple[list[EnvironmentReading], list[EnvironmentReading]]] = {}
    for row in readings:
        cells.setdefault((row.variant, row.case, row.metric), ([], []))[row.is_head].append(row)
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
    noise = learn(
        [
            Reading(row.ordinal, row.commit_id, row.environment_id, row.median_ns, row.low_ns, row.high_ns)
            for row in earlier
        ],
        time_kind,
    )
    reach = exp(_SURE * noise.spread * sqrt(1 / len(base) + 1 / len(head)))
    cause = StepCause.NOISE
    if severity(ratio) > 1 + detectable(noise, time_kind, level):
        is_same_code = {row.commit_id for row in base} == {row.commit_id for row in head}
        cards = [{row.card_id for row in side} for side in (base, head)]
        cause = _cause_of(changed, cards[0], cards[1]) if is_same_code else StepCause.UNKNOWN
    return MeasuredStep(head[-1].series_id, head[-1].variant, head[-1].case, cause, ratio, ratio / reach, ratio * reach)


def _cause_of(changed: Collection[str], base_cards: set[int | None], head_cards: set[int | None]) -> StepCause:
    """What alone differs between both sides; unknown where several things do."""
    known = None not in base_cards | head_cards
    if known and not base_cards & head_cards:
        return StepCause.UNKNOWN if changed else StepCause.CARD
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


def decide_steps(rounds: Iterable[RoundsRow], device_kind: str, *, is_crossed: bool) -> list[MeasuredStep]:
    """What paired rounds in both environments decided, for each series that they measured well. is_crossed: they are
    of two commits; a worker of version 0.2 or older measures each in one environment, which decides nothing."""
    steps = []
    for row in rounds:
        if row.status != "ok" or row.reason is not None or (row.cells is not None) != is_crossed:
            continue
        time_kind = kind_of_time(device_kind, row.metric, row.protocol)
        if row.cells is not None:
            result = attribute(row.cells, time_kind)
            cause, effect = _OF_ORIGIN[result.origin], result.total
            code, toolchain = _effect(result.code), _effect(result.toolchain)
        else:
            effect = judge_toolchains(row.base_ns, row.head_ns, time_kind)
            cause, code, toolchain = _OF_VERDICT.get(effect.verdict, StepCause.UNKNOWN), None, None
        named = _effect(effect)
        if cause == StepCause.CODE:
            named = code
        elif cause == StepCause.TOOLCHAIN and toolchain is not None:
            named = toolchain
        if named is not None:
            ends = named.ratio, named.low, named.high
            step = MeasuredStep(row.series_id, row.variant, row.case, cause, *ends, True, code, toolchain)
            steps.append(step)
    return steps


_OF_VERDICT = {Verdict.CONFIRMED: StepCause.TOOLCHAIN, Verdict.DISMISSED: StepCause.NOISE}
_OF_ORIGIN = {
    ChangeOrigin.CODE: StepCause.CODE,
    ChangeOrigin.TOOLCHAIN: StepCause.TOOLCHAIN,
    ChangeOrigin.BOTH: StepCause.BOTH,
    ChangeOrigin.NEITHER: StepCause.NOISE,
    ChangeOrigin.UNKNOWN: StepCause.UNKNOWN,
}


def _effect(effect: OriginEffect) -> StepEffect | None:
    if effect.ratio is None or effect.low is None or effect.high is None:
        return None
    return StepEffect(effect.ratio, effect.low, effect.high)
