"""Reads the overview: one cell per operator, case and variant on one device, with its newest state."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.orm import Session

from warpwatch.db.reads.lines import HistoryLine, on_line
from warpwatch.db.reads.query import fetch, metric_choice
from warpwatch.db.regressions import (
    CAN_CONFIRM,
    COMMITS_BETWEEN,
    IS_OPEN,
    IS_SUSPECTED,
    ON_LINE,
    PHASE,
    RANK,
    SEVERITY,
)
from warpwatch.db.watches import is_watched

NEWEST_COMMITS = 20
"""Among which the last two measured ones are looked for; a device that measured none of them is read cell by cell."""


@dataclass(frozen=True, slots=True)
class OverviewCell:
    """The newest state of one variant on one case on one device.

    Timing fields are None where it was never measured; `change` is against the previous measured commit of the same
    environment-free series. check_status and bench_status are the newest results' statuses, None where there is none.
    All of it is said of one branch. regression_*: the worst open change for the worse of this cell; its ratio is that
    of this cell in the A/B comparison, or what later changes left of it; its commits may have caused it, and
    regression_sha is the newest of them. suspected_*: the worst change of this cell that no trial decided. metric: of
    the times: that asked for, or `kernel` in place of `graph`. is_declared: whether the operator declares the case; a
    person asked for any other by its sizes. launch_*: of the host's time of a call, where that is measured beside the
    device's: its series, and its worst change that is open or that no trial decided.
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
    metric: str | None = None
    is_declared: bool = True
    suspected_id: int | None = None
    suspected_direction: str | None = None
    suspected_ratio: float | None = None
    suspected_can_confirm: bool | None = None
    launch_series_id: int | None = None
    launch_regression_id: int | None = None
    launch_verdict: str | None = None
    launch_direction: str | None = None
    launch_ratio: float | None = None
    launch_sha: str | None = None
    launch_can_confirm: bool | None = None


