"""The overview: operator × case × variant on one device, with open regressions and failures."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import groupby

from fastapi import APIRouter, Response

from warpwatch.db.reads.code import list_suites
from warpwatch.db.reads.overview import OverviewCell, read_overview
from warpwatch.db.reads.regressions import Question, list_regressions
from warpwatch.db.reads.work import list_submissions
from warpwatch.server.figures.formats import natural, variant_order
from warpwatch.server.pages.choices import Text, choose_bench
from warpwatch.server.pages.render import Page, query

router = APIRouter()
MOST_OPEN = 6
"""Open regressions that are listed, worst first; the page of regressions has all."""
SETTLED = ("ok", "unsupported", "skipped", None)


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


@router.get("/")
def overview(page: Page, device: Text = None, metric: Text = None, suite: Text = None) -> Response:
    """The latest result of every variant; regressions and failures come first."""
    bench = choose_bench(page.session, page.repository, device, metric) if page.repository else None
    if page.repository is None or bench is None:
        return page.page("welcome.html", json="/health")
    repository = page.repository
    cells = read_overview(page.session, repository.id, bench.device.id, bench.metric, page.line, suite)
    question = Question(state="open", line=page.line)
    regressions = list_regressions(page.session, repository.id, question, limit=MOST_OPEN).items
    filters = {
        "repository": repository.name,
        "device": bench.device.key,
        "metric": bench.metric,
        "suite": suite,
        "branch": page.line.branch,
    }
    return page.page(
        "overview.html",
        json=query("/overview", **filters),
        csv=query("/api/v1/overview.csv", **filters),
        bench=bench,
        suite=suite,
        suites=list_suites(page.session, repository.id),
        grids=grids(cells),
        latest=None if cells else next(iter(list_submissions(page.session, repository.id, limit=1).items), None),
        checks=Counter(cell.check_status for cell in cells if cell.check_status),
        broken=[cell for cell in cells if cell.check_status not in SETTLED or cell.bench_status not in SETTLED],
        regressions=[row for row in regressions if row.direction != "faster"],
    )
