"""Reads how every cell of an operator fared around a change: which changed too, and which did not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from warpwatch.db.reads.lines import line_of, on_line
from warpwatch.db.reads.query import IS_DEVICE_TIME, PRIMARY_METRIC, fetch

NEAR = 300
"""Generations from a change within which a measurement still says something of it."""


@dataclass(frozen=True, slots=True)
class CellAround:
    """One variant on one case, as it was before the base and behind the head of a regression.

    verdict, decided: what measuring in turn said of its series, and its ratio there; None where it is no part of the
    regression. ratio: of the nearest times on both sides, taken in one environment. base_status, head_status: of the
    nearest checks, where the regression is of something broken.
    """

    regression_id: int
    operator: str
    variant: str
    device: str
    sizes: dict[str, Any]
    precision: str
    direction: str
    layout: str
    verdict: str | None
    decided: float | None
    ratio: float | None
    base_status: str | None
    head_status: str | None


_LINE = ("asked.line_id", "asked.trunk_id", "asked.fork_at")

# Every LATERAL is one probe of an index. Times are looked at unless something broke, statuses of checks only then.
_CELLS = f"""
WITH asked AS MATERIALIZED (
    SELECT regressions.id, regressions.operator_id, regressions.device_id,
         regressions.direction = 'broken' AS is_broken,
           NOT EXISTS (SELECT FROM regression_series AS member JOIN series ON series.id = member.series_id
                       WHERE member.regression_id = regressions.id AND member.verdict = 'confirmed'
                         AND series.metric <> 'launch') AND regressions.verdict = 'confirmed'
                AND regressions.direction <> 'broken' AS is_launch,
           base.ordinal AS base_at, head.ordinal AS head_at, line.line_id, line.trunk_id, line.fork_at
    FROM regressions
    JOIN commits AS base ON base.id = regressions.base_commit_id JOIN commits AS head
         ON head.id = regressions.head_commit_id
    LEFT JOIN LATERAL {line_of("head.id")} AS line ON true
    WHERE regressions.id = ANY(:ids)
)
SELECT asked.id AS regression_id, operators.name AS operator, variants.name AS variant, device.key AS device,
       cases.sizes, cases.precision, cases.direction, cases.layout, member.verdict, member.ratio AS decided,
       behind.median_ns / nullif(before.median_ns, 0) AS ratio, good.status AS base_status, bad.status AS head_status
FROM asked
JOIN operators ON operators.id = asked.operator_id
JOIN devices AS device ON device.id = asked.device_id
JOIN cases ON cases.operator_id = asked.operator_id
JOIN variants ON variants.operator_id = asked.operator_id
LEFT JOIN LATERAL (
    SELECT id FROM series WHERE series.operator_id = asked.operator_id AND series.device_id = asked.device_id
      AND series.case_id = cases.id AND series.variant_id = variants.id
      AND CASE WHEN asked.is_launch THEN series.metric = 'launch' ELSE {IS_DEVICE_TIME} END
    ORDER BY series.metric = {PRIMARY_METRIC} DESC, id DESC LIMIT 1
) AS series ON true
LEFT JOIN regression_series AS member ON member.regression_id = asked.id AND member.series_id = series.id
LEFT JOIN LATERAL (
    SELECT median_ns, environment_id, card_id FROM points
    WHERE NOT asked.is_broken AND points.series_id = series.id AND points.ordinal BETWEEN asked.base_at - {NEAR}
         AND asked.base_at AND {on_line("points.commit_id", *_LINE)}
    ORDER BY points.ordinal DESC, points.id DESC LIMIT 1
) AS before ON true
LEFT JOIN LATERAL (
    SELECT median_ns FROM points
    WHERE points.series_id = series.id AND points.environment_id = before.environment_id
      AND points.card_id IS NOT DISTINCT FROM before.card_id
      AND points.ordinal BETWEEN asked.head_at AND asked.head_at + {NEAR}
      AND {on_line("points.commit_id", *_LINE)}
    ORDER BY points.ordinal, points.id DESC LIMIT 1
) AS behind ON true
LEFT JOIN LATERAL (
    SELECT status FROM results
    WHERE asked.is_broken AND results.variant_id = variants.id AND results.case_id = cases.id
         AND results.device_id = asked.device_id
      AND results.kind = 'check' AND results.ordinal BETWEEN asked.base_at - {NEAR} AND asked.base_at
      AND {on_line("results.commit_id", *_LINE)}
    ORDER BY results.ordinal DESC, results.id DESC LIMIT 1
) AS good ON true
LEFT JOIN LATERAL (
    SELECT status FROM results
    WHERE asked.is_broken AND results.variant_id = variants.id AND results.case_id = cases.id
         AND results.device_id = asked.device_id
      AND results.kind = 'check' AND results.ordinal BETWEEN asked.head_at AND asked.head_at + {NEAR}
      AND {on_line("results.commit_id", *_LINE)}
    ORDER BY results.ordinal, results.id DESC LIMIT 1
) AS bad ON true
WHERE member.verdict IS NOT NULL OR behind.median_ns IS NOT NULL OR (good.status IS NOT NULL AND bad.status IS NOT NULL)
"""


def list_cells_around(session: Session, regression_ids: Iterable[int]) -> list[CellAround]:
    """Every cell of the operators and devices of these regressions that was measured on both sides, or is part of one
    of them."""
    return fetch(session, CellAround, _CELLS, ids=list(regression_ids))
