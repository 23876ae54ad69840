"""Sorts the cases of a change: which still show it, which a later commit fixed, and which never showed it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import log

from warpwatch.contract.words import ChangePhase, Verdict
from warpwatch.db.regressions import RegressionRow, RegressionSeriesRow
from warpwatch.server.verdicts.statements import Statement, state_change


class CaseGroup(StrEnum):
    """affected: shows the change. fixed: showed it until a later commit. unaffected: a trial did not find it there.
    undecided: may show it, as nothing of the change is confirmed."""

    AFFECTED = "affected"
    FIXED = "fixed"
    UNAFFECTED = "unaffected"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class CaseView:
    """One series of a change, and the statement about it. fixed_by_sha: the commit that ended the change there."""

    series: RegressionSeriesRow
    group: CaseGroup
    statement: Statement
    fixed_by_sha: str | None


def sort_cases(row: RegressionRow, series: Sequence[RegressionSeriesRow]) -> list[CaseView]:
    """The cases in the order of CaseGroup, in each group the most changed first."""
    views = [_view(row, member) for member in series]
    order = list(CaseGroup)
    return sorted(views, key=lambda view: (order.index(view.group), -abs(log(view.statement.ratio or 1.0))))


def _view(row: RegressionRow, member: RegressionSeriesRow) -> CaseView:
    is_ended = row.phase in (ChangePhase.FIXED, ChangePhase.REVERTED)
    fixed_by = member.fixed_by_sha or (row.fixed_by_sha if is_ended else None)
    if row.verdict != Verdict.CONFIRMED:
        group, phase = CaseGroup.UNDECIDED, row.phase
    elif member.verdict != Verdict.CONFIRMED:
        group, phase = CaseGroup.UNAFFECTED, member.verdict
    elif fixed_by or is_ended:
        group, phase = CaseGroup.FIXED, ChangePhase.FIXED
    else:
        group, phase = CaseGroup.AFFECTED, row.phase
    ratio = member.ratio or member.suspected_ratio
    if group == CaseGroup.AFFECTED and member.left_ratio is not None:
        ratio = member.left_ratio
    statement = state_change(row.id, row.direction, phase, ratio, member.signal, can_confirm=row.can_confirm)
    return CaseView(member, group, statement, fixed_by if group == CaseGroup.FIXED else None)
