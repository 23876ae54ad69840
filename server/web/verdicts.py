"""How verdicts are made: the steps from a suspicion to a culprit, and every threshold per kind of device."""

from __future__ import annotations

from datetime import UTC, datetime

from fastapi import APIRouter, Response

from warpwatch.contract.words import Signal
from warpwatch.db.reads.events import read_quality
from warpwatch.db.reads.query import Page
from warpwatch.server.http.problems import documented
from warpwatch.server.reports.formats import change, duration, share
from warpwatch.server.verdicts.thresholds import ThresholdRow, list_thresholds, thresholds_of
from warpwatch.server.web.render import PageScope

router = APIRouter()


@router.get("/verdicts")
def verdicts(page: PageScope) -> Response:
    """The steps of a verdict, the table of thresholds, and how good the verdicts on the repository were.

    Imported results were judged elsewhere or at their import, so their times to a verdict say nothing.
    """
    rows, launch = list_thresholds(), thresholds_of(Signal.LAUNCH)
    is_own = page.repository is not None and not page.repository.is_example
    quality = read_quality(page.session, page.repository.id, datetime.now(UTC)) if page.repository and is_own else None
    return page.page(
        "verdicts.html",
        json="/verdicts/thresholds",
        quality=quality,
        launch_least=f"{change(launch.confirm_ratio)} and {duration(launch.least_ns)}",
        rows=[(row, {kind: threshold_text(row, kind) for kind in row.values}) for row in rows],
    )


def threshold_text(row: ThresholdRow, kind: str) -> str:
    """The value of a threshold with its unit, as pages show numbers; an en dash where the kind of device has none."""
    value = next((value for name, value in row.values.items() if name == kind), None)
    if value is None:
        return "–"
    if row.unit == "ratio":
        return change(value)
    if row.unit == "ns":
        return duration(value)
    return share(value) if row.unit in ("share of the time", "probability") else f"{value:g}"


api = APIRouter(tags=["regressions"])


@api.get("/verdicts/thresholds", responses=documented())
def get_thresholds() -> Page[ThresholdRow]:
    """Every threshold with its unit, its meaning and its value per kind of device."""
    return Page(list_thresholds(), None)
