"""The list of commits, and the results of one commit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from fastapi import APIRouter, Request, Response

from warpwatch.contract.words import StatementKind
from warpwatch.db.reads.builds import BuildView, CodeChange
from warpwatch.db.reads.code import list_commits
from warpwatch.db.reads.commit_cells import CellFilter, CommitCell, list_cells
from warpwatch.db.reads.commits import CommitDetail, change_ids, list_culprits, read_commit
from warpwatch.db.reads.lines import ALL_COMMITS, list_branches_named, read_line_of
from warpwatch.db.reads.trades import list_trades
from warpwatch.server.explanation.statements import state_cells
from warpwatch.server.figures.dot_plot import MOST_ROWS, commit_svg
from warpwatch.server.figures.lanes import draw_lanes, width_of
from warpwatch.server.http.problems import not_found
from warpwatch.server.http.service import Before, Branch, Config
from warpwatch.server.intake.filters import ALL_BRANCHES
from warpwatch.server.reports.formats import natural, variant_order
from warpwatch.server.reports.trade_words import summarize_by_commit, summarize_trades
from warpwatch.server.verdicts.trades import importance
from warpwatch.server.web.branches import show_branches
from warpwatch.server.web.choices import Text
from warpwatch.server.web.code import RepositoryName, Sha, get_commit_source
from warpwatch.server.web.render import PageScope, query, render

router = APIRouter()
CELLS = 100
"""Cells on one page of a commit."""
MOST_TRADES = 3
"""Costs that the page of a commit lists."""
TRADED = "traded"
"""The tab with everything that the commit changed beside its times."""
COUNTS = ("cells", "failing", "changed", "right", "wrong")


@dataclass(frozen=True, slots=True)
class BuildRow:
    """A build and its kernels: those that changed, and all others.

    first: place of the first build with the same kernels, because operators share libraries, and a commit is built in
    several environments.
    """

    build: BuildView
    changed: list[CodeChange]
    same: list[CodeChange]
    first: int


@router.get("/commits")
def commits(
    page: PageScope, before: Before = None, branch: Branch = None, tab: Literal["branches"] | None = None
) -> Response:
    """The commits of all branches, or of one, in the order of history, newest first, with the graph beside them; in the
    tab `branches` the branches that they are on."""
    if page.repository is None:
        return page.page("welcome.html")
    if tab is not None:
        return show_branches(page, page.repository, before)
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
        traded=summarize_by_commit(list_trades(page.session, [row.id for row in rows.items])),
        graph_width=width_of(graph),
        shown=line.name,
        before=before,
    )


@router.get("/commits/{sha}")
def commit(page: PageScope, sha: str, show: Text = None, operator: Text = None, before: Before = None) -> Response:
    """Every variant on every case at one commit, a hundred at a time: what fails first, then what changed."""
    detail = _find(page, sha)
    page.moved(detail.repository)
    trades = sorted(list_trades(page.session, [detail.commit.id]), key=importance)
    shows_trades = show == TRADED and bool(trades)
    chosen = CellFilter(show) if show in set(CellFilter) else CellFilter.ALL
    line = read_line_of(page.session, detail.commit.id) or ALL_COMMITS
    ids = change_ids(page.session, detail.commit.id, detail.changes)
    cells = list_cells(page.session, detail.commit, line, chosen, operator, before, CELLS, ids)
    kept = {"show": None if chosen == CellFilter.ALL else chosen.value, "operator": operator}
    address, filters = f"/commits/{detail.commit.sha}", {"repository": detail.repository}
    tallies = [tally for tally in detail.operators if operator in (None, tally.operator)]
    counts = {name: sum(getattr(tally, name) for tally in tallies) for name in COUNTS} | {TRADED: len(trades)}
    changed = [cell for cell in cells.items if cell.is_changed][:MOST_ROWS]
    is_drawn = not (shows_trades or before or chosen == CellFilter.PROBLEMS)
    if is_drawn and len(changed) < min(counts["changed"], MOST_ROWS):
        # Failing cells left no room for those that changed.
        only = CellFilter.CHANGED
        changed = list_cells(page.session, detail.commit, line, only, operator, None, MOST_ROWS, ids).items
    statements = state_cells(page.session, detail.commit, [*cells.items, *changed], line)
    return page.page(
        "commit.html",
        json=query(address, **filters),
        csv=query(f"/api/v1{address}.csv", **filters),
        cells_json=query(f"/api/v1{address}/cells", **filters, **kept, before=before, limit=CELLS),
        detail=detail,
        builds=build_rows(detail.builds),
        commit=detail.commit,
        show=TRADED if shows_trades else chosen.value,
        operator=operator,
        kept=kept,
        before=before,
        cells=cells,
        statements=statements,
        confirmed={
            cell.operator
            for cell in cells.items
            if cell.stated_series_id in statements and statements[cell.stated_series_id].kind == StatementKind.CONFIRMED
        },
        plot=commit_svg(changed, statements) if is_drawn else None,
        trades=trades,
        traded=summarize_trades(trades),
        most_trades=MOST_TRADES,
        counts=counts,
        groups=[]
        if shows_trades
        else [(kind, name, sort_cells(rows)) for (kind, name), rows in groupby(cells.items, key=group_of)],
    )


@router.get("/commits/{sha}/source")
def commit_source(request: Request, settings: Config, sha: Sha, repository: RepositoryName) -> Response:
    """The message and the diff of a commit, which its page fetches after it is shown."""
    source = get_commit_source(request, settings, sha, repository)
    return render(request, "_commit_source.html", source=source, diff=source.diff)


def group_of(cell: CommitCell) -> tuple[str, str]:
    """Group of a cell: failing, changed or neither, and the cell's operator."""
    return "failing" if cell.is_failing else "changed" if cell.is_changed else "", cell.operator


def build_rows(builds: Sequence[BuildView]) -> list[BuildRow]:
    rows: list[BuildRow] = []
    for place, build in enumerate(builds):
        changed = [change for change in build.changes or () if change.state != "unknown"]
        # Kernels of one name and architecture differ in nothing that finds them again but the object itself.
        found = {id(change.after) for change in changed}
        same = [CodeChange(code.name, code.arch, "", None, code) for code in build.resources if id(code) not in found]
        first = next((row.first for row in rows if (row.changed, row.same) == (changed, same)), place)
        rows.append(BuildRow(build, changed, same, first))
    return rows


def sort_cells(cells: Iterable[CommitCell]) -> list[CommitCell]:
    return sorted(cells, key=lambda cell: (natural(cell.case), variant_order(cell.variant), cell.device_key))


def _find(page: PageScope, sha: str) -> CommitDetail:
    """The commit in the page's repository, else in any other, because short links name no repository."""
    others = [row for row in page.repositories if row != page.repository]
    for repository in [page.repository, *others]:
        detail = read_commit(page.session, repository.id, sha) if repository else None
        if detail is not None:
            return detail
    raise not_found("commit", sha, "submit it first, or use a longer prefix of its SHA")
