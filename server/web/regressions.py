"""Regressions: changes grouped by cause, and their triage."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Form, Path, Query, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import BaseModel, ConfigDict, Field, field_validator

from warpwatch.contract.report_facts import Trade
from warpwatch.contract.rounds import times_of_rounds
from warpwatch.contract.words import Answer, ChangeDirection, ChangePhase, InboxTab, Triage, Verdict
from warpwatch.db.muted import MutedSeriesRow, find_muted, list_muted, mute, unmute
from warpwatch.db.reads.events import EventRow, QualityRow, list_choices, list_events, read_event, read_quality
from warpwatch.db.reads.history import read_history
from warpwatch.db.reads.previews import ChangePreview, list_previews
from warpwatch.db.reads.query import Page
from warpwatch.db.reads.query import Page as Listed
from warpwatch.db.reads.trades import list_trades_at, list_trades_of_line
from warpwatch.db.regressions import (
    NOBODY,
    RegressionDetail,
    RegressionRow,
    TrialRow,
    count_by_tab,
    list_all_regressions,
    list_regressions,
    may_compare,
    read_regression,
)
from warpwatch.db.triage import FIELDS, triage
from warpwatch.server.explanation.cases import CaseGroup, CaseView, sort_cases
from warpwatch.server.explanation.causes import CauseView, find_cause
from warpwatch.server.explanation.events import with_common
from warpwatch.server.figures.charts import history_figure
from warpwatch.server.figures.dot_plot import cases_svg
from warpwatch.server.figures.sparklines import change_sparkline, status_strip
from warpwatch.server.figures.tables import CSV_ANSWER, csv_response
from warpwatch.server.http.brief import briefly, documented_brief
from warpwatch.server.http.git_threads import in_git_thread
from warpwatch.server.http.problems import FieldError, Problem, documented, not_found
from warpwatch.server.http.service import Before, Config, Db, Limit, database_of, repository_or_404
from warpwatch.server.intake.filters import (
    ALL_BRANCHES,
    BLANK,
    DIRECTIONS,
    STATE_FILTERS,
    Filters,
    resolve,
    resolve_or_422,
)
from warpwatch.server.intake.triage import MAX_LINK, MAX_NAME, MAX_NOTE, link_error, read_form, until_error
from warpwatch.server.judge.confirming import ComparisonRequestError, compare_imported
from warpwatch.server.reports.formats import state_name
from warpwatch.server.reports.trade_words import TradeLine, summarize_trades
from warpwatch.server.reports.wording import change_headline, change_tone
from warpwatch.server.verdicts.statements import Statement, state_change
from warpwatch.server.verdicts.trades import open_costs
from warpwatch.server.web.brief import brief_cause, brief_change, brief_changes
from warpwatch.server.web.code import RepositoryName
from warpwatch.server.web.evidence import EvidenceTab, read_tab
from warpwatch.server.web.forms import field_message
from warpwatch.server.web.render import PageScope, Scope, query

router = APIRouter()
RegressionId = Annotated[int, Path(ge=1, le=2**62)]
BulkError = Literal["author", "regressions"]
EVENTS_PER_PAGE = 20
HISTORY_POINTS = 100
"""Points of the history on a regression's page."""
TriageText = Annotated[str, Form(max_length=MAX_NAME)]


