"""One operator: its variants over its cases as a heat map, the roofline, and the idea behind each variant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Response

from warpwatch.db.reads.builds import CodeHistory, read_code_history
from warpwatch.db.reads.code import (
    CaseRow,
    OperatorRow,
    RepositoryRow,
    find_operator,
    list_cases,
    list_suites,
    read_operator_entry,
)
from warpwatch.db.reads.devices import list_environments
from warpwatch.db.reads.overview import OverviewCell, read_overview
from warpwatch.db.trends import list_recent_points, list_release_times
from warpwatch.db.watches import list_watches
from warpwatch.server.figures.code_charts import QUANTITIES, code_figure
from warpwatch.server.figures.formats import share, variant_order
from warpwatch.server.figures.palette import variant_colour
from warpwatch.server.figures.roofline import RooflinePoint, roofline_figure
from warpwatch.server.figures.size_axis import SizeGroup, SizeQuantity, fastest_summary, size_figure, size_groups
from warpwatch.server.figures.small_multiples import small_multiples
from warpwatch.server.figures.speedups import baseline_of, case_speedups, variant_speedups
from warpwatch.server.http.problems import not_found
from warpwatch.server.web.choices import Bench, Text, choose_bench
from warpwatch.server.web.overview import grids
from warpwatch.server.web.render import PageScope, query

router = APIRouter()


@dataclass(frozen=True, slots=True)
class HeatCell:
    """speedup: the baseline's time over the variant's; heat: the strength of the colour, -4 to 4."""

    cell: OverviewCell
    speedup: float | None
    heat: int
    best: bool


@dataclass(frozen=True, slots=True)
class CodeView:
    """The chart of machine code. left_out: kernels not drawn; quantities: the choices; json: address of the data."""

    history: CodeHistory
    figure: dict[str, Any]
    left_out: int
    quantity: str
    quantities: list[tuple[str, str]]
    json: str


@dataclass(frozen=True, slots=True)
class SizeView:
    """The chart over one size. names: sizes to choose from; groups: cases that differ in the chosen one only.

    summary: which variant is the fastest from which size on.
    """

    figure: dict[str, Any]
    size: str
    names: list[str]
    group: SizeGroup
    groups: list[SizeGroup]
    quantity: SizeQuantity
    summary: str


@dataclass(frozen=True, slots=True)
class ArrowStart:
    """Where the arrows of the roofline start: a release, or for each point its previously measured commit."""

    sha: str | None
    tags: list[str]
    times: dict[int, float]


@dataclass(frozen=True, slots=True)
class SizeChoice:
    """The size of the cases over which `against` is drawn, for the cases of `group`."""

    size: str | None
    group: str | None
    against: SizeQuantity


def size_choice(size: Text = None, group: Text = None, against: SizeQuantity = SizeQuantity.TIME) -> SizeChoice:
    return SizeChoice(size, group, against)


Sizes = Annotated[SizeChoice, Depends(size_choice)]


@router.get("/kernels/{name}")
def operator(
    page: PageScope,
    name: str,
    sizes: Sizes,
    device: Text = None,
    metric: Text = None,
    suite: Text = None,
    arch: Text = None,
    code: Text = None,
) -> Response:
    """Speed-up of every variant over the baseline, case by case; `code` is the quantity that the code chart draws."""
    row = find_operator(page.session, page.repository.id, name) if page.repository else None
    if page.repository is None or row is None:
        raise not_found("operator", name)
    bench = choose_bench(page.session, repository := page.repository, device, metric, name)
    cells = _cells(page, repository, bench, suite, name) if bench else []
    cases = {case.key: case for case in list_cases(page.session, row.id)}
    entry = read_operator_entry(page.session, repository.id, name, page.line) or {"variants": []}
    chosen = {"device": bench.device.key, "metric": bench.metric} if bench else {}
    filters = {"repository": repository.name, "branch": page.line.branch, **chosen}
    variants, grid = next(((grid.variants, grid.rows) for grid in grids(cells)), ([], []))
    return page.page(
        "operator.html",
        json=query("/overview", **filters, suite=suite, operator=name),
        operator=row,
        names=sorted(row.variants, key=variant_order),
        bench=bench,
        suite=suite,
        suites=list_suites(page.session, repository.id),
        baseline=baseline_of(variants) if variants else "v1",
        variants=variants,
        open_changes=worst_open(cells),
        rows=[(cases[case], heat_row(cells_of_case)) for case, cells_of_case in grid],
        speedups={speedup.variant: speedup for speedup in variant_speedups(cells)},
        speedups_json=bench and query(f"/api/v1/operators/{name}/speedups", **filters, suite=suite),
        entries={variant["name"]: variant for variant in entry["variants"]},
        sizes=_size_view(list(cases.values()), cells, sizes),
        colours=[(name, variant_colour(name)) for name in variants],
        **_pictures(page, bench, repository, cells, cases),
        code=_code(page, row, bench, arch, code) if bench else None,
        watches=list_watches(page.session, repository.id, operator=name).items,
    )


def _cells(
    page: PageScope, repository: RepositoryRow, bench: Bench, suite: str | None, operator: str
) -> list[OverviewCell]:
    return read_overview(page.session, repository.id, bench.device.id, bench.metric, page.line, suite, operator)


def worst_open(cells: list[OverviewCell]) -> list[OverviewCell]:
    """The cell of each open regression that shows it most."""
    worst: dict[int, OverviewCell] = {}
    for cell in cells:
        known = worst.get(cell.regression_id or 0)
        if cell.regression_id and (known is None or (cell.regression_ratio or 0) > (known.regression_ratio or 0)):
            worst[cell.regression_id] = cell
    return list(worst.values())


def heat_row(row: list[OverviewCell | None]) -> list[HeatCell | None]:
    """The cells of one case with their speed-up over the baseline of those that have a time: naive torch may be too
    slow for a case."""
    speedups = case_speedups(row)
    highest = max(speedups.values(), default=None)
    heats: list[HeatCell | None] = []
    for cell in row:
        speedup = speedups.get(cell.variant) if cell else None
        best = speedup is not None and speedup == highest
        heats.append(HeatCell(cell, speedup, heat_of(speedup), best) if cell else None)
    return heats


def heat_of(speedup: float | None) -> int:
    """-4 to 4 for a speed-up, in steps that double from 5 %: 1.05, 1.2, 1.5, 2.5 and their inverses."""
    if speedup is None:
        return 0
    factor = max(speedup, 1 / speedup)
    steps = sum(factor >= border for border in (1.05, 1.2, 1.5, 2.5))
    return steps if speedup > 1 else -steps


def _code(
    page: PageScope, operator: OperatorRow, bench: Bench, arch: str | None, quantity: str | None
) -> CodeView | None:
    """The history of the operator's machine code; None where no native library was built on the device."""
    history = read_code_history(page.session, operator.id, operator.name, bench.device.key, arch)
    if not history.commits or page.repository is None:
        return None
    available = [
        name
        for name in QUANTITIES
        if name in ("code_bytes", "compile_seconds") or (history.arch or "").startswith("sm_")
    ]
    chosen = quantity if quantity in available else available[0]
    figure, left_out = code_figure(history, chosen, page.repository.name)
    json = query(
        f"/api/v1/operators/{operator.name}/code",
        repository=page.repository.name,
        device=bench.device.key,
        arch=history.arch,
    )
    return CodeView(history, figure, left_out, chosen, [(name, QUANTITIES[name]) for name in available], json)


