"""Regressions: changes grouped by cause, and their triage."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from math import log
from statistics import median
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Form, Response
from fastapi.responses import RedirectResponse

from warpwatch.contract.words import Triage
from warpwatch.db.reads.events import EventRow, list_choices, list_events, read_event, read_quality
from warpwatch.db.reads.history import read_history
from warpwatch.db.reads.lines import read_line
from warpwatch.db.reads.muted import find_muted
from warpwatch.db.reads.previews import ChangePreview, list_previews
from warpwatch.db.reads.query import Page as Listed
from warpwatch.db.reads.regressions import (
    NOBODY,
    RegressionDetail,
    RegressionRow,
    RegressionSeriesRow,
    read_regression,
)
from warpwatch.db.triage import triage
from warpwatch.server.explanation.causes import find_cause
from warpwatch.server.explanation.events import with_common
from warpwatch.server.explanation.timeline import read_timeline
from warpwatch.server.explanation.trace_files import load_trace
from warpwatch.server.figures.charts import history_figure, rounds_figure
from warpwatch.server.figures.dot_plot import cases_svg
from warpwatch.server.figures.formats import change_headline, change_tone
from warpwatch.server.figures.sparklines import change_sparkline
from warpwatch.server.figures.timelines import pair_svg
from warpwatch.server.http.problems import not_found
from warpwatch.server.http.service import Before, Config, settings_of
from warpwatch.server.intake.filters import ALL_BRANCHES, BLANK, DIRECTIONS, STATE_FILTERS, Filters, resolve
from warpwatch.server.intake.triage import MAX_LINK, MAX_NAME, MAX_NOTE, read_form
from warpwatch.server.pages.forms import field_message
from warpwatch.server.pages.render import Page, query

router = APIRouter()
BulkError = Literal["author", "regressions"]
MuteField = Literal["author", "until"]
_MUTE_ERRORS: dict[MuteField, str] = {"author": "Enter your name.", "until": "Choose a day within the next year."}
EVENTS_PER_PAGE = 20
HISTORY_POINTS = 100
"""Points of the history on a regression's page."""
TriageText = Annotated[str, Form(max_length=MAX_NAME)]


@router.get("/regressions")
def regressions(
    page: Page,
    settings: Config,
    filters: Filters,
    before: Before = None,
    whole: bool = False,
    problem: BulkError | None = None,
) -> Response:
    """Events with a verdict, worst first; by default the open ones.

    Patterns and detection quality take longer to compute, so the page loads them after it is shown. problem: the field
    without which a bulk triage was refused.
    """
    if page.repository is None:
        return page.page("welcome.html")
    filters.state = filters.state or "open"
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
        problem=problem,
        whole=whole,
        verdict=filters.verdict,
        asked=asked,
        errors={error.field: field_message(error) for error in resolved.errors},
        before=before,
        today=date.today(),
        quality=read_quality(page.session, page.repository.id, datetime.now(UTC)) if whole else None,
        year=(datetime.now(UTC) - timedelta(days=365)).date().isoformat(),
        all_branches=filters.branch == ALL_BRANCHES,
        options=_options(list_choices(page.session, page.repository.id), asked),
    )


def _previews(page: Page, events: Sequence[EventRow]) -> dict[int, tuple[ChangePreview, str | None]]:
    """What is shown of the worst regression of each event, with its series as a small picture."""
    previews = list_previews(page.session, [event.id for event in events], page.line)
    rows = {event.id: event.regressions[0] for event in events}
    return {
        number: (
            preview,
            change_sparkline(
                preview.medians,
                preview.changed_at,
                change_tone(rows[number]),
                f"{rows[number].operator} {preview.variant} {preview.case}: {change_headline(rows[number])}",
            ),
        )
        for number, preview in previews.items()
    }


