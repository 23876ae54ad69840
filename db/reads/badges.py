"""Reads the few numbers that a badge shows."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.orm import Session

from warpwatch.db.reads.lines import HistoryLine, on_line
from warpwatch.db.reads.query import fetch
from warpwatch.db.regressions import IS_OPEN, IS_SUSPECTED, ON_LINE


@dataclass(frozen=True, slots=True)
class BadgeCounts:
    """How a line of history stands: variants on cases and devices that are right, wrong in check or bench, or fail
    otherwise at the newest commit where their operator was checked; slower: confirmed slow-downs that nobody has
    settled; launch: those of them that only the host's time of calls shows; suspected: changes that no trial
    decided; costs: what commits made worse beside the time, which nobody gave back or accepted."""

    right: int
    wrong: int
    failed: int
    slower: int
    suspected: int = 0
    launch: int = 0
    costs: int = 0


_STANDING = f"""
WITH wanted AS (
    SELECT id FROM operators WHERE repository_id = :repository_id AND (CAST(:operator AS text) IS NULL
         OR name = :operator)
), latest AS (
    SELECT wanted.id AS operator_id, devices.id AS device_id, newest.commit_id
    FROM wanted CROSS JOIN devices
    CROSS JOIN LATERAL (
        SELECT commit_id FROM results
        WHERE operator_id = wanted.id AND device_id = devices.id AND kind = 'check'
          AND {on_line("results.commit_id")}
        ORDER BY ordinal DESC, id DESC LIMIT 1
    ) AS newest
), checked AS (
    SELECT DISTINCT ON (results.operator_id, results.variant_id, results.case_id, results.device_id, results.kind)
           results.operator_id, results.variant_id, results.case_id, results.device_id, results.kind, results.status
    FROM latest JOIN results ON results.commit_id = latest.commit_id AND results.operator_id = latest.operator_id
         AND results.device_id = latest.device_id AND results.kind IN ('check', 'bench')
    ORDER BY results.operator_id, results.variant_id, results.case_id, results.device_id, results.kind, results.id DESC
), cells AS (
    -- A bench verifies the outputs that it timed, and finds what a check does not.
    SELECT CASE WHEN bool_or(status = 'wrong') THEN 'wrong' ELSE max(status) FILTER (WHERE kind = 'check') END AS status
    FROM checked GROUP BY operator_id, variant_id, case_id, device_id
), changes AS (
    SELECT regressions.* FROM regressions
    JOIN commits AS base ON base.id = regressions.base_commit_id
    JOIN commits AS head ON head.id = regressions.head_commit_id
    WHERE operator_id IN (SELECT id FROM wanted) AND ({IS_OPEN} OR {IS_SUSPECTED}) AND {ON_LINE}
)
SELECT count(*) FILTER (WHERE status = 'ok') AS right, count(*) FILTER (WHERE status = 'wrong') AS wrong,
       count(*) FILTER (WHERE status NOT IN ('ok', 'wrong', 'unsupported', 'skipped')) AS failed,
       (SELECT count(*) FROM changes WHERE verdict = 'confirmed' AND direction = 'slower') AS slower,
       (SELECT count(*) FROM changes WHERE verdict = 'confirmed' AND direction = 'slower' AND NOT EXISTS (
           SELECT FROM regression_series AS member JOIN series ON series.id = member.series_id
           WHERE member.regression_id = changes.id AND member.verdict = 'confirmed' AND series.metric <> 'launch')
        AND EXISTS (SELECT FROM regression_series WHERE regression_id = changes.id)) AS launch,
       (SELECT count(*) FROM changes WHERE verdict = 'suspected') AS suspected
FROM cells
"""


def read_badge_counts(
    session: Session, repository_id: int, line: HistoryLine, operator: str | None = None
) -> BadgeCounts:
    """How a line of history stands; of one operator where it is named."""
    parameters = {"repository_id": repository_id, "operator": operator, **line.parameters}
    return fetch(session, BadgeCounts, _STANDING, **parameters)[0]
