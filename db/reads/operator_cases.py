"""Reads the cases of operators on one device: the newest time of every series, and what is open or suspected."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from warpwatch.db.reads.lines import HistoryLine, on_line
from warpwatch.db.reads.query import SIGNAL, fetch, metric_choice
from warpwatch.db.regressions import CAN_CONFIRM, IS_OPEN, IS_SUSPECTED, ON_LINE, PHASE


@dataclass(frozen=True, slots=True)
class CaseSeries:
    """A variant on a case: the series of its newest protocol, or of the protocol that was asked for.

    median_ns, roofline_share: of its newest point on the line; None where it has none there. check_status: of its
    newest check. metric: that asked for, or `kernel` in place of `graph`. suites: that declare the case; none where a
    person asked for it by its sizes.
    """

    operator: str
    case: str
    variant: str
    series_id: int
    suites: list[str]
    median_ns: float | None
    roofline_share: float | None
    check_status: str | None
    metric: str = ""

    @property
    def is_right(self) -> bool:
        """Whether its time counts: the time of a wrong result says nothing about a correct kernel."""
        return self.median_ns is not None and self.check_status in (None, "ok")


@dataclass(frozen=True, slots=True)
class CaseChange:
    """An open change, or a suspected one, of one series. head_id: the commit at which it shows. ratio: what is left of
    it. can_confirm: whether a trial can still decide it. signal: contract.words.Signal of the series."""

    operator: str
    series_id: int
    regression_id: int
    direction: str
    phase: str
    ratio: float | None
    head_id: int
    case: str
    variant: str
    can_confirm: bool = True
    signal: str | None = None


@dataclass(frozen=True, slots=True)
class ChangeCounts:
    """Regressions of an operator: open ones, improvements left out, and suspected changes."""

    operator: str
    open: int
    suspected: int


_SERIES = f"""
SELECT DISTINCT ON (series.case_id, series.variant_id)
       operators.name AS operator, cases.key AS case, variants.name AS variant, series.id AS series_id, cases.suites,
       newest.median_ns, newest.roofline_share, checked.status AS check_status, series.metric
FROM operators JOIN series ON series.operator_id = operators.id
JOIN cases ON cases.id = series.case_id JOIN variants ON variants.id = series.variant_id
LEFT JOIN LATERAL (
    SELECT median_ns, roofline_share FROM points WHERE points.series_id = series.id AND {on_line("points.commit_id")}
    ORDER BY points.ordinal DESC, points.id DESC LIMIT 1
) AS newest ON true
LEFT JOIN LATERAL (
    SELECT status FROM results
    WHERE results.variant_id = series.variant_id AND results.case_id = series.case_id
      AND results.device_id = series.device_id AND results.kind = 'check' AND {on_line("results.commit_id")}
    ORDER BY results.ordinal DESC, results.id DESC LIMIT 1
) AS checked ON true
WHERE operators.repository_id = :repository_id
  AND (CAST(:operator_id AS bigint) IS NULL OR operators.id = :operator_id)
  AND series.device_id = :device_id AND series.metric = ANY(:metrics)
  AND (CAST(:protocol AS text) IS NULL OR series.protocol = :protocol)
ORDER BY series.case_id, series.variant_id, :is_single OR newest.median_ns IS NOT NULL DESC,
         series.metric = :metric DESC, series.id DESC
"""

_COUNTS = f"""
SELECT operators.name AS operator,
       count(*) FILTER (WHERE {IS_OPEN} AND regressions.direction <> 'faster') AS open,
       count(*) FILTER (WHERE regressions.verdict = 'suspected' AND regressions.state <> 'invalid') AS suspected
FROM operators JOIN regressions ON regressions.operator_id = operators.id
JOIN commits AS base ON base.id = regressions.base_commit_id
JOIN commits AS head ON head.id = regressions.head_commit_id
WHERE operators.repository_id = :repository_id AND regressions.device_id = :device_id
  AND regressions.verdict IN ('confirmed', 'suspected') AND {ON_LINE}
GROUP BY operators.name
"""

_CHANGES = f"""
SELECT operators.name AS operator, member.series_id, regressions.id AS regression_id, regressions.direction,
       {PHASE} AS phase, coalesce(member.left_ratio, member.ratio, member.suspected_ratio) AS ratio, head.id AS head_id,
       cases.key AS case, variants.name AS variant,
       {CAN_CONFIRM} AS can_confirm, {SIGNAL} AS signal
FROM operators JOIN regressions ON regressions.operator_id = operators.id
JOIN regression_series AS member ON member.regression_id = regressions.id
JOIN series ON series.id = member.series_id
JOIN cases ON cases.id = series.case_id JOIN variants ON variants.id = series.variant_id
JOIN commits AS base ON base.id = regressions.base_commit_id
JOIN commits AS head ON head.id = regressions.head_commit_id
WHERE operators.repository_id = :repository_id
  AND (CAST(:operator_id AS bigint) IS NULL OR operators.id = :operator_id)
  AND regressions.device_id = :device_id AND member.fixed_by_commit_id IS NULL
  AND (({IS_OPEN} AND member.verdict = 'confirmed') OR {IS_SUSPECTED})
  AND {ON_LINE}
