"""Reports of a working worker to the database: registration, heartbeat and progress of the run."""

from __future__ import annotations

from sqlalchemy.orm import Session

from warpwatch.contract.claims import LeaseState, RunProgress, WorkerDescription
from warpwatch.contract.words import RESUMABLE
from warpwatch.db import registry, runs
from warpwatch.db.urgent import find_urgent

_RESUMABLE = sorted(RESUMABLE)


def register(session: Session, worker: WorkerDescription) -> tuple[int, int]:
    """The ids of the worker, which starts now, and of its device."""
    environment_id, device_id = registry.ensure_environment(session, worker.environment, worker.peaks)
    facts = {
        "device": worker.device,
        "isolation": worker.isolation,
        "missing_protections": worker.missing_protections,
        "physical": worker.physical,
        "environment_id": environment_id,
    }
    return registry.register_worker(session, worker.name, device_id, worker.version, facts), device_id


def renew(session: Session, worker_id: int, run_id: int | None, lease_seconds: float) -> LeaseState:
    """Renews the leases of the worker and of its run, if it has one; answers like `read_lease`."""
    registry.worker_heartbeat(session, worker_id)
    return LeaseState() if run_id is None else _state(session, run_id, runs.heartbeat(session, run_id), lease_seconds)


def read_lease(session: Session, run_id: int, lease_seconds: float) -> LeaseState:
    """Whether the run may go on."""
    return _state(session, run_id, runs.read_ownership(session, run_id), lease_seconds)


def _state(session: Session, run_id: int, ownership: runs.Ownership, lease_seconds: float) -> LeaseState:
    yield_to = find_urgent(session, run_id, _RESUMABLE, lease_seconds) if ownership == "urgent" else None
    return LeaseState(ownership == "lost", ownership == "cancel", yield_to)


def write_log(session: Session, run_id: int, text: str, progress: RunProgress | None) -> None:
    """Adds to the log of a run, and replaces its progress; StaleRunError when it has ended."""
    if text:
        runs.append_log(session, run_id, text)
    if progress is not None:
        runs.set_progress(session, run_id, progress.done, progress.total, progress.text, progress.cell)
