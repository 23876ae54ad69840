"""Reads the overview: one cell per operator, case and variant on one device, with its newest state."""

from __future__ import annotations

from dataclasses import dataclass

from warpwatch.db.reads.lines import HistoryLine, on_line
from warpwatch.db.reads.query import Session, fetch
from warpwatch.db.reads.regressions import COMMITS_BETWEEN, IS_OPEN, ON_LINE, PHASE, RANK, SEVERITY


@dataclass(frozen=True, slots=True)
class OverviewCell:
    """The newest state of one variant on one case on one device.

    Timing fields are None where it was never measured; `change` is against the previous measured commit of the same
    environment-free series. check_status and bench_status are the newest results' statuses, None where there is none.
    All of it is said of one branch. regression_*: the worst open change for the worse of this cell; its ratio is that
    of this cell in the A/B comparison; its commits may have caused it, and regression_sha is the newest of them.
    """

    operator: str
    case: str
    variant: str
    series_id: int | None
    commit_sha: str | None
    median_ns: float | None
    noise: float | None
    roofline_share: float | None
    gflops: float | None
    gbs: float | None
    previous_ns: float | None
    previous_sha: str | None
    change: float | None
    check_status: str | None
    check_message: str
    bench_status: str | None
    bench_message: str
    regression_id: int | None
    regression_direction: str | None = None
    regression_phase: str | None = None
    regression_ratio: float | None = None
    regression_sha: str | None = None
    regression_commits: int | None = None


# Every LATERAL below is one probe of an index, so the cost grows with the number of cells and not with the history.
_OVERVIEW = f"""
WITH cells AS (
    SELECT operators.name AS operator, cases.key AS case_key, variants.name AS variant,
           operators.id AS operator_id, cases.id AS case_id, variants.id AS variant_id, cases.flops, cases.bytes,
           cases.suites = '["edge"]' AS edge
    FROM operators
    JOIN cases ON cases.operator_id = operators.id
    JOIN variants ON variants.operator_id = operators.id
    WHERE operators.repository_id = :repository_id
      AND (CAST(:operator AS text) IS NULL OR operators.name = :operator)
      AND (CAST(:suite AS text) IS NULL OR cases.suites ? CAST(:suite AS text))
), open_regressions AS (
    SELECT DISTINCT ON (member.series_id) member.series_id, regressions.id, regressions.direction, {PHASE} AS phase,
           member.ratio, head.sha, {COMMITS_BETWEEN} + 1 AS commits
    FROM regressions JOIN regression_series AS member ON member.regression_id = regressions.id
    JOIN operators ON operators.id = regressions.operator_id
    JOIN commits AS base ON base.id = regressions.base_commit_id
    JOIN commits AS head ON head.id = regressions.head_commit_id
    WHERE operators.repository_id = :repository_id AND regressions.device_id = :device_id AND {IS_OPEN}
      AND regressions.direction <> 'faster' AND member.verdict = 'confirmed' AND {ON_LINE}
    ORDER BY member.series_id, {RANK} DESC, {SEVERITY} DESC, regressions.id
)
SELECT cells.operator, cells.case_key AS case, cells.variant,
       series.id AS series_id, newest.sha AS commit_sha, newest.median_ns, newest.noise, newest.roofline_share,
       cells.flops / nullif(newest.median_ns, 0) AS gflops, cells.bytes / nullif(newest.median_ns, 0) AS gbs,
       previous.median_ns AS previous_ns, previous.sha AS previous_sha,
       newest.median_ns / nullif(previous.median_ns, 0) AS change,
       checked.status AS check_status, coalesce(checked.message, '') AS check_message,
       benched.status AS bench_status, coalesce(benched.message, '') AS bench_message,
       open_regressions.id AS regression_id, open_regressions.direction AS regression_direction,
       open_regressions.phase AS regression_phase, open_regressions.ratio AS regression_ratio,
       open_regressions.sha AS regression_sha, open_regressions.commits AS regression_commits
FROM cells
LEFT JOIN LATERAL (
    SELECT id FROM series WHERE series.operator_id = cells.operator_id AND series.device_id = :device_id
      AND series.case_id = cells.case_id AND series.variant_id = cells.variant_id AND series.metric = :metric
    ORDER BY id DESC LIMIT 1
) AS series ON true
LEFT JOIN LATERAL (
    SELECT points.commit_id, points.ordinal, points.median_ns, points.noise, points.roofline_share, commits.sha
    FROM points JOIN commits ON commits.id = points.commit_id
    WHERE points.series_id = series.id AND {on_line("points.commit_id")}
    ORDER BY points.ordinal DESC, points.id DESC LIMIT 1
) AS newest ON true
LEFT JOIN LATERAL (
    SELECT points.median_ns, commits.sha FROM points JOIN commits ON commits.id = points.commit_id
    WHERE points.series_id = series.id AND points.ordinal < newest.ordinal AND {on_line("points.commit_id")}
    ORDER BY points.ordinal DESC, points.id DESC LIMIT 1
) AS previous ON true
LEFT JOIN LATERAL (
    SELECT status, message FROM results WHERE results.variant_id = cells.variant_id AND results.case_id = cells.case_id
      AND results.device_id = :device_id AND results.kind = 'check' AND {on_line("results.commit_id")}
    ORDER BY ordinal DESC, id DESC LIMIT 1
) AS checked ON true
LEFT JOIN LATERAL (
    SELECT status, message FROM results WHERE results.variant_id = cells.variant_id AND results.case_id = cells.case_id
      AND results.device_id = :device_id AND results.kind = 'bench' AND {on_line("results.commit_id")}
    ORDER BY ordinal DESC, id DESC LIMIT 1
) AS benched ON true
LEFT JOIN open_regressions ON open_regressions.series_id = series.id
WHERE (series.id IS NOT NULL OR checked.status IS NOT NULL OR benched.status IS NOT NULL)
  -- Cases that are checked alone fill no rows, unless asked for, or unless one of them is not right.
  AND (NOT cells.edge OR coalesce(CAST(:suite AS text), '') = 'edge' OR series.id IS NOT NULL
       OR checked.status NOT IN ('ok', 'unsupported', 'skipped'))
ORDER BY cells.operator, cells.case_id, cells.variant_id
"""


def read_overview(
    session: Session,
    repository_id: int,
    device_id: int,
    metric: str,
    line: HistoryLine,
    suite: str | None = None,
    operator: str | None = None,
) -> list[OverviewCell]:
    """Cells that were ever tried on the device at a commit of the line, in the order the cases and variants came to
    be."""
    return fetch(
        session,
        OverviewCell,
        _OVERVIEW,
        repository_id=repository_id,
        device_id=device_id,
        metric=metric,
        suite=suite,
        operator=operator,
        **line.parameters,
    )
