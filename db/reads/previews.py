"""Reads what a list of regressions shows of each: the series that shows it most, with its times around the change."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from warpwatch.contract.rounds import times_of_rounds
from warpwatch.db.reads.lines import HistoryLine, on_line
from warpwatch.db.reads.query import fetch
from warpwatch.db.regressions import deciding_rounds

BEFORE, AFTER = 24, 12
"""Points of the series before the change and from it on."""
CHECKS_BEFORE, CHECKS_AFTER = 8, 6
"""Commits with a check before something broke and from then on."""


@dataclass(frozen=True, slots=True)
class ChangePreview:
    """The series is the worst that still shows the regression. affected: series that still show it, of the `cases` that
    their variants have.

    before_ns, after_ns: times of the A/B rounds; None where none were measured, or a later commit undid a part.
    medians: of the series, oldest first. changed_at: index of the first of them at the head or later. statuses: of the
    checks of what broke, one per commit, oldest first; failed_at: index of the first of them at the head or later.
    """

    regression_id: int
    series_id: int
    variant: str
    case: str
    affected: int
    cases: int
    before_ns: float | None
    after_ns: float | None
    medians: list[float]
    changed_at: int
    statuses: list[str]
    failed_at: int


def _near(ordinal: str, order: str, limit: int) -> str:
    return f"""
    (SELECT points.ordinal, points.id, points.median_ns FROM points
     WHERE points.series_id = worst.series_id AND points.ordinal {ordinal} head.ordinal
       AND {on_line("points.commit_id")}
     ORDER BY points.ordinal {order}, points.id {order} LIMIT {limit})
    """


def _checks(ordinal: str, order: str, limit: int) -> str:
    return f"""
    (SELECT DISTINCT ON (results.ordinal) results.ordinal, results.status FROM results
     WHERE regressions.direction = 'broken' AND results.variant_id = worst.variant_id
       AND results.case_id = worst.case_id AND results.device_id = regressions.device_id AND results.kind = 'check'
       AND results.ordinal {ordinal} head.ordinal AND {on_line("results.commit_id")}
     ORDER BY results.ordinal {order}, results.id DESC LIMIT {limit})
    """


_PREVIEWS = f"""
SELECT regressions.id AS regression_id, worst.series_id, variants.name AS variant, cases.key AS case,
       (SELECT count(*) FROM regression_series AS shown WHERE shown.regression_id = regressions.id
          AND (regressions.verdict <> 'confirmed' OR shown.verdict = 'confirmed')
          AND (regressions.partly_fixed_by_commit_id IS NULL OR regressions.state IN ('fixed', 'reverted')
               OR shown.fixed_by_commit_id IS NULL)) AS affected,
       (SELECT count(*) FROM series AS every
        WHERE every.operator_id = regressions.operator_id AND every.device_id = regressions.device_id
          AND every.metric = worst.metric AND every.protocol = worst.protocol
          AND (regressions.direction = 'broken'
               OR (SELECT points.id FROM points WHERE points.series_id = every.id LIMIT 1) IS NOT NULL)
          AND every.variant_id IN (SELECT own.variant_id FROM regression_series JOIN series AS own ON own.id = series_id
                                   WHERE regression_id = regressions.id)) AS cases,
       CASE WHEN worst.left_ratio IS NULL THEN coalesce(compared.base_ns, '[]') ELSE '[]' END AS base_ns,
       CASE WHEN worst.left_ratio IS NULL THEN coalesce(compared.head_ns, '[]') ELSE '[]' END AS head_ns,
       coalesce(around.medians, '[]') AS medians, around.changed_at,
       coalesce(checked.statuses, '[]') AS statuses, checked.failed_at
FROM regressions
JOIN commits AS head ON head.id = regressions.head_commit_id
CROSS JOIN LATERAL (
    SELECT series.id AS series_id, series.metric, series.protocol, series.variant_id, series.case_id, left_ratio
    FROM regression_series AS member JOIN series ON series.id = member.series_id
    WHERE member.regression_id = regressions.id
    ORDER BY member.verdict = 'confirmed' DESC, member.fixed_by_commit_id IS NULL DESC,
             abs(ln(greatest(coalesce(member.left_ratio, member.ratio, 1), 1e-9))) DESC, series.id
    LIMIT 1
) AS worst
JOIN variants ON variants.id = worst.variant_id
JOIN cases ON cases.id = worst.case_id
{deciding_rounds("worst.series_id")}
CROSS JOIN LATERAL (
    SELECT jsonb_agg(near.median_ns ORDER BY near.ordinal, near.id) AS medians,
           count(*) FILTER (WHERE near.ordinal < head.ordinal) AS changed_at
    FROM ({_near("<", "DESC", BEFORE)} UNION ALL {_near(">=", "ASC", AFTER)}) AS near
) AS around
CROSS JOIN LATERAL (
    SELECT jsonb_agg(near.status ORDER BY near.ordinal) AS statuses,
           count(*) FILTER (WHERE near.ordinal < head.ordinal) AS failed_at
    FROM ({_checks("<", "DESC", CHECKS_BEFORE)} UNION ALL {_checks(">=", "ASC", CHECKS_AFTER)}) AS near
) AS checked
WHERE regressions.id = ANY(:ids)
"""


def list_previews(session: Session, ids: Iterable[int], line: HistoryLine) -> dict[int, ChangePreview]:
    """The previews of regressions by their id, with the points of one line of history."""

    def preview(base_ns: list[float], head_ns: list[float], **columns: Any) -> ChangePreview:
        before_ns, after_ns = times_of_rounds(base_ns, head_ns)
        return ChangePreview(before_ns=before_ns, after_ns=after_ns, **columns)

    rows = fetch(session, preview, _PREVIEWS, ids=list(ids), **line.parameters)
    return {row.regression_id: row for row in rows}
