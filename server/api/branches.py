"""Branches and change requests, and what one of them would do to the watched branch."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from warpwatch.db.reads.lines import BranchRow, find_branch, list_branches
from warpwatch.db.reads.query import Page
from warpwatch.server.api.code import RepositoryName
from warpwatch.server.api.results import Metric, metric_of
from warpwatch.server.explanation.branches import BranchReport, report_branch
from warpwatch.server.http.problems import documented, not_found
from warpwatch.server.http.service import Before, Db, Limit, device_or_404, line_or_404, repository_or_404

router = APIRouter(tags=["code"])


@router.get("/branches", responses=documented(404, 422))
def get_branches(session: Db, repository: RepositoryName, before: Before = None, limit: Limit = 50) -> Page[BranchRow]:
    """Branches and change requests with submitted commits, newest first."""
    return list_branches(session, repository_or_404(session, repository).id, before, limit)


@router.get("/branches/{name:path}", responses=documented(404, 422))
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
