"""Ends runs with what their workers sent.

Everything here may be tried again after an outage: the fence lets a run end once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol, TypeVar

from sqlalchemy.orm import Session

from warpwatch.contract.activities import Activity
from warpwatch.contract.claims import EndingKind, RunEnding
from warpwatch.contract.outcome import Outcome, PartialOutcome
from warpwatch.contract.words import RESUMABLE, JobKind, Reason
from warpwatch.db import registry, runs
from warpwatch.db.errors import EngineError, OutcomeError, StaleRunError

T = TypeVar("T")
_log = logging.getLogger(__name__)


class Transaction(Protocol):
    """Runs an action in one transaction, and perhaps again after an outage."""

    def __call__(self, action: Callable[[Session], T], /) -> T: ...


@dataclass(frozen=True, slots=True)
class EndedRun:
    """A run that is to end. is_patch: its results are stored apart from all others. log: the end of its log."""

    worker_id: int
    job_id: int
    run_id: int
    kind: JobKind
    is_patch: bool
    log: str = ""


def end_run(write: Transaction, run: EndedRun, ending: RunEnding, outcome: Outcome | None) -> None:
    """Writes how the run ended, in transactions of `write`; StaleRunError when it owns its job no more.

    An outcome that cannot be stored ends the job at once, because a retry would end the same.
    """
    try:
        if ending.kind == EndingKind.DONE and outcome is not None:
            _record(write, run, ending, outcome)
        elif ending.kind == EndingKind.FAILED:
            write(lambda session: _fail(session, run, ending))
        else:
            _hand_back(write, run, ending, outcome)
    except StaleRunError:
        write(lambda session: runs.cancelled_run(session, run.run_id))
        raise


def _record(write: Transaction, run: EndedRun, ending: RunEnding, outcome: Outcome) -> None:
    try:
        _record_outcome(write, run, ending, outcome)
    except Exception as error:
        if isinstance(error, EngineError) and not isinstance(error, OutcomeError):
            raise
        message = f"the results cannot be stored: {type(error).__name__}: {error}"
        failed = RunEnding(EndingKind.FAILED, ending.times, message, reason=Reason.UNSTORABLE)
        write(lambda session: _fail(session, run, failed))


def _record_outcome(write: Transaction, run: EndedRun, ending: RunEnding, outcome: Outcome) -> None:
    if run.is_patch:

        def finish_patch(session: Session) -> None:
            _append_log(session, run)
            runs.finish_patch_run(session, run.run_id, outcome, ending.times)

        write(finish_patch)
        return
    begin = perf_counter()
    names = write(lambda session: runs.prepare_finish(session, run.job_id, outcome))
    times = ending.times.with_more(Activity.RECORD, perf_counter() - begin)

    def finish(session: Session) -> None:
        _append_log(session, run)
        if run.kind in (JobKind.BENCH, JobKind.COMPARE):
            registry.set_trouble(session, run.worker_id, "")
        runs.finish_run(session, run.run_id, outcome, names, times)

    write(finish)


def _fail(session: Session, run: EndedRun, ending: RunEnding) -> None:
    """Ends the run; an unfit device is marked until a measurement on it succeeds."""
    if ending.reason is Reason.UNFIT_DEVICE:
        registry.set_trouble(session, run.worker_id, ending.message)
    _append_log(session, run)
    runs.fail_run(session, run.run_id, ending.message, retry=ending.retry, reason=ending.reason)
    runs.store_times(session, run.run_id, ending.times)


def _hand_back(write: Transaction, run: EndedRun, ending: RunEnding, outcome: Outcome | None) -> None:
    """Ends a run that was asked to stop, and keeps what it found; what cannot be stored is measured again."""
    partial = None
    if outcome is not None and run.kind in RESUMABLE:
        partial = PartialOutcome(outcome.environment.key, outcome.findings, outcome.comparisons)
    try:
        write(lambda session: _stop(session, run, ending, partial))
    except Exception as error:
        if isinstance(error, EngineError):
            raise
        _log.warning("the results of job %d until now are not kept: %s", run.job_id, error)
        write(lambda session: _stop(session, run, ending, None))


def _stop(session: Session, run: EndedRun, ending: RunEnding, partial: PartialOutcome | None) -> None:
    _append_log(session, run)
    if ending.yielded_to is not None:
        runs.yield_run(session, run.run_id, ending.yielded_to, partial)
    elif ending.kind == EndingKind.CANCELLED:
        runs.cancelled_run(session, run.run_id)
    else:
        runs.release_run(session, run.run_id, partial)
    runs.store_times(session, run.run_id, ending.times)


def _append_log(session: Session, run: EndedRun) -> None:
    """Writes the end of the log in the transaction that ends the run, so that it is written once."""
    if run.log:
        runs.append_log(session, run.run_id, run.log)
