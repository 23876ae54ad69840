"""Results of A/B comparisons of two commits, and their meaning for the times of separate runs."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

from warpwatch.contract.words import Signal, StatementKind, StatementSource
from warpwatch.db.reads.code import CommitRow, UnchangedRow
from warpwatch.db.reads.commits import ComparedRow, compare_commits, compare_variants
from warpwatch.db.reads.lines import ALL_COMMITS, read_line_of
from warpwatch.db.reads.paired import list_paired_rounds
from warpwatch.db.reads.query import Session, metric_choice
from warpwatch.server.explanation.statements import read_statements
from warpwatch.server.verdicts.held import PairedOutcome, paired_outcomes
from warpwatch.server.verdicts.paired import severity
from warpwatch.server.verdicts.statements import NO_DATA, Statement, state_rounds


def list_paired_outcomes(
    session: Session, base_commit_id: int, head_commit_id: int, device_id: int | None = None
) -> list[PairedOutcome]:
    """The outcome of every series that an A/B comparison measured at both commits, on one device or on all."""
    return paired_outcomes(list_paired_rounds(session, base_commit_id, head_commit_id, device_id))


@dataclass(frozen=True, slots=True)
class StatedRow(ComparedRow):
    """A compared row with the statement about its two sides: confirmed by an A/B comparison, the same code, a shift
    beyond the noise between runs, or not told apart."""

    statement: Statement = NO_DATA
    launch: Statement | None = None
    """About the host's time of a call, where the A/B comparison measured it beside the device's."""

    @property
    def is_changed(self) -> bool:
        """Whether the sides are known to differ."""
        is_launch = self.launch is not None and self.launch.kind == StatementKind.CONFIRMED
        return is_launch or self.statement.kind in (StatementKind.CONFIRMED, StatementKind.SHIFT)

    @property
    def is_same_code(self) -> bool:
        return self.statement.kind == StatementKind.SAME_CODE

    @property
    def is_one_sided(self) -> bool:
        """Whether a side has no time, and no failure that says why."""
        is_timed = self.ratio or self.paired_ratio or self.launch
        return not is_timed and self.statement.kind != StatementKind.FAILED


class StatedComparison(NamedTuple):
    """As CommitComparison, with a statement in every row."""

    rows: list[StatedRow]
    unchanged: list[tuple[CommitRow, list[UnchangedRow]]]
    same: list[str]


def compare_commits_paired(
    session: Session, base: CommitRow, head: CommitRow, device_id: int, metric: str, operator: str | None = None
) -> StatedComparison:
    """Two commits by the times of their separate runs, and by what A/B comparisons of the two say; series that nothing
    but these measured come last."""
    comparison = compare_commits(session, base, head, device_id, metric, operator)
    choice = metric_choice(metric)
    paired = [
        item for item in list_paired_outcomes(session, base.id, head.id, device_id) if operator in (None, item.operator)
    ]
    outcomes = {(item.operator, item.case, item.variant): item for item in paired if item.metric in choice["metrics"]}
    launches = [_with(_unmeasured(item), item) for item in paired if item.metric == Signal.LAUNCH]
    rows = [_with(row, outcomes.pop((row.operator, row.case, row.left_variant), None)) for row in comparison.rows]
    rows += [_with(_unmeasured(item), item) for item in outcomes.values()]
    of_launch = launches if choice["has_launch"] else []
    # An unchanged operator has the times of the commit whose sources it has.
    since = [{row.operator: row.since for row in unchanged} for _, unchanged in comparison.unchanged]
    places: dict[tuple[str, str], set[int]] = defaultdict(set)
    for row in [*rows, *of_launch]:
        place = since[0].get(row.operator, base.sha), since[1].get(row.operator, head.sha)
        places[place] |= {number for number in (row.left_series_id, row.right_series_id) if number}
    line = read_line_of(session, head.id) or ALL_COMMITS
    statements = {
        number: statement
        for (left, right), ids in places.items()
        for (number, _), statement in read_statements(session, ids, [right], line, left).items()
    }
    stated, stated_launches = (
        [_stated(row, statements.get(row.right_series_id or row.left_series_id or 0, NO_DATA)) for row in of]
        for of in (rows, of_launch)
    )
    by_cell = {(row.operator, row.case, row.left_variant): row.statement for row in stated_launches}
    return StatedComparison(
        [replace(row, launch=by_cell.get((row.operator, row.case, row.left_variant))) for row in stated],
        comparison.unchanged,
        comparison.same,
    )


def compare_variants_stated(
    session: Session, commit: CommitRow, left: str, right: str, device_id: int, metric: str, operator: str | None = None
) -> StatedComparison:
    """Two variants of one commit. They are apart where the ratio is larger than the smallest change that both series
    can show; nothing of them is slower or faster, because nothing changed."""
    comparison = compare_variants(session, commit, left, right, device_id, metric, operator)
    ids = {number for row in comparison.rows for number in (row.left_series_id, row.right_series_id) if number}
    shas = {commit.sha, *(row.since for _, rows in comparison.unchanged for row in rows)}
    line = read_line_of(session, commit.id) or ALL_COMMITS
    least = {
        number: statement.detectable
        for (number, _), statement in read_statements(session, ids, shas, line).items()
        if statement.detectable is not None
    }
    rows = []
    for row in comparison.rows:
        sides = [least.get(number or 0) for number in (row.left_series_id, row.right_series_id)]
        known = [side for side in sides if side is not None]
        about = Statement(
            StatementKind.NO_DATA if row.ratio is None else StatementKind.NOT_TOLD_APART,
            ratio=row.ratio,
            source=StatementSource.HISTORY,
            series_id=row.right_series_id,
            commit_sha=commit.sha,
            value_ns=row.right_ns,
            detectable=max(known, default=None),
        )
        if row.ratio is not None and len(known) == len(sides) and severity(row.ratio) > 1 + max(known):
            about = replace(about, kind=StatementKind.SHIFT)
        rows.append(_row(row, about))
    return StatedComparison(rows, comparison.unchanged, comparison.same)


def _stated(row: ComparedRow, statement: Statement) -> StatedRow:
    if row.ratio is not None and statement.ratio is None:
        statement = replace(statement, ratio=row.ratio)
    if row.paired_outcome is not None:
        outcome = row.paired_outcome, row.paired_ratio, row.paired_low, row.paired_high
        statement = state_rounds(statement, *outcome)
    return _row(row, statement)


def _row(row: ComparedRow, statement: Statement) -> StatedRow:
    return StatedRow(**{item.name: getattr(row, item.name) for item in fields(ComparedRow)}, statement=statement)


def _with(row: ComparedRow, found: PairedOutcome | None) -> ComparedRow:
    if found is None:
        return row
    return replace(
        row,
        paired_outcome=found.outcome,
        paired_ratio=found.ratio,
        paired_low=found.low,
        paired_high=found.high,
        paired_left_ns=found.base_ns,
        paired_right_ns=found.head_ns,
        paired_job_id=found.job_id,
    )


def _unmeasured(item: PairedOutcome) -> ComparedRow:
    """A series that has no times of separate runs at either commit."""
    return ComparedRow(
        operator=item.operator,
        case=item.case,
        left_variant=item.variant,
        right_variant=item.variant,
        left_status=None,
        right_status=None,
        left_ns=None,
        right_ns=None,
        ratio=None,
        separated=False,
        left_series_id=item.series_id,
        right_series_id=item.series_id,
    )
