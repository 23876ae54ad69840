"""The report on a submission: only what matters, worst first."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

Kind = Literal["wrong", "slower", "failed", "not_run", "unsure", "mismatch", "skipped", "accepted", "faster"]
Conclusion = Literal["pending", "success", "failure", "error"]

KINDS: dict[Kind, str] = {
    "wrong": "wrong",
    "slower": "slower",
    "failed": "failed",
    "not_run": "not run",
    "unsure": "unsure",
    "mismatch": "environment mismatch",
    "skipped": "skipped",
    "accepted": "slower, accepted",
    "faster": "faster",
}
"""Every kind of row, worst first, as people call it."""

MEANINGS: dict[Kind, str] = {
    "wrong": "The result differs from the oracle by more than is allowed.",
    "slower": "Paired rounds of both commits on one device show a slow-down outside their noise.",
    "failed": "It was tried, and crashed, timed out, ran out of memory or could not be built.",
    "not_run": "It was not tried: its job failed before it began, or was cancelled.",
    "unsure": "Both commits were compared, and the noise leaves open whether one is slower.",
    "mismatch": "The two commits ask for different environments, so a difference would not be about their code.",
    "skipped": "It was left out, because something it depends on had failed or is not there.",
    "accepted": "It is slower, and someone accepted that.",
    "faster": "Paired rounds of both commits on one device show a speed-up outside their noise.",
}
FAILURES: frozenset[Kind] = frozenset({"wrong", "slower"})
ERRORS: frozenset[Kind] = frozenset({"failed", "not_run"})


@dataclass(frozen=True, slots=True)
class ReportRow:
    """One finding. variant and case are None where it is about a whole job.

    status: that of the result, comparison or job. ratio: head over base, with its 95 % interval; rounds: how many
    paired rounds decided it. is_known_before: the base had the same status.
    """

    kind: Kind
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

    @property
    def cell(self) -> str:
        """What it is about, in one line."""
        return " ".join(part for part in (self.operator, self.variant, self.case) if part)


@dataclass(frozen=True, slots=True)
class Report:
    """What became of a submission. exit_code: 0 fine, 1 wrong or slower, 2 something could not be run.

    conclusion: pending while jobs or verdicts are to come, then success, failure or error for the exit codes 0, 1 and
    2. counts: rows per kind, those left out included. results: per status. compared: pairs of variant and case held
    against the base; same: those that show nothing. unchanged: operators whose sources are those of the base, or
    without one those of a commit that was measured.
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
    counts: dict[Kind, int]
    compared: int
    same: int
    unchanged: list[str]
    created_at: datetime
    rows: list[ReportRow] = field(default_factory=list)
    left_out: int = 0


def exit_code(counts: dict[Kind, int]) -> int:
    """0 fine, 1 wrong or slower, 2 could not run. What is unsure, skipped or of another environment fails nothing."""
    if FAILURES & counts.keys():
        return 1
    return 2 if ERRORS & counts.keys() else 0
