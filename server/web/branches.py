"""Branches: their graph, pages and JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query, Response

from warpwatch.db.reads.code import CommitRow, RepositoryRow, find_commit, list_commits
from warpwatch.db.reads.commits import ComparedRow, compare_commits
from warpwatch.db.reads.lines import BranchRow, HistoryLine, find_branch, list_branches, read_line
from warpwatch.db.reads.query import Page, Session
from warpwatch.db.regressions import RegressionFilter, RegressionRow, list_regressions
from warpwatch.server.explanation.paired import list_paired_outcomes
from warpwatch.server.http.problems import documented, not_found
from warpwatch.server.http.service import Before, Db, Limit, device_or_404, line_or_404, repository_or_404
from warpwatch.server.verdicts.held import PairedOutcome
from warpwatch.server.web.choices import Text, choose_bench
from warpwatch.server.web.code import RepositoryName
from warpwatch.server.web.render import PageScope, Scope, query
from warpwatch.server.web.results import Metric, metric_of

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
    question = RegressionFilter(verdict=None, line=line)
    rows = list_regressions(session, repository_id, question, limit=MOST_CHANGES).items
    return [row for row in rows if row.branch == branch.name and row.verdict in ("confirmed", "suspected")]


router = APIRouter()


def show_branches(page: Scope, repository: RepositoryRow, before: int | None) -> Response:
    """Branches and change requests with submitted commits, newest first."""
    rows = list_branches(page.session, repository.id, before)
    json = query("/branches", repository=repository.name, before=before)
    return page.page("branches.html", json=json, branches=rows, before=before)


@router.get("/branches/{name:path}")
def branch(page: PageScope, name: str, device: Text = None, metric: Text = None) -> Response:
    """One branch against its merge base: A/B results, times, failing checks, changes and commits."""
    row = find_branch(page.session, page.repository.id, name) if page.repository else None
    if page.repository is None or row is None:
        raise not_found("branch", name, "submit one of its commits first")
    line = read_line(page.session, page.repository.id, name) or HistoryLine()
    bench = choose_bench(page.session, page.repository, device, metric)
    device_id, chosen = (bench.device.id, bench.metric) if bench else (None, "")
    page.line = line
    return page.page(
        "branch.html",
        json=query(
            f"/branches/{name}", repository=page.repository.name, device=bench and bench.device.key, metric=metric
        ),
        report=report_branch(page.session, page.repository.id, row, line, device_id, chosen),
        branch=row,
        bench=bench,
        commits=[
            item
            for item in list_commits(page.session, page.repository.id, limit=100, line=line).items
            if name in item.branches
        ],
    )


api = APIRouter(tags=["code"])


@api.get("/branches", responses=documented(404, 422))
def get_branches(session: Db, repository: RepositoryName, before: Before = None, limit: Limit = 50) -> Page[BranchRow]:
    """Branches and change requests with submitted commits, newest first."""
    return list_branches(session, repository_or_404(session, repository).id, before, limit)


@api.get("/branches/{name:path}", responses=documented(404, 422))
def get_branch(
    session: Db,
    name: str,
    repository: RepositoryName,
    device: Annotated[
        str | None, Query(max_length=200, description="Compare the times of separate runs on this device, too.")
    ] = None,
    metric: Metric = None,
) -> BranchReport:
    """The newest measured commit of a branch against its merge base: A/B results, times and changes."""
    row = repository_or_404(session, repository)
    branch = find_branch(session, row.id, name)
    if branch is None:
        raise not_found("branch", name, "submit one of its commits first")
    on = device_or_404(session, device) if device else None
    line = line_or_404(session, row, name)
    return report_branch(session, row.id, branch, line, on.id if on else None, metric_of(on, metric) if on else "")
