"""Verdicts on paired rounds of a requested comparison: a commit and its base, many variants and cases at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, expm1, inf, log, log1p, sqrt
from statistics import NormalDist, median
from typing import TYPE_CHECKING, Literal

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
    times_of_rounds,
)
from warpwatch.contract.words import Reason
from warpwatch.server.verdicts.noise import NORMAL_MAD
from warpwatch.server.verdicts.paired import decide
from warpwatch.server.verdicts.thresholds import confirmed_change, kind_of_time, thresholds_of

if TYPE_CHECKING:
    from warpwatch.db.reads.paired import PairedRounds

PairOutcome = Literal["slower", "faster", "same", "not_slower", "unsure"]
"""same excludes a relevant change either way, not_slower one for the worse alone."""

_OF_MEDIAN = 1.2533
"""Standard error of a median over that of a mean, of normal values."""
_WIDEST = 100.0
"""Of an interval of log time, to either side: its ends are still numbers."""
SURE = 0.95
"""How often a comparison finds the slow-down that it is said to find."""
_OF_NEXT = 2.3
"""Standard errors of a median by which the near end of the interval of another comparison differs: its width is as
uncertain as its median, and rounds that ended early scatter less than others."""


@dataclass(frozen=True, slots=True)
class PairVerdict:
    """The outcome, and the median of head over base with its interval; None where there were no rounds.

    detectable: the smallest slow-down (0.021 is 2.1 %) that 95 of 100 such comparisons find; None where the rounds do
    not show it. false_alarm: how often such a comparison calls the same code slower.
    """

    outcome: PairOutcome
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    detectable: float | None = None
    false_alarm: float = 0.0


@dataclass(frozen=True, slots=True)
class PairedOutcome:
    """One series of two commits in their newest A/B comparison. ratio: head over base, with its interval. base_ns,
    head_ns: times of the rounds."""

    operator: str
    case: str
    variant: str
    device_key: str
    series_id: int
    metric: str
    job_id: int
    outcome: PairOutcome
    ratio: float | None
    low: float | None
    high: float | None
    rounds: int
    base_ns: float | None
    head_ns: float | None


def paired_outcomes(pairs: Sequence[PairedRounds], among: int | None = None) -> list[PairedOutcome]:
    """The outcome of the newest comparison of each series of two commits. among: how many were classified together
    where these are some of them."""
    if among is None:
        among = sum(not pair.is_trial for pair in pairs)
    outcomes = []
    for pair in pairs:
        rounds = pair.base_ns, pair.head_ns
        time_kind = kind_of_time(pair.device_kind, pair.metric, pair.protocol)
        verdict = classify(*rounds, time_kind, among, pair.reason, is_trial=pair.is_trial)
        place = pair.operator, pair.case, pair.variant, pair.device_key, pair.series_id, pair.metric, pair.job_id
        measured = verdict.outcome, verdict.ratio, verdict.low, verdict.high, len(pair.base_ns)
        outcomes.append(PairedOutcome(*place, *measured, *times_of_rounds(*rounds)))
    return outcomes


def classify_pairs(
    base_ns: Sequence[float],
    head_ns: Sequence[float],
    time_kind: str,
    among: int = 1,
    reason: str | None = None,
    planned: int = ROUNDS,
) -> PairVerdict:
    """The verdict on paired rounds; base_ns[i] was taken beside head_ns[i]. time_kind: see thresholds.kind_of_time.
    reason: what the controls say against the rounds; then they show nothing, or exclude nothing. planned: rounds that
    were taken where fewer did not decide.

    among: how many pairs are classified together. The confidence required for a change grows with their number, so
    that all of them together hold a false change no more often than a single pair would: the more pairs, the farther
    outside 1 the interval has to lie.
    """
    ratios = [head / base for base, head in zip(base_ns, head_ns, strict=True)]
    thresholds = thresholds_of(time_kind)
    usual, least = interval_of_rounds(ratios, thresholds.confidence), confirmed_change(time_kind, base_ns)
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
    verdict = PairVerdict(outcome, median(ratios), *usual)
    return verdict if reason else _with_power(verdict, base_ns, head_ns, time_kind, among, planned)


def classify(
    base_ns: Sequence[float],
    head_ns: Sequence[float],
    time_kind: str,
    among: int,
    reason: str | None = None,
    *,
    is_trial: bool,
    planned: int = ROUNDS,
) -> PairVerdict:
    """The verdict on the rounds of a trial, or on those of one of `among` pairs of a comparison that was asked for.
    planned: see classify_pairs."""
    if is_trial:
        return classify_trial(base_ns, head_ns, time_kind, reason)
    return classify_pairs(base_ns, head_ns, time_kind, among, reason, planned)


def classify_comparison(
    base_ns: Sequence[float],
    head_ns: Sequence[float],
    time_kind: str,
    among: int,
    stop: StopRule | None,
    reason: str | None = None,
) -> PairVerdict:
    """The verdict on one of `among` pairs of a comparison that was made elsewhere: its stop rule shows whether it
    tested a suspicion, and whether its time was limited. Then only what meets the rule is decided."""
    is_trial = stop is not None and stop.earliest < thresholds_of(time_kind).earliest_unsuspected
    ratios = [head / base for base, head in zip(base_ns, head_ns, strict=True)]
    rule = stop.of_metric(time_kind, base_ns) if stop is not None else None
    is_undecided = rule is not None and rule.seconds is not None and not rule.decides(ratios)
    # Neither a number of rounds that somebody asked for nor a limit of time leaves room for more of them.
    planned = len(ratios) if stop is None or is_undecided else ROUNDS
    verdict = classify(base_ns, head_ns, time_kind, among, reason, is_trial=is_trial, planned=planned)
    return replace(verdict, outcome="unsure") if is_undecided else verdict


def classify_trial(
    base_ns: Sequence[float], head_ns: Sequence[float], time_kind: str, reason: str | None = None
) -> PairVerdict:
    """The verdict on paired rounds that test a suspicion, by the rule of its trial: fewer rounds decide than where
    nothing was suspected."""
    expected = thresholds_of(time_kind).expected_ratio
    slower = decide(base_ns, head_ns, "slower", expected, time_kind, reason)
    faster = decide(base_ns, head_ns, "faster", 1 / expected, time_kind, reason)
    outcome: PairOutcome = "unsure"
    if slower.decision == "confirmed":
        outcome = "slower"
    elif faster.decision == "confirmed":
        outcome = "faster"
    elif slower.decision == faster.decision == "dismissed":
        outcome = "same"
    verdict = PairVerdict(outcome, slower.ratio, slower.low, slower.high)
    return verdict if reason else _with_power(verdict, base_ns, head_ns, time_kind, 1, ROUNDS)


def _with_power(
    verdict: PairVerdict,
    base_ns: Sequence[float],
    head_ns: Sequence[float],
    time_kind: str,
    among: int,
    planned: int,
) -> PairVerdict:
    """The verdict with what such a comparison detects: the slow-down whose interval lies beyond the confirm ratio in
    95 of 100 of them, and the share of comparisons of the same code whose interval lies there.

    Rounds that ended early would have gone on to `planned` ones if the head had been slower. Fewer than
    `earliest_unsuspected` decide nothing but a plain change.
    """
    logs = [log(head / base) for base, head in zip(base_ns, head_ns, strict=True)]
    thresholds, count = thresholds_of(time_kind), max(len(logs), planned)
    if verdict.low is None or verdict.high is None or count < thresholds.earliest_unsuspected:
        return verdict
    # Of few disturbed rounds, the median deviation sees less than the interval does.
    shown = log(verdict.high / verdict.low) / (2 * student(1 - thresholds.confidence, len(logs) - 1))
    error = max(_standard_error(logs), shown) * sqrt(len(logs) / count)
    outside = (1 - thresholds.confidence) / (max(among, 1) if count >= ROUNDS else 1)
    limit = log(early_ratio(confirmed_change(time_kind, base_ns), count)) + student(outside, count - 1) * error
    least = max(limit, log1p(thresholds.least_ns / median(base_ns)))
    sure = least + student(2 * (1 - SURE), len(logs) - 1) * _OF_NEXT * error
    chance = _student_tail(limit / error, len(logs) - 1) if error else 0.0
    return replace(verdict, detectable=expm1(min(sure, _WIDEST)), false_alarm=chance)


def _standard_error(logs: Sequence[float]) -> float:
    """Standard error of the median of log ratios, from their median absolute deviation."""
    middle = median(logs)
    return _OF_MEDIAN * NORMAL_MAD * median(abs(value - middle) for value in logs) / sqrt(len(logs))


def _strict_interval(ratios: Sequence[float], outside: float) -> tuple[float, float]:
    """The interval of the median that misses it with the probability `outside`.

    Order statistics of a dozen rounds do not reach it, so it is taken from the scatter of the ratios' logarithms: their
    median absolute deviation, which a few disturbed rounds hardly move, and Student's distribution.
    """
    logs = [log(ratio) for ratio in ratios]
    middle = median(logs)
    reach = min(student(outside, len(logs) - 1) * _standard_error(logs), _WIDEST)
    return exp(middle - reach), exp(middle + reach)


def _student_tail(t: float, freedom: int) -> float:
    """The share of Student's distribution beyond t, by the approximation of Wallace (1959)."""
    normal = (8 * freedom + 1) / (8 * freedom + 3) * sqrt(freedom * log1p(t * t / freedom))
    return NormalDist().cdf(-normal)
