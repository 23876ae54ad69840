"""The end of changes that are confirmed, or that imports alone show: reads the evidence (later checks, later changes in
the other direction, merges), and writes what is left of a change, series by series: a change may be undone for some of
its series only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from warpwatch.contract.words import Triage, Verdict
from warpwatch.db.live import announce
from warpwatch.db.models import RegressionRecord, RegressionSeriesRecord
from warpwatch.db.reads.lines import line_of, on_line
from warpwatch.db.reads.query import fetch
from warpwatch.db.regressions import IS_OPEN, IS_SUSPECTED, IS_UNPAIRED, lock
from warpwatch.db.triage import SERVICE, set_triage

MOST_CHECKS = 200
"""Newest checks of one cell that are looked at."""
# What was closed once and opened again stays open, because a person knows better.
_OPEN = f"{IS_OPEN} AND regressions.fixed_by_commit_id IS NULL"
_CLOSABLE = f"({_OPEN} OR {IS_UNPAIRED} AND {IS_SUSPECTED} AND regressions.fixed_by_commit_id IS NULL)"
_LINE = ("line.line_id", "line.trunk_id", "line.fork_at")


@dataclass(frozen=True, slots=True)
class LaterCheck:
    """A check of a broken series at a commit of the line after the change; of each commit the newest."""

    regression_id: int
    series_id: int
    commit_id: int
    sha: str
    ordinal: int
    status: str


@dataclass(frozen=True, slots=True)
class LaterChange:
    """A confirmed or unpaired change of a series from an open one on, that one included (is_first).

    ratio: head over base; 1 where a comparison showed no change of the series, None where none was made.
    before_ns, after_ns: of the series at the newest commit up to the open change's base, and at the newest commit from
    this change's head up to the base of the next change. is_settled: whether its range will not become narrower, and
    readings behind it cannot withdraw it any more.
    """

    regression_id: int
    series_id: int
    other_id: int
    is_first: bool
    is_settled: bool
    commit_id: int
    sha: str
    ordinal: int
    ratio: float | None
    before_ns: float | None
    after_ns: float | None
    metric: str = ""
    protocol: str = ""


@dataclass(frozen=True, slots=True)
class OpenChange:
    """A confirmed or unpaired change that is open, with the series that show it. base_sha: the last commit without
    it."""

    regression_id: int
    operator: str
    repository_url: str
    device_kind: str
    direction: str
    base_sha: str
    series: list[int]
    definitions_url: str | None = None
    definitions_sha: str | None = None


def list_open_changes(session: Session, operator_id: int, device_id: int) -> list[OpenChange]:
    """Changes for the worse of an operator on a device that nothing has ended."""
    sql = f"""
    SELECT regressions.id AS regression_id, operators.name AS operator, url AS repository_url,
           devices.kind AS device_kind, direction, base.sha AS base_sha,
           (SELECT coalesce(jsonb_agg(series_id ORDER BY series_id), '[]') FROM regression_series AS member
            WHERE member.regression_id = regressions.id AND member.verdict = regressions.verdict) AS series,
           definitions_url, definitions_sha
    FROM regressions JOIN operators ON operators.id = operator_id
    JOIN repositories ON repositories.id = operators.repository_id JOIN devices ON devices.id = device_id
    JOIN commits AS base ON base.id = base_commit_id
    WHERE operator_id = :operator_id AND device_id = :device_id AND {_CLOSABLE} AND direction <> 'faster'
    ORDER BY regressions.id
    """
    return fetch(session, OpenChange, sql, operator_id=operator_id, device_id=device_id)


def list_later_checks(session: Session, operator_id: int, device_id: int) -> list[LaterCheck]:
    """The checks after every open breakage of an operator on a device, by series, oldest commit first."""
    sql = f"""
    SELECT regressions.id AS regression_id, member.series_id, later.commit_id, commits.sha, later.ordinal, later.status
    FROM regressions JOIN regression_series AS member ON member.regression_id = regressions.id
    JOIN series ON series.id = member.series_id
    JOIN commits AS head ON head.id = regressions.head_commit_id
    LEFT JOIN LATERAL {line_of("head.id")} AS line ON true
    CROSS JOIN LATERAL (
        SELECT DISTINCT ON (ordinal, commit_id) commit_id, ordinal, status FROM results
        WHERE results.variant_id = series.variant_id AND results.case_id = series.case_id
          AND results.device_id = series.device_id AND results.kind = 'check' AND results.ordinal > head.ordinal
          AND results.status NOT IN ('unsupported', 'skipped') AND {on_line("results.commit_id", *_LINE)}
        ORDER BY ordinal DESC, commit_id DESC, id DESC LIMIT {MOST_CHECKS}
    ) AS later
    JOIN commits ON commits.id = later.commit_id
    WHERE regressions.operator_id = :operator_id AND regressions.device_id = :device_id AND {_OPEN}
      AND regressions.direction = 'broken' AND member.verdict = 'confirmed'
    ORDER BY regressions.id, member.series_id, later.ordinal, later.commit_id
    """
    return fetch(session, LaterCheck, sql, operator_id=operator_id, device_id=device_id)


def list_later_changes(session: Session, operator_id: int, device_id: int, final_readings: int) -> list[LaterChange]:
    """All confirmed changes of time on the line of every open slow-down, from itself on, by series, oldest first.

    Of slow-downs that nothing measured here decided, the unpaired ones, too: those of history alone. final_readings:
    later commits with which a suspicion of history alone is not withdrawn any more.
    """
    # Times after the base of the next change would count what that one did for this one.
    sql = f"""
    SELECT changes.regression_id, changes.series_id, other_id, is_first, is_settled, commit_id, sha, ordinal, ratio,
           before_ns, after.median_ns AS after_ns, metric, protocol
    FROM (
    SELECT regressions.id AS regression_id, member.series_id, other.id AS other_id,
           other.id = regressions.id AS is_first,
           other.settled_at IS NOT NULL AND (other.verdict = 'confirmed' OR other.id = regressions.id OR (
               SELECT count(DISTINCT points.commit_id) FROM points
               WHERE points.series_id = member.series_id AND points.ordinal > other_head.ordinal
                 AND {on_line("points.commit_id", *_LINE)}) >= :final_readings) AS is_settled,
           other.head_commit_id AS commit_id, other_head.sha, other_head.ordinal,
           CASE WHEN shown.verdict = 'confirmed' THEN shown.ratio WHEN shown.verdict = 'dismissed' THEN 1.0
                WHEN other.verdict = 'suspected' THEN shown.suspected_ratio END AS ratio,
           before.median_ns AS before_ns, before.environment_id, before.card_id, series.metric, series.protocol,
           line.*, lead(other_base.ordinal) OVER (
               PARTITION BY regressions.id, member.series_id ORDER BY other_head.ordinal, other.id
           ) AS next_base
    FROM regressions JOIN regression_series AS member ON member.regression_id = regressions.id
    JOIN series ON series.id = member.series_id
    JOIN commits AS head ON head.id = regressions.head_commit_id
    JOIN commits AS base ON base.id = regressions.base_commit_id
    LEFT JOIN LATERAL {line_of("head.id")} AS line ON true
    JOIN regressions AS other ON other.operator_id = regressions.operator_id
         AND other.device_id = regressions.device_id AND other.state <> 'invalid' AND other.direction <> 'broken'
         AND (other.verdict = 'confirmed' OR other.verdict = 'suspected' AND other.settled_at IS NOT NULL
              AND NOT EXISTS (
                  SELECT FROM trials JOIN jobs ON jobs.id = trials.job_id
                  JOIN submissions ON submissions.id = jobs.submission_id
                  WHERE trials.regression_id = regressions.id AND submissions.origin NOT IN ('bundle', 'example')))
    JOIN commits AS other_head ON other_head.id = other.head_commit_id
    JOIN commits AS other_base ON other_base.id = other.base_commit_id
    LEFT JOIN regression_series AS shown ON shown.regression_id = other.id AND shown.series_id = member.series_id
    LEFT JOIN LATERAL (
        SELECT median_ns, environment_id, card_id FROM points WHERE points.series_id = member.series_id
          AND points.ordinal <= base.ordinal AND {on_line("points.commit_id", *_LINE)}
        ORDER BY points.ordinal DESC, points.id DESC LIMIT 1
    ) AS before ON true
    WHERE regressions.operator_id = :operator_id AND regressions.device_id = :device_id AND {_CLOSABLE}
      AND regressions.direction = 'slower' AND member.verdict = regressions.verdict
      AND (other.id = regressions.id OR other_base.ordinal >= head.ordinal)
      AND {on_line("other_head.id", *_LINE)} AND {on_line("other_base.id", *_LINE)}
    ) AS changes
    LEFT JOIN LATERAL (
        SELECT median_ns FROM points WHERE points.series_id = changes.series_id
          AND points.ordinal >= changes.ordinal AND (next_base IS NULL OR points.ordinal <= next_base)
          AND points.environment_id = changes.environment_id AND points.card_id IS NOT DISTINCT FROM changes.card_id
          AND {on_line("points.commit_id", "line_id", "trunk_id", "fork_at")}
        ORDER BY points.ordinal DESC, points.id DESC LIMIT 1
    ) AS after ON true
    ORDER BY changes.regression_id, changes.series_id, changes.ordinal, other_id
    """
    values = {"operator_id": operator_id, "device_id": device_id, "final_readings": final_readings}
    return fetch(session, LaterChange, sql, **values)


@dataclass(frozen=True, slots=True)
class MergedChange:
    """An open, confirmed change of a branch that the commit merge_sha brought to the watched branch."""

    regression_id: int
    repository_id: int
    repository_url: str
    operator: str
    merge_sha: str
    definitions_url: str | None = None
    definitions_sha: str | None = None


def list_merged_changes(session: Session) -> list[MergedChange]:
    """Those that are not looked for on the watched branch yet."""
    sql = f"""
    SELECT DISTINCT ON (regressions.id) regressions.id AS regression_id, branches.repository_id, url AS repository_url,
           operators.name AS operator, branches.merged_sha AS merge_sha, definitions_url, definitions_sha
    FROM branches JOIN branch_commits ON branch_commits.branch_id = branches.id
    JOIN regressions ON regressions.head_commit_id = branch_commits.commit_id
    JOIN operators ON operators.id = regressions.operator_id
    JOIN repositories ON repositories.id = branches.repository_id
    WHERE branches.merged_sha IS NOT NULL AND {_OPEN} AND regressions.direction <> 'faster'
      AND regressions.merged_as_id IS NULL
    ORDER BY regressions.id, branches.id
    """
    return fetch(session, MergedChange, sql)


@dataclass(frozen=True, slots=True)
class SeriesFix:
    """What later confirmed changes left of a change in one series, and the commit that ended it there; None each where
    there is none."""

    series_id: int
    left_ratio: float | None
    commit_id: int | None


def save_fixes(s: Session, regression_id: int, fixes: Sequence[SeriesFix], commit_id: int | None) -> None:
    """Writes what is left of a change in each of its series, and of all that still show it.

    commit_id: the newest commit that ended it for some series.
    """
    regression = s.get(RegressionRecord, regression_id, with_for_update=True)
    if regression is None:
        return
    stored = {
        member.series_id: (member.left_ratio, member.fixed_by_commit_id)
        for member in s.scalars(select(RegressionSeriesRecord).filter_by(regression_id=regression_id))
    }
    news = [fix for fix in fixes if stored.get(fix.series_id) not in (None, (fix.left_ratio, fix.commit_id))]
    for fix in news:
        key = {"regression_id": regression_id, "series_id": fix.series_id}
        values = {"left_ratio": fix.left_ratio, "fixed_by_commit_id": fix.commit_id}
        s.execute(update(RegressionSeriesRecord).filter_by(**key).values(values))
    s.flush()
    ratio_left = func.coalesce(RegressionSeriesRecord.left_ratio, RegressionSeriesRecord.ratio)
    still_open = {"regression_id": regression_id, "verdict": Verdict.CONFIRMED, "fixed_by_commit_id": None}
    is_undone = any(fix.left_ratio is not None for fix in fixes)
    regression.left_ratio = s.scalar(select(func.max(ratio_left)).filter_by(**still_open)) if is_undone else None
    regression.partly_fixed_by_commit_id = commit_id
    s.flush()
    if news:
        announce(s, "regression")


def close_as(s: Session, regression_id: int, state: Triage, commit_id: int, note: str) -> None:
    """Closes a change by the commit that ended it, unless somebody has closed it meanwhile."""
    regression = lock(s, regression_id)
    is_unpaired = regression.verdict == Verdict.SUSPECTED and regression.settled_at is not None
    is_known = regression.verdict == Verdict.CONFIRMED or is_unpaired
    if is_known and regression.state in (Triage.NEW, Triage.ACKNOWLEDGED):
        regression.fixed_by_commit_id = commit_id
        set_triage(s, regression_id, state, SERVICE, note)


def link_merged(s: Session, regression_id: int, other_id: int) -> None:
    """Remembers which change of the watched branch one became when its branch was merged, unless it is known."""
    regression = lock(s, regression_id)
    if regression.merged_as_id is None and regression_id != other_id:
        regression.merged_as_id = other_id
        s.flush()
        announce(s, "regression")
