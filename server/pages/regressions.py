"""Regressions: what got slower, faster or broke, grouped by cause, and what people make of it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Form, Response
from fastapi.responses import RedirectResponse

from warpwatch.contract.words import Triage
from warpwatch.db.reads.events import EventRow, list_choices, list_events, read_event, read_quality
from warpwatch.db.reads.query import Page as Listed
from warpwatch.db.reads.regressions import NOBODY, RegressionDetail, read_regression
from warpwatch.db.triage import triage
from warpwatch.server.explanation.causes import find_cause
from warpwatch.server.explanation.events import with_common
from warpwatch.server.figures.charts import rounds_figure
from warpwatch.server.http.problems import not_found
from warpwatch.server.http.service import Before, Config, settings_of
from warpwatch.server.intake.filters import DIRECTIONS, STATE_FILTERS, Filters, resolve
from warpwatch.server.intake.triage import MAX_LINK, MAX_NAME, MAX_NOTE, read_form
from warpwatch.server.pages.render import Page, query

router = APIRouter()
EVENTS_PER_PAGE = 20
Line = Annotated[str, Form(max_length=MAX_NAME)]


@router.get("/regressions")
def regressions(page: Page, settings: Config, filters: Filters, before: Before = None, whole: bool = False) -> Response:
    """Events with that verdict, the worst first; those that are open unless something else is asked for.

    What is common to an event, and how good the alarms were, takes longer to find, so the page asks for it once it
    stands.
    """
    if page.repository is None:
        return page.page("welcome.html")
    filters.state = filters.state or "open"
    understood = resolve(page.session, settings, page.repository, filters)
    found: Listed[EventRow] = Listed([], None)
    if not understood.errors:
        found = list_events(page.session, page.repository.id, understood.question, before, EVENTS_PER_PAGE)
    if whole:
        found = Listed(with_common(page.session, found.items), found.next_before)
    asked, name = filters.asked(), page.repository.name
    return page.page(
        "regressions.html",
        json=None
        if understood.errors
        else query("/events", repository=name, **asked, before=before, limit=EVENTS_PER_PAGE, common="true"),
        csv=query("/api/v1/regressions.csv", repository=name, **asked),
        found=found,
        whole=whole,
        verdict=filters.verdict,
        asked=asked,
        errors={error.field: f"{error.message}; {error.remedy}" for error in understood.errors},
        before=before,
        today=date.today(),
        quality=read_quality(page.session, page.repository.id, datetime.now(UTC)) if whole else None,
        year=(datetime.now(UTC) - timedelta(days=365)).date().isoformat(),
        options=_options(list_choices(page.session, page.repository.id), asked),
    )


def _options(choices: dict[str, list[str]], asked: dict[str, str | None]) -> dict[str, Sequence[str]]:
    """A link may ask for somebody who has nothing any more; the form must not show that as if everybody were asked for."""
    choices["assignee"].insert(0, NOBODY)
    for name, known in choices.items():
        chosen = asked[name]
        if chosen and chosen not in known:
            known.append(chosen)
    return {"state": STATE_FILTERS, "direction": DIRECTIONS, **choices}


@router.get("/regressions/{regression_id}")
def regression(page: Page, regression_id: int) -> Response:
    """One change with its proof, its likely cause and the rest of its event."""
    return _show(page, _find(page, regression_id))


@router.post("/regressions/{regression_id}/triage")
def triage_form(
    page: Page,
    regression_id: int,
    state: Line = "",
    author: Line = "",
    assignee: Line = "",
    link: Annotated[str, Form(max_length=MAX_LINK)] = "",
    due_on: Line = "",
    note: Annotated[str, Form(max_length=MAX_NOTE)] = "",
    also: Annotated[list[int] | None, Form()] = None,
) -> Response:
    """Keep what people made of it and of the others that were ticked; the form comes back with messages where a field
    cannot be used."""
    found = _find(page, regression_id)
    texts = {"state": state, "author": author, "assignee": assignee, "link": link, "due_on": due_on, "note": note}
    entered = {name: text.strip() for name, text in texts.items()}
    fields, errors = read_form(entered)
    if errors:
        return _show(page, found, entered, errors, also)
    triage(page.session, [regression_id, *(also or [])], author=entered["author"], note=entered["note"], fields=fields)
    return RedirectResponse(f"/regressions/{regression_id}#triage", 303)


def _find(page: Page, regression_id: int) -> RegressionDetail:
    found = read_regression(page.session, regression_id)
    if found is None:
        raise not_found("regression", regression_id)
    page.moved(found.repository)
    return found


def _show(
    page: Page,
    detail: RegressionDetail,
    entered: dict[str, str] | None = None,
    errors: dict[str, str] | None = None,
    also: list[int] | None = None,
) -> Response:
    assert page.repository is not None
    also = also or []
    row = detail.regression
    measured = [series for series in detail.series if series.base_ns]
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
        # Whoever opens an event means all of it that is still in the same state.
        also=also if errors else [other.id for other in others if other.state == row.state],
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
