"""The few lines that every read query shares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy import text
from sqlalchemy.orm import Session as Session

from db.reads.rows import Page

T = TypeVar("T")

MAX_PAGE = 200
"""Rows that one page of a list may hold."""

METRICS = {"cuda": ("graph", "cold", "call"), "cpu": ("hot", "cold")}
"""Metrics per kind of device, the one that verdicts are made from first; held equal to worker.protocol.METRICS by a test."""

PRIMARY_METRIC = "CASE device.kind WHEN 'cuda' THEN 'graph' ELSE 'hot' END"
"""SQL for the first metric of the device."""


def fetch(session: Session, row: Callable[..., T], sql: str, **parameters: Any) -> list[T]:
    """Every row of a query whose column names are the field names of `row`."""
    return [row(**found) for found in session.execute(text(sql), parameters).mappings()]


def fetch_one(session: Session, row: Callable[..., T], sql: str, **parameters: Any) -> T | None:
    """The first row of a query, or None."""
    found = session.execute(text(sql), parameters).mappings().first()
    return None if found is None else row(**found)


def fetch_scalar(session: Session, sql: str, **parameters: Any) -> Any:
    """The first column of the first row of a query, or None."""
    return session.execute(text(sql), parameters).scalar()


def fetch_page(session: Session, row: Callable[..., T], sql: str, limit: int, **parameters: Any) -> Page[T]:
    """One page of rows that have an `id`; `sql` ends in `LIMIT :limit` and is asked for one row more than the page holds."""
    size = max(1, min(limit, MAX_PAGE))
    items = fetch(session, row, sql, limit=size + 1, **parameters)
    return page_of(items, size)


def page_of(items: list[Any], size: int) -> Page[Any]:
    """The first `size` items, and a cursor when there are more."""
    more = len(items) > size
    return Page(items[:size], items[size - 1].id if more else None)
