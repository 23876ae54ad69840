"""Estimates the device time of planned jobs from earlier jobs, and fits them into a budget. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from warpwatch.contract.words import JobKind
from warpwatch.db.schedules import JobCost, OpenJob

FIRST_GUESS_SECONDS = 60.0
"""Estimated seconds of a job before any job of its kind ran on its device."""


@dataclass(frozen=True, slots=True)
class CandidateJob:
    """One job that a schedule may create.

    unchanged_since: id of the commit that was measured with the same sources.
    """

    sha: str
    operator: str
    device_id: int
    kind: JobKind
    suite: str
    unchanged_since: str | None = None


class CostEstimates:
    """Seconds on the device per job: from the same operator and suite, else from its kind and device, else a guess.

    repository_id: of the repository whose operators are meant; None where jobs of several are estimated.
    """

    def __init__(self, costs: Iterable[JobCost], repository_id: int | None = None) -> None:
        self._seconds = {
            (cost.kind, cost.device_id, cost.operator, cost.suite): cost.seconds
            for cost in costs
            if repository_id is None or cost.repository_id in (None, repository_id)
        }

    def known(self, job: CandidateJob) -> float | None:
        """Seconds by earlier jobs of the same kind, device, operator and suite; None before there was one."""
        return self._seconds.get((job.kind, job.device_id, job.operator, job.suite))

    def of(self, job: CandidateJob | OpenJob) -> float:
        if isinstance(job, CandidateJob) and job.unchanged_since is not None:
            return 0.0
        general = self._seconds.get((job.kind, job.device_id, None, None), FIRST_GUESS_SECONDS)
        return self._seconds.get((job.kind, job.device_id, job.operator, job.suite), general)

    def reserved_seconds(self, jobs: Iterable[OpenJob]) -> float:
        """Seconds that jobs which have not ended will take from now on."""
        return sum(max(self.of(job) - job.elapsed_seconds, 0.0) for job in jobs)


@dataclass(frozen=True, slots=True)
class BudgetFit:
    """The candidate jobs that fit into a budget.

    seconds: their estimated device time. waiting: candidates for later. too_large: candidates above a whole day's
    budget.
    """

    fitting: list[CandidateJob] = field(default_factory=list)
    seconds: float = 0.0
    waiting: int = 0
    too_large: list[CandidateJob] = field(default_factory=list)


def fit_budget(
    candidates: Sequence[CandidateJob], costs: CostEstimates, left_seconds: float, budget_seconds: float, most: int
) -> BudgetFit:
    """The first candidates that fit, at most `most`.

    Candidates after the first that does not fit wait as well, so that small jobs cannot starve a large one. Candidates
    that can never fit are skipped.
    """
    fitting: list[CandidateJob] = []
    too_large: list[CandidateJob] = []
    total = 0.0
    for number, candidate in enumerate(candidates):
        seconds = costs.of(candidate)
        if seconds > budget_seconds:
            too_large.append(candidate)
        elif total + seconds > left_seconds or len(fitting) == most:
            return BudgetFit(fitting, total, len(candidates) - number, too_large)
        else:
            fitting.append(candidate)
            total += seconds
    return BudgetFit(fitting, total, 0, too_large)