@router.get("/regressions")
def regressions(
    page: PageScope,
    settings: Config,
    filters: Filters,
    before: Before = None,
    whole: bool = False,
    problem: BulkError | None = None,
) -> Response:
    """The inbox: events of one tab, worst first; by default the open ones.

    Patterns take longer to compute, so the page loads them after it is shown. problem: the field without which a bulk
    triage was refused.
    """
    if page.repository is None:
        return page.page("welcome.html")
    _choose_tab(filters)
    resolved = resolve(page.session, settings, page.repository, filters)
    events: Listed[EventRow] = Listed([], None)
    if not resolved.errors:
        events = list_events(page.session, page.repository.id, resolved.question, before, EVENTS_PER_PAGE)
    if whole:
        events = Listed(with_common(page.session, events.items), events.next_before)
    asked, name = filters.query_parameters(), page.repository.name
    return page.page(
        "regressions.html",
        json=None
        if resolved.errors
        else query("/events", repository=name, **asked, before=before, limit=EVENTS_PER_PAGE, common="true"),
        csv=query("/api/v1/regressions.csv", repository=name, **asked),
        found=events,
        previews=_previews(page, events.items),
        traded=_traded(page, events.items),
        problem=problem,
        whole=whole,
        tab=filters.tab,
        counts=count_by_tab(page.session, page.repository.id, resolved.question),
        asked=asked,
        errors={error.field: field_message(error) for error in resolved.errors},
        before=before,
        today=date.today(),
        year=(datetime.now(UTC) - timedelta(days=365)).date().isoformat(),
        costs=_costs(page, filters.tab),
        all_branches=filters.branch == ALL_BRANCHES,
        options=_options(list_choices(page.session, page.repository.id), asked, page.device_names),
    )


def _costs(page: PageScope, tab: str | None) -> list[Trade]:
    """What commits cost beside the time: what is exact is open, and what is timed is suspected."""
    if page.repository is None or tab not in (InboxTab.OPEN, InboxTab.SUSPECTED):
        return []
    costs = open_costs(list_trades_of_line(page.session, page.repository.id, page.line))
    return [cost for cost in costs if cost.is_exact == (tab == InboxTab.OPEN)]


def _traded(page: PageScope, events: Sequence[EventRow]) -> dict[int, TradeLine]:
    """What the culprit of an event traded for its operators, by the id of the event."""
    shas = {event.culprit_sha for event in events if event.culprit_sha is not None}
    if page.repository is None or not shas:
        return {}
    trades = list_trades_at(page.session, page.repository.id, shas)
    lines = {
        event.id: summarize_trades(
            [item for item in trades if item.commit_sha == event.culprit_sha and item.operator in event.operators]
        )
        for event in events
    }
    return {number: line for number, line in lines.items() if line is not None}


def _choose_tab(filters: Filters) -> None:
    """The tab that an address without one means. Addresses that ask for a verdict or a state are from before the tabs;
    those that fit no tab show what they ask for."""
    if filters.tab is not None:
        return
    if filters.verdict == Verdict.SUSPECTED:
        filters.tab, filters.verdict = InboxTab.SUSPECTED, None
    elif filters.verdict in (Verdict.DISMISSED, Verdict.UNSURE):
        filters.tab = InboxTab.CLOSED
    elif filters.state in (None, "open"):
        is_faster = filters.direction == ChangeDirection.FASTER
        filters.tab = InboxTab.IMPROVEMENTS if is_faster else InboxTab.OPEN
        filters.verdict = filters.state = None


def _previews(page: PageScope, events: Sequence[EventRow]) -> dict[int, tuple[ChangePreview, str | None]]:
    """Preview of the worst regression of each event, with a small picture: times of its series, or what checks found
    where something broke."""
    previews = list_previews(page.session, [event.id for event in events], page.line)
    rows = {event.id: event.regressions[0] for event in events}
    pictures: dict[int, tuple[ChangePreview, str | None]] = {}
    for number, preview in previews.items():
        row = rows[number]
        label = f"{row.operator} {preview.variant} {preview.case}: {change_headline(row)}"
        if row.direction == ChangeDirection.BROKEN:
            picture: str | None = status_strip(preview.statuses, preview.failed_at, label)
        else:
            picture = change_sparkline(preview.medians, preview.changed_at, change_tone(row), label)
        pictures[number] = (preview, picture)
    return pictures