# Nearly all cells were measured at the last two measured commits, whose rows lie together: `near_…` reads them at once.
# A LATERAL is one probe of an index, for a cell that is not there: on a large history each reads pages of its own, and
# a thousand cells took 0.6 s from a disk. So the cost grows with the number of cells and not with the history.
_OVERVIEW = f"""
WITH candidates AS MATERIALIZED (
    SELECT id, ordinal FROM commits WHERE repository_id = :repository_id AND {on_line("commits.id")}
    ORDER BY ordinal DESC, id DESC LIMIT {NEWEST_COMMITS}
), places AS MATERIALIZED (
    SELECT DISTINCT ordinal FROM candidates
    WHERE EXISTS (SELECT FROM results WHERE results.commit_id = candidates.id AND results.device_id = :device_id)
    ORDER BY ordinal DESC LIMIT 2
), near AS MATERIALIZED (
    SELECT id, sha, ordinal, ordinal = (SELECT max(ordinal) FROM places) AS is_last FROM commits
    WHERE repository_id = :repository_id AND ordinal IN (SELECT ordinal FROM places) AND {on_line("commits.id")}
), near_points AS MATERIALIZED (
    SELECT DISTINCT ON (series_id, is_last) series_id, is_last, points.ordinal, median_ns, noise, roofline_share, sha
    FROM near JOIN points ON points.commit_id = near.id JOIN series ON series.id = points.series_id
    WHERE series.device_id = :device_id AND series.metric = ANY(:metrics)
    ORDER BY series_id, is_last, points.id DESC
), near_results AS MATERIALIZED (
    SELECT variant_id, case_id,
           max(status) FILTER (WHERE kind = 'check') AS check_status,
           max(message) FILTER (WHERE kind = 'check') AS check_message,
           max(status) FILTER (WHERE kind = 'bench') AS bench_status,
           max(message) FILTER (WHERE kind = 'bench') AS bench_message
    FROM (
        SELECT DISTINCT ON (variant_id, case_id, kind) variant_id, case_id, kind, status, message
        FROM near JOIN results ON results.commit_id = near.id
        WHERE is_last AND device_id = :device_id AND kind IN ('check', 'bench')
        ORDER BY variant_id, case_id, kind, results.id DESC
    ) AS newest
    GROUP BY variant_id, case_id
), cells AS (
    SELECT operators.name AS operator, cases.key AS case_key, variants.name AS variant,
           operators.id AS operator_id, cases.id AS case_id, variants.id AS variant_id, cases.flops, cases.bytes,
           cases.suites = '["edge"]' AS edge, cases.suites <> '[]' AS is_declared
    FROM operators
    JOIN cases ON cases.operator_id = operators.id
    JOIN variants ON variants.operator_id = operators.id
    WHERE operators.repository_id = :repository_id
      AND (CAST(:operator AS text) IS NULL OR operators.name = :operator)
      AND (CAST(:suite AS text) IS NULL OR cases.suites ? CAST(:suite AS text))
      AND {is_watched("operators.id", "cases.id")}
), open_regressions AS (
    SELECT worst.series_id, regressions.id, regressions.direction, {PHASE} AS phase, worst.ratio, head.sha,
           {COMMITS_BETWEEN} + 1 AS commits
    FROM (
        SELECT DISTINCT ON (member.series_id) member.series_id, ranked.id,
               coalesce(member.left_ratio, member.ratio) AS ratio
        FROM (
            SELECT regressions.id, row_number() OVER (ORDER BY {RANK} DESC, {SEVERITY} DESC, regressions.id) AS place
            FROM regressions JOIN operators ON operators.id = regressions.operator_id
            WHERE operators.repository_id = :repository_id AND regressions.device_id = :device_id AND {IS_OPEN}
              AND regressions.direction <> 'faster' AND {ON_LINE}
        ) AS ranked JOIN regression_series AS member ON member.regression_id = ranked.id
        WHERE member.verdict = 'confirmed' AND member.fixed_by_commit_id IS NULL
        ORDER BY member.series_id, ranked.place
    ) AS worst
    JOIN regressions ON regressions.id = worst.id
    JOIN commits AS base ON base.id = regressions.base_commit_id
    JOIN commits AS head ON head.id = regressions.head_commit_id
), suspected AS (
    SELECT DISTINCT ON (member.series_id) member.series_id, regressions.id, regressions.direction,
           coalesce(member.ratio, member.suspected_ratio) AS ratio, head.sha, {CAN_CONFIRM} AS can_confirm
    FROM regressions JOIN regression_series AS member ON member.regression_id = regressions.id
    JOIN operators ON operators.id = regressions.operator_id
    JOIN commits AS base ON base.id = regressions.base_commit_id
    JOIN commits AS head ON head.id = regressions.head_commit_id
    WHERE operators.repository_id = :repository_id AND regressions.device_id = :device_id AND {IS_SUSPECTED}
      AND member.verdict <> 'dismissed' AND member.fixed_by_commit_id IS NULL AND {ON_LINE}
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
       open_regressions.sha AS regression_sha, open_regressions.commits AS regression_commits,
       series.metric, cells.is_declared, suspected.id AS suspected_id, suspected.direction AS suspected_direction,
       suspected.ratio AS suspected_ratio, suspected.can_confirm AS suspected_can_confirm,
       launch.id AS launch_series_id, coalesce(open_launch.id, suspected_launch.id) AS launch_regression_id,
       CASE WHEN open_launch.id IS NOT NULL THEN 'confirmed' WHEN suspected_launch.id IS NOT NULL THEN 'suspected' END
            AS launch_verdict,
       coalesce(open_launch.direction, suspected_launch.direction) AS launch_direction,
       CASE WHEN open_launch.id IS NOT NULL THEN open_launch.ratio ELSE suspected_launch.ratio END AS launch_ratio,
       coalesce(open_launch.sha, suspected_launch.sha) AS launch_sha,
       suspected_launch.can_confirm AS launch_can_confirm
FROM cells
LEFT JOIN LATERAL (
    SELECT id, metric FROM series WHERE series.operator_id = cells.operator_id AND series.device_id = :device_id
      AND series.case_id = cells.case_id AND series.variant_id = cells.variant_id AND series.metric = ANY(:metrics)
    ORDER BY :is_single OR EXISTS (SELECT FROM points WHERE points.series_id = series.id) DESC,
             series.metric = :metric DESC, id DESC LIMIT 1
) AS series ON true
LEFT JOIN LATERAL (
    SELECT id FROM series WHERE :has_launch AND series.operator_id = cells.operator_id AND series.device_id = :device_id
      AND series.case_id = cells.case_id AND series.variant_id = cells.variant_id AND series.metric = 'launch'
    ORDER BY id DESC LIMIT 1
) AS launch ON true
LEFT JOIN near_points AS last ON last.series_id = series.id AND last.is_last
LEFT JOIN near_points AS before ON before.series_id = series.id AND NOT before.is_last AND last.series_id IS NOT NULL
LEFT JOIN near_results ON near_results.variant_id = cells.variant_id AND near_results.case_id = cells.case_id
LEFT JOIN LATERAL (
    SELECT points.ordinal, points.median_ns, points.noise, points.roofline_share, commits.sha
    FROM points JOIN commits ON commits.id = points.commit_id
    WHERE last.series_id IS NULL AND points.series_id = series.id AND {on_line("points.commit_id")}
    ORDER BY points.ordinal DESC, points.id DESC LIMIT 1
) AS earlier ON true
CROSS JOIN LATERAL (
    SELECT coalesce(last.ordinal, earlier.ordinal) AS ordinal, coalesce(last.median_ns, earlier.median_ns) AS median_ns,
           coalesce(last.noise, earlier.noise) AS noise, coalesce(last.sha, earlier.sha) AS sha,
           CASE WHEN last.series_id IS NULL THEN earlier.roofline_share ELSE last.roofline_share END AS roofline_share
) AS newest
LEFT JOIN LATERAL (
    SELECT points.median_ns, commits.sha FROM points JOIN commits ON commits.id = points.commit_id
    WHERE before.series_id IS NULL AND points.series_id = series.id AND points.ordinal < newest.ordinal
      AND {on_line("points.commit_id")}
    ORDER BY points.ordinal DESC, points.id DESC LIMIT 1
) AS still_earlier ON true
CROSS JOIN LATERAL (
    SELECT coalesce(before.median_ns, still_earlier.median_ns) AS median_ns,
           coalesce(before.sha, still_earlier.sha) AS sha
) AS previous
LEFT JOIN LATERAL (
    SELECT check_status AS status, check_message AS message WHERE check_status IS NOT NULL
    UNION ALL (
        SELECT status, message FROM results
        WHERE check_status IS NULL AND results.variant_id = cells.variant_id AND results.case_id = cells.case_id
          AND results.device_id = :device_id AND results.kind = 'check' AND {on_line("results.commit_id")}
        ORDER BY ordinal DESC, id DESC LIMIT 1)
) AS checked ON true
LEFT JOIN LATERAL (
    SELECT bench_status AS status, bench_message AS message WHERE bench_status IS NOT NULL
    UNION ALL (
        SELECT status, message FROM results
        WHERE bench_status IS NULL AND results.variant_id = cells.variant_id AND results.case_id = cells.case_id
          AND results.device_id = :device_id AND results.kind = 'bench' AND {on_line("results.commit_id")}
        ORDER BY ordinal DESC, id DESC LIMIT 1)
) AS benched ON true
LEFT JOIN open_regressions ON open_regressions.series_id = series.id
LEFT JOIN suspected ON suspected.series_id = series.id
LEFT JOIN open_regressions AS open_launch ON open_launch.series_id = launch.id
LEFT JOIN suspected AS suspected_launch ON suspected_launch.series_id = launch.id
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
    watcher: str | None = None,
) -> list[OverviewCell]:
    """Cells that were ever tried on the device at a commit of the line, in the order the cases and variants came to be.

    metric: of the times; of a variant that cannot be captured in a CUDA graph, `kernel` stands for `graph`. watcher: a
    person, whose watched cases are read alone.
    """
    return fetch(
        session,
        OverviewCell,
        _OVERVIEW,
        repository_id=repository_id,
        device_id=device_id,
        suite=suite,
        operator=operator,
        watcher=watcher,
        **metric_choice(metric),
        **line.parameters,
    )
