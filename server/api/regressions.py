"""Regressions: changes between two commits, and their triage."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Annotated

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, ConfigDict, Field, field_validator

from warpwatch.contract.words import Triage
from warpwatch.db.muting import mute, unmute
from warpwatch.db.reads.events import EventRow, QualityRow, list_events, read_quality
from warpwatch.db.reads.muted import MutedSeriesRow, find_muted, list_muted
from warpwatch.db.reads.query import Page
from warpwatch.db.reads.regressions import (
    RegressionDetail,
    RegressionRow,
    list_all_regressions,
    list_regressions,
    read_regression,
)
from warpwatch.db.triage import FIELDS, triage
from warpwatch.server.api.code import RepositoryName
from warpwatch.server.explanation.causes import CauseView, find_cause
from warpwatch.server.explanation.events import with_common
from warpwatch.server.figures.tables import CSV_ANSWER, csv_response
from warpwatch.server.http.problems import FieldError, Problem, documented, not_found
from warpwatch.server.http.service import Before, Config, Db, Limit, repository_or_404
from warpwatch.server.intake.filters import Filters, resolve_or_422
from warpwatch.server.intake.triage import MAX_LINK, MAX_NAME, MAX_NOTE, link_error, until_error

router = APIRouter(tags=["regressions"])
RegressionId = Annotated[int, Path(ge=1, le=2**62)]


class TriagePatch(BaseModel):
    """The triage of a regression.

    Omitted fields stay as they are; null removes an assignee, a link or a due date.
    """

    model_config = ConfigDict(extra="forbid")
    author: str = Field(min_length=1, max_length=MAX_NAME, examples=["ann"])
    note: str = Field(default="", max_length=MAX_NOTE)
    state: Triage | None = Field(default=None, description="Default: the state stays.")
    assignee: str | None = Field(default=None, min_length=1, max_length=MAX_NAME)
    link: str | None = Field(default=None, max_length=MAX_LINK, examples=["https://github.com/acme/kernels/issues/7"])
    due_on: date | None = Field(default=None, description="A day, such as 2026-03-31.")

    @field_validator("link")
    @classmethod
    def _is_link(cls, value: str | None) -> str | None:
        error = link_error(value)
        if error:
            raise ValueError(error)
        return value

    def fields(self) -> dict[str, str | date | None]:
        """The given fields; a state cannot be removed."""
        named = self.model_fields_set & set(FIELDS)
        return {name: getattr(self, name) for name in named if name != "state" or self.state is not None}


class TriageRequest(TriagePatch):
    """A new state with a note that says why; other given fields change as well."""

    state: Triage


class TriageMany(TriagePatch):
    """One triage for several regressions, such as those of one event; all change or none."""

    regressions: list[Annotated[int, Field(ge=1, le=2**62)]] = Field(min_length=1, max_length=500)


@router.get("/regressions", responses=documented(404, 422))
def get_regressions(
    session: Db,
    settings: Config,
    repository: RepositoryName,
    filters: Filters,
    before: Before = None,
    limit: Limit = 50,
) -> Page[RegressionRow]:
    """Regressions that match the filters, worst first; by default the open, confirmed ones."""
    row = repository_or_404(session, repository)
    return list_regressions(session, row.id, resolve_or_422(session, settings, row, filters), before, limit)


@router.get("/regressions.csv", responses=documented(404, 422) | CSV_ANSWER, response_class=Response)
def get_regressions_csv(session: Db, settings: Config, repository: RepositoryName, filters: Filters) -> Response:
    """The same list as CSV, without pagination."""
    row = repository_or_404(session, repository)
    rows = list_all_regressions(session, row.id, resolve_or_422(session, settings, row, filters))
    return csv_response(RegressionRow, rows, f"{repository}-regressions")


@router.get("/events", responses=documented(404, 422))
def get_events(
    session: Db,
    settings: Config,
    repository: RepositoryName,
    filters: Filters,
    before: Before = None,
    limit: Limit = 20,
    common: Annotated[bool, Query(description="Include the pattern of each event, which takes longer.")] = False,
) -> Page[EventRow]:
    """The same regressions grouped by root cause: same direction, and equal or nested ranges of commits."""
    row = repository_or_404(session, repository)
    page = list_events(session, row.id, resolve_or_422(session, settings, row, filters), before, limit)
    return Page(with_common(session, page.items), page.next_before) if common else page


@router.get("/quality", responses=documented(404, 422))
def get_quality(session: Db, repository: RepositoryName) -> Page[QualityRow]:
    """Detection quality: suspicions confirmed, dismissed or inconclusive, and the time to verdict and triage. All time
    first, then per 30 days, newest first."""
    return Page(read_quality(session, repository_or_404(session, repository).id, datetime.now(UTC)), None)


@router.get("/regressions/{regression_id}", responses=documented(404, 422))
def get_regression(session: Db, regression_id: RegressionId) -> RegressionDetail:
    """One regression with its affected series, A/B rounds, traces, investigation, activity and reproduce command."""
    detail = read_regression(session, regression_id)
    if detail is None:
        raise not_found("regression", regression_id)
    return detail


@router.get("/regressions/{regression_id}/cause", responses=documented(404, 422))
def get_cause(session: Db, settings: Config, regression_id: RegressionId) -> CauseView:
    """The differences between base and head: sources, machine code, kernels, environments, clocks, numerical errors."""
    detail = get_regression(session, regression_id)
    return find_cause(session, settings, repository_or_404(session, detail.repository), detail)


@router.patch("/regressions/{regression_id}", responses=documented(404, 422))
def patch_regression(session: Db, regression_id: RegressionId, body: TriagePatch) -> RegressionDetail:
    """Change state, assignee, link or due date, with a note; the activity records who changed what."""
    get_regression(session, regression_id)
    if not body.fields() and not body.note:
        remedy = f"set one of {', '.join(FIELDS)}, or add a note"
        raise Problem(
            422, "the request changes nothing", [FieldError(field="body", message="changes nothing", remedy=remedy)]
        )
    triage(session, [regression_id], author=body.author, note=body.note, fields=body.fields())
    return get_regression(session, regression_id)


@router.post("/regressions/{regression_id}/triage", responses=documented(404, 409, 422))
def triage_regression(session: Db, regression_id: RegressionId, body: TriageRequest) -> RegressionDetail:
    """Acknowledge, accept, mark as fixed or invalid, or reopen."""
    return patch_regression(session, regression_id, body)


@router.post("/triage", responses=documented(404, 422))
def triage_event(session: Db, body: TriageMany) -> Page[RegressionDetail]:
    """Triage several regressions at once, such as all of one event."""
    for number in body.regressions:
        get_regression(session, number)
    triage(session, body.regressions, author=body.author, note=body.note, fields=body.fields())
    return Page([get_regression(session, number) for number in dict.fromkeys(body.regressions)], None)


class MuteRequest(BaseModel):
    """Until when a series is muted, by whom and why."""

    model_config = ConfigDict(extra="forbid")
    until: date = Field(description="The last day, such as 2026-03-31; at most a year from now.")
    author: str = Field(min_length=1, max_length=MAX_NAME, examples=["ann"])
    reason: str = Field(default="", max_length=MAX_NOTE)

    @field_validator("until")
    @classmethod
    def _is_near(cls, value: date) -> date:
        error = until_error(value)
        if error:
            raise ValueError(error)
        return value


@router.get("/muted", responses=documented(404, 422))
def get_muted(
    session: Db, repository: RepositoryName, before: Before = None, limit: Limit = 50
) -> Page[MutedSeriesRow]:
    """Series that raise neither suspicion nor alarm for now."""
    return list_muted(session, repository_or_404(session, repository).id, before, limit)


@router.put("/series/{series_id}/mute", responses=documented(404, 422))
def put_mute(session: Db, series_id: RegressionId, body: MuteRequest) -> MutedSeriesRow:
    """Mute a noisy series until a day has passed: its points are stored and drawn, and raise no suspicion."""
    mute(session, [series_id], until=body.until, author=body.author, reason=body.reason)
    return find_muted(session, [series_id])[series_id]


@router.delete("/series/{series_id}/mute", status_code=204, responses=documented(422))
def delete_mute(session: Db, series_id: RegressionId) -> None:
    """Let the series raise suspicions and alarms again."""
    unmute(session, [series_id])
