"""Results that a worker sent over HTTP: as hostile as a results file from anywhere, and checked like one."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
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
from warpwatch.db.result_chunks import copy_chunks, forget_chunks

T = TypeVar("T")
_STATES = {
    EndingKind.DONE: RunState.DONE,
    EndingKind.FAILED: RunState.FAILED,
    EndingKind.RELEASED: RunState.LOST,
    EndingKind.YIELDED: RunState.YIELDED,
    EndingKind.CANCELLED: RunState.CANCELLED,
}


def take_ending(
    database: Database, worker_id: int, device_key: str, run_id: int, ending: RunEnding, sha256: str | None
) -> None:
    """Ends a run of a worker. sha256: of the results file that the worker has sent; None where there is none.

    BundleError for results that cannot be used, StaleRunError when the run owns its job no more; then nothing was
    written.
    """
    with database.session() as session:
        job = runs.find_owned(session, worker_id, run_id=run_id)
        if job is None and runs.settle_stale_run(session, run_id, _STATES[ending.kind], ending.times):
            return
    if job is None:
        raise StaleRunError
    folder = Path(tempfile.mkdtemp(prefix="warpwatch-results-"))

    def write(action: Callable[[Session], T]) -> T:
        with database.session() as session:
            return action(session)

    try:
        outcome = None if sha256 is None else _read(database, job, device_key, sha256, folder)
        run = EndedRun(worker_id, job.job_id, run_id, job.request.kind, job.request.patch is not None)
        end_run(write, run, ending, outcome)
        write(lambda session: forget_chunks(session, run_id))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _read(database: Database, job: ClaimedJob, device_key: str, sha256: str, folder: Path) -> Outcome:
    """The outcome that the file holds, its traces in `folder`."""
    path = folder / "results.wwb"
    with path.open("wb") as file, database.session() as session:
        copy_chunks(session, job.run_id, file)
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
            raise BundleError("the results are not those that the worker meant to send; send them again")
    with BundleReader(path) as bundle:
        bundled = list(bundle.runs())
        if len(bundled) != 1 or bundled[0].order != replace(job.request, patch=None):
            raise BundleError("the results are those of another job")
        if bundled[0].outcome.environment.device_key != device_key:
            raise BundleError("the results are those of another device")
        return bundle.extract(bundled[0].outcome, folder)
