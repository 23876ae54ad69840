"""The history of one or several series over commits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response
from starlette.datastructures import URL

from warpwatch.db.reads.code import find_operator, list_operators
from warpwatch.db.reads.history import (
    PointRow,
    SeriesHistory,
    StatusMark,
    find_series,
    list_samples,
    read_history,
    read_series,
)
from warpwatch.db.reads.quantities import Quantity, list_quantities
from warpwatch.db.watches import list_watches
from warpwatch.server.figures.charts import history_figure
from warpwatch.server.figures.formats import change, duration, fact, natural, plural, variant_order
from warpwatch.server.figures.history_view import HistoryView, HorizontalAxis, VerticalAxis, find_commit, ordinals_of
from warpwatch.server.figures.noise_summary import LevelShift, NoiseSummary, read_learned
from warpwatch.server.figures.quantity_figure import quantity_figure, quantity_label
from warpwatch.server.http.problems import Problem, not_found
from warpwatch.server.web.choices import Bench, Text, Texts, choose_bench
from warpwatch.server.web.render import PageScope, query

router = APIRouter()
ROWS = 100
"""Rows on one page of the table; the chart, CSV and JSON hold all commits."""
MOST_TRIED = 20
"""Cases among which the first one with a time is looked for."""
MOST_SAMPLED = 60
"""Points whose samples are drawn, the newest of the shown range: some hundred kilobytes, and as many as are told apart.
"""
Environment = Annotated[int | None, Query()]
Sha = Annotated[str | None, Query(max_length=40)]
PageNumber = Annotated[int, Query(alias="page", ge=1, le=10_000)]


@dataclass(frozen=True, slots=True)
class TableRow:
    """One commit of one series. change: ratio to the previous point in the same environment, by the same card."""

    variant: str
    commit_sha: str
    point: PointRow | None
    change: float | None
    marks: list[StatusMark]


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
def history(page: PageScope, series_id: int, choice: View) -> Response:
    """One series."""
    series = read_series(page.session, series_id)
    if series is None:
        raise not_found("series", series_id, "open a series from the page of its operator")
    page.moved(series.repository)
    history = read_history(page.session, series_id, page.line, branches=choice.branches)
    assert history is not None
    return _show(page, [history], choice)


@router.get("/history")
def overlay(
    page: PageScope,
    choice: View,
    operator: Text = None,
    case: Text = None,
    variant: Texts = [],  # noqa: B006 - FastAPI copies it.
    device: Text = None,
    metric: Text = None,
) -> Response:
    """Several variants of one case on one device; all variants by default."""
    row = find_operator(page.session, page.repository.id, operator) if page.repository and operator else None
    if page.repository is None or row is None:
        raise not_found("operator", operator or "", "open one from the overview")
    bench = choose_bench(page.session, page.repository, device, metric, operator)
    if bench is None or not row.cases:
        raise Problem(404, f"operator {operator} has no measurements; submit a commit first")
    histories: list[SeriesHistory] = []
    # Some cases are checked alone; by default the first one with a time is shown.
    for key in [case] if case in row.cases else sorted(row.cases, key=natural)[:MOST_TRIED]:
        read = _read_variants(page, bench, row.name, key, variant or row.variants, branches=choice.branches)
        histories = histories or read
        if any(history.points for history in read):
            histories = read
            break
    if not histories:
        raise Problem(
            404, f"none of these variants has a measurement on {bench.device.name} with metric {bench.metric}"
        )
    return _show(page, histories, choice)


def _read_variants(
    page: PageScope, bench: Bench, operator: str, case: str, variants: Iterable[str], *, branches: bool
) -> list[SeriesHistory]:
    """The histories of the variants that were measured on one case."""
    assert page.repository is not None
    histories = []
    for name in sorted(variants, key=variant_order):
        series = find_series(page.session, page.repository.id, operator, case, name, bench.device.key, bench.metric)
        if series is not None:
            histories.append(read_history(page.session, series.id, page.line, branches=branches))
    return [history for history in histories if history]


def _show(page: PageScope, histories: list[SeriesHistory], choice: ViewChoice) -> Response:
    series = histories[0].series
    assert page.repository is not None
    environment, view = choice.environment, choice.view
    shown = [only_environment(history, environment) for history in histories]
    operators = list_operators(page.session, page.repository.id)
    address = f"/history/{series.id}" if len(histories) == 1 else "/series"
    filters = {"operator": series.operator, "case": series.case, "device": series.device_key, "metric": series.metric}
    operator = next(row for row in operators if row.name == series.operator)
    rows = pivot(in_range(table_rows(shown), shown, view))
    summaries = {history.series.id: read_learned(page.session, history.series.id, page.line) for history in histories}
    noise = {
        id_: [row for row in rows_ if environment in (None, row.environment_id)] for id_, rows_ in summaries.items()
    }
    watches = list_watches(page.session, page.repository.id, operator=series.operator).items
    quantity = choice.quantity
    samples = list_samples(page.session, sampled_points(shown, view)) if choice.samples and quantity is None else None
    if quantity is None:
        figure, label = history_figure(shown, steps_of(noise), view, noise, samples), chart_label(shown)
    else:
        drawn = {item.series.variant: item.series.id for item in shown}
        if quantity is Quantity.COMPILE:
            # All variants share one library.
            drawn = {series.operator: series.id}
        quantities = {name: list_quantities(page.session, id_, quantity, page.line) for name, id_ in drawn.items()}
        figure = quantity_figure(quantities, quantity, view, page.repository.name)
        label = quantity_label(quantities, quantity)
    return page.page(
        "history.html",
        json=query(address, branch=page.line.branch, branches="true" if choice.branches else None)
        if len(histories) == 1
        else query(address, repository=page.repository.name, **filters),
        histories=shown,
        series=series,
        filters=filters,
        chosen=[history.series.variant for history in histories],
        bench=choose_bench(page.session, page.repository, series.device_key, series.metric),
        cases=sorted(operator.cases, key=natural),
        variants=sorted(operator.variants, key=variant_order),
        operators=[row.name for row in operators],
        environments=environment_facts(histories),
        environment=environment,
        choice=choice,
        figure=figure,
        label=label,
        sampled=None if samples is None else len(samples),
        learned={id_: next(iter(rows_), None) for id_, rows_ in noise.items()},
        rows=rows[ROWS * (choice.page - 1) : ROWS * choice.page],
        row_count=len(rows),
        row_pages=row_pages(page.request.url, choice.page, len(rows)),
        watches=[row for row in watches if row.case in (None, series.case)],
    )


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
        for point in history.points:
            last = before.get((point.environment_id, point.card_id))
            change = point.median_ns / last if last else None
            own_marks = marks.pop((point.ordinal, point.commit_sha), [])
            rows.append((point.ordinal, TableRow(variant, point.commit_sha, point, change, own_marks)))
            before[point.environment_id, point.card_id] = point.median_ns
        rows += [(ordinal, TableRow(variant, sha, None, None, rest)) for (ordinal, sha), rest in marks.items()]
    return [row for _, row in sorted(rows, key=lambda pair: -pair[0])]


def environment_facts(histories: Iterable[SeriesHistory]) -> dict[int, list[tuple[str, str]]]:
    """The facts in which the environments differ, by environment id."""
    environments: dict[int, dict[str, Any]] = {}
    for history in histories:
        environments |= history.environments
    names = dict.fromkeys(name for facts in environments.values() for name in facts)
    differing = [name for name in names if len({fact(facts.get(name)) for facts in environments.values()}) > 1]
    return {id_: [(name, fact(facts.get(name))) for name in differing] for id_, facts in sorted(environments.items())}
