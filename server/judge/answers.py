"""What the job of a trial says: of paired rounds, or of a check."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from warpwatch.contract.words import Answer, Purpose, Verdict
from warpwatch.db.reads.judging import MemberRow, TrialState
from warpwatch.db.reads.observed import BAD, RoundsRow, list_checks, list_rounds
from warpwatch.db.reads.query import Session
from warpwatch.db.regressions import SeriesDecision
from warpwatch.server.judge.dossier import CONFIRMING, RegressionContext
from warpwatch.server.verdicts import paired
from warpwatch.server.verdicts.paired import TimeDirection
from warpwatch.server.verdicts.thresholds import thresholds_of

_NOT_BUILT = "build_failed"


@dataclass(frozen=True, slots=True)
class TrialResult:
    """What a trial said, of each series and in all. opposite: series that went the other way, with head over base."""

    answer: Answer
    message: str
    decisions: list[SeriesDecision] = field(default_factory=list)
    opposite: list[tuple[int, float]] = field(default_factory=list)

    @property
    def worst(self) -> SeriesDecision | None:
        """The confirmed series that changed most; without one, the one that changed most."""
        return worst(self.decisions)

    def has(self, verdict: Verdict) -> bool:
        """Whether it said this of any series."""
        return any(one.verdict == verdict for one in self.decisions)


def evaluate_trial(session: Session, dossier: RegressionContext, trial: TrialState) -> TrialResult:
    """What the job of a trial says now that it has ended."""
    if trial.job_state != "done":
        asked = [
            SeriesDecision(one.series_id, Verdict.UNSURE)
            for one in _asked(dossier, trial)
            if one.verdict != Verdict.CONFIRMED
        ]
        reason = "its job was cancelled" if trial.job_state == "cancelled" else f"its job failed: {trial.job_message}"
        return TrialResult(Answer.UNSURE, reason, asked if trial.purpose in CONFIRMING else [])
    return _hear_check(session, dossier, trial) if trial.kind == "check" else _hear_rounds(session, dossier, trial)


def worst(decisions: Iterable[SeriesDecision]) -> SeriesDecision | None:
    """See Said.worst."""
    return max(decisions, key=lambda one: (one.verdict == Verdict.CONFIRMED, severity(one.ratio)), default=None)


def severity(ratio: float | None) -> float:
    """How far a ratio is from 1, either way."""
    return max(ratio, 1 / ratio) if ratio else 0.0


def combine(verdicts: Iterable[str]) -> Verdict:
    """One confirmed series confirms the change; it is dismissed only when every series is."""
    said = set(verdicts)
    for verdict in (Verdict.CONFIRMED, Verdict.SUSPECTED, Verdict.UNSURE):
        if verdict in said:
            return verdict
    return Verdict.DISMISSED


def _asked(dossier: RegressionContext, trial: TrialState) -> list[MemberRow]:
    """The series that a trial was to measure."""
    spec = trial.spec
    pairs = {tuple(pair) for pair in spec.get("pairs") or []}
    variants, cases = set(spec.get("variants") or []), set(spec.get("cases") or [])
    return [m for m in dossier.members if (m.variant, m.case) in pairs or (m.variant in variants and m.case in cases)]


# --- paired rounds --------------------------------------------------------------------------------------------


def _hear_rounds(session: Session, dossier: RegressionContext, trial: TrialState) -> TrialResult:
    rounds = list_rounds(session, trial.job_id)
    direction: TimeDirection = "slower" if dossier.regression.direction == "slower" else "faster"
    asked, kind = _asked(dossier, trial), dossier.regression.device_kind
    decisions = [_decide(one, rounds.get(one.series_id), direction, kind, trial) for one in asked]
    measured = [one for one in decisions if one.ratio is not None]
    troubles = [_trouble(row) for row in rounds.values() if row.status != "ok"]
    if trial.purpose in CONFIRMING:
        other: TimeDirection = "faster" if direction == "slower" else "slower"
        turned = [_decide(one, rounds.get(one.series_id), other, kind, trial) for one in asked]
        opposite = [(one.series_id, one.ratio) for one in turned if one.verdict == Verdict.CONFIRMED and one.ratio]
        return TrialResult(
            _ANSWERS[combine(one.verdict for one in decisions)],
            _describe(rounds, decisions, troubles),
            decisions,
            opposite,
        )
    if (
        not measured
        and trial.purpose == Purpose.BISECT
        and not any(row.message.startswith("base:") for row in rounds.values())
    ):
        return TrialResult(Answer.SKIPPED, troubles[0] if troubles else "it cannot be measured", [])
    verdict = combine(one.verdict for one in measured) if measured else Verdict.UNSURE
    return TrialResult(_ANSWERS[verdict], _describe(rounds, decisions, troubles), decisions)


_ANSWERS = {
    Verdict.CONFIRMED: Answer.CHANGED,
    Verdict.DISMISSED: Answer.SAME,
    Verdict.UNSURE: Answer.UNSURE,
    Verdict.SUSPECTED: Answer.UNSURE,
}


def _decide(
    member: MemberRow, rounds: RoundsRow | None, direction: TimeDirection, kind: str, trial: TrialState
) -> SeriesDecision:
    if rounds is None or rounds.status != "ok":
        return SeriesDecision(member.series_id, Verdict.UNSURE)
    suspected = member.suspected_ratio if trial.purpose in CONFIRMING else member.ratio
    expected_ratio = thresholds_of(kind).expected_ratio
    least = expected_ratio if direction == "slower" else 1 / expected_ratio
    expected = (max if direction == "slower" else min)(least, suspected or least)
    said = paired.decide(rounds.base_ns, rounds.head_ns, direction, expected, kind)
    return SeriesDecision(member.series_id, Verdict(said.decision), said.ratio, said.low, said.high)


def _trouble(row: RoundsRow) -> str:
    """Why something was not measured, in a line: logs of compilers are with the job."""
    first = row.message.strip().partition("\n")[0]
    return ": ".join(filter(None, [row.status.replace("_", " "), first[:200]]))


def _describe(rounds: dict[int, RoundsRow], decisions: list[SeriesDecision], troubles: list[str]) -> str:
    most = worst(decisions)
    if most is None or most.ratio is None or most.low is None or most.high is None:
        return troubles[0] if troubles else "nothing was measured"
    return f"{len(rounds[most.series_id].base_ns)} rounds: {most.ratio:.3f} ({most.low:.3f} … {most.high:.3f})"


# --- checks ---------------------------------------------------------------------------------------------------


def _hear_check(session: Session, dossier: RegressionContext, trial: TrialState) -> TrialResult:
    found = {(row.variant_id, row.case_id): row.status for row in list_checks(session, trial.job_id)}
    statuses = {one.series_id: found.get((one.variant_id, one.case_id)) for one in _asked(dossier, trial)}
    members = {one.series_id: one for one in dossier.members}
    fates = {number: _fate(status, members[number]) for number, status in statuses.items()}
    bad = [number for number, fate in fates.items() if fate == Verdict.CONFIRMED]
    message = _count(statuses.values())
    if trial.purpose in CONFIRMING and trial.base_sha != trial.head_sha:
        return TrialResult(
            _ANSWERS[combine(fates.values())], message, [SeriesDecision(*item) for item in fates.items()]
        )
    decisions = [SeriesDecision(number, fate) for number, fate in fates.items() if fate != Verdict.UNSURE]
    if bad:
        return TrialResult(Answer.CHANGED, message, decisions)
    return TrialResult(Answer.SAME if decisions else Answer.SKIPPED, message, decisions)


def _fate(status: str | None, member: MemberRow) -> Verdict:
    """Whether a check shows what is broken. Where something else kept the commit from being built, it says nothing."""
    if status == "ok":
        return Verdict.DISMISSED
    if status not in BAD or (status == _NOT_BUILT and member.head_status != _NOT_BUILT):
        return Verdict.UNSURE
    return Verdict.CONFIRMED


def _count(statuses: Iterable[str | None]) -> str:
    listed = [status or "not checked" for status in statuses]
    return (
        ", ".join(f"{listed.count(status)} {status.replace('_', ' ')}" for status in dict.fromkeys(listed))
        or "nothing was checked"
    )
