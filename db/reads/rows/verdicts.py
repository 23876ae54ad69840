"""What was decided: changes, the series that show them, and what people said."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class RegressionRow:
    """A change of one operator on one device. ratio: head over base of its worst series, None where something broke."""

    id: int
    operator: str
    device_key: str
    direction: str
    verdict: str
    state: str
    ratio: float | None
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
    cause: str = "history"
    assignee: str | None = None
    link: str | None = None
    due_on: date | None = None
    settled_at: datetime | None = None
    triaged_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class RegressionSeriesRow:
    """base_ns, head_ns: the paired rounds of the comparison that decided it.

    base_status, head_status: those of its checks, where something broke; then message is what the failing one said, and
    replay does it again in a checkout.
    """

    series_id: int
    case: str
    variant: str
    metric: str
    verdict: str
    suspected_ratio: float | None
    ratio: float | None
    low: float | None
    high: float | None
    base_ns: list[float] = field(default_factory=list)
    head_ns: list[float] = field(default_factory=list)
    base_status: str | None = None
    head_status: str | None = None
    message: str = ""
    replay: str = ""


@dataclass(frozen=True, slots=True)
class NoteRow:
    author: str
    state: str
    note: str
    created_at: datetime
    changes: dict[str, Any] = field(default_factory=dict)
    """What was changed with it, as {"assignee": [before, after], …}."""


@dataclass(frozen=True, slots=True)
class TrialRow:
    """A job that was to tell something about a change, and what it said.

    base_sha is the commit that head_sha was measured beside.
    """

    job_id: int
    job_kind: str
    job_state: str
    purpose: str
    answer: str
    base_sha: str
    head_sha: str
    ratio: float | None
    low: float | None
    high: float | None
    message: str
    created_at: datetime
    answered_at: datetime | None


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
    trials: list[TrialRow] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What history and comparisons say of a submission's commits.

    pending: how many of its jobs are not judged yet, plus how many suspicions wait for their comparison.
    regressions: confirmed changes, slower or faster, that begin at one of its commits.
    """

    pending: int
    regressions: list[RegressionRow]


@dataclass(frozen=True, slots=True)
class EventRow:
    """What one cause did: changes in one direction and one range of commits, or in ranges that lie inside each other.

    id, ratio and the range are those of its worst regression. open: how many of its regressions are new or
    acknowledged. common: what all of them share and nothing that stayed the same does, in words; empty where nothing
    simple tells them apart.
    """

    id: int
    direction: str
    ratio: float | None
    base_sha: str
    head_sha: str
    head_subject: str
    head_author: str
    commits_between: int
    open: int
    operators: list[str]
    devices: list[str]
    regressions: list[RegressionRow]
    common: str = ""


@dataclass(frozen=True, slots=True)
class QualityRow:
    """How good suspicions of one period were, and how quickly somebody looked; None in `since` and `until` for all
    time.

    triaged: of the confirmed ones, those that a person said something of. decide_seconds: median from the end of the
    first job at the head commit to the decision. triage_seconds: median from the decision to the first word of a
    person. None where there is none.
    """

    since: datetime | None
    until: datetime | None
    suspected: int
    confirmed: int
    dismissed: int
    unsure: int
    waiting: int
    triaged: int
    decide_seconds: float | None
    triage_seconds: float | None
