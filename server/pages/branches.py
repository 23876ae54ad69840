"""The branches and change requests of a repository, and what one of them would do to the watched branch."""

from __future__ import annotations

from fastapi import APIRouter, Response

from warpwatch.db.reads.code import list_commits
from warpwatch.db.reads.lines import HistoryLine, find_branch, list_branches, read_line
from warpwatch.server.explanation.branches import report_branch
from warpwatch.server.http.problems import not_found
from warpwatch.server.http.service import Before
from warpwatch.server.pages.choices import Text, choose_bench
from warpwatch.server.pages.render import Page, query

router = APIRouter()


@router.get("/branches")
def branches(page: Page, before: Before = None) -> Response:
    """Branches and change requests with submitted commits, newest first."""
    if page.repository is None:
        return page.page("welcome.html")
    rows = list_branches(page.session, page.repository.id, before)
    json = query("/branches", repository=page.repository.name, before=before)
    return page.page("branches.html", json=json, branches=rows, before=before)


@router.get("/branches/{name:path}")
def branch(page: Page, name: str, device: Text = None, metric: Text = None) -> Response:
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
