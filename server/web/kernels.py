"""Kernels: the list of a repository's operators, and a page per operator whose tabs show it now, over commits, over
sizes, over devices, and its machine code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import RedirectResponse

from warpwatch.contract.catalogue import SizeQuestion
from warpwatch.contract.codec import from_json
from warpwatch.contract.measurement import METRICS, Curves
from warpwatch.contract.words import StatementDirection, StatementKind
from warpwatch.db.reads.builds import CodeHistory, read_code_history
from warpwatch.db.reads.code import CaseRow, list_cases, read_operator_entry
from warpwatch.db.reads.devices import list_devices, list_environments
from warpwatch.db.reads.launched import LaunchedHistory, read_launched
from warpwatch.db.reads.operator_cases import (
    CaseChange,
    CaseSeries,
    MeasuredCurves,
    count_changes,
    list_case_changes,
    list_case_series,
    list_curves,
    list_metric_times,
)
from warpwatch.db.reads.overview import OverviewCell, read_overview
from warpwatch.db.reads.standing import list_verdict_marks
from warpwatch.db.trends import list_release_times, read_trends
from warpwatch.server.explanation.choices import list_flips
from warpwatch.server.figures.ceiling_rows import ceiling_rows, has_share_above_ceiling, highest_share, mark_svg
from warpwatch.server.figures.code_charts import QUANTITIES, code_figure
from warpwatch.server.figures.device_plot import DeviceCells, compare_devices, device_figure, device_label
from warpwatch.server.figures.kernel_rows import kernel_rows
from warpwatch.server.figures.questions import answer_metrics, answer_questions
from warpwatch.server.figures.result_curves import curves_sentence, curves_svg
from warpwatch.server.figures.roofline import RooflinePoint, roofline_figure
from warpwatch.server.figures.size_axis import (
    SizeGroup,
    SizeQuantity,
    fastest_summary,
    size_figure,
    size_groups,
)
from warpwatch.server.figures.small_multiples import case_statement
from warpwatch.server.figures.speedups import case_speedups, standings, variant_speedups
from warpwatch.server.http.problems import not_found
from warpwatch.server.reports.formats import states_result, variant_order
from warpwatch.server.verdicts.statements import Statement, worst_statement
from warpwatch.server.web.choices import Text, choose_bench
from warpwatch.server.web.history import View, commits_tab
from warpwatch.server.web.operator_frame import Frame, KernelTab, OperatorFrame, frame_values, read_frame
from warpwatch.server.web.overview import grids
from warpwatch.server.web.render import PageScope, Scope, query

router = APIRouter()
MOST_DEVICES = 8
"""Devices of one chart: as many as there are marks that can be told apart."""
TAB_NAMES = {
    KernelTab.NOW: "Now",
    KernelTab.COMMITS: "Over commits",
    KernelTab.SIZES: "Over sizes",
    KernelTab.DEVICES: "Devices",
    KernelTab.CODE: "Code",
}
IMPLIED = {
    **dict.fromkeys(("size", "group", "against"), KernelTab.SIZES),
    **dict.fromkeys(("code", "arch"), KernelTab.CODE),
}
"""The tab that an address without one means, by a filter that only this tab has."""


@dataclass(frozen=True, slots=True)
class HeatCell:
    """speedup: the baseline's time over the variant's; heat: the strength of the colour, -4 to 4."""

    cell: OverviewCell
    speedup: float | None
    heat: int
    best: bool


@dataclass(frozen=True, slots=True)
class CodeView:
    """The chart of machine code. left_out: kernels not drawn; quantities: the choices."""

    history: CodeHistory
    figure: dict[str, Any]
    left_out: int
    quantity: str
    quantities: list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class LaunchedView:
    """What a variant launches. flips: what its autotuners chose otherwise before, in words."""

    row: LaunchedHistory
    flips: list[str]


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
class CurvesView:
    """The picture of a result's curves, and where they end in words."""

    checked: MeasuredCurves
    title: str
    sentence: str
    picture: str


@dataclass(frozen=True, slots=True)
class ArrowStart:
    """Where the arrows of the roofline start: a release, or for each point its previously measured commit."""

    sha: str | None
    tags: list[str]
    times: dict[int, float]


@dataclass(frozen=True, slots=True)
class TabChoice:
    """What the address says of single tabs. plane: whether the roofline is drawn in two dimensions. size, group: over
    which size of the cases, and for which of them, `against` is drawn. code, arch: quantity and architecture of the
    machine code."""

    plane: bool
    size: str | None
    group: str | None
    against: SizeQuantity
    code: str | None
    arch: str | None


