"""What was decided: changes, the series that show them, and what people said."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True)
class RegressionRow:
    id: int
    operator: str
    device_key: str
    direction: str
    verdict: str
    state: str
    ratio: float
    low: float | None
    high: float | None
    base_sha: str
    head_sha: str
    head_subject: str
    head_author: str
    commits_between: int
    series: int
    created_at: datetime
    decided_at: datetime | None


@dataclass(frozen=True, slots=True)
class RegressionSeriesRow:
    """base_ns, head_ns: the paired rounds of the comparison that decided it."""

    series_id: int
    case: str
    variant: str
    metric: str
    verdict: str
    suspected_ratio: float
    ratio: float | None
    low: float | None
    high: float | None
    base_ns: list[float] = field(default_factory=list)
    head_ns: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class NoteRow:
    author: str
    state: str
    note: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class RegressionDetail:
    regression: RegressionRow
    repository: str
    series: list[RegressionSeriesRow]
    notes: list[NoteRow]
    compare_job_id: int | None
    base_trace_id: int | None
    head_trace_id: int | None
    replay: str
    """A command that measures the two commits beside each other again."""


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What history and comparisons say of a submission's commits.

    pending: how many of its jobs are not judged yet, plus how many suspicions wait for their comparison.
    regressions: confirmed changes, slower or faster, that begin at one of its commits.
    """

    pending: int
    regressions: list[RegressionRow]
