"""Writes regressions as if they had been measured, so that tests of what is made of them need no judge."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

from sqlalchemy import select

from warpwatch.db import registry
from warpwatch.db.database import Database
from warpwatch.db.models import (
    CaseRecord,
    RegressionRecord,
    RegressionSeriesRecord,
    SeriesRecord,
    TrialRecord,
    VariantRecord,
)

Cell = tuple[str, str]


class Place(Protocol):
    """A repository and a device in a database: a Lab, or anything that has as much."""

    database: Database
    repository: int
    device: int
    shas: list[str]
    commits: dict[str, int]


def plant(
    lab: Place,
    base: int,
    head: int,
    ratio: float | None = 1.3,
    cells: Iterable[Cell] | Mapping[Cell, str] = (),
    *,
    operator: str = "square",
    direction: str | None = None,
    verdict: str = "confirmed",
    **columns: Any,
) -> int:
    """The id of a regression between the commits number `base` and `head`; cells: (variant, case), or these with their
    verdict."""
    direction = direction or ("broken" if ratio is None else "slower" if ratio > 1 else "faster")
    now = datetime.now(UTC)
    decided = {"decided_at": now, "settled_at": now} if verdict != "suspected" else {}
    with lab.database.session() as s:
        found = RegressionRecord(
            operator_id=registry.ensure_operators(s, lab.repository, [operator])[operator],
            device_id=lab.device,
            base_commit_id=lab.commits[lab.shas[base]],
            head_commit_id=lab.commits[lab.shas[head]],
            ratio=ratio,
            direction=direction,
            verdict=verdict,
            low=ratio and ratio * 0.99,
            high=ratio and ratio * 1.01,
            **decided | columns,
        )
        s.add(found)
        s.flush()
        verdicts = cells if isinstance(cells, Mapping) else dict.fromkeys(cells, verdict)
        statuses = {"base_status": "ok", "head_status": "wrong"} if direction == "broken" else {}
        for cell, said in verdicts.items():
            series = series_of(s, found.operator_id, found.device_id, *cell)
            s.add(
                RegressionSeriesRecord(
                    regression_id=found.id,
                    series_id=series,
                    verdict=said,
                    ratio=ratio,
                    suspected_ratio=ratio,
                    **statuses,
                )
            )
        return found.id


def series_of(s: Any, operator_id: int, device_id: int, variant: str, case: str) -> int:
    """The series of a cell in its primary metric, made where it was never timed."""
    case_id = s.scalar(select(CaseRecord.id).where(CaseRecord.operator_id == operator_id, CaseRecord.key == case))
    variant_id = s.scalar(
        select(VariantRecord.id).where(VariantRecord.operator_id == operator_id, VariantRecord.name == variant)
    )
    cell = (SeriesRecord.device_id == device_id, SeriesRecord.case_id == case_id, SeriesRecord.variant_id == variant_id)
    known = s.scalar(select(SeriesRecord.id).where(*cell, SeriesRecord.metric.in_(("hot", "graph"))))
    if known is None:
        made = SeriesRecord(
            operator_id=operator_id,
            device_id=device_id,
            case_id=case_id,
            variant_id=variant_id,
            protocol="1",
            metric="hot",
        )
        s.add(made)
        s.flush()
        known = made.id
    return int(known)


def try_out(
    lab: Place, regression_id: int, job_id: int, purpose: str, base: int, head: int, answer: str, **columns: Any
) -> None:
    """A trial of a regression and what it said."""
    commits = {"base_commit_id": lab.commits[lab.shas[base]], "head_commit_id": lab.commits[lab.shas[head]]}
    with lab.database.session() as s:
        s.add(
            TrialRecord(
                regression_id=regression_id, job_id=job_id, purpose=purpose, answer=answer, **commits, **columns
            )
        )
