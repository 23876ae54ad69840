"""Result of the job of a trial: of paired rounds, or of a check."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from warpwatch.contract.words import (
    Answer,
    ChangeDirection,
    JobKind,
    JobState,
    Purpose,
    Reason,
    Signal,
    Status,
    Verdict,
)
from warpwatch.contract.written_numbers import change
from warpwatch.db.reads.judging import MemberRow, TrialState
from warpwatch.db.reads.observed import BAD, RoundsRow
from warpwatch.db.regressions import SeriesDecision
from warpwatch.server.verdicts import paired
from warpwatch.server.verdicts.context import CONFIRMING, RegressionContext
from warpwatch.server.verdicts.held import classify_pairs, classify_trial
from warpwatch.server.verdicts.paired import TimeDirection, severity
from warpwatch.server.verdicts.thresholds import kind_of_time, thresholds_of

_ANSWERS = {
    Verdict.CONFIRMED: Answer.CHANGED,
    Verdict.DISMISSED: Answer.SAME,
    Verdict.UNSURE: Answer.UNSURE,
    Verdict.SUSPECTED: Answer.UNSURE,
}


@dataclass(frozen=True, slots=True)
class TrialResult:
    """The answer of a trial, and its verdict on each series.

    opposite: (series id, head over base) of the series that changed the other way. joined: series of the same cells
    that nothing had suspected and that changed, too: the other signal of a cell.
    """

    answer: Answer
    message: str
    decisions: tuple[SeriesDecision, ...] = ()
    opposite: tuple[tuple[int, float], ...] = ()
    joined: tuple[MemberRow, ...] = ()

    @property
    def worst(self) -> SeriesDecision | None:
        """The confirmed series that changed most; without a confirmed one, the series that changed most."""
        return worst(self.decisions)


def evaluate_trial(context: RegressionContext, trial: TrialState) -> TrialResult:
    """The result of a trial whose job has ended."""
    if trial.job_state != JobState.DONE:
        undecided = [member for member in _series_of(context, trial) if member.verdict != Verdict.CONFIRMED]
        decisions = tuple(SeriesDecision(member.series_id, Verdict.UNSURE) for member in undecided)
        is_cancelled = trial.job_state == JobState.CANCELLED
        message = "its job was cancelled" if is_cancelled else f"its job failed: {trial.job_message}"
        return TrialResult(Answer.UNSURE, message, decisions if trial.purpose in CONFIRMING else ())
    return _evaluate_check(context, trial) if trial.kind == JobKind.CHECK else _evaluate_rounds(context, trial)


def worst(decisions: Iterable[SeriesDecision]) -> SeriesDecision | None:
    """See TrialResult.worst."""
    return max(decisions, key=lambda item: (item.verdict == Verdict.CONFIRMED, severity(item.ratio)), default=None)


def combine(verdicts: Iterable[str]) -> Verdict:
    """The verdict on a change by those on its series: one confirmed series confirms it, and only all together dismiss
    it."""
    present = set(verdicts)
    for verdict in (Verdict.CONFIRMED, Verdict.SUSPECTED, Verdict.UNSURE):
        if verdict in present:
            return verdict
    return Verdict.DISMISSED


def base_failed(row: RoundsRow) -> bool:
    """Whether the base of a comparison could not be measured, which says nothing about its head."""
    return row.reason == Reason.BASE_FAILED


def _series_of(context: RegressionContext, trial: TrialState) -> list[MemberRow]:
    """The series that a trial was to measure."""
    spec = trial.spec
    pairs, variants, cases = set(spec.pairs or []), set(spec.variants or []), set(spec.cases or [])
    return [
        member
        for member in context.members
        if (member.variant, member.case) in pairs or (member.variant in variants and member.case in cases)
    ]


def _evaluate_rounds(context: RegressionContext, trial: TrialState) -> TrialResult:
    rounds = context.facts.rounds.get(trial.job_id, {})
    members = _series_of(context, trial)
    is_slower = context.regression.direction == ChangeDirection.SLOWER
    direction: TimeDirection = "slower" if is_slower else "faster"
    other: TimeDirection = "faster" if is_slower else "slower"
    joined = tuple(_find_unsuspected(context, rounds, direction)) if trial.purpose in CONFIRMING else ()
    judged = [(member, _rounds_of(rounds, member)) for member in (*members, *joined)]
    decisions = tuple(_decide(context, member, row, direction, trial) for member, row in judged)
    troubles = [_describe_trouble(row) for row in rounds.values() if row.status != Status.OK]
    message = _describe_rounds(judged, decisions, troubles)
    if trial.purpose in CONFIRMING:
        turned = [
            _decide(context, member, _rounds_of(rounds, member), other, trial)
            for member in (*members, *_find_unsuspected(context, rounds, other))
        ]
        opposite = tuple(
            (item.series_id, item.ratio) for item in turned if item.verdict == Verdict.CONFIRMED and item.ratio
        )
        answer = _ANSWERS[combine(item.verdict for item in decisions)]
        return TrialResult(answer, message, decisions, opposite, joined)
    measured = [item for item in decisions if item.ratio is not None]
    if not measured and trial.purpose == Purpose.BISECT and not any(base_failed(row) for row in rounds.values()):
        return TrialResult(Answer.SKIPPED, troubles[0] if troubles else "it cannot be measured")
    verdict = combine(item.verdict for item in measured) if measured else Verdict.UNSURE
    return TrialResult(_ANSWERS[verdict], message, decisions)


def _rounds_of(rounds: Mapping[int, RoundsRow], member: MemberRow) -> RoundsRow | None:
    """The rounds of a series; those of another metric of the same signal where a trial measured the cell so: a variant
    may be captured in a graph at some commits alone."""
    if member.series_id in rounds:
        return rounds[member.series_id]
    key = member.variant, member.case, member.metric == Signal.LAUNCH
    return next((row for row in rounds.values() if (row.variant, row.case, row.metric == Signal.LAUNCH) == key), None)


def _find_unsuspected(
    context: RegressionContext, rounds: Mapping[int, RoundsRow], direction: TimeDirection
) -> Iterator[MemberRow]:
    """The series of the measured cells that changed in this direction, though nothing had suspected them: a trial
    measures both signals of a cell. Each must show it by the rule for what nobody suspected, and by that of trials."""
    known = {(member.variant, member.case, member.metric == Signal.LAUNCH) for member in context.members}
    others = {(variant, case, not is_launch) for variant, case, is_launch in known} - known
    for row in rounds.values():
        if row.status != Status.OK or (row.variant, row.case, row.metric == Signal.LAUNCH) not in others:
            continue
        time_kind = kind_of_time(context.regression.device_kind, row.metric, row.protocol)
        verdict = classify_pairs(row.base_ns, row.head_ns, time_kind, len(rounds), row.reason)
        confirmed = classify_trial(row.base_ns, row.head_ns, time_kind, row.reason)
        if verdict.outcome == confirmed.outcome == direction:
            cell = row.variant_id, row.case_id, row.variant, row.case
            untried = Verdict.SUSPECTED
            time = row.metric, row.protocol
            yield MemberRow(row.series_id, *cell, None, None, None, untried, None, None, None, *time)


def _decide(
    context: RegressionContext,
    member: MemberRow,
    rounds: RoundsRow | None,
    direction: TimeDirection,
    trial: TrialState,
) -> SeriesDecision:
    """The verdict of paired rounds on one series; unsure where it was not measured."""
    if rounds is None or rounds.status != Status.OK:
        return SeriesDecision(member.series_id, Verdict.UNSURE)
    suspected = member.suspected_ratio if trial.purpose in CONFIRMING else member.ratio
    time_kind = context.time_kind(member)
    expected_ratio = thresholds_of(time_kind).expected_ratio
    least = expected_ratio if direction == "slower" else 1 / expected_ratio
    expected = (max if direction == "slower" else min)(least, suspected or least)
    decided = paired.decide(rounds.base_ns, rounds.head_ns, direction, expected, time_kind, rounds.reason)
    return SeriesDecision(member.series_id, Verdict(decided.decision), decided.ratio, decided.low, decided.high)


def _describe_trouble(row: RoundsRow) -> str:
    """Why a series was not measured, in a line: logs of compilers are with the job."""
    first_line = row.message.strip().partition("\n")[0]
    return ": ".join(filter(None, [row.status.replace("_", " "), first_line[:200]]))


def _describe_rounds(
    judged: Iterable[tuple[MemberRow, RoundsRow | None]], decisions: Iterable[SeriesDecision], troubles: list[str]
) -> str:
    most = worst(decisions)
    if most is None or most.ratio is None:
        return troubles[0] if troubles else "nothing was measured"
    member, row = next((member, row) for member, row in judged if member.series_id == most.series_id)
    name = f"{Signal.LAUNCH} " if member.metric == Signal.LAUNCH else ""
    return f"{name}{change(most.ratio)}, {len(row.base_ns) if row else 0} rounds"


def _evaluate_check(context: RegressionContext, trial: TrialState) -> TrialResult:
    checks = context.facts.checks.get(trial.job_id, [])
    by_cell = {(row.variant_id, row.case_id): row.status for row in checks}
    members = _series_of(context, trial)
    statuses = [by_cell.get((member.variant_id, member.case_id)) for member in members]
    verdicts = [_verdict_of_check(status, member) for status, member in zip(statuses, members, strict=True)]
    decisions = tuple(SeriesDecision(member.series_id, item) for member, item in zip(members, verdicts, strict=True))
    names = [status.replace("_", " ") if status else "not checked" for status in statuses]
    message = ", ".join(f"{names.count(name)} {name}" for name in dict.fromkeys(names)) or "nothing was checked"
    if trial.purpose in CONFIRMING and trial.base_sha != trial.head_sha:
        return TrialResult(_ANSWERS[combine(verdicts)], message, decisions)
    decided = tuple(item for item in decisions if item.verdict != Verdict.UNSURE)
    if Verdict.CONFIRMED in verdicts:
        return TrialResult(Answer.CHANGED, message, decided)
    return TrialResult(Answer.SAME if decided else Answer.SKIPPED, message, decided)


def _verdict_of_check(status: str | None, member: MemberRow) -> Verdict:
    """Whether a check shows the breakage. A build that fails says nothing about a series that was broken otherwise."""
    if status == Status.OK:
        return Verdict.DISMISSED
    if status not in BAD or (status == Status.BUILD_FAILED and member.head_status != Status.BUILD_FAILED):
        return Verdict.UNSURE
    return Verdict.CONFIRMED
