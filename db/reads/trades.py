"""Reads what a commit did beside its times: the errors of its results, which of them differ from call to call, and
the memory and energy of a call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from warpwatch.db.reads.lines import ALL_COMMITS, on_line, read_line_of
from warpwatch.db.reads.quantities import counter_median
from warpwatch.db.reads.query import PRIMARY_METRIC, fetch, fetch_scalar

MOST_CELLS = 500


@dataclass(frozen=True, slots=True)
class TradedCell:
    """A variant on a case that was right at a commit and at the one before that was checked.

    base, head: details of both checks. change: the time over that of the point before, in one environment and by one
    card; None where there is none. base_bytes, head_bytes: memory of a call at these two points, where it was counted.
    base_kept, head_kept: memory that a forward pass keeps until the backward pass, of the same two. base_joules,
    head_joules: energy of a call at this commit, and before it in the same environment and by the same
    card, where both were measured.
    """

    operator: str
    variant: str
    case: str
    device_kind: str
    device_key: str
    base: dict[str, Any]
    head: dict[str, Any]
    change: float | None
    base_bytes: float | None
    head_bytes: float | None
    base_kept: float | None
    head_kept: float | None
    base_joules: float | None
    head_joules: float | None


_MEMORY, _KEPT, _JOULES = (counter_median(name) for name in ("memory", "kept", "energy"))
_CELLS = f"""
SELECT operators.name AS operator, variants.name AS variant, cases.key AS case, device.kind AS device_kind,
       device.key AS device_key, before.details AS base, head.details AS head,
       timed.median_ns / nullif(previous.median_ns, 0) AS change,
       (SELECT {_MEMORY} FROM results WHERE results.id = previous.result_id) AS base_bytes,
       (SELECT {_MEMORY} FROM results WHERE results.id = timed.result_id) AS head_bytes,
       (SELECT {_KEPT} FROM results WHERE results.id = previous.result_id) AS base_kept,
       (SELECT {_KEPT} FROM results WHERE results.id = timed.result_id) AS head_kept,
       metered_before.joules AS base_joules, metered.joules AS head_joules
FROM (
    SELECT DISTINCT ON (operator_id, variant_id, case_id, device_id) * FROM results
    WHERE commit_id = :commit_id AND kind = 'check' AND status = 'ok'
    ORDER BY operator_id, variant_id, case_id, device_id, id DESC LIMIT {MOST_CELLS}
) AS head
JOIN operators ON operators.id = head.operator_id
JOIN variants ON variants.id = head.variant_id
JOIN cases ON cases.id = head.case_id
JOIN devices AS device ON device.id = head.device_id
CROSS JOIN LATERAL (
    SELECT details FROM results
    WHERE results.variant_id = head.variant_id AND results.case_id = head.case_id
      AND results.device_id = head.device_id AND results.kind = 'check' AND results.ordinal < head.ordinal
      AND results.status = 'ok' AND {on_line("results.commit_id")}
    ORDER BY results.ordinal DESC, results.id DESC LIMIT 1
) AS before
LEFT JOIN LATERAL (
    SELECT points.* FROM series JOIN points ON points.series_id = series.id
    WHERE series.operator_id = head.operator_id AND series.device_id = head.device_id
      AND series.case_id = head.case_id AND series.variant_id = head.variant_id
      AND series.metric = {PRIMARY_METRIC} AND points.ordinal = head.ordinal AND points.commit_id = head.commit_id
    ORDER BY series.id DESC, points.id DESC LIMIT 1
) AS timed ON true
LEFT JOIN LATERAL (
    SELECT median_ns, result_id FROM points
    WHERE points.series_id = timed.series_id AND points.ordinal < timed.ordinal
      AND points.environment_id = timed.environment_id
      AND (points.card_id IS NULL OR timed.card_id IS NULL OR points.card_id = timed.card_id)
      AND {on_line("points.commit_id")}
    ORDER BY points.ordinal DESC, points.id DESC LIMIT 1
) AS previous ON true
LEFT JOIN LATERAL (
    SELECT {_JOULES} AS joules, results.environment_id, runs.card_id FROM results
    JOIN runs ON runs.id = results.run_id
    WHERE results.variant_id = head.variant_id AND results.case_id = head.case_id
      AND results.device_id = head.device_id AND results.kind IN ('bench', 'profile') AND results.status = 'ok'
      AND results.commit_id = head.commit_id AND results.ordinal = head.ordinal AND {_JOULES} IS NOT NULL
    ORDER BY results.id DESC LIMIT 1
) AS metered ON true
LEFT JOIN LATERAL (
    SELECT {_JOULES} AS joules FROM results
    JOIN runs ON runs.id = results.run_id
    WHERE metered.joules IS NOT NULL AND results.variant_id = head.variant_id AND results.case_id = head.case_id
      AND results.device_id = head.device_id AND results.kind IN ('bench', 'profile') AND results.status = 'ok'
      AND results.ordinal < head.ordinal AND results.environment_id = metered.environment_id
      AND (runs.card_id IS NULL OR metered.card_id IS NULL OR runs.card_id = metered.card_id)
      AND {_JOULES} IS NOT NULL AND {on_line("results.commit_id")}
    ORDER BY results.ordinal DESC, results.id DESC LIMIT 1
) AS metered_before ON true
ORDER BY operators.name, variants.name, cases.key, device.key
"""


def list_traded_cells(session: Session, commit_id: int) -> list[TradedCell]:
    """The cells that were right at a commit and before it on its line, at most MOST_CELLS."""
    line = read_line_of(session, commit_id) or ALL_COMMITS
    return fetch(session, TradedCell, _CELLS, commit_id=commit_id, **line.parameters)


def find_parent(session: Session, commit_id: int) -> int | None:
    """The id of the first parent of a commit; None where it has none that is known."""
    sql = """
    SELECT parent.id FROM commits
    JOIN commits AS parent ON parent.repository_id = commits.repository_id AND parent.sha = commits.parent_sha
    WHERE commits.id = :id
    """
    found: int | None = fetch_scalar(session, sql, id=commit_id)
    return found
