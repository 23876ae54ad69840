"""The few lines that every read query shares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from typing import Any, Generic, TypeVar

from sqlalchemy import TextClause, TextualSelect, text
from sqlalchemy.orm import Session as Session

from warpwatch.contract.measurement import METRICS
from warpwatch.contract.words import Reason
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
