"""Decision on two commits by paired rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from warpwatch.contract.rounds import FEWEST_TO_EXCLUDE, early_ratio, interval_of_rounds
from warpwatch.contract.words import Reason
from warpwatch.server.verdicts.thresholds import confirmed_change, thresholds_of

TimeDirection = Literal["slower", "faster"]
Decision = Literal["confirmed", "dismissed", "unsure"]


@dataclass(frozen=True, slots=True)
class Decided:
    """Result of paired rounds: the median of head over base with the interval of the ratio, and the decision."""

    decision: Decision
    ratio: float | None = None
    low: float | None = None
    high: float | None = None


def decide(
    base_ns: Sequence[float],
    head_ns: Sequence[float],
    direction: TimeDirection,
    suspected_ratio: float,
    time_kind: str,
    reason: str | None = None,
) -> Decided:
    """Decides on a suspected change by paired rounds. base_ns[i] was measured beside head_ns[i].

    time_kind: see thresholds.kind_of_time. reason: the objection of the controls to the rounds.

    confirmed: the whole interval of the ratio lies beyond the confirm ratio in the suspected direction, and the farther
    beyond that ratio the fewer the rounds. dismissed: the whole interval stays below that limit, or the interval holds
    1 and not the suspected ratio. unsure: anything else, fewer than three rounds included; also if the base differed
    from itself, and in place of dismissed if the rounds did not show a wait that was added to the base.
    """
    ratios = [head / base for base, head in zip(base_ns, head_ns, strict=True)]
    interval = interval_of_rounds(ratios, thresholds_of(time_kind).confidence)
    if interval is None:
        return Decided("unsure")
    ratio, (low, high) = median(ratios), interval
    nearest, farthest, suspected = (
        (low, high, suspected_ratio) if direction == "slower" else (1 / high, 1 / low, 1 / suspected_ratio)
    )
    confirmed = confirmed_change(time_kind, base_ns)
    # A change that no rounds confirm is not expected either.
    suspected, least = max(suspected, confirmed), early_ratio(confirmed, len(ratios))
    if nearest > least:
        decision: Decision = "confirmed"
    elif farthest < least or (len(ratios) >= FEWEST_TO_EXCLUDE and nearest <= 1 and farthest < suspected):
        decision = "dismissed"
    else:
        decision = "unsure"
    if reason == Reason.CONTROL_MOVED or (reason == Reason.CONTROL_MISSED and decision == "dismissed"):
        decision = "unsure"
    return Decided(decision, ratio, low, high)


def severity(ratio: float | None) -> float:
    """How far a ratio is from 1, either way; 0 without a ratio."""
    return max(ratio, 1 / ratio) if ratio else 0.0
