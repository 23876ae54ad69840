"""Sources of judged benches, and the shifts that the series of a run have in common."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import text
from sqlalchemy.orm import Session

from warpwatch.db.models import JobSourcesRecord
from warpwatch.db.registry import upsert

LEAST_SHIFTS = 8
"""Series of unchanged code without which nothing is known of what a run has in common."""


class VariantSources(NamedTuple):
    """What a variant was made of. sources: the fingerprint of its operator, with a part for Python and one for native
    sources. digest: of the Python code that its call can reach; None where that cannot be told."""

    sources: str
    digest: str | None

    def has_same_python(self, other: VariantSources) -> bool:
        return self._parts[0] == other._parts[0] or (self.digest is not None and self.digest == other.digest)

    def is_same(self, other: VariantSources) -> bool:
        return self.has_same_python(other) and self._parts[1:] == other._parts[1:]

    @property
    def _parts(self) -> list[str]:
        return self.sources.split("-")


def list_common_shifts(
    session: Session, operator_id: int, environment_id: int, commit_ids: Collection[int]
) -> dict[tuple[int, int | None], float]:
    """By commit and card, the median by which log times of other operators lay off their level, where their code had
    not changed: what the host or the clocks did to all of a run, whatever its code."""
    sql = """
    SELECT commit_id, card_id, percentile_cont(0.5) WITHIN GROUP (ORDER BY shift::float) AS median
    FROM job_sources CROSS JOIN LATERAL jsonb_array_elements(shifts) AS shift
    WHERE commit_id = ANY(:commit_ids) AND environment_id = :environment_id AND operator_id <> :operator_id
    GROUP BY commit_id, card_id HAVING count(*) >= :least
    """
    parameters = {"commit_ids": list(commit_ids), "environment_id": environment_id, "operator_id": operator_id}
    rows = session.execute(text(sql), parameters | {"least": LEAST_SHIFTS})
    return {(row.commit_id, row.card_id): row.median for row in rows}


def list_sources(session: Session, series_id: int, commit_ids: Collection[int]) -> dict[int, VariantSources]:
    """By commit, what the variant of a series was made of, as the operator's newest judged bench had it."""
    sql = """
    SELECT DISTINCT ON (commit_id) commit_id, sources, job_sources.variants ->> variants.name AS digest
    FROM series JOIN variants ON variants.id = series.variant_id
    JOIN job_sources ON job_sources.operator_id = series.operator_id
    WHERE series.id = :series_id AND commit_id = ANY(:commit_ids) AND sources IS NOT NULL
    ORDER BY commit_id, job_id DESC
    """
    rows = session.execute(text(sql), {"series_id": series_id, "commit_ids": list(commit_ids)})
    return {row.commit_id: VariantSources(row.sources, row.digest) for row in rows}


def save_job_sources(
    s: Session,
    *,
    job_id: int,
    operator_id: int,
    commit_id: int,
    environment_id: int,
    sources: str | None,
    shifts: Sequence[float],
    variants: Mapping[str, str] | None = None,
    card_id: int | None = None,
    drifts: Sequence[float] = (),
    drifts_since: datetime | None = None,
) -> None:
    """Writes the row of a job; one that is judged again is replaced. card_id, drifts: see JobSourcesRecord."""
    facts = {
        "environment_id": environment_id,
        "sources": sources,
        "variants": dict(variants or {}),
        "shifts": list(shifts),
        "card_id": card_id,
        "drifts": list(drifts),
        "drifts_since": drifts_since,
    }
    row = {"job_id": job_id, "operator_id": operator_id, "commit_id": commit_id, **facts}
    upsert(s, JobSourcesRecord, [row], key=["job_id"], refresh=[*facts])
