"""Keeps how each operator moved over the newest commits, so that the overview need not read the points of all series.

What is not kept is compared by the query that asks. Whoever writes results of an operator on a device forgets what is
kept of the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from json import dumps

from sqlalchemy import text
from sqlalchemy.orm import Session

from warpwatch.db.reads.query import PRIMARY_METRIC, fetch, fetch_scalar
from warpwatch.db.reads.trends import compare_operators

_SCOPES = f"""
SELECT DISTINCT operators.repository_id, device.id AS device_id, series.metric
FROM series JOIN operators ON operators.id = series.operator_id JOIN devices AS device ON device.id = series.device_id
WHERE series.metric = {PRIMARY_METRIC} ORDER BY operators.repository_id, device.id
"""
_NEWEST_RUN = "SELECT id FROM runs WHERE finished_at IS NOT NULL ORDER BY finished_at DESC LIMIT 1"
# Every row of results that is inserted locks its operator until its transaction ends, because it refers to it. So
# whoever has this lock sees all results or is passed over, and results that come later wait, and forget what is kept.
_LOCK_OPERATOR = "SELECT id FROM operators WHERE id = :id FOR UPDATE SKIP LOCKED"
_KEEP = """
INSERT INTO trends (operator_id, device_id, metric, commit_ids, cells)
VALUES (:operator_id, :device_id, :metric, CAST(:commits AS jsonb), CAST(:cells AS jsonb))
ON CONFLICT (operator_id, device_id, metric) DO UPDATE SET commit_ids = excluded.commit_ids, cells = excluded.cells
"""
_FORGET = "DELETE FROM trends WHERE operator_id = :operator_id AND device_id = :device_id"


@dataclass(frozen=True, slots=True)
class TrendScope:
    """A repository on a device, with the metric that the overview shows first."""

    repository_id: int
    device_id: int
    metric: str


def list_trend_scopes(s: Session) -> list[TrendScope]:
    return fetch(s, TrendScope, _SCOPES)


def find_newest_run(s: Session) -> int | None:
    """The run that ended last: when it changes, there may be new results."""
    run_id: int | None = fetch_scalar(s, _NEWEST_RUN)
    return run_id


def keep_trend(s: Session, operator_id: int, device_id: int, metric: str, commit_ids: Sequence[int]) -> bool:
    """Compares the operator at these commits and keeps the answer; False when somebody writes its results just now."""
    if s.scalar(text(_LOCK_OPERATOR), {"id": operator_id}) is None:
        return False
    cells = compare_operators(s, [operator_id], device_id, metric, commit_ids)
    rows = [[*astuple(cell)[1:-1], cell.measured_at.isoformat()] for cell in cells]
    values = {"operator_id": operator_id, "device_id": device_id, "metric": metric}
    s.execute(text(_KEEP), values | {"commits": dumps(list(commit_ids)), "cells": dumps(rows)})
    return True


def forget_trends(s: Session, operator_id: int, device_id: int) -> None:
    """Says that this transaction has changed results of the operator on the device, and that it holds a lock of the
    operator, as whoever inserts results does."""
    s.execute(text(_FORGET), {"operator_id": operator_id, "device_id": device_id})
