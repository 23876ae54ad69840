"""Finds the pattern of an event: what all affected cases share and no unaffected case has."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from math import log

from warpwatch.db.reads.cells import CellAround, list_cells_around
from warpwatch.db.reads.events import EventRow
from warpwatch.db.reads.query import Session
from warpwatch.db.regressions import RegressionRow
from warpwatch.server.verdicts.common import SeriesCell, find_common

NOTABLE_SHARE, NOTABLE_CHANGE, LARGEST_SHARE = 0.3, 0.02, 0.5
"""A case without an A/B result counts as unaffected when its time moved by less than the first share of the least
confirmed change. For small changes the bound is the second value, because of noise, but at most the third share.
"""
NEITHER = ("unsupported", "skipped")


def with_common(session: Session, events: Sequence[EventRow]) -> list[EventRow]:
    """The events with their `common` pattern; only confirmed regressions have one."""
    rows = {row.id: row for event in events for row in event.regressions if row.verdict == "confirmed"}
    cells = defaultdict(list)
    for cell in list_cells_around(session, rows) if rows else []:
        cells[cell.regression_id].append(cell)
    return [replace(event, common=_common([(row, cells[row.id]) for row in event.regressions])) for event in events]


def _common(parts: Sequence[tuple[RegressionRow, list[CellAround]]]) -> str:
    sorted_in: dict[str, list[SeriesCell]] = {"changed": [], "same": [], "unclear": []}
    for row, cells in parts:
        least = min(
            (abs(log(cell.decided)) for cell in cells if cell.verdict == "confirmed" and cell.decided), default=0.0
        )
        for cell in cells:
            fate = _fate(row, cell, least)
            if fate is not None:
                sorted_in[fate].append(
                    SeriesCell(
                        cell.operator,
                        cell.variant,
                        cell.sizes,
                        cell.precision,
                        cell.direction,
                        cell.layout,
                        cell.device,
                    )
                )
    return "; ".join(find_common(sorted_in["changed"], sorted_in["same"], sorted_in["unclear"]))


def _fate(row: RegressionRow, cell: CellAround, least: float) -> str | None:
    """changed | same | unclear; None where too little is known of the cell.

    least: the least confirmed change, as a logarithm.
    """
    if cell.verdict == "confirmed":
        return "changed"
    if row.direction == "broken":
        if cell.base_status != "ok" or cell.head_status in (None, *NEITHER):
            return None
        return "same" if cell.head_status == "ok" else "unclear"
    if cell.verdict is not None:
        return "same" if cell.verdict == "dismissed" else "unclear"
    if cell.ratio is None:
        return None
    moved = log(cell.ratio) if row.direction == "slower" else -log(cell.ratio)
    bound = min(max(NOTABLE_SHARE * least, NOTABLE_CHANGE), LARGEST_SHARE * least)
    return "unclear" if moved > bound else "same"
