"""Reads how many comparisons history asked for and how many of them showed no change, by operator and device."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.orm import Session

from warpwatch.db.reads.observed import BEFORE
from warpwatch.db.reads.query import PRIMARY_METRIC, fetch


@dataclass(frozen=True, slots=True)
class ComparisonCounts:
    """An operator on a device. tried: comparisons of a series, suspected from history, among the newest readings of
    all series; dismissed: those that showed no change. readings: the number of these readings."""

    operator: str
    device_key: str
    device_kind: str
    tried: int
    dismissed: int
    readings: int


_COUNTS = f"""
SELECT operators.name AS operator, own.device_key, own.device_kind, counts.tried, counts.dismissed, own.readings
FROM (
    SELECT series.operator_id, series.device_id, device.key AS device_key, device.kind AS device_kind,
           CAST(sum(recent.readings) AS bigint) AS readings, min(recent.oldest) AS oldest
    FROM series
    JOIN operators ON operators.id = series.operator_id AND operators.repository_id = :repository_id
         AND (CAST(:operator AS text) IS NULL OR operators.name = :operator)
    JOIN devices AS device ON device.id = series.device_id
    CROSS JOIN LATERAL (
        SELECT count(*) AS readings, min(ordinal) AS oldest FROM (
            SELECT ordinal FROM points WHERE points.series_id = series.id ORDER BY ordinal DESC LIMIT {BEFORE}
        ) AS newest
    ) AS recent
    WHERE series.metric = {PRIMARY_METRIC}
    GROUP BY series.operator_id, series.device_id, device.key, device.kind
) AS own
JOIN operators ON operators.id = own.operator_id
CROSS JOIN LATERAL (
    SELECT count(*) AS tried, count(*) FILTER (WHERE member.verdict = 'dismissed') AS dismissed
    FROM regressions JOIN commits AS head ON head.id = regressions.head_commit_id AND head.ordinal >= own.oldest
    JOIN regression_series AS member ON member.regression_id = regressions.id
    WHERE regressions.operator_id = own.operator_id AND regressions.device_id = own.device_id AND cause = 'history'
      AND EXISTS (SELECT FROM trials WHERE trials.regression_id = regressions.id AND purpose IN ('confirm', 'retry'))
) AS counts
WHERE counts.tried > 0 ORDER BY counts.dismissed DESC, operators.name, own.device_key
"""


def list_comparison_counts(session: Session, repository_id: int, operator: str | None = None) -> list[ComparisonCounts]:
    """Operators on devices with comparisons among their newest readings, those with the most dismissed ones first."""
    return fetch(session, ComparisonCounts, _COUNTS, repository_id=repository_id, operator=operator)
