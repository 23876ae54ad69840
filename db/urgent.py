"""Which running job makes room for a more urgent one on the same device, and what an interrupted run keeps."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import delete, text
from sqlalchemy.dialects.postgresql import insert as upsert_into
from sqlalchemy.orm import Session

from warpwatch.contract.codec import from_json, to_json
from warpwatch.contract.outcome import Comparison, Finding, PartialOutcome
from warpwatch.db.models import PartialOutcomeRecord

_MOST_URGENT = 100
"""Urgent jobs that are looked at; a device has fewer workers."""

# The first urgent job is for an idle worker, if there is one, and the next ones for the runs of the least priority.
_URGENT = """
WITH mine AS (
    SELECT jobs.id, jobs.device_id, jobs.priority FROM runs JOIN jobs ON jobs.id = runs.job_id
    WHERE runs.id = :run_id AND runs.state = 'running' AND NOT jobs.spec ? 'sealed'
), urgent AS (
    SELECT waiting.id FROM mine JOIN jobs AS waiting ON waiting.device_id = mine.device_id
    WHERE waiting.state = 'queued' AND waiting.priority > mine.priority
      AND (waiting.not_before IS NULL OR waiting.not_before <= now())
    ORDER BY waiting.priority DESC, waiting.id LIMIT :limit
)
SELECT id FROM urgent OFFSET (
    SELECT count(*) FROM mine JOIN workers ON workers.device_id = mine.device_id
    WHERE stopped_at IS NULL AND heartbeat_at > now() - make_interval(secs => :lease)
      AND (paused_until IS NULL OR paused_until <= now())
      AND NOT EXISTS (SELECT FROM runs WHERE worker_id = workers.id AND runs.state = 'running')
) + (
    SELECT count(*) FROM mine JOIN jobs AS other ON other.device_id = mine.device_id
    WHERE other.state = 'running' AND other.kind = ANY(:resumable) AND NOT other.spec ? 'sealed'
      AND (other.priority < mine.priority OR other.priority = mine.priority AND other.id > mine.id)
) LIMIT 1
"""


def find_urgent(session: Session, run_id: int, resumable: Sequence[str], lease_seconds: float) -> int | None:
    """The queued job that this run makes room for at its next opportunity; None where it may go on.

    Of several runs only as many make room as urgent jobs wait for want of an idle worker. resumable: kinds of jobs that
    make room; a sealed job of a judgement never does.
    """
    values = {"run_id": run_id, "limit": _MOST_URGENT, "lease": lease_seconds, "resumable": list(resumable)}
    job_id: int | None = session.scalar(text(_URGENT), values)
    return job_id


def keep_partial(session: Session, job_id: int, partial: PartialOutcome) -> None:
    """Stores what a run found, in the transaction that gives its job back; it replaces what earlier runs left."""
    stored = to_json(partial)
    statement = upsert_into(PartialOutcomeRecord).values(job_id=job_id, **stored)
    session.execute(statement.on_conflict_do_update(index_elements=["job_id"], set_=stored))


def read_partial(session: Session, job_id: int) -> PartialOutcome | None:
    """The findings of interrupted runs of the job; None where none are stored, or the stored form has changed since."""
    row = session.get(PartialOutcomeRecord, job_id)
    if row is None:
        return None
    try:
        findings = [from_json(Finding, finding) for finding in row.findings]
        comparisons = [from_json(Comparison, comparison) for comparison in row.comparisons]
        return PartialOutcome(row.environment_key, findings, comparisons)
    except ValueError:
        # An update of the service changed what findings hold: the job is measured from the start.
        return None


def forget_partial(session: Session, job_id: int) -> None:
    """Drops what interrupted runs found: the job has ended, or is measured anew."""
    session.execute(delete(PartialOutcomeRecord).where(PartialOutcomeRecord.job_id == job_id))
