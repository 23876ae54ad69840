"""Statements about series at commits, read from the database."""

from __future__ import annotations

from collections.abc import Collection

from warpwatch.db.reads.lines import HistoryLine
from warpwatch.db.reads.query import Session
from warpwatch.db.reads.statements import list_facts
from warpwatch.server.verdicts.statements import Statement, state_series

Key = tuple[int, str]
"""A series and the full id of a commit."""


def read_statements(
    session: Session, series_ids: Collection[int], shas: Collection[str], line: HistoryLine, against: str | None = None
) -> dict[Key, Statement]:
    """The statement about each of the series at each of the commits, as they stand on a line.

    against: the commit that they are held against, instead of the one that the series was measured at before.
    """
    facts = list_facts(session, series_ids, shas, line, against)
    return {(item.series_id, item.sha): state_series(item) for item in facts}
