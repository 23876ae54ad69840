"""How verdicts are made: the steps from a suspicion to a culprit, and every threshold per kind of device."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from fastapi import APIRouter, Response

from warpwatch.contract.words import Signal
from warpwatch.db.reads.bars import ComparisonCounts, list_comparison_counts
from warpwatch.db.reads.events import read_quality
from warpwatch.db.reads.query import Page, Session
from warpwatch.server.http.problems import documented
from warpwatch.server.http.service import Db, repository_or_404
from warpwatch.server.reports.formats import change, duration, share
from warpwatch.server.verdicts.bar import ALLOWED, required_score
from warpwatch.server.verdicts.thresholds import ThresholdRow, list_thresholds, thresholds_of
from warpwatch.server.web.code import RepositoryName
from warpwatch.server.web.render import PageScope

router = APIRouter()


@dataclass(frozen=True, slots=True)
class BarRow(ComparisonCounts):
    """An operator on a device whose suspicions were dismissed again and again. score: the part of the limit for alarms
    from which on a shift is compared there."""

    score: float = 0.0


def list_bars(session: Session, repository_id: int, operator: str | None = None) -> list[BarRow]:
    """Where the bar for suspicions from history is raised now."""
    counts = list_comparison_counts(session, repository_id, operator)
    bars = [BarRow(**asdict(row), score=required_score(row.dismissed, row.readings)) for row in counts]
    return [bar for bar in bars if bar.score > 0]


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
        bars=list_bars(page.session, page.repository.id) if page.repository else [],
        allowed=ALLOWED,
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


@api.get("/verdicts/bars", responses=documented(404, 422))
def get_bars(session: Db, repository: RepositoryName) -> Page[BarRow]:
    """Operators and devices whose suspicions from history were dismissed so often that only larger shifts are compared
    now."""
    return Page(list_bars(session, repository_or_404(session, repository).id), None)
