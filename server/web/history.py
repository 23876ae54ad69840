"""The tab of an operator that shows one or several series over commits, and the old addresses of histories."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Annotated, Any
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import RedirectResponse
from starlette.datastructures import URL

from warpwatch.db.reads.history import (
    PointRow,
    SeriesChange,
    SeriesHistory,
    StatusMark,
    find_series,
    list_samples,
    read_history,
    read_series,
)
from warpwatch.db.reads.quantities import PER_LIBRARY, Quantity, list_quantities
from warpwatch.server.figures.charts import history_figure
from warpwatch.server.figures.history_view import HistoryView, HorizontalAxis, VerticalAxis, find_commit, ordinals_of
from warpwatch.server.figures.noise_summary import LevelShift, NoiseSummary, read_learned
from warpwatch.server.figures.quantity_figure import quantity_figure, quantity_label
from warpwatch.server.http.problems import not_found
from warpwatch.server.reports.formats import change, duration, fact, plural, variant_order
from warpwatch.server.verdicts.statements import Statement, state_change
from warpwatch.server.web.choices import Text
from warpwatch.server.web.operator_frame import KernelTab, OperatorFrame
from warpwatch.server.web.render import PageScope, Scope, query
from warpwatch.server.web.verdicts import list_bars

router = APIRouter()
ROWS = 25
"""Rows on one page of the table; the chart, CSV and JSON hold all commits."""
MOST_SAMPLED = 60
"""Points whose samples are drawn, the newest of the shown range: some hundred kilobytes, and as many as are told apart.
"""
Environment = Annotated[int | None, Query()]
Sha = Annotated[str | None, Query(max_length=40)]
PageNumber = Annotated[int, Query(alias="page", ge=1, le=10_000)]


@dataclass(frozen=True, slots=True)
class TableRow:
    """One commit of one series. change: ratio to the previous point in the same environment, by the same card.
    stated: what is said of the confirmed or suspected change that begins here; without one there is nothing to say."""

    variant: str
    commit_sha: str
    point: PointRow | None
    change: float | None
    marks: list[StatusMark]
    stated: Statement | None = None


@dataclass(slots=True)
class CommitLine:
    """One commit of all shown series, by variant."""

    commit_sha: str
    subject: str = ""
    author: str = ""
    authored_at: datetime | None = None
    cells: dict[str, TableRow] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ViewChoice:
    """How the reader wants histories drawn, as the address says it. quantity: what is drawn instead of times. page: of
    the table, the newest commits first."""

    view: HistoryView
    quantity: Quantity | None
    environment: int | None
    branches: bool
    samples: bool
    page: int


def view_of(
    environment: Environment = None,
    scale: Text = None,
    y: VerticalAxis | Quantity = VerticalAxis.TIME,
    x: HorizontalAxis = HorizontalAxis.COMMIT,
    first: Annotated[Sha, Query(alias="from")] = None,
    last: Annotated[Sha, Query(alias="to")] = None,
    branches: bool = False,
    samples: bool = False,
    page_number: PageNumber = 1,
) -> ViewChoice:
    """`from` and `to`: the commits between which the chart is shown."""
    quantity = y if isinstance(y, Quantity) else None
    axis = y if isinstance(y, VerticalAxis) else VerticalAxis.TIME
    view = HistoryView(axis, x, scale == "log", first, last)
    return ViewChoice(view, quantity, environment, branches, samples, page_number)


View = Annotated[ViewChoice, Depends(view_of)]


@router.get("/history/{series_id}")
def series_address(request: Request, page: PageScope, series_id: int) -> Response:
    """Leads to the tab that shows the series: a short address for links and charts."""
    series = read_series(page.session, series_id)
    if series is None:
        raise not_found("series", series_id, "open a series from the page of its operator")
    chosen = {"repository": series.repository, "case": series.case, "variant": series.variant}
    chosen |= {"device": series.device_key, "metric": series.metric}
    page.moved(series.repository)
    assert page.repository is not None
    place = (page.repository.id, series.operator, series.case, series.variant, series.device_key, series.metric)
    newest = find_series(page.session, *place)
    if newest is not None and newest.id != series.id:
        chosen["protocol"] = series.protocol
    return _lead(request, series.operator, chosen)


@router.get("/history")
def history_address(request: Request, operator: Text = None) -> Response:
    """The old address of several variants of one case."""
    if not operator:
        raise not_found("operator", "", "open one from the list of kernels")
    return _lead(request, operator, {})


def _lead(request: Request, operator: str, chosen: dict[str, str]) -> Response:
    """To the history of an operator; filters of the address that `chosen` does not have are kept."""
    kept = [(name, value) for name, value in request.query_params.multi_items() if name not in {"operator", *chosen}]
    filters = urlencode([("tab", str(KernelTab.COMMITS)), *chosen.items(), *kept])
    return RedirectResponse(f"/kernels/{quote(operator, safe='')}?{filters}", 307)


def commits_tab(page: Scope, frame: OperatorFrame, choice: ViewChoice) -> dict[str, Any]:
    """The histories of the chosen case: of all variants, or of the chosen ones."""
    case = frame.case or first_case(frame)
    chosen = [row for row in frame.series if row.case == case and (not frame.variants or row.variant in frame.variants)]
    order = frame.shown([row.variant for row in chosen])
    chosen.sort(key=lambda row: order.index(row.variant))
    read = [read_history(page.session, row.series_id, page.line, branches=choice.branches) for row in chosen]
    histories = [history for history in read if history is not None]
    assert page.repository is not None
    address: dict[str, Any] = {"repository": page.repository.name, "operator": frame.operator.name, "case": case}
    json = query("/series", **address)
    if not histories:
        return {"json": json, "histories": [], "case": case, "choice": choice}
    if len(histories) == 1:
        side = "true" if choice.branches else None
        json = query(f"/history/{histories[0].series.id}", branch=page.line.branch, branches=side)
    return {"json": json, "case": case} | _history_values(page, frame, histories, choice)


def first_case(frame: OperatorFrame) -> str | None:
    """The first case with a time, because some cases are checked alone; else the first one."""
    timed = {row.case for row in frame.series if row.median_ns is not None}
    cases = [choice.case for choice in frame.choices]
    return next((case for case in cases if case in timed), cases[0] if cases else None)


def _history_values(
    page: Scope, frame: OperatorFrame, histories: list[SeriesHistory], choice: ViewChoice
) -> dict[str, Any]:
    """The chart of the histories, of their times or of another quantity, and a page of the table."""
    environment, view, quantity = choice.environment, choice.view, choice.quantity
    shown = [only_environment(history, environment) for history in histories]
    rows = in_range(table_rows(shown), shown, view)
    commits = list(dict.fromkeys(row.commit_sha for row in rows))
    # Only the shown page is put together: a history has hundreds of commits.
    on_page = set(commits[ROWS * (choice.page - 1) : ROWS * choice.page])
    noise: dict[int, list[NoiseSummary]] = {history.series.id: [] for history in histories}
    for history in histories:
        if frame.styles[history.series.variant].is_lit:
            summaries = read_learned(page.session, history.series.id, page.line)
            noise[history.series.id] = [row for row in summaries if environment in (None, row.environment_id)]
    bars = list_bars(page.session, page.repository.id, frame.operator.name) if page.repository else []
    samples = list_samples(page.session, sampled_points(shown, view)) if choice.samples and quantity is None else None
    if quantity is None:
        figure = history_figure(shown, steps_of(noise), view, noise, samples, frame.styles)
        label = chart_label(shown)
    else:
        figure, label = _quantity_chart(page, frame, shown, choice, quantity)
    return {
        "histories": shown,
        "series": histories[0].series,
        "chosen": [history.series.variant for history in histories],
        "lit": [name for name, style in frame.styles.items() if style.is_lit],
        "variants": sorted({row.variant for row in frame.series}, key=variant_order),
        "stated": {history.series.id: [(item, _state(history, item)) for item in history.changes] for history in shown},
        "environments": environment_facts(histories),
        "environment": environment,
        "choice": choice,
        "figure": figure,
        "label": label,
        "sampled": None if samples is None else len(samples),
        "bars": [bar for bar in bars if bar.device_key == histories[0].series.device_key],
        "learned": {id_: next(iter(rows_), None) for id_, rows_ in noise.items()},
        "rows": pivot(row for row in rows if row.commit_sha in on_page),
        "row_count": len(commits),
        "row_pages": row_pages(page.request.url, choice.page, len(commits)),
    }


def _quantity_chart(
    page: Scope, frame: OperatorFrame, histories: list[SeriesHistory], choice: ViewChoice, quantity: Quantity
) -> tuple[dict[str, Any], str]:
    """(figure, its key numbers in words)."""
    assert page.repository is not None
    drawn = {item.series.variant: item.series.id for item in histories}
    if quantity in PER_LIBRARY:
        # All variants share one library.
        drawn = {frame.operator.name: histories[0].series.id}
    quantities = {name: list_quantities(page.session, id_, quantity, page.line) for name, id_ in drawn.items()}
    figure = quantity_figure(quantities, quantity, choice.view, page.repository.name, frame.styles)
    return figure, quantity_label(quantities, quantity)


def row_pages(address: URL, number: int, count: int) -> dict[str, str]:
    """The addresses of the pages beside one page of the table of `count` rows, by the words of their links."""
    pages = {"Newer": number - 1, "Older": number + 1}
    last = -(-count // ROWS)
    return {
        name: f"{address.path}?{address.include_query_params(page=other).query}#points"
        for name, other in pages.items()
        if 1 <= other <= last
    }


def chart_label(histories: Sequence[SeriesHistory]) -> str:
    """The key numbers of the chart in words."""
    parts = []
    for history in histories:
        if not history.points:
            continue
        medians = [point.median_ns for point in history.points]
        moved = change(medians[-1] / medians[0])
        parts.append(
            f"{history.series.variant} {duration(medians[-1])} at the newest of "
            f"{plural(len(medians), 'commit')}, {moved} since the oldest, "
            f"between {duration(min(medians))} and {duration(max(medians))}, "
            f"{plural(len(history.changes), 'confirmed change')}"
        )
    return "Median time over commits with its 95 % interval: " + "; ".join(parts)


def sampled_points(histories: Sequence[SeriesHistory], view: HistoryView) -> list[int]:
    """The points whose samples are drawn: the newest of the shown range, as many of each series."""
    each = MOST_SAMPLED // max(len(histories), 1)
    first, last = bounds(histories, view)
    return [
        point.id
        for history in histories
        for point in [point for point in history.points if first <= point.ordinal <= last][-each:]
    ]


def bounds(histories: Iterable[SeriesHistory], view: HistoryView) -> tuple[int, int]:
    """The ordinals between which the view shows commits."""
    ordinals = ordinals_of(histories)
    first, last = find_commit(view.first, ordinals), find_commit(view.last, ordinals)
    return (ordinals[first] if first else 0), (ordinals[last] if last else 2**62)


def in_range(rows: Iterable[TableRow], histories: Sequence[SeriesHistory], view: HistoryView) -> list[TableRow]:
    """The rows of commits that the chart shows."""
    first, last = bounds(histories, view)
    ordinals = ordinals_of(histories)
    return [row for row in rows if first <= ordinals[row.commit_sha] <= last]


def pivot(rows: Iterable[TableRow]) -> list[CommitLine]:
    """One row per commit, in the order in which commits come first."""
    lines: dict[str, CommitLine] = {}
    for row in rows:
        line = lines.setdefault(row.commit_sha, CommitLine(row.commit_sha))
        line.cells[row.variant] = row
        source = row.point or next((mark for mark in row.marks if mark.authored_at), None)
        if source is not None and line.authored_at is None:
            line.subject, line.author, line.authored_at = source.subject, source.author, source.authored_at
    return list(lines.values())


def only_environment(history: SeriesHistory, environment: int | None) -> SeriesHistory:
    """The points of one environment; all of them when none is chosen."""
    if environment is None:
        return history
    return replace(history, points=[point for point in history.points if point.environment_id == environment])


def steps_of(summaries: dict[int, list[NoiseSummary]]) -> dict[int, list[LevelShift]]:
    """The level shifts of each series."""
    return {id_: [step for row in rows for step in row.steps] for id_, rows in summaries.items()}


def table_rows(histories: Iterable[SeriesHistory]) -> list[TableRow]:
    """Every commit with a point or a mark, newest first."""
    rows: list[tuple[int, TableRow]] = []
    for history in histories:
        marks: dict[tuple[int, str], list[StatusMark]] = {}
        for mark in history.marks:
            marks.setdefault((mark.ordinal, mark.commit_sha), []).append(mark)
        before: dict[tuple[int, int | None], float] = {}
        variant = history.series.variant
        stated = {item.head_sha: _state(history, item) for item in history.changes}
        for point in history.points:
            last = before.get((point.environment_id, point.card_id))
            change = point.median_ns / last if last else None
            own_marks = marks.get((point.ordinal, point.commit_sha), [])
            about = stated.get(point.commit_sha)
            rows.append((point.ordinal, TableRow(variant, point.commit_sha, point, change, own_marks, about)))
            before[point.environment_id, point.card_id] = point.median_ns
        timed = {point.commit_sha for point in history.points}
        rows += [
            (ordinal, TableRow(variant, sha, None, None, rest))
            for (ordinal, sha), rest in marks.items()
            if sha not in timed
        ]
    return [row for _, row in sorted(rows, key=lambda pair: -pair[0])]


def _state(history: SeriesHistory, item: SeriesChange) -> Statement:
    about = state_change(item.regression_id, item.direction, item.phase, item.ratio, item.signal)
    return replace(about, low=item.low, high=item.high, series_id=history.series.id, commit_sha=item.head_sha)


def environment_facts(histories: Iterable[SeriesHistory]) -> dict[int, list[tuple[str, str]]]:
    """The facts in which the environments differ, by environment id."""
    environments: dict[int, dict[str, Any]] = {}
    for history in histories:
        environments |= history.environments
    names = dict.fromkeys(name for facts in environments.values() for name in facts)
    differing = [name for name in names if len({fact(facts.get(name)) for facts in environments.values()}) > 1]
    return {id_: [(name, fact(facts.get(name))) for name in differing] for id_, facts in sorted(environments.items())}