def tab_choice(
    plane: Annotated[bool, Query()] = False,
    size: Text = None,
    group: Text = None,
    against: SizeQuantity = SizeQuantity.TIME,
    code: Text = None,
    arch: Text = None,
) -> TabChoice:
    return TabChoice(plane, size, group, against, code, arch)


Choice = Annotated[TabChoice, Depends(tab_choice)]


@router.get("/kernels")
def kernels(page: PageScope, device: Text = None, metric: Text = None) -> Response:
    """A row per operator of the repository, the one that needs somebody most first."""
    bench = choose_bench(page.session, page.repository, device, metric) if page.repository else None
    if page.repository is None or bench is None:
        return page.page("welcome.html", json="/health")
    repository, session = page.repository, page.session
    series = list_case_series(session, repository.id, bench.device.id, bench.metric, page.line)
    trends = read_trends(session, repository.id, bench.device.id, bench.metric, page.line)
    marks = list_verdict_marks(session, repository.id, bench.device.id, page.line)
    counts = count_changes(session, repository.id, bench.device.id, page.line)
    changes = list_case_changes(session, repository.id, bench.device.id, page.line) if counts else []
    worst = {
        name: worst_statement([case_statement(item) for item in changes if item.operator == name]) for name in counts
    }
    return page.page(
        "kernels.html",
        json=query("/operators", repository=repository.name),
        bench=bench,
        rows=kernel_rows(series, counts, worst, trends, marks),
        commits=trends.commits,
    )


@router.get("/devices/compare")
def compare_address(request: Request, operator: Text = None) -> Response:
    """The old address of an operator over devices."""
    if not operator:
        raise not_found("operator", "", "open one from the list of kernels")
    rest = [(name, value) for name, value in request.query_params.multi_items() if name != "operator"]
    filters = urlencode([("tab", str(KernelTab.DEVICES)), *rest])
    return RedirectResponse(f"/kernels/{quote(operator, safe='')}?{filters}", 308)


@router.get("/kernels/{name}")
def operator(
    request: Request,
    page: PageScope,
    name: str,
    frame_choice: Frame,
    view: View,
    choice: Choice,
    tab: KernelTab | None = None,
) -> Response:
    """One operator, in one of its tabs; each reads only what it shows."""
    implied = next((IMPLIED[key] for key in request.query_params if key in IMPLIED), None)
    if tab is None and implied is not None:
        given = request.query_params.multi_items()
        return RedirectResponse(f"{request.url.path}?{urlencode([('tab', str(implied)), *given])}", 307)
    tab = tab or KernelTab.NOW
    frame = read_frame(page, name, frame_choice)
    values: dict[str, Any] = {"json": None}
    if frame.bench is not None:
        if tab == KernelTab.COMMITS:
            values = commits_tab(page, frame, view)
        else:
            build = {
                KernelTab.NOW: now_tab,
                KernelTab.SIZES: sizes_tab,
                KernelTab.DEVICES: devices_tab,
                KernelTab.CODE: code_tab,
            }
            values = build[tab](page, frame, choice)
    return page.page("operator.html", tabs=TAB_NAMES, **frame_values(page, frame, tab) | values)


# --- now ------------------------------------------------------------------------------------------------------


