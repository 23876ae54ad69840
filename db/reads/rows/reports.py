"""What a report is made from: the jobs of a submission, what went wrong in them, paired rounds, and changes that
history showed."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from warpwatch.contract.words import Reason


@dataclass(frozen=True, slots=True)
class CellFact:
    """Where something was found: one variant on one case of an operator, on one device at one commit."""

    operator: str
    variant: str | None
    case: str | None
    device_key: str
    device_kind: str
    head_sha: str
    base_sha: str | None
    replay: str


@dataclass(frozen=True, slots=True)
class JobFact:
    """A job that has not ended well, or that had nothing to do.

    state: contract.words.JobState. unchanged_since: the commit that was measured, where it had nothing to do.
    """

    job_id: int
    kind: str
    state: str
    message: str
    reason: Reason | None
    unchanged_since: str | None
    cell: CellFact


@dataclass(frozen=True, slots=True)
class ResultFact:
    """A result of a check, bench or profile that is not ok.

    known_before: the base's newest check of the same ended so too.
    """

    job_id: int
    kind: str
    status: str
    message: str
    known_before: bool
    cell: CellFact


@dataclass(frozen=True, slots=True)
class PairFact:
    """Paired rounds of one variant on one case; base_ns[i] was taken beside head_ns[i].

    is_accepted: someone said it may be so.
    """

    job_id: int
    status: str
    message: str
    reason: Reason | None
    base_ns: list[float]
    head_ns: list[float]
    is_accepted: bool
    cell: CellFact


@dataclass(frozen=True, slots=True)
class ChangeFact:
    """One series of a change that history suggested and a comparison decided. rounds: how many decided it."""

    regression_id: int
    direction: str
    verdict: str
    state: str
    ratio: float | None
    low: float | None
    high: float | None
    rounds: int
    message: str
    cell: CellFact


@dataclass(frozen=True, slots=True)
class ReportFacts:
    """Everything that a report says of a submission. pending: jobs and verdicts that are still to come.

    base_sha: what its commit is held against; None where that is nothing. results: per status, at its own commits.
    """

    submission_id: int
    repository: str
    repository_url: str
    head_sha: str | None
    base_sha: str | None
    counts: dict[str, int]
    results: dict[str, int]
    pending: int
    created_at: datetime
    jobs: list[JobFact] = field(default_factory=list)
    faults: list[ResultFact] = field(default_factory=list)
    pairs: list[PairFact] = field(default_factory=list)
    changes: list[ChangeFact] = field(default_factory=list)