def _peaks(page: PageScope, device_id: int) -> dict[str, float]:
    """The newest measured ceilings of the device."""
    return next((row.peaks for row in list_environments(page.session, device_id) if row.peaks), {})


def _pictures(
    page: PageScope,
    bench: Bench | None,
    repository: RepositoryRow,
    cells: list[OverviewCell],
    cases: dict[str, CaseRow],
) -> dict[str, Any]:
    """The roofline with its arrows, and the histories side by side."""
    peaks = _peaks(page, bench.device.id) if bench else {}
    start = _arrow_start(page, repository, cells)
    series = [cell.series_id for cell in cells if cell.series_id]
    return {
        "roofline": _roofline(cells, cases, peaks, start),
        "peaks": peaks,
        "roofline_label": _roofline_label(cells),
        "start": start,
        "multiples": small_multiples(cells, list_recent_points(page.session, series, page.line)),
    }


def _arrow_start(page: PageScope, repository: RepositoryRow, cells: list[OverviewCell]) -> ArrowStart:
    """The newest release on the line; without one, the previously measured commit of each cell."""
    series = [cell.series_id for cell in cells if cell.series_id]
    release = list_release_times(page.session, repository.id, series, page.line)
    if release:
        return ArrowStart(release[0].sha, release[0].tags, {row.series_id: row.median_ns for row in release})
    return ArrowStart(
        None, [], {cell.series_id: cell.previous_ns for cell in cells if cell.series_id and cell.previous_ns}
    )


def _size_view(cases: list[CaseRow], cells: list[OverviewCell], choice: SizeChoice) -> SizeView | None:
    """The chosen size and group, else those with most cases; None where no two cases differ in one size only."""
    groups = size_groups(cases, cells)
    if not groups:
        return None
    chosen = choice.size if choice.size in groups else max(groups, key=lambda name: len(groups[name][0].points))
    shown = next((item for item in groups[chosen] if item.name == choice.group), groups[chosen][0])
    figure = size_figure(shown, chosen, choice.against)
    return SizeView(figure, chosen, list(groups), shown, groups[chosen], choice.against, fastest_summary(shown, chosen))


def _roofline_label(cells: list[OverviewCell]) -> str:
    """The key numbers of the roofline in words."""
    shares = [cell for cell in cells if cell.roofline_share is not None and cell.check_status in (None, "ok")]
    label = "FLOP per second over FLOP per byte, one marker per variant and case, under the measured ceilings"
    if not shares:
        return label
    best = max(shares, key=lambda cell: cell.roofline_share or 0.0)
    return f"{label}; the highest share is {share(best.roofline_share)}, by {best.variant} at {best.case}"


def _roofline(
    cells: list[OverviewCell], cases: dict[str, CaseRow], peaks: dict[str, float], start: ArrowStart
) -> dict[str, Any] | None:
    points = [
        RooflinePoint(
            cell.variant,
            cell.case,
            cases[cell.case].flops,
            cases[cell.case].bytes,
            cell.median_ns,
            f"/history/{cell.series_id}",
            cases[cell.case].direction,
            start.times.get(cell.series_id or 0),
        )
        for cell in cells
        if cell.median_ns is not None and cases[cell.case].flops
    ]
    return roofline_figure(points, peaks) if points and "copy" in peaks else None
