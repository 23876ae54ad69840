"""What a branch would do to the watched one: its newest measured commit against the commit it is compared with."""

from __future__ import annotations

from dataclasses import dataclass

from warpwatch.db.reads.code import CommitRow, find_commit
from warpwatch.db.reads.commits import ComparedRow, compare_commits
from warpwatch.db.reads.lines import BranchRow, HistoryLine
from warpwatch.db.reads.query import Session
from warpwatch.db.reads.regressions import Question, RegressionRow, list_regressions
from warpwatch.server.explanation.paired import PairedOutcome, list_paired_outcomes

MOST_CHANGES = 100
"""Changes of one branch that are listed, worst first."""


@dataclass(frozen=True, slots=True)
class BranchReport:
    """base, head: the commits that are compared; None where they are not stored, or nothing of the branch was measured.

    outcomes: what A/B comparisons say, changes first. compared: cases that were timed at both commits, in runs of their
    own. changes: suspected and confirmed changes of the branch.
    """

    branch: BranchRow
    base: CommitRow | None
    head: CommitRow | None
    outcomes: list[PairedOutcome]
    compared: list[ComparedRow]
    changes: list[RegressionRow]


def report_branch(
    session: Session, repository_id: int, branch: BranchRow, line: HistoryLine, device_id: int | None, metric: str
) -> BranchReport:
    """device_id, metric: of the times that are compared without an A/B comparison."""
    base = find_commit(session, repository_id, branch.merge_base_sha) if branch.merge_base_sha else None
    head = find_commit(session, repository_id, branch.newest_sha) if branch.newest_sha else None
    outcomes: list[PairedOutcome] = []
    compared: list[ComparedRow] = []
    if base is not None and head is not None:
        outcomes = _outcomes(session, base, head)
        if device_id is not None:
            compared = compare_commits(session, base, head, device_id, metric).rows
    return BranchReport(branch, base, head, outcomes, compared, _changes(session, repository_id, branch, line))


def _outcomes(session: Session, base: CommitRow, head: CommitRow) -> list[PairedOutcome]:
    outcomes = list_paired_outcomes(session, base.id, head.id)
    order = ("slower", "faster", "unsure", "not_slower", "same")
    return sorted(outcomes, key=lambda item: (order.index(item.outcome), -(item.ratio or 0), item.operator, item.case))


def _changes(session: Session, repository_id: int, branch: BranchRow, line: HistoryLine) -> list[RegressionRow]:
    """The changes that begin at a commit of the branch itself; those of the watched branch are on its own pages."""
    question = Question(verdict=None, line=line)
    rows = list_regressions(session, repository_id, question, limit=MOST_CHANGES).items
    return [row for row in rows if row.branch == branch.name and row.verdict in ("confirmed", "suspected")]