def now_tab(page: Scope, frame: OperatorFrame, choice: TabChoice) -> dict[str, Any]:
    """Speed-up of every variant over the baseline, case by case, the share of the ceiling, and what each variant is."""
    assert page.repository is not None
    assert frame.bench is not None
    repository, bench, operator = page.repository, frame.bench, frame.operator
    suite = frame.choice.suite
    cells = read_overview(
        page.session, repository.id, bench.device.id, bench.metric, page.line, suite, operator=operator.name
    )
    cases = {case.key: case for case in list_cases(page.session, operator.id)}
    variants, grid = next(((grid.variants, grid.rows) for grid in grids(cells)), ([], []))
    shown = frame.shown(variants)
    order = [variants.index(name) for name in shown]
    entry = read_operator_entry(page.session, repository.id, operator.name, page.line) or {"variants": []}
    entries = {variant["name"]: variant for variant in entry["variants"]}
    filters = {"repository": repository.name, "branch": page.line.branch, "device": bench.device.key}
    filters["metric"] = bench.metric
    speedups = variant_speedups(cells)
    return {
        "json": query("/overview", **filters, suite=suite, operator=operator.name),
        "names": sorted(operator.variants, key=variant_order),
        "baseline": speedups[0].baseline if speedups else "v1",
        "shown": shown,
        "open_changes": worst_open(frame),
        "rows": [(cases[case], heat_row([row[place] for place in order])) for case, row in grid],
        # A variant that stands alone has times and no speed-up.
        "is_alone": (is_alone := len(shown) == 1),
        "speedups": {} if is_alone else {speedup.variant: speedup for speedup in speedups},
        "speedups_json": query(f"/api/v1/operators/{operator.name}/speedups", **filters, suite=suite),
        "entries": entries,
        "standings": standings(cells),
        "notes": {name: text for name, row in entries.items() if (text := row["outcome"]) and not states_result(text)},
        "questions": answer_questions(
            [from_json(SizeQuestion, question) for question in entry.get("questions", ())],
            size_groups([*cases.values()], frame.series),
        ),
        "metric_answers": answer_metrics(
            list_metric_times(page.session, operator.id, bench.device.id, METRICS[bench.device.kind], page.line),
            bench.device.kind,
        ),
        "curves": _curves(page, frame),
        "ceilings": ceiling_rows(cells, frame.styles),
        "is_above": has_share_above_ceiling(cells),
        "swatches": swatches(frame, shown),
        **_plane(page, frame, cells, cases, choice),
    }


def _curves(page: Scope, frame: OperatorFrame) -> CurvesView | None:
    """Of the results of the newest check those with most lines, such as controls, then with most places."""
    assert frame.bench is not None
    found = list_curves(page.session, frame.operator.id, frame.bench.device.id, page.line)
    read = [(row, from_json(Curves, row.curves)) for row in found]
    if not read:
        return None
    row, curves = max(read, key=lambda pair: (len(pair[1].lines), len(pair[1].at)))
    return CurvesView(row, f"{curves.y} over {curves.x}", curves_sentence(curves), curves_svg(curves))


def swatches(frame: OperatorFrame, names: Sequence[str]) -> list[tuple[str, str, bool]]:
    """(variant, its mark as SVG, whether it is lit) for the legend."""
    return [(name, mark_svg(frame.styles[name], 6, 6), frame.styles[name].is_lit) for name in names]


def worst_open(frame: OperatorFrame) -> list[tuple[CaseSeries, Statement]]:
    """The series of each open regression that shows it most, with what is said of it there."""
    series = {(row.variant, row.case): row for row in frame.series}
    worst: dict[int, CaseChange] = {}
    for item in frame.changes:
        known = worst.get(item.regression_id)
        if (item.variant, item.case) in series and (known is None or (item.ratio or 0) > (known.ratio or 0)):
            worst[item.regression_id] = item
    about = [(series[item.variant, item.case], case_statement(item)) for item in worst.values()]
    return [
        (row, statement)
        for row, statement in about
        if statement.kind == StatementKind.CONFIRMED and statement.direction != StatementDirection.FASTER
    ]


def heat_row(row: Sequence[OverviewCell | None]) -> list[HeatCell | None]:
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


def _plane(
    page: Scope, frame: OperatorFrame, cells: list[OverviewCell], cases: dict[str, CaseRow], choice: TabChoice
) -> dict[str, Any]:
    """The roofline in two dimensions, where it was asked for. has_plane: whether it can be."""
    assert frame.bench is not None
    environments = list_environments(page.session, frame.bench.device.id)
    peaks = next((row.peaks for row in environments if row.peaks), {})
    drawn = [cell for cell in cells if cell.median_ns is not None and cases[cell.case].flops]
    has_plane = bool(drawn) and "copy" in peaks
    if not (choice.plane and has_plane):
        return {"plane": None, "has_plane": has_plane}
    start = _arrow_start(page, cells)
    points = [
        RooflinePoint(
            cell.variant,
            cell.case,
            cases[cell.case].flops,
            cases[cell.case].bytes,
            cell.median_ns or 0.0,
            f"/history/{cell.series_id}",
            cases[cell.case].direction,
            start.times.get(cell.series_id or 0),
        )
        for cell in drawn
    ]
    figure = roofline_figure(points, peaks, frame.styles)
    return {"plane": figure, "has_plane": True, "peaks": peaks, "plane_label": _plane_label(cells), "start": start}


