"""Writes what later commits left of a change, series by series: a change may be undone for some of its series only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from warpwatch.contract.words import Verdict
from warpwatch.db.live import announce
from warpwatch.db.models import RegressionRecord, RegressionSeriesRecord


@dataclass(frozen=True, slots=True)
class SeriesFix:
    """What later confirmed changes left of a change in one series, and the commit that ended it there; None each where
    there is none."""

    series_id: int
    left_ratio: float | None
    commit_id: int | None


def save_fixes(s: Session, regression_id: int, fixes: Sequence[SeriesFix], commit_id: int | None) -> bool:
    """Writes what is left of a change in each of its series, and of all that still show it; whether that is new.

    commit_id: the newest commit that ended it for some series.
    """
    regression = s.get(RegressionRecord, regression_id, with_for_update=True)
    if regression is None:
        return False
    members = {
        member.series_id: member
        for member in s.scalars(select(RegressionSeriesRecord).filter_by(regression_id=regression_id))
    }
    news = [fix for fix in fixes if fix.series_id in members and _is_new(members[fix.series_id], fix)]
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
    return bool(news)


def _is_new(member: RegressionSeriesRecord, fix: SeriesFix) -> bool:
    return (member.left_ratio, member.fixed_by_commit_id) != (fix.left_ratio, fix.commit_id)
