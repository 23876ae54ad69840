"""What becomes of a suspicion: it is put to a trial, once more with a larger budget if that was unsure, and decided."""

from __future__ import annotations

from warpwatch.contract.words import Answer, ChangeDirection, Purpose, Verdict
from warpwatch.db.reads import judging
from warpwatch.db.reads.judging import TrialState
from warpwatch.db.reads.query import Session
from warpwatch.db.regressions import attach_compare_job, decide, decide_series, open_suspicion, settle, turn
from warpwatch.db.trials import answer
from warpwatch.server.history.mirror import Mirrors
from warpwatch.server.judge.answers import combine, evaluate_trial, severity
from warpwatch.server.judge.asking import ask_trial
from warpwatch.server.judge.bisection import bisect
from warpwatch.server.judge.dossier import CONFIRMING, RegressionContext, open_context, remark
from warpwatch.server.verdicts.thresholds import thresholds_of


def take_answer(session: Session, mirrors: Mirrors, trial: TrialState) -> None:
    """Writes what the ended job of a trial says, and does what follows from it."""
    dossier = open_context(session, mirrors, trial.regression_id)
    said = evaluate_trial(session, dossier, trial)
    if said.opposite and not said.has(Verdict.CONFIRMED) and turn(session, trial.regression_id):
        # Where only code had changed nobody could say which way the time would go.
        remark(
            session, trial.regression_id, f"{dossier.regression.direction} was expected, and the opposite was measured"
        )
        dossier = open_context(session, mirrors, trial.regression_id)
        said = evaluate_trial(session, dossier, trial)
    most = said.worst
    numbers = (most.ratio, most.low, most.high) if most else (None, None, None)
    answer(session, trial.id, said.answer, said.message, *numbers)
    if trial.purpose in CONFIRMING and trial.base_sha != trial.head_sha:
        decide_series(session, trial.regression_id, said.decisions)
        if said.opposite:
            _open_opposite(session, mirrors, dossier, trial, said.opposite)
    advance(session, mirrors, trial.regression_id)


def advance(session: Session, mirrors: Mirrors, regression_id: int) -> None:
    """Takes the next step with a regression: asks for one more trial, or settles it. Nothing while a trial is out."""
    dossier = open_context(session, mirrors, regression_id)
    if dossier.waits:
        return
    state = dossier.regression
    fresh = dossier.having(Verdict.SUSPECTED)
    if fresh:
        ask_trial(session, dossier, Purpose.CONFIRM, state.base_sha, state.head_sha, fresh)
        return
    verdict = combine(member.verdict for member in dossier.members)
    if _try_once_more(session, dossier):
        return
    if verdict == Verdict.CONFIRMED and dossier.is_broken and dossier.whole is not None:
        right = _is_right_at_base(session, dossier, dossier.whole)
        if right is None:
            return
        verdict = verdict if right else Verdict.DISMISSED
    _decide(session, dossier, verdict)
    if verdict == Verdict.CONFIRMED:
        left = bisect(session, open_context(session, mirrors, regression_id))
        if left is not None:
            advance(session, mirrors, left)
    else:
        settle(session, regression_id)


def _try_once_more(session: Session, dossier: RegressionContext) -> bool:
    """Asks for the larger trial of what is unsure, the first time."""
    last = dossier.confirming[-1] if dossier.confirming else None
    if last is None or any(one.purpose == Purpose.RETRY for one in dossier.trials):
        return False
    unsure = [member for member in dossier.having(Verdict.UNSURE) if member.ratio is not None]
    if not unsure:
        # What could not be measured will not be by measuring for longer.
        return False
    rounds = thresholds_of(dossier.regression.device_kind).more_rounds
    ask_trial(session, dossier, Purpose.RETRY, last.base_sha, last.head_sha, unsure, rounds)
    return True


def _decide(session: Session, dossier: RegressionContext, verdict: Verdict) -> None:
    """Writes the verdict, where it is news, with the numbers and traces of the trial that gave it."""
    state = dossier.regression
    last = dossier.whole if verdict == Verdict.CONFIRMED else dossier.confirming[-1] if dossier.confirming else None
    if last is None or (verdict == state.verdict and state.verdict == Verdict.CONFIRMED):
        return
    if last.kind == "compare":
        attach_compare_job(session, state.id, last.job_id)
    most = evaluate_trial(session, dossier, last).worst
    traces = [
        judging.find_trace(session, last.job_id, commit, most.series_id) if most else None
        for commit in (last.base_commit_id, last.head_commit_id)
    ]
    decide(
        session,
        state.id,
        verdict,
        ratio=most.ratio if most else None,
        low=most.low if most else None,
        high=most.high if most else None,
        base_trace_id=traces[0],
        head_trace_id=traces[1],
    )
    remark(session, state.id, f"{verdict}: {last.message}")


def _is_right_at_base(session: Session, dossier: RegressionContext, whole: TrialState) -> bool | None:
    """Whether what is broken at the head is right at the base where the head was checked; None while that is still to
    be found out.

    A new driver or compiler may break what was right before, at every commit. That is no commit's doing.
    """
    if judging.was_right_there(session, dossier.regression.id, whole.base_commit_id, whole.job_id):
        return True
    tried = [one for one in dossier.trials if one.base_sha == one.head_sha == whole.base_sha]
    if not tried:
        ask_trial(session, dossier, Purpose.CONFIRM, whole.base_sha, whole.base_sha, dossier.having(Verdict.CONFIRMED))
        return None
    if tried[-1].answer != Answer.CHANGED:
        return True
    remark(
        session,
        dossier.regression.id,
        f"{whole.base_sha[:9]} is broken too by now: the environment changed, not the code",
    )
    return False


def _open_opposite(
    session: Session, mirrors: Mirrors, dossier: RegressionContext, trial: TrialState, opposite: list[tuple[int, float]]
) -> None:
    """Where rounds show the opposite of what was suspected of some series, that is a suspicion of its own."""
    state = dossier.regression
    most = max((ratio for _, ratio in opposite), key=severity)
    direction = ChangeDirection.FASTER if state.direction == ChangeDirection.SLOWER else ChangeDirection.SLOWER
    found = open_suspicion(
        session,
        operator_id=state.operator_id,
        device_id=state.device_id,
        base_commit_id=trial.base_commit_id,
        head_commit_id=trial.head_commit_id,
        direction=direction,
        ratio=most,
        series=opposite,
        cause=state.cause,
    )
    if found is not None:
        advance(session, mirrors, found)
