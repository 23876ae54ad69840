"""The overview of a repository: where a branch stands on one device, its verdicts, a row per operator, and what is
measured now."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Annotated

from fastapi import APIRouter, Query, Response

from warpwatch.contract.words import NO_FAILURE
from warpwatch.db.environment_changes import list_recent_steps
from warpwatch.db.reads.code import list_suites
from warpwatch.db.reads.overview import OverviewCell, read_overview
from warpwatch.db.reads.standing import count_standing, list_timeline_ordinals, list_verdict_marks
from warpwatch.db.reads.trades import count_costs
from warpwatch.db.regressions import RegressionFilter, list_regressions
from warpwatch.db.saved_views import list_saved_views
from warpwatch.db.trends import read_trends
from warpwatch.db.watches import list_watchers
from warpwatch.server.explanation.statements import read_statements
from warpwatch.server.figures.exports import HAS_PARQUET
from warpwatch.server.figures.overview_rows import operator_summaries, shift_rows
from warpwatch.server.figures.verdict_timeline import verdict_timeline
from warpwatch.server.http.problems import not_found
from warpwatch.server.reports.formats import natural, variant_order
from warpwatch.server.verdicts.trades import LEFT
from warpwatch.server.web.choices import Bench, Text, choose_bench
from warpwatch.server.web.lanes import progress_of
from warpwatch.server.web.render import PageScope, Scope, query

router = APIRouter()
MOST_OPEN, MOST_SUSPECTED = 6, 3
"""Open and suspected regressions that are listed, worst first; the page of regressions has all."""
MOST_VIEWS = 12
"""Saved views that are listed; their page has all."""
Seen = Annotated[int, Query(ge=0, le=2**62)]


@dataclass(frozen=True, slots=True)
class Grid:
    """One operator: a row per case, a column per variant, None where a variant did not run."""

    operator: str
    variants: list[str]
    rows: list[tuple[str, list[OverviewCell | None]]]


def grids(cells: list[OverviewCell]) -> list[Grid]:
    """Cells, ordered by operator and case, as one grid per operator."""
    result = []
    for operator, group in groupby(cells, key=lambda cell: cell.operator):
        operator_cells = list(group)
        variants = sorted({cell.variant for cell in operator_cells}, key=variant_order)
        keyed = {(cell.case, cell.variant): cell for cell in operator_cells}
        cases = sorted({cell.case for cell in operator_cells}, key=natural)
        rows = [(case, [keyed.get((case, name)) for name in variants]) for case in cases]
        result.append(Grid(operator, variants, rows))
    return result


@router.get("/overview")
def overview(
    page: PageScope, device: Text = None, metric: Text = None, suite: Text = None, watcher: Text = None
) -> Response:
    """One sentence about the branch, its verdicts over the commits, and a row per operator, the worst first.

    watcher: a person, to whose watched cases everything is narrowed but the queue and the timeline.
    """
    bench = choose_bench(page.session, page.repository, device, metric) if page.repository else None
    if page.repository is None or bench is None:
        return page.page("welcome.html", json="/health")
    repository, session, line = page.repository, page.session, page.line
    cells = _cells(page, bench, suite, watcher=watcher)
    place = (session, repository.id, bench.device.id)
    trends = read_trends(*place, bench.metric, line, suite, watcher=watcher, whole=True)
    marks = list_verdict_marks(*place, line)
    filters = {
        "repository": repository.name,
        "device": bench.device.key,
        "metric": bench.metric,
        "suite": suite,
        "watcher": watcher,
        "branch": line.branch,
    }
    # Improvements are open too; they are no regressions, and come last.
    shown = RegressionFilter(state="open", line=line, watcher=watcher)
    regressions = list_regressions(session, repository.id, shown, limit=MOST_OPEN).items
    suspected = list_regressions(session, repository.id, replace(shown, verdict="suspected"), limit=MOST_SUSPECTED)
    standing = count_standing(session, repository.id, line, watcher=watcher)
    return page.page(
        "overview.html",
        json=query("/overview", **filters),
        csv=query("/api/v1/overview.csv", **filters),
        has_parquet=HAS_PARQUET,
        trends_json=query("/api/v1/overview/trends", **filters),
        bench=bench,
        suite=suite,
        suites=list_suites(session, repository.id),
        watcher=watcher,
        watchers=list_watchers(session, repository.id),
        rows=operator_summaries(cells, trends, marks),
        timeline=verdict_timeline(marks, list_timeline_ordinals(session, repository.id, line)),
        trends=trends,
        newest=max(trends.cells, key=lambda cell: cell.measured_at, default=None),
        checks=Counter(cell.check_status for cell in cells if cell.check_status),
        broken=[cell for cell in cells if not {cell.check_status, cell.bench_status} <= {*NO_FAILURE, None}],
        regressions=[row for row in regressions if row.direction != "faster"],
        suspected=suspected.items,
        standing=standing,
        steps=[] if watcher else list_recent_steps(session, repository.id, line, MOST_OPEN),
        costs=0 if watcher else count_costs(session, repository.id, line, LEFT),
        views=list_saved_views(session, repository.id, limit=MOST_VIEWS),
        **progress_of(page, repository.id),
    )


@router.get("/overview/shifts")
def shifts(
    page: PageScope, device: Text = None, metric: Text = None, suite: Text = None, watcher: Text = None
) -> Response:
    """The heat map of the newest commits: what is said of each operator at each of them, shifts included."""
    bench = choose_bench(page.session, page.repository, device, metric) if page.repository else None
    if page.repository is None or bench is None:
        raise not_found("repository", "", "register one first")
    place = (page.session, page.repository.id, bench.device.id, bench.metric, page.line)
    commits = read_trends(*place, suite, watcher=watcher).commits
    cells = _cells(page, bench, suite, watcher=watcher)
    operators = {cell.series_id: cell.operator for cell in cells if cell.series_id is not None}
    shas = [commit.sha for commit in commits]
    statements = read_statements(page.session, operators, shas, page.line)
    shown, rows = shift_rows(statements, operators, shas)
    return page.page(
        "_shifts.html",
        bench=bench,
        rows=rows,
        commits=[commit for commit in commits if commit.sha in set(shown)],
        left_out=len(shas) - len(shown),
    )


@router.get("/overview/progress")
def progress(page: PageScope, seen: Seen = 0) -> Response:
    """Renders the current measurements; the page fetches them again and again. seen: `newest_run` of the page; if
    another run has ended since, the response tells the page to fetch its results again."""
    if page.repository is None:
        raise not_found("repository", "", "register one first")
    values = progress_of(page, page.repository.id)
    answer = page.page("_progress.html", **values)
    if values["queue"].newest_run != seen:
        answer.headers["HX-Trigger"] = "warpwatch:results"
    return answer


@router.get("/overview/cases/{operator}")
def cases(
    page: PageScope, operator: str, device: Text = None, metric: Text = None, suite: Text = None, watcher: Text = None
) -> Response:
    """The cases of one operator, case by variant: the part of the overview that opens below its row."""
    bench = choose_bench(page.session, page.repository, device, metric, operator) if page.repository else None
    rows = grids(_cells(page, bench, suite, operator, watcher)) if bench else []
    if not rows:
        raise not_found("operator", operator, "open one from the overview")
    cells = [cell for _, row in rows[0].rows for cell in row if cell is not None]
    both = [number for cell in cells for number in (cell.series_id, cell.launch_series_id)]
    ids = {number for number in both if number is not None}
    shas = {cell.commit_sha for cell in cells if cell.commit_sha is not None}
    statements = read_statements(page.session, ids, shas, page.line)
    return page.page("_grid.html", grid=rows[0], bench=bench, statements=statements)


def _cells(
    page: Scope, bench: Bench, suite: str | None, operator: str | None = None, watcher: str | None = None
) -> list[OverviewCell]:
    assert page.repository is not None
    return read_overview(
        page.session, page.repository.id, bench.device.id, bench.metric, page.line, suite, operator, watcher
    )
