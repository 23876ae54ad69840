"""Statements about series at commits, read from the database."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from warpwatch.db.reads.code import CommitRow
from warpwatch.db.reads.commit_cells import CommitCell
from warpwatch.db.reads.lines import HistoryLine
from warpwatch.db.reads.query import Session
from warpwatch.db.reads.statements import list_facts
from warpwatch.server.verdicts.noise import Noise
from warpwatch.server.verdicts.statements import Place, Statement, state_series

Key = tuple[int, str]
"""A series and the full id of a commit."""


def read_statements(
    session: Session, series_ids: Collection[int], shas: Collection[str], line: HistoryLine, against: str | None = None
) -> dict[Key, Statement]:
    """The statement about each of the series at each of the commits, as they stand on a line.

    against: the commit that they are held against, instead of the one that the series was measured at before.
    """
    facts = list_facts(session, series_ids, shas, line, against)
    learned: dict[Place, Noise] = {}
    return {(item.series_id, item.sha): state_series(item, learned) for item in facts}


def state_cells(
    session: Session, commit: CommitRow, cells: Iterable[CommitCell], line: HistoryLine
) -> dict[int, Statement]:
    """The statement about the series of each cell of a commit, by series. line: that the commit is on."""
    both = [number for cell in cells for number in (cell.stated_series_id, cell.launch_series_id)]
    ids = {number for number in both if number}
    return {series_id: item for (series_id, _), item in read_statements(session, ids, [commit.sha], line).items()}
