"""The list of commits, and the results of one commit."""

from __future__ import annotations

from collections import Counter
from itertools import groupby

from fastapi import APIRouter, Response

from warpwatch.db.reads.code import list_commits
from warpwatch.db.reads.commits import CommitCell, CommitDetail, list_culprits, read_commit
from warpwatch.db.reads.lines import ALL_COMMITS, list_branches_named
from warpwatch.server.figures.formats import natural, variant_order
from warpwatch.server.figures.lanes import draw_lanes, width_of
from warpwatch.server.http.problems import not_found
from warpwatch.server.http.service import Before, Branch
from warpwatch.server.intake.filters import ALL_BRANCHES
from warpwatch.server.pages.choices import Text
from warpwatch.server.pages.overview import SETTLED
from warpwatch.server.pages.render import Page, query

router = APIRouter()


@router.get("/commits")
def commits(page: Page, before: Before = None, branch: Branch = None) -> Response:
    """The commits of all branches, or of one, in the order of history, newest first, with the graph beside them."""
    if page.repository is None:
        return page.page("welcome.html")
    line = page.line if branch and branch != ALL_BRANCHES else ALL_COMMITS
    rows = list_commits(page.session, page.repository.id, before, line=line)
    names = {name for row in rows.items for name in row.branches}
    branches = list_branches_named(page.session, page.repository.id, names)
    graph = draw_lanes(rows.items, branches)
    json = query("/commits", repository=page.repository.name, before=before, branch=line.name)
    return page.page(
        "commits.html",
        json=json,
        commits=rows,
        graph=graph,
        culprits=list_culprits(page.session, [row.id for row in rows.items]),
        graph_width=width_of(graph),
        shown=line.name,
        before=before,
    )


@router.get("/commits/{sha}")
def commit(page: Page, sha: str, show: Text = None) -> Response:
    """Every variant on every case at one commit; `show=problems` shows failures only."""
    detail = _find(page, sha)
    page.moved(detail.repository)
    problems = [cell for cell in detail.cells if is_problem(cell)]
    cells = sorted(
        problems if show == "problems" else detail.cells,
        key=lambda cell: (cell.operator, natural(cell.case), variant_order(cell.variant), cell.device_key),
    )
    filters = {"repository": detail.repository}
    return page.page(
        "commit.html",
        json=query(f"/commits/{detail.commit.sha}", **filters),
        csv=query(f"/api/v1/commits/{detail.commit.sha}.csv", **filters),
        detail=detail,
        commit=detail.commit,
        show=show,
        problems=len(problems),
        devices=len({cell.device_key for cell in detail.cells}),
        operators=[(name, list(group)) for name, group in groupby(cells, key=lambda cell: cell.operator)],
        statuses=Counter(cell.check_status for cell in detail.cells if cell.check_status),
    )


def _find(page: Page, sha: str) -> CommitDetail:
    """The commit in the page's repository, else in any other, because short links name no repository."""
    others = [row for row in page.repositories if row != page.repository]
    for repository in [page.repository, *others]:
        detail = read_commit(page.session, repository.id, sha) if repository else None
        if detail is not None:
            return detail
    raise not_found("commit", sha, "submit it first, or use a longer prefix of its SHA")


def is_problem(cell: CommitCell) -> bool:
    """Whether its check, benchmark or profile failed."""
    return any(status not in SETTLED for status in (cell.check_status, cell.bench_status, cell.profile_status))
