"""JSON and CSV of results: history, quantities, comparisons."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache, partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from pydantic import TypeAdapter

from warpwatch.contract.measurement import METRICS
from warpwatch.db.reads.code import CommitRow, RepositoryRow, find_commit
from warpwatch.db.reads.commits import ComparedRow
from warpwatch.db.reads.devices import DeviceRow
from warpwatch.db.reads.history import (
    MAX_POINTS,
    PointRow,
    PointSamples,
    SeriesHistory,
    SeriesRow,
    list_series,
    read_history,
    read_samples,
    read_series,
)
from warpwatch.db.reads.lines import HistoryLine
from warpwatch.db.reads.overview import OverviewCell, read_overview
from warpwatch.db.reads.quantities import Quantity, QuantityRow, list_quantities
from warpwatch.db.reads.query import Page, Session
from warpwatch.db.trends import TrendGrid, read_trends
from warpwatch.server.explanation.paired import StatedRow, compare_commits_paired, compare_variants_stated
from warpwatch.server.figures.noise_summary import NoiseSummary, read_learned
from warpwatch.server.figures.speedups import VariantSpeedup, variant_speedups
from warpwatch.server.figures.tables import CSV_ANSWER, csv_response
from warpwatch.server.http.brief import briefly, documented_brief
from warpwatch.server.http.problems import FieldError, Problem, documented, not_found
from warpwatch.server.http.service import (
    Before,
    Branch,
    Db,
    Limit,
    device_or_404,
    line_or_404,
    operator_or_404,
    repository_or_404,
)
from warpwatch.server.verdicts.statements import NO_DATA, Statement, state_cell, state_launch
from warpwatch.server.web.brief import brief_comparison, brief_history, brief_series
from warpwatch.server.web.code import DeviceKey, RepositoryName

_adapter = cache(TypeAdapter[Any])


def large_json(kind: Any, value: Any) -> Response:
    """`value`, which is of the type `kind`, as JSON."""
    return Response(_adapter(kind).dump_json(value), media_type="application/json")


api = APIRouter(tags=["results"])
Id = Annotated[int, Query(ge=1)]
Ordinal = Annotated[int | None, Query(ge=0, le=2**62, description="Ordinal of a commit; bounds the history.")]
Metric = Annotated[str | None, Query(max_length=20, description="Default: the metric of verdicts, graph or hot.")]
Text = Annotated[str | None, Query(max_length=500)]
Watcher = Annotated[str | None, Query(max_length=200, description="Only what this person watches.")]


def metric_of(device: DeviceRow, metric: str | None) -> str:
    """The given metric, or the first of the device; 422 for a metric that the device does not have."""
    metrics = METRICS[device.kind]
    if metric is not None and metric not in metrics:
        error = FieldError(
            field="metric", message=f"{device.key} has no metric {metric!r}", remedy=f"use {', '.join(metrics)}"
        )
        raise Problem(422, "unknown metric", [error])
    return metric or metrics[0]


@api.get("/overview.csv", responses=documented(404, 422) | CSV_ANSWER, response_class=Response)
def get_overview_csv(
    session: Db,
    repository: RepositoryName,
    device: DeviceKey,
    metric: Metric = None,
    suite: Text = None,
    operator: Text = None,
    branch: Branch = None,
    watcher: Watcher = None,
) -> Response:
    """The overview as CSV."""
    cells = _overview(session, repository, device, metric, suite, operator, branch, watcher).items
    return csv_response(OverviewCell, cells, f"{repository}-overview")


@dataclass(frozen=True, slots=True)
class StatedCell(OverviewCell):
    """A cell of the overview with the statement about where it stands. launch_statement: about the host's time of its
    calls, where that is measured."""

    statement: Statement = NO_DATA
    launch_statement: Statement | None = None


@api.get("/overview", responses=documented(404, 422), response_model=Page[StatedCell])
def get_overview(
    session: Db,
    repository: RepositoryName,
    device: DeviceKey,
    metric: Metric = None,
    suite: Text = None,
    operator: Text = None,
    branch: Branch = None,
    watcher: Watcher = None,
) -> Response:
    """The latest result of every operator, case and variant on the device, at the commits of one branch."""
    cells = _overview(session, repository, device, metric, suite, operator, branch, watcher)
    names = [item.name for item in fields(OverviewCell)]
    stated = [
        StatedCell(
            **{name: getattr(cell, name) for name in names},
            statement=state_cell(cell),
            launch_statement=None if cell.launch_series_id is None else state_launch(cell),
        )
        for cell in cells.items
    ]
    return large_json(Page[StatedCell], Page(stated, None))


@api.get("/overview/trends", responses=documented(404, 422))
def get_trends(
    session: Db,
    repository: RepositoryName,
    device: DeviceKey,
    metric: Metric = None,
    suite: Text = None,
    branch: Branch = None,
    limit: Annotated[int, Query(ge=1, le=100, description="Commits.")] = 30,
    watcher: Watcher = None,
) -> TrendGrid:
    """How every operator changed at the newest measured commits of one branch: the geometric mean over its series."""
    found, on = repository_or_404(session, repository), device_or_404(session, device)
    line = line_or_404(session, found, branch)
    return read_trends(session, found.id, on.id, metric_of(on, metric), line, suite, limit, watcher)


def _overview(
    session: Session,
    repository: str,
    device: str,
    metric: str | None,
    suite: str | None,
    operator: str | None,
    branch: str | None,
    watcher: str | None = None,
) -> Page[OverviewCell]:
    found, on = repository_or_404(session, repository), device_or_404(session, device)
    line = line_or_404(session, found, branch)
    return Page(read_overview(session, found.id, on.id, metric_of(on, metric), line, suite, operator, watcher), None)


@api.get("/operators/{name}/speedups", responses=documented(404, 422))
def get_speedups(
    session: Db,
    name: str,
    repository: RepositoryName,
    device: DeviceKey,
    metric: Metric = None,
    suite: Text = None,
    branch: Branch = None,
) -> Page[VariantSpeedup]:
    """Median and range of every variant's speed-up over the operator's baseline, over the cases timed on the device."""
    operator_or_404(session, repository_or_404(session, repository), name)
    return Page(variant_speedups(_overview(session, repository, device, metric, suite, name, branch).items), None)


@api.get("/series", responses=documented(404, 422) | documented_brief())
@briefly(brief_series)
def get_series(
    session: Db,
    repository: RepositoryName,
    operator: Text = None,
    case: Text = None,
    variant: Text = None,
    device: Text = None,
    metric: Text = None,
    before: Before = None,
    limit: Limit = 50,
) -> Page[SeriesRow]:
    """Series that match all given filters, newest first."""
    found = repository_or_404(session, repository)
    return list_series(session, found.id, operator, case, variant, device, metric, before, limit)


@api.get("/history/{series_id}.csv", responses=documented(404, 422) | CSV_ANSWER, response_class=Response)
def get_history_csv(
    session: Db, series_id: int, first: Ordinal = None, last: Ordinal = None, branch: Branch = None
) -> Response:
    """The points of a series on a branch as CSV."""
    history = get_history(session, series_id, first, last, MAX_POINTS, branch)
    return csv_response(PointRow, history.points, f"history-{series_id}")


@api.get("/history/{series_id}", responses=documented(404, 422) | documented_brief())
@briefly(brief_history)
def get_history(
    session: Db,
    series_id: int,
    first: Ordinal = None,
    last: Ordinal = None,
    limit: Annotated[int, Query(ge=1, le=MAX_POINTS)] = 2000,
    branch: Branch = None,
    branches: Annotated[bool, Query(description="Include the points of other branches, as `side`.")] = False,
) -> SeriesHistory:
    """The newest `limit` points of a series on a branch between two ordinals, oldest first, with marks for failed
    commits and the confirmed changes that the series shows."""
    line = _line_of_series(session, series_id, branch)
    history = read_history(session, series_id, line, first, last, limit, branches=branches)
    assert history is not None
    return history


def _line_of_series(session: Session, series_id: int, branch: str | None) -> HistoryLine:
    series = read_series(session, series_id)
    if series is None:
        raise not_found("series", series_id, "series are listed at /api/v1/series")
    return line_or_404(session, repository_or_404(session, series.repository), branch)


@api.get("/history/{series_id}/quantities", responses=documented(404, 422))
def get_quantities(session: Db, series_id: int, quantity: Quantity, branch: Branch = None) -> Page[QuantityRow]:
    """Memory, error, compile time or energy of a series' variant on its case over the commits of a branch, oldest
    first; the newest value of each commit, in bytes, parts of the tolerance, seconds or joules."""
    line = _line_of_series(session, series_id, branch)
    return Page(list_quantities(session, series_id, quantity, line), None)


@api.get("/history/{series_id}/quantities.csv", responses=documented(404, 422) | CSV_ANSWER, response_class=Response)
def get_quantities_csv(session: Db, series_id: int, quantity: Quantity, branch: Branch = None) -> Response:
    """The same values as CSV."""
    rows = list_quantities(session, series_id, quantity, _line_of_series(session, series_id, branch))
    return csv_response(QuantityRow, rows, f"history-{series_id}-{quantity}")


@api.get("/history/{series_id}/noise", responses=documented(404, 422))
def get_noise(session: Db, series_id: int, branch: Branch = None) -> Page[NoiseSummary]:
    """Noise, smallest detectable change and level shifts of a series on a branch, per environment."""
    return Page(read_learned(session, series_id, _line_of_series(session, series_id, branch)), None)


@api.get("/points/{point_id}/samples", responses=documented(404, 422))
def get_samples(session: Db, point_id: int) -> PointSamples:
    """All stored samples of one point, in nanoseconds."""
    samples = read_samples(session, point_id)
    if samples is None:
        raise not_found("point", point_id)
    return samples


@api.get("/compare.csv", responses=documented(404, 422) | CSV_ANSWER, response_class=Response)
def get_comparison_csv(
    session: Db,
    repository: RepositoryName,
    device: DeviceKey,
    left: str,
    right: str,
    commit: Text = None,
    metric: Metric = None,
    operator: Text = None,
) -> Response:
    """The comparison as CSV."""
    rows = _compared(session, repository, device, left, right, commit, metric, operator).items
    return csv_response(ComparedRow, rows, f"{repository}-compare")


@api.get("/compare", responses=documented(404, 422) | documented_brief(), response_model=Page[StatedRow])
@briefly(brief_comparison, partial(large_json, Page[StatedRow]))
def get_comparison(
    session: Db,
    repository: RepositoryName,
    device: DeviceKey,
    left: Annotated[str, Query(max_length=200, description="A commit; or a variant, when `commit` is given.")],
    right: Annotated[str, Query(max_length=200, description="What `left` is compared with; ratio is right over left.")],
    commit: Annotated[str | None, Query(max_length=40, description="Compare two variants at this commit.")] = None,
    metric: Metric = None,
    operator: Text = None,
) -> Page[StatedRow]:
    """Compare two commits, or two variants of one commit, case by case, from separate runs. Where an A/B comparison has
    measured the two commits side by side, `paired_outcome` is what it decided.

    An operator that is unchanged at a commit has the times of the commit with the same sources. Operators with the same
    sources on both sides are left out.
    """
    return _compared(session, repository, device, left, right, commit, metric, operator)


def _compared(
    session: Session,
    repository: str,
    device: str,
    left: str,
    right: str,
    commit: str | None,
    metric: str | None,
    operator: str | None,
) -> Page[StatedRow]:
    found, on = repository_or_404(session, repository), device_or_404(session, device)
    name = metric_of(on, metric)
    if commit is not None:
        at = _commit_or_404(session, found, commit)
        return Page(compare_variants_stated(session, at, left, right, on.id, name, operator).rows, None)
    base, head = _commit_or_404(session, found, left), _commit_or_404(session, found, right)
    return Page(compare_commits_paired(session, base, head, on.id, name, operator).rows, None)


def _commit_or_404(session: Session, repository: RepositoryRow, sha: str) -> CommitRow:
    commit = find_commit(session, repository.id, sha)
    if commit is None:
        raise not_found("commit", sha, "submit it first; to compare two variants, set `commit` as well")
    return commit
