"""The candidate jobs of each kind of schedule, most important first, regardless of the budget.

Pure but for reading sources from git.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from math import sqrt
from statistics import median

from warpwatch.contract.words import JobKind
from warpwatch.db.schedules import RequestedJob, SeriesReading
from warpwatch.server.intake.budget import CandidateJob
from warpwatch.server.intake.gaps import versions, widest_first
from warpwatch.server.verdicts.noise import Reading, learn

ENOUGH_REPEATS = 3
"""Repeats after which a line's noise is known well enough to ask where it is largest."""
RERUN_COMMITS = 5
"""The newest commits measured, one of which is measured again: what the device is like today is what counts."""
MAX_CANDIDATES = 2000
Line = tuple[str, int]
"""An operator on a device: what a job measures at one commit."""


@dataclass(frozen=True, slots=True)
class MeasuredCommits:
    """Commits and earlier jobs from which the server chooses candidate jobs.

    shas: the watched branch, oldest first. operators: the operators of each commit. requested: earlier jobs at these
    commits, oldest first, that cover the whole suite of the schedule.
    """

    shas: Sequence[str]
    operators: dict[str, list[str]]
    device_ids: Sequence[int]
    kinds: Sequence[JobKind]
    suite: str
    requested: Sequence[RequestedJob]

    @property
    def leading_kind(self) -> JobKind:
        """The kind that says whether a commit was measured."""
        return JobKind.BENCH if JobKind.BENCH in self.kinds else self.kinds[0]

    def lines(self) -> list[Line]:
        """Every operator of the newest commit on every device."""
        return [(operator, device) for operator in self.operators[self.shas[-1]] for device in self.device_ids]

    def candidate_job(self, sha: str, line: Line, kind: JobKind, unchanged_since: str | None = None) -> CandidateJob:
        return CandidateJob(sha, *line, kind, self.suite, unchanged_since)


def list_suite_candidates(
    measured: MeasuredCommits, unchanged_since: Callable[[Line, JobKind], str | None]
) -> list[CandidateJob]:
    """Everything at the newest commit that was not requested yet, what was measured longest ago first."""
    head = measured.shas[-1]
    place = {sha: index for index, sha in enumerate(measured.shas)}
    already_requested = {(job.operator, job.device_id, job.kind) for job in measured.requested if job.sha == head}
    last: dict[Line, int] = defaultdict(lambda: -1)
    for job in measured.requested:
        line = job.operator, job.device_id
        last[line] = max(last[line], place[job.sha])
    return [
        measured.candidate_job(head, line, kind, unchanged_since(line, kind))
        for line in sorted(measured.lines(), key=lambda line: last[line])
        for kind in measured.kinds
        if (*line, kind) not in already_requested
    ]


def list_rerun_candidates(measured: MeasuredCommits, readings: Sequence[SeriesReading]) -> list[CandidateJob]:
    """One commit measured before per operator and device: first where the fewest repeats are, then where runs differ
    most."""
    noise = _noise(readings)
    place = {sha: index for index, sha in enumerate(measured.shas)}
    ranked: list[tuple[tuple[int, float], CandidateJob]] = []
    for line in measured.lines():
        runs = _runs(measured, line)
        if not runs:
            continue
        repeats = sum(runs.values()) - len(runs)
        newest = sorted(runs, key=lambda sha: -place[sha])[:RERUN_COMMITS]
        chosen = min(newest, key=lambda sha: (runs[sha], -place[sha]))
        # What one more repeat teaches shrinks with the root of their number.
        need = noise.get(line, 0.0) / sqrt(repeats + 1)
        ranked.append(((min(repeats, ENOUGH_REPEATS), -need), measured.candidate_job(chosen, line, JobKind.BENCH)))
    return [candidate for _, candidate in sorted(ranked, key=lambda pair: pair[0])]


def _runs(measured: MeasuredCommits, line: Line) -> Counter[str]:
    """How often each commit was measured in the environment of the newest measurement, waiting repeats included."""
    jobs = [job for job in measured.requested if (job.operator, job.device_id, job.kind) == (*line, "bench")]
    done = [job for job in jobs if job.environment_id is not None]
    if not done:
        return Counter()
    in_environment = {job.sha for job in done if job.environment_id == done[-1].environment_id}
    return Counter(
        job.sha
        for job in jobs
        if job.sha in in_environment
        and (job.environment_id == done[-1].environment_id or job.state in ("queued", "running"))
    )


def _noise(readings: Sequence[SeriesReading]) -> dict[Line, float]:
    """How much runs of unchanged code differ, per operator and device: the median over their series, each in its newest
    environment."""
    series: dict[int, list[SeriesReading]] = defaultdict(list)
    for reading in readings:
        series[reading.series_id].append(reading)
    noise_of: dict[Line, list[float]] = defaultdict(list)
    for rows in series.values():
        current = [
            Reading(row.ordinal, row.commit_id, row.environment_id, row.median_ns, row.low_ns, row.high_ns)
            for row in rows
            if row.environment_id == rows[-1].environment_id
        ]
        noise_of[rows[0].operator, rows[0].device_id].append(learn(current, rows[0].device_kind).between)
    return {line: median(values) for line, values in noise_of.items()}


def list_backfill_candidates(
    measured: MeasuredCommits, fingerprint: Callable[[str, str], str | None]
) -> list[CandidateJob]:
    """Commits that histories lack, the widest gap first, halved again and again.

    Commits at which an operator did not change are left out. fingerprint: (commit, operator) → what the operator is
    made from there.
    """
    done: dict[Line, set[str]] = defaultdict(set)
    for job in measured.requested:
        if job.kind == measured.leading_kind:
            done[job.operator, job.device_id].add(job.sha)
    chains = {}
    for line in measured.lines():
        # What is older than the first measurement is no gap, and its sources need not be read.
        first = next((index for index, sha in enumerate(measured.shas) if sha in done[line]), len(measured.shas) - 1)
        shas = measured.shas[first:]
        prints = [fingerprint(sha, line[0]) if line[0] in measured.operators[sha] else None for sha in shas]
        chains[line] = versions(shas, prints, done[line])
    candidates = (
        measured.candidate_job(sha, line, kind) for line, sha in widest_first(chains) for kind in measured.kinds
    )
    return list(islice(candidates, MAX_CANDIDATES))