ORDER BY regressions.id DESC LIMIT :limit
"""
MAX_CHANGES = 200


def list_case_series(
    session: Session,
    repository_id: int,
    device_id: int,
    metric: str,
    line: HistoryLine,
    operator_id: int | None = None,
    protocol: str | None = None,
) -> list[CaseSeries]:
    """One row for every case and variant with a series, in the order in which cases and variants came to be. protocol:
    the only one that counts; by default the newest of each case and variant."""
    chosen = {"repository_id": repository_id, "operator_id": operator_id, "device_id": device_id}
    return fetch(session, CaseSeries, _SERIES, protocol=protocol, **chosen, **metric_choice(metric), **line.parameters)


def list_case_changes(
    session: Session, repository_id: int, device_id: int, line: HistoryLine, operator_id: int | None = None
) -> list[CaseChange]:
    """The newest MAX_CHANGES open or suspected changes of an operator, or of all, one row per series and change."""
    chosen = {"repository_id": repository_id, "operator_id": operator_id, "device_id": device_id}
    return fetch(session, CaseChange, _CHANGES, limit=MAX_CHANGES, **chosen, **line.parameters)


def count_changes(session: Session, repository_id: int, device_id: int, line: HistoryLine) -> dict[str, ChangeCounts]:
    """The counts of every operator that has an open or suspected change on the device, by its name."""
    rows = fetch(session, ChangeCounts, _COUNTS, repository_id=repository_id, device_id=device_id, **line.parameters)
    return {row.operator: row for row in rows}


def list_shas(session: Session, commit_ids: Iterable[int]) -> dict[int, str]:
    """The full id of each commit."""
    found = session.execute(text("SELECT id, sha FROM commits WHERE id = ANY(:ids)"), {"ids": list(commit_ids)})
    return {row.id: row.sha for row in found}


@dataclass(frozen=True, slots=True)
class MeasuredCurves:
    """The curves of a right result of a check, as JSON: see contract.measurement.Curves."""

    variant: str
    case: str
    commit_sha: str
    curves: dict[str, Any]


_CURVES = """
WITH newest AS (
    SELECT commit_id FROM results
    WHERE operator_id = :operator_id AND device_id = :device_id AND kind = 'check' AND {line}
    ORDER BY ordinal DESC, id DESC LIMIT 1
)
SELECT variants.name AS variant, cases.key AS case, commits.sha AS commit_sha, details -> 'curves' AS curves
FROM newest JOIN results USING (commit_id) JOIN commits ON commits.id = commit_id
JOIN variants ON variants.id = results.variant_id JOIN cases ON cases.id = results.case_id
WHERE results.operator_id = :operator_id AND results.device_id = :device_id AND results.kind = 'check'
  AND status = 'ok' AND jsonb_typeof(details -> 'curves') = 'object'
ORDER BY results.id DESC LIMIT 50
"""


def list_curves(session: Session, operator_id: int, device_id: int, line: HistoryLine) -> list[MeasuredCurves]:
    """The curves of the newest commit that was checked on a device, the last recorded first."""
    sql = _CURVES.format(line=on_line("results.commit_id"))
    return fetch(session, MeasuredCurves, sql, operator_id=operator_id, device_id=device_id, **line.parameters)


@dataclass(frozen=True, slots=True)
class MetricTime:
    """The newest time of a variant on a case in one metric."""

    metric: str
    case: str
    variant: str
    median_ns: float


_METRIC_TIMES = """
SELECT DISTINCT ON (series.metric, series.case_id, series.variant_id)
       series.metric, cases.key AS case, variants.name AS variant, newest.median_ns
FROM series JOIN cases ON cases.id = series.case_id JOIN variants ON variants.id = series.variant_id
CROSS JOIN LATERAL (
    SELECT median_ns, ordinal FROM points WHERE points.series_id = series.id AND {line}
    ORDER BY points.ordinal DESC, points.id DESC LIMIT 1
) AS newest
WHERE series.operator_id = :operator_id AND series.device_id = :device_id AND series.metric = ANY(:metrics)
ORDER BY series.metric, series.case_id, series.variant_id, newest.ordinal DESC, series.id DESC
"""


def list_metric_times(
    session: Session, operator_id: int, device_id: int, metrics: Sequence[str], line: HistoryLine
) -> list[MetricTime]:
    sql = _METRIC_TIMES.format(line=on_line("points.commit_id"))
    chosen = {"operator_id": operator_id, "device_id": device_id, "metrics": [*metrics]}
    return fetch(session, MetricTime, sql, **chosen, **line.parameters)
