"""The report on a submission: its findings, worst first."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from warpwatch.server.reports.sensitivity import ReportSensitivity
from warpwatch.server.verdicts.statements import NO_DATA, Statement

ReportRowKind = Literal[
    "wrong",
    "slower",
    "failed",
    "not_run",
    "blind",
    "suspected",
    "unsure",
    "mismatch",
    "skipped",
    "accepted",
    "fixed",
    "faster",
]
Conclusion = Literal["pending", "success", "failure", "error"]

KINDS: dict[ReportRowKind, str] = {
    "wrong": "wrong",
    "slower": "slower",
    "failed": "failed",
    "not_run": "not run",
    "blind": "could not tell",
    "suspected": "suspected",
    "unsure": "inconclusive",
    "mismatch": "environment mismatch",
    "skipped": "skipped",
    "accepted": "slower, accepted",
    "fixed": "fixed later",
    "faster": "faster",
}
"""The name of every kind of row, worst first."""

MEANINGS: dict[ReportRowKind, str] = {
    "wrong": "The result differs from the float64 reference by more than the tolerance.",
    "slower": "Interleaved A/B rounds on one device show a slow-down beyond noise.",
    "failed": "It crashed, timed out, ran out of memory or did not build.",
    "not_run": "Its job failed before it started, or was cancelled.",
    "blind": "The gate must be able to find a slow-down of the required size, and the noise here would hide it.",
    "suspected": "History shows a change, and no A/B comparison has decided it.",
    "unsure": "The A/B comparison could not tell: the noise is larger than the change.",
    "mismatch": "The two commits need different environments, so their times are not comparable.",
    "skipped": "It did not run, because something it depends on failed or is missing.",
    "accepted": "It is slower, and the slow-down was accepted.",
    "fixed": "An older commit of the range was wrong or slower, or failed; by the newest one that is over.",
    "faster": "Interleaved A/B rounds on one device show a speed-up beyond noise.",
}
FAILED = 1
"""Exit code of a report with any of FAILURES."""
FAILURES: frozenset[ReportRowKind] = frozenset({"wrong", "slower"})
ERRORS: frozenset[ReportRowKind] = frozenset({"failed", "not_run", "blind"})


@dataclass(frozen=True, slots=True)
class ReportRow:
    """One finding. variant and case are None where it concerns a whole job.

    status: that of the result, comparison or job. ratio: head over base, with its interval; rounds: how many
    paired rounds decided it; base_ns, head_ns: the medians of these rounds. is_known_before: the base had the same
    status. right_at: the newest commit of its line, where what failed is right there. merged_sha: the commit of a
    merged branch that caused it, where head_sha is the merge. left_ratio, fixed_by_sha: what later commits left of a
    change, and the commit that ended it in this case. metric: of the times; None where the finding is about none.
    statement: the same finding as pages state it.
    """

    kind: ReportRowKind
    operator: str
    variant: str | None
    case: str | None
    device: str
    head_sha: str
    base_sha: str | None
    status: str
    message: str
    decided_by: str
    url: str
    replay: str
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    base_ns: float | None = None
    head_ns: float | None = None
    rounds: int = 0
    is_known_before: bool = False
    right_at: str | None = None
    merged_sha: str | None = None
    left_ratio: float | None = None
    fixed_by_sha: str | None = None
    metric: str | None = None
    statement: Statement = NO_DATA

    @property
    def cell(self) -> str:
        """Operator, variant and case, in one line."""
        return " ".join(part for part in (self.operator, self.variant, self.case) if part)


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of a submission. exit_code: 0 success, 1 wrong or slower, 2 something could not run or could not tell
    a slow-down of the required size.

    submission_id: 0 of what `warpwatch run` reports without a server; url is then that of the CI job, or empty.
    conclusion: pending while jobs or verdicts are outstanding, then success, failure or error (exit codes 0, 1, 2).
    counts: rows per kind, including rows left out. results: per status. compared: pairs of variant and case compared
    with the base; same: those of which a slow-down is excluded. unchanged: operators whose sources are those of the
    base, or without one those of a commit that was measured. traded: what the newest commit changed beside the times,
    in one line; None where that is nothing. sensitivity: the slow-downs that it would have found; while it is pending,
    those of the comparisons so far. device_names: by key, for people.
    """

    submission_id: int
    repository: str
    url: str
    head_sha: str | None
    base_sha: str | None
    conclusion: Conclusion
    exit_code: int
    summary: str
    pending: int
    results: dict[str, int]
    counts: dict[ReportRowKind, int]
    compared: int
    same: int
    unchanged: list[str]
    created_at: datetime
    rows: list[ReportRow] = field(default_factory=list)
    left_out: int = 0
    traded: str | None = None
    sensitivity: ReportSensitivity = field(default_factory=ReportSensitivity)
    device_names: dict[str, str] = field(default_factory=dict)

    @property
    def has_older_commits(self) -> bool:
        """Whether it has findings of commits that are not its newest one, as that of a range may have."""
        return any(row.head_sha != self.head_sha for row in self.rows)


def exit_code(counts: dict[ReportRowKind, int]) -> int:
    """0 success, 1 wrong or slower, 2 could not run or tell. Suspected, inconclusive, skipped or mismatched rows do not
    fail."""
    if FAILURES & counts.keys():
        return FAILED
    return 2 if ERRORS & counts.keys() else 0
