"""Writes what a judged bench says of its run: the sources of its operator, and the shifts of unchanged series."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy.orm import Session

from warpwatch.db.models import JobSourcesRecord
from warpwatch.db.registry import upsert


def save_job_sources(
    s: Session,
    *,
    job_id: int,
    operator_id: int,
    commit_id: int,
    environment_id: int,
    sources: str | None,
    shifts: Sequence[float],
    card_id: int | None = None,
    drifts: Sequence[float] = (),
    drifts_since: datetime | None = None,
) -> None:
    """Writes the row of a job; one that is judged again is replaced. card_id, drifts: see JobSourcesRecord."""
    facts = {
        "environment_id": environment_id,
        "sources": sources,
        "shifts": list(shifts),
        "card_id": card_id,
        "drifts": list(drifts),
        "drifts_since": drifts_since,
    }
    row = {"job_id": job_id, "operator_id": operator_id, "commit_id": commit_id, **facts}
    upsert(s, JobSourcesRecord, [row], key=["job_id"], refresh=[*facts])
