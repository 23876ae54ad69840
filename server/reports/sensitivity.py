"""What a gate would have missed: the smallest slow-down that it finds with 95 %, for each case and over all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, prod
from statistics import median
from typing import Literal

from warpwatch.server.reports.formats import change, plural, share

Source = Literal["rounds", "history", "none"]
LEVELS = (0.02, 0.05, 0.10)
LEAST_CHANCE = 0.001
"""Chances of a false alarm below this one are not told apart: so rare ones were not counted."""


@dataclass(frozen=True, slots=True)
class CaseSensitivity:
    """The smallest slow-down (0.021 is 2.1 %) that is found with 95 % in one variant on one case; None where too little
    is known.

    source: paired rounds, or the noise of separate runs. false_alarm: how often the same code is called slower.
    is_decided: whether it is slower or faster, so that nothing was missed.
    """

    operator: str
    variant: str
    case: str
    device: str
    detectable: float | None
    source: Source
    false_alarm: float = 0.0
    is_decided: bool = False

    def misses(self, required: float) -> bool:
        """Whether a slow-down of this size may have been missed."""
        return not self.is_decided and (self.detectable is None or self.detectable > required)


@dataclass(frozen=True, slots=True)
class ReportSensitivity:
    """What all cases of a gate would have shown. Shares: 0.021 is 2.1 %.

    unknown: cases whose smallest slow-down is not known; they count as above every level. above_2, above_5, above_10:
    cases whose smallest slow-down is above so many per cent. typical, largest: of the known ones. false_alarm: the
    chance that any case is called slower although nothing changed. required: what the gate must be able to show, and
    missed the cases that cannot. by_case: the least sensitive first.
    """

    summary: str = ""
    cases: int = 0
    unknown: int = 0
    above_2: int = 0
    above_5: int = 0
    above_10: int = 0
    typical: float | None = None
    largest: float | None = None
    false_alarm: float = 0.0
    required: float | None = None
    missed: int = 0
    by_case: list[CaseSensitivity] = field(default_factory=list)


def summarize(
    cases: Sequence[CaseSensitivity], required: float | None = None, limit: int | None = None
) -> ReportSensitivity:
    """The sensitivity of a gate. required: a share of the time. limit: of the cases that it lists."""
    known = [case.detectable for case in cases if case.detectable is not None]
    unknown = len(cases) - len(known)
    above = [unknown + sum(value > level for value in known) for level in LEVELS]
    typical, largest = (median(known), max(known)) if known else (None, None)
    false_alarm = 1 - prod(1 - case.false_alarm for case in cases)
    missed = 0 if required is None else sum(case.misses(required) for case in cases)
    summary = _summarize(len(cases), unknown, above, typical, largest, false_alarm)
    worst_first = sorted(cases, key=lambda case: -(inf if case.detectable is None else case.detectable))
    return ReportSensitivity(
        summary,
        len(cases),
        unknown,
        above[0],
        above[1],
        above[2],
        typical,
        largest,
        false_alarm,
        required,
        missed,
        worst_first[:limit],
    )


def detectable_text(case: CaseSensitivity) -> str:
    """The smallest slow-down that is found with 95 %: 2.1 %, or unknown."""
    return "unknown" if case.detectable is None else _size(case.detectable)


def _size(slow_down: float) -> str:
    """A slow-down in per cent; from 300 % on as a factor, as everywhere."""
    return change(1 + slow_down) if slow_down >= 3 else share(slow_down, 1)


def required_text(required: float) -> str:
    """The slow-down that a gate must be able to find, in per cent."""
    return f"{required * 100:g} %"


def missed_text(sensitivity: ReportSensitivity) -> str:
    """How many cases would have hidden a slow-down of the required size; empty where none would."""
    if sensitivity.required is None or not sensitivity.missed:
        return ""
    hidden = f"a slow-down of {required_text(sensitivity.required)}"
    return f"could not tell: {sensitivity.missed} of {plural(sensitivity.cases, 'case')} would hide {hidden}"


def _summarize(
    count: int, unknown: int, above: Sequence[int], typical: float | None, largest: float | None, false_alarm: float
) -> str:
    if not count:
        return "Nothing was timed, so no slow-down could be found"
    if typical is None or largest is None:
        return f"The smallest slow-down that would be found is unknown in {plural(count, 'case')}"
    sizes = f"{_size(largest)} or less in {plural(count - unknown, 'case')}"
    parts = [f"Finds with 95 % a slow-down of {sizes}, typically {_size(typical)}"]
    parts += [f"unknown in {unknown}"] if unknown else []
    parts += [", ".join(f"above {level * 100:g} %: {number}" for level, number in zip(LEVELS, above, strict=True))]
    chance = f"below {share(LEAST_CHANCE, 1)}" if false_alarm < LEAST_CHANCE else share(false_alarm, 1)
    return "; ".join([*parts, f"chance of a false alarm {chance}"])
