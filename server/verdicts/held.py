"""Verdicts on paired rounds of a requested comparison: a commit and its base, many variants and cases at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, inf, log, sqrt
from statistics import median
from typing import Literal

from warpwatch.contract.rounds import (
    FEWEST_TO_EXCLUDE,
    ROUNDS,
    StopRule,
    early_ratio,
    exclude_chance,
    interval_of_rounds,
    plain_ratio,
    scatter_interval,
    student,
)
from warpwatch.contract.words import Reason
from warpwatch.server.verdicts.noise import NORMAL_MAD
from warpwatch.server.verdicts.paired import decide
from warpwatch.server.verdicts.thresholds import thresholds_of

PairOutcome = Literal["slower", "faster", "same", "not_slower", "unsure"]
"""same excludes a relevant change either way, not_slower one for the worse alone."""

_OF_MEDIAN = 1.2533
"""Standard error of a median over that of a mean, of normal values."""
_WIDEST = 100.0
"""Of an interval of log time, to either side: its ends are still numbers."""


@dataclass(frozen=True, slots=True)
class PairVerdict:
    """The outcome, and the median of head over base with its interval; None where there were no rounds."""

    outcome: PairOutcome
    ratio: float | None = None
    low: float | None = None
    high: float | None = None


def classify_pairs(
    base_ns: Sequence[float],
    head_ns: Sequence[float],
    device_kind: str,
    among: int = 1,
    reason: str | None = None,
) -> PairVerdict:
    """The verdict on paired rounds; base_ns[i] was taken beside head_ns[i]. device_kind: cuda | cpu. reason: what the
    controls say against the rounds; then they show nothing, or exclude nothing.

    among: how many pairs are classified together. The confidence required for a change grows with their number, so
    that all of them together hold a false change no more often than a single pair would: the more pairs, the farther
    outside 1 the interval has to lie.
    """
    ratios = [head / base for base, head in zip(base_ns, head_ns, strict=True)]
    thresholds = thresholds_of(device_kind)
    usual, least = interval_of_rounds(ratios, thresholds.confidence), thresholds.confirm_ratio
    if usual is None or len(ratios) < thresholds.earliest_plain:
        return PairVerdict("unsure")
    if len(ratios) < FEWEST_TO_EXCLUDE:
        # The smallest and the largest of so few hold the median too rarely.
        scatter = scatter_interval(ratios, thresholds.confidence)
        usual = min(usual[0], scatter[0]), max(usual[1], scatter[1])
    strict = _strict_interval(ratios, (1 - thresholds.confidence) / max(among, 1))
    is_large = abs(median(ratios) - 1) * median(base_ns) >= thresholds.least_ns
    low, high = min(usual[0], strict[0]), max(usual[1], strict[1])
    # Rounds that ended early did so beyond this boundary, which holds off false changes of many pairs as well, and as
    # their scatter excludes chance.
    is_early, are_few = len(ratios) < ROUNDS, len(ratios) < thresholds.earliest_unsuspected
    bound = (plain_ratio if are_few else early_ratio)(least, len(ratios)) if is_early else inf
    is_shown = is_large and (not is_early or exclude_chance(ratios))
    outcome: PairOutcome = "same"
    if is_shown and ((low > least and not are_few) or usual[0] > bound):
        outcome = "slower"
    elif is_shown and ((high < 1 / least and not are_few) or usual[1] < 1 / bound):
        outcome = "faster"
    elif are_few:
        return PairVerdict("unsure")
    elif usual[1] > thresholds.same_ratio and (usual[1] - 1) * median(base_ns) >= thresholds.least_ns:
        outcome = "unsure"
    elif usual[0] < 1 / thresholds.same_ratio and (1 - usual[0]) * median(base_ns) >= thresholds.least_ns:
        outcome = "not_slower"
    if reason == Reason.CONTROL_MOVED or (reason == Reason.CONTROL_MISSED and outcome in ("same", "not_slower")):
        outcome = "unsure"
    return PairVerdict(outcome, median(ratios), *usual)


def classify(
    base_ns: Sequence[float],
    head_ns: Sequence[float],
    device_kind: str,
    among: int,
    reason: str | None = None,
    *,
    is_trial: bool,
) -> PairVerdict:
    """The verdict on the rounds of a trial, or on those of one of `among` pairs of a comparison that was asked for."""
    if is_trial:
        return classify_trial(base_ns, head_ns, device_kind, reason)
    return classify_pairs(base_ns, head_ns, device_kind, among, reason)


def classify_comparison(
    base_ns: Sequence[float],
    head_ns: Sequence[float],
    device_kind: str,
    among: int,
    stop: StopRule | None,
    reason: str | None = None,
) -> PairVerdict:
    """The verdict on one of `among` pairs of a comparison that was made elsewhere: its stop rule shows whether it
    tested a suspicion, and whether its time was limited. Then only what meets the rule is decided."""
    is_trial = stop is not None and stop.earliest < thresholds_of(device_kind).earliest_unsuspected
    verdict = classify(base_ns, head_ns, device_kind, among, reason, is_trial=is_trial)
    ratios = [head / base for base, head in zip(base_ns, head_ns, strict=True)]
    is_undecided = stop is not None and stop.seconds is not None and not stop.decides(ratios)
    return replace(verdict, outcome="unsure") if is_undecided else verdict


def classify_trial(
    base_ns: Sequence[float], head_ns: Sequence[float], device_kind: str, reason: str | None = None
) -> PairVerdict:
    """The verdict on paired rounds that test a suspicion, by the rule of its trial: fewer rounds decide than where
    nothing was suspected."""
    expected = thresholds_of(device_kind).expected_ratio
    slower = decide(base_ns, head_ns, "slower", expected, device_kind, reason)
    faster = decide(base_ns, head_ns, "faster", 1 / expected, device_kind, reason)
    outcome: PairOutcome = "unsure"
    if slower.decision == "confirmed":
        outcome = "slower"
    elif faster.decision == "confirmed":
        outcome = "faster"
    elif slower.decision == faster.decision == "dismissed":
        outcome = "same"
    return PairVerdict(outcome, slower.ratio, slower.low, slower.high)


def _strict_interval(ratios: Sequence[float], outside: float) -> tuple[float, float]:
    """The interval of the median that misses it with the probability `outside`.

    Order statistics of a dozen rounds do not reach it, so it is taken from the scatter of the ratios' logarithms: their
    median absolute deviation, which a few disturbed rounds hardly move, and Student's distribution.
    """
    logs = [log(ratio) for ratio in ratios]
    middle = median(logs)
    scatter = NORMAL_MAD * median(abs(value - middle) for value in logs)
    reach = min(student(outside, len(logs) - 1) * _OF_MEDIAN * scatter / sqrt(len(logs)), _WIDEST)
    return exp(middle - reach), exp(middle + reach)
