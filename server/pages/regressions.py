"""Regressions: what a comparison confirmed, suspected or dismissed, and what people make of it."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Form, Query, Response
from fastapi.responses import RedirectResponse

from db.models import Triage
from db.reads.regressions import list_regressions, read_regression
from db.reads.rows import RegressionDetail, RegressionRow
from db.regressions import set_triage
from server.charts import rounds_figure
from server.pages.render import Page, query
from server.problems import not_found
from server.service import Before

router = APIRouter()
Verdict = Literal["confirmed", "suspected", "dismissed", "unsure"]
Direction = Annotated[Literal["slower", "faster"] | None, Query()]
MAX_TEXT = 5000


@router.get("/regressions")
def regressions(page: Page, verdict: Verdict = "confirmed", direction: Direction = None, before: Before = None) -> Response:
    """Changes with that verdict, the worst first."""
    if page.repository is None:
        return page.page("welcome.html")
    found = list_regressions(page.session, page.repository.id, verdict, None, direction, before, limit=200)
    filters = {"verdict": verdict, "direction": direction}
    address = query("/regressions", repository=page.repository.name, **filters, before=before)
    return page.page(
        "regressions.html",
        json=address,
        csv=f"/api/v1{address.replace('/regressions', '/regressions.csv', 1)}",
        found=found,
        rows=sorted(found.items, key=severity),
        filters=filters,
        before=before,
    )


def severity(row: RegressionRow) -> tuple[bool, bool, float]:
    """Open ones first, slow-downs before speed-ups, the largest factor first."""
    is_open = row.state in (Triage.NEW, Triage.ACKNOWLEDGED)
    return not is_open, row.direction != "slower", -max(row.ratio, 1 / row.ratio)


@router.get("/regressions/{regression_id}")
def regression(page: Page, regression_id: int) -> Response:
    """One change with its proof."""
    return _show(page, _find(page, regression_id))


@router.post("/regressions/{regression_id}/triage")
def triage(
    page: Page,
    regression_id: int,
    state: Annotated[str, Form()] = "",
    author: Annotated[str, Form(max_length=200)] = "",
    note: Annotated[str, Form(max_length=MAX_TEXT)] = "",
) -> Response:
    """Keep what people made of it; the form comes back with a message when a field cannot be used."""
    found = _find(page, regression_id)
    errors = {}
    if state not in list(Triage):
        errors["state"] = f"Choose one of {', '.join(Triage)}."
    if not author.strip():
        errors["author"] = "Say who you are, so that others can ask."
    if errors:
        return _show(page, found, {"state": state, "author": author, "note": note}, errors)
    set_triage(page.session, regression_id, state, author=author.strip(), note=note.strip())
    return RedirectResponse(f"/regressions/{regression_id}#triage", 303)


def _find(page: Page, regression_id: int) -> RegressionDetail:
    found = read_regression(page.session, regression_id)
    if found is None:
        raise not_found("regression", regression_id)
    page.moved(found.repository)
    return found


def _show(
    page: Page, detail: RegressionDetail, entered: dict[str, str] | None = None, errors: dict[str, str] | None = None
) -> Response:
    measured = [series for series in detail.series if series.base_ns]
    return page.page(
        "regression.html",
        json=f"/regressions/{detail.regression.id}",
        status=422 if errors else 200,
        detail=detail,
        row=detail.regression,
        figures=[(series, rounds_figure(series)) for series in measured[:6]],
        states=list(Triage),
        entered=entered or {"state": detail.regression.state, "author": "", "note": ""},
        errors=errors or {},
    )