def _arrow_start(page: Scope, cells: list[OverviewCell]) -> ArrowStart:
    """The newest release on the line; without one, the previously measured commit of each cell."""
    assert page.repository is not None
    series = [cell.series_id for cell in cells if cell.series_id]
    release = list_release_times(page.session, page.repository.id, series, page.line)
    if release:
        return ArrowStart(release[0].sha, release[0].tags, {row.series_id: row.median_ns for row in release})
    return ArrowStart(
        None, [], {cell.series_id: cell.previous_ns for cell in cells if cell.series_id and cell.previous_ns}
    )


def _plane_label(cells: list[OverviewCell]) -> str:
    """The key numbers of the roofline in words."""
    label = "FLOP per second over FLOP per byte, one marker per variant and case, under the measured ceilings"
    highest = highest_share(cells)
    return f"{label}; the highest share is {highest}" if highest else label


# --- over sizes, over devices, code ---------------------------------------------------------------------------


def sizes_tab(page: Scope, frame: OperatorFrame, choice: TabChoice) -> dict[str, Any]:
    """The chosen size and group, else the group of the chosen case, else those with most cases."""
    assert page.repository is not None
    cases = list_cases(page.session, frame.operator.id)
    groups = size_groups(cases, frame.series)
    json = query("/series", repository=page.repository.name, operator=frame.operator.name)
    if not groups:
        return {"json": json, "sizes": None}
    own = next(
        (
            (name, group)
            for name, groups_of_size in groups.items()
            for group in groups_of_size
            if choice.size in (None, name) and frame.case in [point.case for point in group.points]
        ),
        None,
    )
    most = max(groups, key=lambda name: len(groups[name][0].points))
    chosen = choice.size if choice.size in groups else own[0] if own else most
    usual = own[1] if own and own[0] == chosen else groups[chosen][0]
    shown = next((item for item in groups[chosen] if item.name == choice.group), usual)
    figure = size_figure(shown, chosen, choice.against, frame.styles)
    summary = fastest_summary(shown, chosen)
    view = SizeView(figure, chosen, list(groups), shown, groups[chosen], choice.against, summary)
    return {"json": json, "sizes": view}


def devices_tab(page: Scope, frame: OperatorFrame, choice: TabChoice) -> dict[str, Any]:
    """The newest time per case on every device, of the chosen variant or of the fastest one of each device."""
    assert page.repository is not None
    columns = []
    for device in list_devices(page.session):
        metric = METRICS[device.kind][0]
        series = list_case_series(
            page.session, page.repository.id, device.id, metric, page.line, operator_id=frame.operator.id
        )
        cells = [row for row in series if frame.choice.suite in (None, *row.suites)]
        if any(row.median_ns for row in cells):
            columns.append(DeviceCells(device, metric, cells))
    columns = columns[:MOST_DEVICES]
    variant = frame.variants[0] if len(frame.variants) == 1 else None
    rows = compare_devices(columns, variant)
    return {
        "json": query("/series", repository=page.repository.name, operator=frame.operator.name, variant=variant),
        "variant": variant,
        "variants": sorted(frame.operator.variants, key=variant_order),
        "quantity": choice.against,
        "columns": columns,
        "rows": rows,
        "figure": device_figure(columns, rows, choice.against),
        "label": device_label(columns, rows),
    }


def code_tab(page: Scope, frame: OperatorFrame, choice: TabChoice) -> dict[str, Any]:
    """The history of the operator's machine code, where a native library was built on the device."""
    assert page.repository is not None
    assert frame.bench is not None
    operator, key = frame.operator, frame.bench.device.key
    history = read_code_history(page.session, operator.id, operator.name, key, choice.arch)
    filters = {"repository": page.repository.name, "device": key, "arch": history.arch}
    json = query(f"/operators/{operator.name}/code", **filters)
    case = frame.case or next(iter(operator.cases), "")
    rows = read_launched(page.session, operator.id, key, case, page.line)
    launched = [LaunchedView(row, list_flips(row.before, row.launched)) for row in rows]
    found = {"json": json, "launched": launched, "launched_case": case}
    if not history.commits:
        return found | {"code": None}
    is_gpu = (history.arch or "").startswith("sm_")
    available = [name for name in QUANTITIES if is_gpu or name in ("code_bytes", "compile_seconds")]
    chosen = choice.code if choice.code in available else available[0]
    figure, left_out = code_figure(history, chosen, page.repository.name)
    quantities = [(name, QUANTITIES[name]) for name in available]
    return found | {"code": CodeView(history, figure, left_out, chosen, quantities)}