@router.post("/regressions/triage")
def triage_many(
    page: Page,
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


def _options(choices: dict[str, list[str]], asked: dict[str, str | None]) -> dict[str, Sequence[str]]:
    """The options of every selector. A link may name a value that no regression has any more; it stays selectable."""
    choices["assignee"].insert(0, NOBODY)
    for name, values in choices.items():
        chosen = asked[name]
        if chosen and chosen not in values:
            values.append(chosen)
    return {"state": STATE_FILTERS, "direction": DIRECTIONS, **choices}


@router.get("/regressions/{regression_id}")
def regression(page: Page, regression_id: int, unmuted: MuteField | None = None) -> Response:
    """One regression with its evidence, its likely cause and the other regressions of its event. unmuted: the field
    with which muting its series was refused."""
    return _show(page, _find(page, regression_id), mute_error={unmuted: _MUTE_ERRORS[unmuted]} if unmuted else {})


@router.post("/regressions/{regression_id}/triage")
def triage_form(
    page: Page,
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


def _find(page: Page, regression_id: int) -> RegressionDetail:
    detail = read_regression(page.session, regression_id)
    if detail is None:
        raise not_found("regression", regression_id)
    page.moved(detail.repository)
    return detail


def _history(page: Page, row: RegressionRow, shown: Sequence[RegressionSeriesRow]) -> dict[str, Any] | None:
    """The chart of the series that shows the change most, on its branch; None where it was never timed."""
    assert page.repository is not None
    most = max(shown, key=lambda series: abs(log(series.ratio)) if series.ratio else 0.0, default=None)
    line = read_line(page.session, page.repository.id, row.branch) if row.branch else page.line
    history = read_history(page.session, most.series_id, line or page.line, limit=HISTORY_POINTS) if most else None
    return None if history is None or not history.points else history_figure([history])


def _times(measured: Sequence[RegressionSeriesRow]) -> tuple[float, float] | None:
    """The median rounds of base and head of the series that changed most; None where no pair was measured."""
    most = max(measured, key=lambda series: abs(log(series.ratio or 1.0)), default=None)
    return (median(most.base_ns), median(most.head_ns)) if most and most.base_ns and most.head_ns else None


def _timelines(page: Page, detail: RegressionDetail) -> str | None:
    """One call at base and one at head on one time axis; None without two traces that can be drawn."""
    if detail.base_trace_id is None or detail.head_trace_id is None:
        return None
    files = [load_trace(page.session, trace_id) for trace_id in (detail.base_trace_id, detail.head_trace_id)]
    base, head = (read_timeline(file) if file is not None else None for file in files)
    return pair_svg(base, head) if base and head else None


def _show(
    page: Page,
    detail: RegressionDetail,
    entered: dict[str, str] | None = None,
    errors: dict[str, str] | None = None,
    also: list[int] | None = None,
    mute_error: Mapping[MuteField, str] | None = None,
) -> Response:
    assert page.repository is not None
    also = also or []
    row = detail.regression
    shown = [series for series in detail.series if row.verdict != "confirmed" or series.verdict == "confirmed"]
    measured = [series for series in shown if series.base_ns]
    event = read_event(page.session, page.repository.id, row)
    event = next(iter(with_common(page.session, [event])), None) if event else None
    others = [other for other in event.regressions if other.id != row.id] if event else []
    return page.page(
        "regression.html",
        json=f"/regressions/{row.id}",
        status=422 if errors else 200,
        detail=detail,
        row=row,
        event=event,
        cause=find_cause(page.session, settings_of(page.request), page.repository, detail),
        others=others,
        # By default triage applies to all regressions of the event that are in the same state.
        also=also if errors else [other.id for other in others if other.state == row.state],
        history=_history(page, row, shown),
        cases=cases_svg(shown),
        muted=find_muted(page.session, [series.series_id for series in detail.series]),
        mute_error=mute_error or {},
        timelines=_timelines(page, detail),
        times=_times(measured),
        figures=[(series, rounds_figure(series)) for series in measured[:6]],
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
    )