@router.post("/regressions/triage")
def triage_many(
    page: PageScope,
    chosen: Annotated[list[str] | None, Form()] = None,
    author: TriageText = "",
    state: Annotated[Triage | None, BLANK, Form()] = None,
    take: Annotated[bool, Form()] = False,
    filters: Annotated[str, Form(max_length=2000)] = "",
) -> Response:
    """Triages all regressions of the ticked events. chosen: ids of one event each, joined by commas. take: the author
    becomes the assignee. filters: the query of the list, to return to."""
    ids = [int(number) for group in chosen or [] for number in group.split(",") if re.fullmatch(r"\d{1,18}", number)]
    problem: BulkError | None = None if author.strip() and ids else "regressions" if author.strip() else "author"
    if problem is None:
        fields: dict[str, str | date | None] = {"assignee": author.strip()} if take else {}
        fields |= {"state": state} if state is not None else {}
        triage(page.session, ids, author=author.strip(), note="", fields=fields)
    address = f"/regressions?{filters}" + (f"&problem={problem}" if problem else "")
    return RedirectResponse(address, 303)


def _options(
    choices: dict[str, list[str]], asked: dict[str, str | None], device_names: Mapping[str, str]
) -> dict[str, Sequence[str | tuple[str, str]]]:
    """The options of every selector. A link may name a value that no regression has any more; it stays selectable."""
    choices["assignee"].insert(0, NOBODY)
    for name, values in choices.items():
        chosen = asked[name]
        if chosen and chosen not in values:
            values.append(chosen)
    states = [name for name in STATE_FILTERS if name not in ("open", "any")]
    devices = [(key, device_names[key]) for key in choices["device"]]
    verdicts = [(verdict, state_name(verdict)) for verdict in Verdict]
    return {"state": states, "verdict": verdicts, "direction": DIRECTIONS, **choices, "device": devices}


@router.get("/regressions/{regression_id}")
def regression(page: PageScope, regression_id: int, evidence: EvidenceTab | None = None) -> Response:
    """One regression with its cases, its evidence and the other regressions of its event. evidence: the tab that is
    shown."""
    return _show(page, _find(page, regression_id), evidence=evidence)


@router.post("/regressions/{regression_id}/triage")
def triage_form(
    page: PageScope,
    regression_id: int,
    state: TriageText = "",
    author: TriageText = "",
    assignee: TriageText = "",
    link: Annotated[str, Form(max_length=MAX_LINK)] = "",
    due_on: TriageText = "",
    note: Annotated[str, Form(max_length=MAX_NOTE)] = "",
    also: Annotated[list[int] | None, Form()] = None,
    take: Annotated[bool, Form()] = False,
) -> Response:
    """Stores the triage of this regression and of the ticked ones; shows the form again with messages for invalid
    fields. take: the author becomes the assignee."""
    detail = _find(page, regression_id)
    if take:
        state, assignee = detail.regression.state, author
    texts = {"state": state, "author": author, "assignee": assignee, "link": link, "due_on": due_on, "note": note}
    entered = {name: text.strip() for name, text in texts.items()}
    fields, errors = read_form(entered)
    if errors:
        return _show(page, detail, entered, errors, also)
    triage(page.session, [regression_id, *(also or [])], author=entered["author"], note=entered["note"], fields=fields)
    return RedirectResponse(f"/regressions/{regression_id}#triage", 303)


@router.post("/regressions/{regression_id}/mute")
def mute_form(
    page: PageScope,
    regression_id: int,
    author: TriageText = "",
    until: TriageText = "",
    reason: Annotated[str, Form(max_length=MAX_NOTE)] = "",
) -> Response:
    """Mutes every series of a regression; shows the form again with messages for invalid fields."""
    detail = _find(page, regression_id)
    entered = {"author": author.strip(), "until": until.strip(), "reason": reason.strip()}
    errors = {} if entered["author"] else {"author": "Enter your name."}
    try:
        day = date.fromisoformat(entered["until"])
    except ValueError:
        day = date.min
    if until_error(day):
        errors["until"] = "Choose a day within the next year."
    if errors:
        return _show(page, detail, mute_form=entered, mute_errors=errors)
    ids = [series.series_id for series in detail.series]
    mute(page.session, ids, until=day, author=entered["author"], reason=entered["reason"])
    return RedirectResponse(f"/regressions/{regression_id}#mute", 303)


