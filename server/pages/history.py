"""The history of one or several series over commits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from warpwatch.db.reads.code import find_operator, list_operators
from warpwatch.db.reads.history import PointRow, SeriesHistory, StatusMark, find_series, read_history, read_series
from warpwatch.server.figures.charts import history_figure
from warpwatch.server.figures.formats import fact, natural, variant_order
from warpwatch.server.figures.noise_summary import LevelShift, NoiseSummary, read_learned
from warpwatch.server.http.problems import Problem, not_found
from warpwatch.server.pages.choices import Text, Texts, choose_bench
from warpwatch.server.pages.render import Page, query

router = APIRouter()
MAX_ROWS = 100
"""Rows of the table; the chart, CSV and JSON hold all commits."""
Environment = Annotated[int | None, Query()]


@dataclass(frozen=True, slots=True)
class TableRow:
    """One commit of one series. change: ratio to the previous point in the same environment."""

    variant: str
    commit_sha: str
    point: PointRow | None
    change: float | None
    marks: list[StatusMark]


@router.get("/history/{series_id}")
def history(
    page: Page, series_id: int, environment: Environment = None, scale: Text = None, branches: bool = False
) -> Response:
    """One series."""
    series = read_series(page.session, series_id)
    if series is None:
        raise not_found("series", series_id, "open a series from the page of its operator")
    page.moved(series.repository)
    history = read_history(page.session, series_id, page.line, branches=branches)
    assert history is not None
    return _show(page, [history], environment, scale, branches=branches)


@router.get("/history")
def overlay(
    page: Page,
    operator: Text = None,
    case: Text = None,
    variant: Texts = [],  # noqa: B006 - FastAPI copies it.
    device: Text = None,
    metric: Text = None,
    environment: Environment = None,
    scale: Text = None,
    branches: bool = False,
) -> Response:
    """Several variants of one case on one device; all variants by default."""
    row = find_operator(page.session, page.repository.id, operator) if page.repository and operator else None
    if page.repository is None or row is None:
        raise not_found("operator", operator or "", "open one from the overview")
    bench = choose_bench(page.session, page.repository, device, metric, operator)
    chosen_case = case if case in row.cases else next(iter(sorted(row.cases, key=natural)), None)
    if bench is None or chosen_case is None:
        raise Problem(404, f"operator {operator} has no measurements; submit a commit first")
    histories = []
    for name in sorted(variant or row.variants, key=variant_order):
        series = find_series(
            page.session, page.repository.id, row.name, chosen_case, name, bench.device.key, bench.metric
        )
        if series is not None:
            histories.append(read_history(page.session, series.id, page.line, branches=branches))
    if not histories:
        raise Problem(
            404, f"none of these variants has a measurement on {bench.device.name} with metric {bench.metric}"
        )
    return _show(page, [history for history in histories if history], environment, scale, branches=branches)


def _show(
    page: Page, histories: list[SeriesHistory], environment: int | None, scale: str | None, *, branches: bool
) -> Response:
    series = histories[0].series
    assert page.repository is not None
    shown = [only_environment(history, environment) for history in histories]
    operators = list_operators(page.session, page.repository.id)
    address = f"/history/{series.id}" if len(histories) == 1 else "/series"
    filters = {"operator": series.operator, "case": series.case, "device": series.device_key, "metric": series.metric}
    operator = next(row for row in operators if row.name == series.operator)
    rows = table_rows(shown)
    summaries = {history.series.id: read_learned(page.session, history.series.id, page.line) for history in histories}
    return page.page(
        "history.html",
        json=query(address, branch=page.line.branch, branches="true" if branches else None)
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
        scale=scale,
        branches=branches,
        figure=history_figure(shown, steps_of(summaries, environment), log_scale=scale == "log"),
        learned={id_: only_shown(rows_, environment) for id_, rows_ in summaries.items()},
        rows=rows[:MAX_ROWS],
        row_count=len(rows),
    )


def only_environment(history: SeriesHistory, environment: int | None) -> SeriesHistory:
    """The points of one environment; all of them when none is chosen."""
    if environment is None:
        return history
    return replace(history, points=[point for point in history.points if point.environment_id == environment])


def only_shown(summaries: list[NoiseSummary], environment: int | None) -> NoiseSummary | None:
    """The noise of the chosen environment, by default the newest; None where nothing was measured."""
    return next((summary for summary in summaries if environment in (None, summary.environment_id)), None)


def steps_of(summaries: dict[int, list[NoiseSummary]], environment: int | None) -> dict[int, list[LevelShift]]:
    """The level shifts of each series in the environments that are shown."""
    return {
        id_: [step for row in rows if environment in (None, row.environment_id) for step in row.steps]
        for id_, rows in summaries.items()
    }


def table_rows(histories: Iterable[SeriesHistory]) -> list[TableRow]:
    """Every commit with a point or a mark, newest first."""
    rows: list[tuple[int, TableRow]] = []
    for history in histories:
        marks: dict[tuple[int, str], list[StatusMark]] = {}
        for mark in history.marks:
            marks.setdefault((mark.ordinal, mark.commit_sha), []).append(mark)
        before: dict[int, float] = {}
        variant = history.series.variant
        for point in history.points:
            last = before.get(point.environment_id)
            change = point.median_ns / last if last else None
            own_marks = marks.pop((point.ordinal, point.commit_sha), [])
            rows.append((point.ordinal, TableRow(variant, point.commit_sha, point, change, own_marks)))
            before[point.environment_id] = point.median_ns
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
