"""One or several series over commits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from warpwatch.db.reads.code import find_operator, list_operators
from warpwatch.db.reads.history import PointRow, SeriesHistory, StatusMark, find_series, read_history
from warpwatch.server.figures.charts import history_figure
from warpwatch.server.figures.formats import fact, natural, variant_order
from warpwatch.server.figures.noise_summary import LevelShift, NoiseSummary, read_learned
from warpwatch.server.http.problems import Problem, not_found
from warpwatch.server.pages.choices import Text, Texts, choose_bench
from warpwatch.server.pages.render import Page, query

router = APIRouter()
MAX_ROWS = 100
"""Commits that the table shows; the chart, CSV and JSON hold all."""
Environment = Annotated[int | None, Query()]


@dataclass(frozen=True, slots=True)
class TableRow:
    """One commit of one series; change is over the point before it in the same environment."""

    variant: str
    commit_sha: str
    point: PointRow | None
    change: float | None
    marks: list[StatusMark]


@router.get("/history/{series_id}")
def history(page: Page, series_id: int, environment: Environment = None, scale: Text = None) -> Response:
    """One series."""
    found = read_history(page.session, series_id)
    if found is None:
        raise not_found("series", series_id, "it is listed under its operator")
    page.moved(found.series.repository)
    return _show(page, [found], environment, scale)


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
) -> Response:
    """Several variants of one case on one device; without a variant, all of them."""
    found = find_operator(page.session, page.repository.id, operator) if page.repository and operator else None
    if page.repository is None or found is None:
        raise not_found("operator", operator or "", "open one from the overview")
    bench = choose_bench(page.session, page.repository, device, metric, operator)
    chosen_case = case if case in found.cases else next(iter(sorted(found.cases, key=natural)), None)
    if bench is None or chosen_case is None:
        raise Problem(404, f"operator {operator} was never measured; submit a commit first")
    histories = []
    for name in sorted(variant or found.variants, key=variant_order):
        series = find_series(
            page.session, page.repository.id, found.name, chosen_case, name, bench.device.key, bench.metric
        )
        if series is not None and (read := read_history(page.session, series.id)) is not None:
            histories.append(read)
    if not histories:
        raise Problem(404, f"none of these variants was measured on {bench.device.name} with metric {bench.metric}")
    return _show(page, histories, environment, scale)


def _show(page: Page, histories: list[SeriesHistory], environment: int | None, scale: str | None) -> Response:
    series = histories[0].series
    assert page.repository is not None
    shown = [only_environment(one, environment) for one in histories]
    operators = list_operators(page.session, page.repository.id)
    address = f"/history/{series.id}" if len(histories) == 1 else "/series"
    filters = {"operator": series.operator, "case": series.case, "device": series.device_key, "metric": series.metric}
    named = next(row for row in operators if row.name == series.operator)
    rows = table_rows(shown)
    learned = {one.series.id: read_learned(page.session, one.series.id) for one in histories}
    return page.page(
        "history.html",
        json=address if len(histories) == 1 else query(address, repository=page.repository.name, **filters),
        histories=shown,
        series=series,
        filters=filters,
        chosen=[one.series.variant for one in histories],
        bench=choose_bench(page.session, page.repository, series.device_key, series.metric),
        cases=sorted(named.cases, key=natural),
        variants=sorted(named.variants, key=variant_order),
        operators=[row.name for row in operators],
        environments=environment_facts(histories),
        environment=environment,
        scale=scale,
        figure=history_figure(shown, steps_of(learned, environment), log_scale=scale == "log"),
        learned={id_: only_shown(found, environment) for id_, found in learned.items()},
        rows=rows[:MAX_ROWS],
        row_count=len(rows),
    )


def only_environment(history: SeriesHistory, environment: int | None) -> SeriesHistory:
    """The points of one environment; all of them when none is chosen."""
    if environment is None:
        return history
    return replace(history, points=[point for point in history.points if point.environment_id == environment])


def only_shown(found: list[NoiseSummary], environment: int | None) -> NoiseSummary | None:
    """What the chosen environment says, by default the newest; None where nothing was measured."""
    return next((one for one in found if environment in (None, one.environment_id)), None)


def steps_of(learned: dict[int, list[NoiseSummary]], environment: int | None) -> dict[int, list[LevelShift]]:
    """Where each series changed in the environments that are shown."""
    return {
        id_: [step for one in found if environment in (None, one.environment_id) for step in one.steps]
        for id_, found in learned.items()
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
            own = marks.pop((point.ordinal, point.commit_sha), [])
            rows.append((point.ordinal, TableRow(variant, point.commit_sha, point, change, own)))
            before[point.environment_id] = point.median_ns
        rows += [(ordinal, TableRow(variant, sha, None, None, own)) for (ordinal, sha), own in marks.items()]
    return [row for _, row in sorted(rows, key=lambda pair: -pair[0])]


def environment_facts(histories: Iterable[SeriesHistory]) -> dict[int, list[tuple[str, str]]]:
    """What tells the environments apart, by id; with only one, nothing does."""
    found: dict[int, dict[str, Any]] = {}
    for history in histories:
        found |= history.environments
    names = dict.fromkeys(name for facts in found.values() for name in facts)
    differing = [name for name in names if len({fact(facts.get(name)) for facts in found.values()}) > 1]
    return {id_: [(name, fact(facts.get(name))) for name in differing] for id_, facts in sorted(found.items())}
