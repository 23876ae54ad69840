"""The thresholds that verdicts are made with."""

from __future__ import annotations

from fastapi import APIRouter

from warpwatch.db.reads.query import Page
from warpwatch.server.http.problems import documented
from warpwatch.server.verdicts.thresholds import ThresholdRow, list_thresholds

router = APIRouter(tags=["regressions"])


@router.get("/verdicts/thresholds", responses=documented())
def get_thresholds() -> Page[ThresholdRow]:
    """Every threshold with its unit, its meaning and its value per kind of device."""
    return Page(list_thresholds(), None)