@router.post("/regressions/{regression_id}/compare")
@in_git_thread(lambda arguments: str(arguments["regression_id"]))
def compare_form(request: Request, settings: Config, regression_id: RegressionId) -> Response:
    """Asks for the comparison that decides a change of imported results; shows the regression with a message where
    nothing here can make it."""
    try:
        # git may have to fetch for minutes, so no transaction is open meanwhile.
        compare_imported(database_of(request), settings, regression_id)
    except ComparisonRequestError as error:
        with database_of(request).session() as session:
            page = Scope(request, session)
            return _show(page, _find(page, regression_id), errors={"compare": str(error)})
    return RedirectResponse(f"/regressions/{regression_id}", 303)


def _find(page: PageScope, regression_id: int) -> RegressionDetail:
    detail = read_regression(page.session, regression_id)
    if detail is None:
        raise not_found("regression", regression_id)
    page.moved(detail.repository)
    return detail


def _history(page: PageScope, row: RegressionRow, most: CaseView | None) -> dict[str, Any] | None:
    """The chart of one case, on the branch of the change; None where it was never timed."""
    assert page.repository is not None
    line = page.line_of(row.branch)
    history = read_history(page.session, most.series.series_id, line, limit=HISTORY_POINTS) if most else None
    return None if history is None or not history.points else history_figure([history], is_low=True)


def _plot(cases: Sequence[CaseView]) -> str | None:
    """The cases that still show the change; where none does, those that showed it, without a colour."""
    open_cases = [view.series for view in cases if view.group in (CaseGroup.AFFECTED, CaseGroup.UNDECIDED)]
    fixed = [replace(view.series, verdict=Verdict.DISMISSED) for view in cases if view.group == CaseGroup.FIXED]
    return cases_svg(open_cases or fixed)


def _times(most: CaseView | None) -> tuple[float, float] | None:
    """The times of base and head of a case; None where no pair was measured, or later commits undid a part."""
    if most is None or most.series.left_ratio is not None:
        return None
    base, head = times_of_rounds(most.series.base_ns, most.series.head_ns)
    return None if base is None or head is None else (base, head)


def _trial_statements(detail: RegressionDetail) -> list[tuple[TrialRow, Statement]]:
    """What each trial of a regression says of it."""
    row, pairs = detail.regression, []
    for trial in detail.trials:
        phase = ChangePhase.CONFIRMED if trial.answer == Answer.CHANGED else ChangePhase.DISMISSED
        stated = state_change(row.id, row.direction, phase, trial.ratio)
        pairs.append((trial, replace(stated, low=trial.low, high=trial.high)))
    return pairs


def _show(
    page: PageScope,
    detail: RegressionDetail,
    entered: dict[str, str] | None = None,
    errors: dict[str, str] | None = None,
    also: list[int] | None = None,
    evidence: EvidenceTab | None = None,
    mute_form: Mapping[str, str] | None = None,
    mute_errors: Mapping[str, str] | None = None,
) -> Response:
    assert page.repository is not None
    row = detail.regression
    cases = sort_cases(row, detail.series)
    event = read_event(page.session, page.repository.id, row)
    event = next(iter(with_common(page.session, [event])), None) if event else None
    return page.page(
        "regression.html",
        json=f"/regressions/{row.id}",
        status=422 if errors or mute_errors else 200,
        detail=detail,
        row=row,
        event=event,
        others=[other for other in event.regressions if other.id != row.id] if event else [],
        also=also or [],
        cases=cases,
        worst=next(iter(cases), None),
        history=_history(page, row, next(iter(cases), None)),
        plot=_plot(cases),
        times=_times(next(iter(cases), None)),
        trials=_trial_statements(detail),
        may_compare=row.verdict == Verdict.SUSPECTED and may_compare(page.session, row.id),
        muted=find_muted(page.session, [series.series_id for series in detail.series]),
        mute_form=mute_form or dict.fromkeys(("author", "until", "reason"), ""),
        mute_errors=mute_errors or {},
        states=list(Triage),
        today=date.today(),
        entered=entered
        or {
            "state": row.state,
            "author": "",
            "assignee": row.assignee or "",
            "link": row.link or "",
            "due_on": row.due_on.isoformat() if row.due_on else "",
            "note": "",
        },
        errors=errors or {},
        **read_tab(page, detail, cases, evidence),
    )


