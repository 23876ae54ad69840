"""Results that a worker sent over HTTP: as hostile as a results file from anywhere, and checked like one."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from warpwatch.bundle import BundleError, BundleReader
from warpwatch.contract.claims import ClaimedJob, EndingKind, RunEnding
from warpwatch.contract.outcome import Outcome
from warpwatch.contract.words import RunState
from warpwatch.db import runs
from warpwatch.db.database import Database
from warpwatch.db.endings import EndedRun, end_run
from warpwatch.db.errors import StaleRunError
from warpwatch.db.reads.query import Session
from warpwatch.db.worker_keys import copy_chunks, forget_chunks

T = TypeVar("T")
_STATES = {
    EndingKind.DONE: RunState.DONE,
    EndingKind.FAILED: RunState.FAILED,
    EndingKind.RELEASED: RunState.LOST,
    EndingKind.YIELDED: RunState.YIELDED,
    EndingKind.CANCELLED: RunState.CANCELLED,
}


@dataclass(frozen=True, slots=True)
class SentEnding:
    """How a run ends. sha256: of the worker's results file, None where there is none. results: the file; None where the
    worker has sent it in pieces. log: the end of the run's log."""

    ending: RunEnding
    sha256: str | None = None
    results: bytes | None = None
    log: str = ""


def take_ending(database: Database, worker_id: int, device_key: str, run_id: int, sent: SentEnding) -> None:
    """Ends a run of a worker.

    BundleError for results that cannot be used, StaleRunError when the run owns its job no more; then nothing was
    written.
    """
    ending = sent.ending
    with database.session() as session:
        job = runs.find_owned(session, worker_id, run_id=run_id)
        if job is None and sent.log:
            with suppress(StaleRunError):
                # Of a job that was cancelled: its run ends here.
                runs.append_log(session, run_id, sent.log)
        if job is None and runs.settle_stale_run(session, run_id, _STATES[ending.kind], ending.times):
            return
    if job is None:
        raise StaleRunError
    folder = Path(tempfile.mkdtemp(prefix="warpwatch-results-"))

    def write(action: Callable[[Session], T]) -> T:
        with database.session() as session:
            return action(session)

    try:
        outcome = None if sent.sha256 is None else _read(database, job, device_key, sent, folder)
        run = EndedRun(worker_id, job.job_id, run_id, job.request.kind, job.request.patch is not None, sent.log)
        end_run(write, run, ending, outcome)
        if sent.results is None:
            write(lambda session: forget_chunks(session, run_id))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _read(database: Database, job: ClaimedJob, device_key: str, sent: SentEnding, folder: Path) -> Outcome:
    """The outcome that the file holds, its traces in `folder`."""
    path = folder / "results.wwb"
    if sent.results is not None:
        path.write_bytes(sent.results)
    else:
        with path.open("wb") as file, database.session() as session:
            copy_chunks(session, job.run_id, file)
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != sent.sha256:
            raise BundleError("the results are not those that the worker meant to send; send them again")
    with BundleReader(path) as bundle:
        bundled = list(bundle.runs())
        if len(bundled) != 1 or bundled[0].order != replace(job.request, patch=None):
            raise BundleError("the results are those of another job")
        if bundled[0].outcome.environment.device_key != device_key:
            raise BundleError("the results are those of another device")
        return bundle.extract(bundled[0].outcome, folder)
