"""The few lines that every read query shares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from typing import Any, Generic, TypeVar

from sqlalchemy import TextClause, TextualSelect, text
from sqlalchemy.orm import Session as Session

from warpwatch.contract.measurement import JUDGED, METRICS
from warpwatch.contract.words import Reason, Signal
from warpwatch.db.columns import StoredSpec

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    """One page of a list, newest first; `next_before` is the cursor of the following page, None on the last."""

    items: list[Item]
    next_before: int | None


T = TypeVar("T")

MAX_PAGE = 200
"""Rows that one page of a list may hold."""

IS_UNCHANGED = f"(jobs.reason = '{Reason.UNCHANGED}')"
"""SQL: whether a job had nothing to do, because its sources are those of a commit that was measured."""

PRIMARY_METRIC = f"CASE device.kind WHEN 'cuda' THEN '{METRICS['cuda'][0]}' ELSE '{METRICS['cpu'][0]}' END"
"""SQL for the first metric of the device."""
DEVICE_METRICS = {"cuda": ("graph", "kernel"), "cpu": ("hot",)}
"""Metrics of the device's time per kind of device; the first that a cell has counts."""
_IS_LISTED = " OR ".join(
    f"(device.kind = '{kind}' AND series.metric = ANY('{{{', '.join(names)}}}'))" for kind, names in JUDGED.items()
)


def metric_choice(metric: str) -> dict[str, Any]:
    """Parameters of a query for the series of a metric; `kernel` stands for `graph` in cells without times of it.
    has_launch: whether the metric is the device's time, beside which the host's has verdicts."""
    of_device = DEVICE_METRICS["cuda"]
    is_single = metric != of_device[0]
    metrics = [metric] if is_single else list(of_device)
    return {"metric": metric, "metrics": metrics, "is_single": is_single, "has_launch": metric in of_device}


IS_DEVICE_TIME = f"(series.metric = {PRIMARY_METRIC} OR (device.kind = 'cuda' AND series.metric = 'kernel'))"
"""SQL: whether a metric is the device's time; where a cell has two of them, the primary one counts."""
IS_JUDGED = f"""
({_IS_LISTED} OR (device.kind = 'cuda' AND series.metric = 'kernel' AND NOT EXISTS (
    SELECT FROM points AS other JOIN series AS primary_series ON primary_series.id = other.series_id
    WHERE other.result_id = results.id AND primary_series.metric = {PRIMARY_METRIC})))
"""
"""SQL: whether verdicts are about the points of a series in a result. `kernel` is the device's time where a variant
cannot be captured in a CUDA graph."""
SIGNAL = f"""
CASE WHEN series.metric = '{Signal.LAUNCH}' THEN '{Signal.LAUNCH}'
     WHEN series.metric IN ('graph', 'kernel', 'cold') AND EXISTS (
         SELECT FROM series AS of_host
         WHERE of_host.operator_id = series.operator_id AND of_host.device_id = series.device_id
           AND of_host.case_id = series.case_id AND of_host.variant_id = series.variant_id
           AND of_host.metric = '{Signal.LAUNCH}') THEN '{Signal.KERNEL}' END
"""
"""SQL: contract.words.Signal of a series; NULL where its cell has one alone, and of metrics without verdicts."""


def fetch(session: Session, row: Callable[..., T], sql: str, **parameters: Any) -> list[T]:
    """Every row of a query whose column names are the field names of `row`; a column `spec` is read as JobSpec."""
    result = session.execute(_select(sql), parameters)
    names = tuple(result.keys())
    if names == _field_names(row):
        # Twice as fast as by name, which counts for a history of a thousand points.
        return [row(*values) for values in result.all()]
    return [row(**dict(zip(names, values, strict=True))) for values in result.all()]


# SQLAlchemy looks for parameters in the text of every new statement, which takes as long as a small query.
@lru_cache(maxsize=1024)
def _text(sql: str) -> TextClause:
    return text(sql)


@lru_cache(maxsize=1024)
def _select(sql: str) -> TextualSelect:
    return _text(sql).columns(spec=StoredSpec())


@lru_cache(maxsize=1024)
def _field_names(row: object) -> tuple[str, ...]:
    return tuple(field.name for field in fields(row)) if is_dataclass(row) else ()


def fetch_one(session: Session, row: Callable[..., T], sql: str, **parameters: Any) -> T | None:
    """The first row of a query, or None."""
    found = fetch(session, row, sql, **parameters)
    return found[0] if found else None


def fetch_scalar(session: Session, sql: str, **parameters: Any) -> Any:
    """The first column of the first row of a query, or None."""
    return session.execute(_text(sql), parameters).scalar()


def fetch_page(session: Session, row: Callable[..., T], sql: str, limit: int, **parameters: Any) -> Page[T]:
    """One page of rows that have an `id`; `sql` ends in `LIMIT :limit` and is asked for one row more than the page
    holds."""
    size = max(1, min(limit, MAX_PAGE))
    items = fetch(session, row, sql, limit=size + 1, **parameters)
    return page_of(items, size)


def page_of(items: list[Any], size: int) -> Page[Any]:
    """The first `size` items, and a cursor when there are more."""
    more = len(items) > size
    return Page(items[:size], items[size - 1].id if more else None)