api = APIRouter(tags=["regressions"])


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


@api.get("/regressions", responses=documented(404, 422) | documented_brief())
@briefly(brief_changes)
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


@api.get("/regressions.csv", responses=documented(404, 422) | CSV_ANSWER, response_class=Response)
def get_regressions_csv(session: Db, settings: Config, repository: RepositoryName, filters: Filters) -> Response:
    """The same list as CSV, without pagination."""
    row = repository_or_404(session, repository)
    rows = list_all_regressions(session, row.id, resolve_or_422(session, settings, row, filters))
    return csv_response(RegressionRow, rows, f"{repository}-regressions")


@api.get("/events", responses=documented(404, 422))
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


@api.get("/quality", responses=documented(404, 422))
def get_quality(session: Db, repository: RepositoryName) -> Page[QualityRow]:
    """Detection quality: suspicions confirmed, dismissed or inconclusive, and the time to verdict and triage. All time
    first, then per 30 days, newest first."""
    return Page(read_quality(session, repository_or_404(session, repository).id, datetime.now(UTC)), None)


@api.get("/regressions/{regression_id}", responses=documented(404, 422) | documented_brief())
@briefly(brief_change)
def get_regression(session: Db, regression_id: RegressionId) -> RegressionDetail:
    """One regression with its affected series, A/B rounds, traces, investigation, activity and reproduce command."""
    detail = read_regression(session, regression_id)
    if detail is None:
        raise not_found("regression", regression_id)
    return detail


@api.get("/regressions/{regression_id}/cause", responses=documented(404, 422) | documented_brief())
@briefly(brief_cause)
def get_cause(session: Db, settings: Config, regression_id: RegressionId) -> CauseView:
    """The differences between base and head: sources, machine code, kernels, environments, clocks, numerical errors."""
    detail = get_regression(session, regression_id)
    return find_cause(session, settings, repository_or_404(session, detail.repository), detail)


@api.patch("/regressions/{regression_id}", responses=documented(404, 422))
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


@api.post("/regressions/{regression_id}/triage", responses=documented(404, 409, 422) | documented_brief())
@briefly(brief_change)
def triage_regression(session: Db, regression_id: RegressionId, body: TriageRequest) -> RegressionDetail:
    """Acknowledge, accept, mark as fixed or invalid, or reopen."""
    return patch_regression(session, regression_id, body)


@api.post("/regressions/{regression_id}/compare", status_code=202, responses=documented(404, 422))
@in_git_thread(lambda arguments: str(arguments["regression_id"]))
def compare_regression(request: Request, settings: Config, regression_id: RegressionId) -> RegressionDetail:
    """Compare both commits of a change that only imported results show, by the repository's own program."""
    with database_of(request).session() as session:
        get_regression(session, regression_id)
    try:
        compare_imported(database_of(request), settings, regression_id)
    except ComparisonRequestError as error:
        fields = [FieldError(field="regression_id", message=error.message, remedy=error.remedy)]
        raise Problem(422, "cannot be compared here", fields) from error
    with database_of(request).session() as session:
        return get_regression(session, regression_id)


@api.post("/triage", responses=documented(404, 422))
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


@api.get("/muted", responses=documented(404, 422))
def get_muted(
    session: Db, repository: RepositoryName, before: Before = None, limit: Limit = 50
) -> Page[MutedSeriesRow]:
    """Series that raise neither suspicion nor alarm for now."""
    return list_muted(session, repository_or_404(session, repository).id, before, limit)


@api.put("/series/{series_id}/mute", responses=documented(404, 422))
def put_mute(session: Db, series_id: RegressionId, body: MuteRequest) -> MutedSeriesRow:
    """Mute a noisy series until a day has passed: its points are stored and drawn, and raise no suspicion."""
    mute(session, [series_id], until=body.until, author=body.author, reason=body.reason)
    return find_muted(session, [series_id])[series_id]


@api.delete("/series/{series_id}/mute", status_code=204, responses=documented(422))
def delete_mute(session: Db, series_id: RegressionId) -> None:
    """Let the series raise suspicions and alarms again."""
    unmute(session, [series_id])
