"""Writes the steps of a regression, and opens suspicions, within the one transaction that judges a job.

Nothing here calls git.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from warpwatch.contract.spec import JobSpec
from warpwatch.contract.words import ChangeDirection, JobKind, Purpose, Verdict
from warpwatch.db.reads import judging
from warpwatch.db.reads.judging import RegressionFacts, RegressionState
from warpwatch.db.reads.query import Session
from warpwatch.db.regressions import (
    attach_compare_job,
    copy_members,
    decide,
    decide_series,
    lock,
    move,
    name_merge,
    open_suspicion,
    settle,
    turn,
    unsettle,
)
from warpwatch.db.triage import SERVICE, set_triage, triage
from warpwatch.db.trials import NewTrial, answer, ask, find_imported, record
from warpwatch.server.verdicts.context import RegressionContext
from warpwatch.server.verdicts.steps import (
    AskTrial,
    DecideVerdict,
    Dismiss,
    Evidence,
    MergeInto,
    Narrow,
    NewSuspicion,
    OpenOpposite,
    OpenResidual,
    RecordAnswer,
    Settle,
    Step,
    TurnDirection,
)
from warpwatch.server.verdicts.table import next_step

CommitIds = Mapping[str, int]
"""Row ids of the commits that steps name, by full commit id."""


class ContextChangedError(Exception):
    """Another process changed what the steps were decided from: read again and decide anew."""


def write_steps(
    session: Session,
    facts: RegressionFacts,
    steps: Iterable[Step],
    ids: CommitIds,
    imported_job_id: int | None = None,
) -> None:
    """Locks the regression, makes sure that it is as it was read, and writes the steps in their order.

    ContextChangedError when any of the facts has changed. imported_job_id: see write_suspicion.
    """
    lock(session, facts.regression.id)
    if judging.read_facts(session, facts.regression.id) != facts:
        raise ContextChangedError
    for step in steps:
        _write(session, facts.regression, step, ids, imported_job_id)


def write_suspicion(
    session: Session,
    operator_id: int,
    device_id: int,
    suspicion: NewSuspicion,
    ids: CommitIds,
    imported_job_id: int | None = None,
    *,
    is_final: bool = False,
) -> bool:
    """Opens a suspicion and asks for its trial, unless all of it is known already or a trial has not answered yet;
    whether it is one.

    imported_job_id: the job that gave rise to it, where it was imported. Nothing can be measured for it here, so only
    imported jobs become trials. Without one there is no suspicion, unless history has the last word (is_final): then
    it stays suspected, and settled.
    """
    if (
        imported_job_id is not None
        and not is_final
        and not _is_answerable(session, operator_id, device_id, suspicion, ids, imported_job_id)
    ):
        return False
    regression_id = open_suspicion(
        session,
        operator_id=operator_id,
        device_id=device_id,
        base_commit_id=ids[suspicion.base_sha],
        head_commit_id=ids[suspicion.head_sha],
        direction=suspicion.direction,
        ratio=suspicion.ratio,
        series=suspicion.series,
        cause=suspicion.cause,
    )
    if regression_id is not None:
        # The new series are untried: the step is to wait or to ask for a trial of the whole range, without git.
        facts = judging.read_facts(session, regression_id)
        _write(session, facts.regression, next_step(RegressionContext(facts)), ids, imported_job_id)
    return True


def _is_answerable(
    session: Session, operator_id: int, device_id: int, suspicion: NewSuspicion, ids: CommitIds, imported_job_id: int
) -> bool:
    """Whether a file brought the job that tests a suspicion."""
    trial = NewTrial(
        regression_id=0,
        repository_id=0,
        operator_id=operator_id,
        device_id=device_id,
        kind=JobKind.CHECK if suspicion.direction == ChangeDirection.BROKEN else JobKind.COMPARE,
        purpose=Purpose.CONFIRM,
        base_commit_id=ids[suspicion.base_sha],
        head_commit_id=ids[suspicion.head_sha],
        spec=JobSpec(),
        priority=0,
    )
    return find_imported(session, trial, imported_job_id) is not None


def _write(
    session: Session, regression: RegressionState, step: Step, ids: CommitIds, imported_job_id: int | None
) -> None:
    match step:
        case TurnDirection():
            if not turn(session, regression.id):
                raise ContextChangedError
            _note(session, regression.id, step.note)
        case RecordAnswer():
            most = step.worst
            numbers = (most.ratio, most.low, most.high) if most else (None, None, None)
            answer(session, step.trial_id, step.answer, step.message, *numbers)
            decide_series(session, regression.id, step.decisions)
        case OpenOpposite() | OpenResidual():
            place = (regression.operator_id, regression.device_id)
            write_suspicion(session, *place, step.suspicion, ids, imported_job_id)
        case AskTrial():
            _ask(session, regression, step, ids, imported_job_id)
        case DecideVerdict():
            _decide(session, regression.id, Verdict.CONFIRMED, step.evidence)
            _note(session, regression.id, step.note)
        case Dismiss():
            *causes, verdict = step.notes
            for cause in causes:
                _note(session, regression.id, cause)
            _decide(session, regression.id, step.verdict, step.evidence)
            _note(session, regression.id, verdict)
            settle(session, regression.id)
        case Narrow():
            _narrow(session, regression, step, ids)
        case MergeInto():
            _merge(session, regression.id, step)
        case Settle():
            if step.note:
                _note(session, regression.id, step.note)
            settle(session, regression.id)
        case _:
            pass


def _ask(
    session: Session, regression: RegressionState, step: AskTrial, ids: CommitIds, imported_job_id: int | None
) -> None:
    trial = NewTrial(
        regression_id=regression.id,
        repository_id=regression.repository_id,
        operator_id=regression.operator_id,
        device_id=regression.device_id,
        kind=step.kind,
        purpose=step.purpose,
        base_commit_id=ids[step.base_sha],
        head_commit_id=ids[step.head_sha],
        spec=step.spec,
        priority=step.priority,
        merge_commit_id=ids[step.merge_sha] if step.merge_sha is not None else None,
    )
    if imported_job_id is None:
        job_id = ask(session, trial)
    else:
        imported_id = find_imported(session, trial, imported_job_id)
        if imported_id is None:
            _note(session, regression.id, f"no file holds a {step.kind} of {step.base_sha[:9]} and {step.head_sha[:9]}")
            settle(session, regression.id)
            return
        job_id = imported_id
        record(session, regression.id, job_id, trial.base_commit_id, trial.head_commit_id, step.purpose)
    unsettle(session, regression.id)
    if step.purpose == Purpose.CONFIRM and step.kind == JobKind.COMPARE:
        attach_compare_job(session, regression.id, job_id)


def _decide(session: Session, regression_id: int, verdict: Verdict, evidence: Evidence) -> None:
    """Writes a verdict with the numbers and traces of the trial that shows it."""
    trial, most = evidence.trial, evidence.worst
    if trial.kind == JobKind.COMPARE:
        attach_compare_job(session, regression_id, trial.job_id)
    base_trace_id, head_trace_id = (
        judging.find_trace(session, trial.job_id, commit_id, most.series_id) if most else None
        for commit_id in (trial.base_commit_id, trial.head_commit_id)
    )
    decide(
        session,
        regression_id,
        verdict,
        ratio=most.ratio if most else None,
        low=most.low if most else None,
        high=most.high if most else None,
        series=evidence.decisions,
        base_trace_id=base_trace_id,
        head_trace_id=head_trace_id,
    )


def _narrow(session: Session, regression: RegressionState, step: Narrow, ids: CommitIds) -> None:
    is_moved = (step.base_sha, step.head_sha) != (regression.base_sha, regression.head_sha)
    if is_moved and move(session, regression.id, ids[step.base_sha], ids[step.head_sha]) is not None:
        raise ContextChangedError
    merge = step.merge
    if merge is None:
        name_merge(session, regression.id)
    else:
        merged_range = (ids[merge.base_sha], ids[merge.head_sha])
        name_merge(session, regression.id, merge.cause, merged_range, merge.commits)
    if step.evidence is not None:
        _decide(session, regression.id, Verdict.CONFIRMED, step.evidence)
    if step.note:
        _note(session, regression.id, step.note)
    # Wider ranges that could not be bisected, and in which this change was located later, are closed.
    for wider in judging.list_wider(session, regression.id):
        set_triage(session, wider, "invalid", SERVICE, f"narrowed down to regression {regression.id}")


def _merge(session: Session, regression_id: int, step: MergeInto) -> None:
    copy_members(session, regression_id, step.other_id)
    if step.known_series:
        news = [item for item in step.evidence.decisions if item.series_id not in step.known_series]
        decide_series(session, step.other_id, news)
    elif step.evidence.worst is not None:
        _decide(session, step.other_id, Verdict.CONFIRMED, step.evidence)
    note = f"regression {regression_id}, of a wider range, turned out to be the same change"
    _note(session, step.other_id, note)
    settle(session, step.other_id)
    set_triage(session, regression_id, "invalid", SERVICE, f"the same change as regression {step.other_id}")


def _note(session: Session, regression_id: int, text: str) -> None:
    """Writes into the history of a regression what the service did to it."""
    triage(session, [regression_id], author=SERVICE, note=text, fields={})
