"""The report of `warpwatch run`: that of a server, from the command's own results and those of a history."""

from __future__ import annotations

import json
import os
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from warpwatch.cli.results_history import HistoryKey, ResultsHistory, device_time, key_of
from warpwatch.contract.outcome import Comparison, Finding, Outcome
from warpwatch.contract.report_facts import (
    CellFact,
    ChangeFact,
    JobFact,
    PairFact,
    ReportedSeries,
    ReportFacts,
    ResultFact,
    TimedFact,
)
from warpwatch.contract.rounds import StopRule
from warpwatch.contract.spec import JobRequest
from warpwatch.contract.words import JobKind, JobState, Reason, Signal, Status, Verdict
from warpwatch.server.reports.build import build_report
from warpwatch.server.reports.github import check_run
from warpwatch.server.reports.junit import junit
from warpwatch.server.reports.markdown import markdown
from warpwatch.server.reports.model import Report
from warpwatch.server.reports.sarif import sarif
from warpwatch.server.verdicts.changes import WINDOW, find_changes
from warpwatch.server.verdicts.held import classify_trial
from warpwatch.server.verdicts.noise import Reading
from warpwatch.server.verdicts.paired import severity

MAX_TRIALS = 6
"""Variants on cases of an operator that are compared because history suspects them; the most changed come first."""
_VERDICTS: dict[str, Verdict] = {
    "slower": Verdict.CONFIRMED,
    "faster": Verdict.CONFIRMED,
    "unsure": Verdict.UNSURE,
}
"""Verdicts on a suspicion by the outcome of its rounds; any other outcome dismisses it."""


@dataclass(frozen=True, slots=True)
class HistorySuspicion:
    """A time of the head that stands out of its history. base_sha: the last commit before the change; ratio: head over
    base."""

    operator: str
    variant: str
    case: str
    metric: str
    base_sha: str
    ratio: float


@dataclass(slots=True)
class RunResults:
    """What one call of `warpwatch run` measured. line: the head and its ancestors along first parents, oldest first.

    jobs: with their outcomes, but for trials. trials: comparisons of what history suspects. failed: jobs that could not
    run, with the message and its reason. unchanged: operators that were left out, as their sources are those of the
    base. unfinished: jobs that an interruption left. device_kind: cpu or cuda.
    """

    repository: str
    repository_url: str
    line: list[str]
    base_sha: str | None
    device_kind: str
    required: float | None = None
    jobs: list[tuple[JobRequest, Outcome]] = field(default_factory=list)
    trials: list[tuple[JobRequest, Outcome]] = field(default_factory=list)
    failed: list[tuple[JobRequest, str, Reason | None]] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    unfinished: int = 0
    history: ResultsHistory = field(default_factory=ResultsHistory)
    _places: dict[str, int] = field(init=False)
    _suspicions: tuple[int, list[HistorySuspicion]] = field(default=(-1, []), init=False)
    """After how many jobs they were looked for, and what was found."""

    def __post_init__(self) -> None:
        self._places = {sha: place for place, sha in enumerate(self.line)}

    @property
    def head_sha(self) -> str:
        return self.line[-1]

    def suspicions(self) -> list[HistorySuspicion]:
        """The times of the head that history suspects, of operators that nothing was compared of; the most changed
        first."""
        if self._suspicions[0] == len(self.jobs):
            return self._suspicions[1]
        compared = {request.operator for request, _ in self.jobs if request.kind == JobKind.COMPARE}
        found: list[HistorySuspicion] = []
        for operator, variant, case, key, reading in self._head_times():
            past = self._past(key)
            readings = [*past, replace(reading, ordinal=len(self.line) - 1, commit_id=len(self.line) - 1)]
            for change in find_changes(readings, self.device_kind) if operator not in compared else ():
                if readings[change.head].ordinal == len(self.line) - 1:
                    base_sha = self.line[readings[change.base].ordinal]
                    found.append(HistorySuspicion(operator, variant, case, key.metric, base_sha, change.ratio))
        found.sort(key=lambda item: -severity(item.ratio))
        self._suspicions = len(self.jobs), found
        return found

    def trial_jobs(self, stop: StopRule) -> list[JobRequest]:
        """A comparison for each operator and base of the suspicions, of their variants and cases alone."""
        groups: dict[tuple[str, str], list[tuple[str, str]]] = {}
        for item in self.suspicions():
            pairs = groups.setdefault((item.operator, item.base_sha), [])
            if len(pairs) < MAX_TRIALS:
                pairs.append((item.variant, item.case))
        trials = []
        for (operator, base_sha), pairs in groups.items():
            request, _ = self._bench_of(operator)
            spec = replace(request.spec, pairs=pairs, stop=stop, variants=None, cases=None, case_limit=None)
            trials.append(replace(request, kind=JobKind.COMPARE, base_sha=base_sha, spec=spec))
        return trials

    def report(self) -> Report:
        """The report, with the address of the CI job in place of a server's pages."""
        report = build_report(self.facts(), "")
        url = job_url(os.environ)
        return replace(report, url=url, rows=[replace(row, url=url) for row in report.rows])

    def facts(self) -> ReportFacts:
        own = [(request, outcome) for request, outcome in self.jobs if request.kind != JobKind.COMPARE]
        statuses = Counter(str(finding.status) for _, outcome in own for finding in outcome.findings)
        rounds = self._rounds_of_trials()
        newest = self._newest_findings(own)
        return ReportFacts(
            submission_id=0,
            repository=self.repository,
            repository_url=self.repository_url,
            head_commit_id=None,
            head_sha=self.head_sha,
            base_sha=self.base_sha,
            counts={},
            results=dict(statuses),
            pending=self.unfinished,
            created_at=datetime.now(UTC),
            required=self.required,
            jobs=[*self._failed_jobs(), *self._unchanged_jobs()],
            faults=[fault for job in own for fault in self._faults(*job, newest)],
            pairs=[pair for request, outcome in self.jobs for pair in self._pairs(request, outcome)],
            changes=[change for item in self.suspicions() for change in self._changes(item, rounds)],
            timed=list(self._timed(rounds)),
            ends=self._ends(),
            device_names={outcome.environment.device_key: outcome.environment.device_name for _, outcome in self.jobs},
        )

    def measured_series(self) -> list[ReportedSeries]:
        """Variants on cases that were measured, without those that cannot run on the device."""
        series: dict[ReportedSeries, None] = {}
        for request, outcome in self.jobs:
            rows: list[Finding | Comparison] = [*outcome.findings, *outcome.comparisons]
            for row in rows:
                if row.status is not Status.UNSUPPORTED:
                    device = outcome.environment.device_key
                    series[ReportedSeries(request.operator, row.variant, row.case, device)] = None
        return list(series)

    def _cell(
        self, request: JobRequest, device_key: str, variant: str | None = None, case: str | None = None
    ) -> CellFact:
        spec = request.spec if variant is None or case is None else request.spec.of_cell(variant, case)
        command = spec.to_command(
            request.kind,
            request.sha,
            request.operator,
            self.device_kind,
            request.base_sha,
            definitions=request.definitions,
        )
        names = request.operator, variant, case, device_key, self.device_kind
        return CellFact(*names, request.sha, request.base_sha or self.base_sha, shlex.join(command))

    def _failed_jobs(self) -> Iterator[JobFact]:
        device = next((outcome.environment.device_key for _, outcome in self.jobs), self.device_kind)
        for request, message, reason in self.failed:
            cell = self._cell(request, device)
            yield JobFact(0, request.kind, JobState.FAILED, message, reason, None, cell)

    def _unchanged_jobs(self) -> Iterator[JobFact]:
        for operator in self.unchanged:
            cell = CellFact(operator, None, None, self.device_kind, self.device_kind, self.head_sha, self.base_sha, "")
            yield JobFact(0, JobKind.COMPARE, JobState.DONE, "", None, self.base_sha, cell)

    def _newest_findings(self, jobs: Iterable[tuple[JobRequest, Outcome]]) -> dict[object, tuple[str, Status]]:
        """The newest commit of the line that has a finding, and its status, by kind, operator, variant and case."""
        newest: dict[object, tuple[str, Status]] = {}
        for request, outcome in sorted(jobs, key=lambda job: self._places.get(job[0].sha, -1)):
            for finding in outcome.findings if request.sha in self._places else ():
                place = request.kind, request.operator, finding.variant, finding.case
                newest[place] = request.sha, finding.status
        return newest

    def _ends(self) -> dict[str, str]:
        """Of each compared commit of the line but the newest, the newest one."""
        compared = {request.sha for request, _ in self.jobs if request.kind == JobKind.COMPARE} & self._places.keys()
        newest = max(compared, key=self._places.__getitem__, default="")
        return dict.fromkeys(compared - {newest}, newest)

    def _faults(
        self, request: JobRequest, outcome: Outcome, newest: Mapping[object, tuple[str, Status]]
    ) -> Iterator[ResultFact]:
        for finding in outcome.findings:
            if finding.status not in (Status.OK, Status.UNSUPPORTED):
                cell = self._cell(request, outcome.environment.device_key, finding.variant, finding.case)
                before = (self.base_sha, request.kind, request.operator, finding.variant, finding.case)
                known = self.history.statuses.get(before) == finding.status
                place = request.kind, request.operator, finding.variant, finding.case
                sha, status = newest.get(place, ("", Status.WRONG)) if request.sha in self._places else ("", "")
                right_at = sha if status == Status.OK else None
                yield ResultFact(0, request.kind, finding.status, finding.message, known, cell, right_at)

    def _pairs(self, request: JobRequest, outcome: Outcome) -> Iterator[PairFact]:
        with_launch = {(pair.variant, pair.case) for pair in outcome.comparisons if pair.metric == Signal.LAUNCH}
        for pair in outcome.comparisons:
            signal = Signal.LAUNCH if pair.metric == Signal.LAUNCH else Signal.KERNEL
            yield PairFact(
                job_id=0,
                status=pair.status,
                message=pair.message,
                reason=pair.reason,
                base_ns=pair.base_ns,
                head_ns=pair.head_ns,
                is_accepted=False,
                regression_id=None,
                metric=pair.metric,
                protocol=pair.protocol,
                signal=signal if (pair.variant, pair.case) in with_launch else None,
                cell=self._cell(request, outcome.environment.device_key, pair.variant, pair.case),
                stop=request.spec.stop,
                is_local=True,
            )

    # --- what history says -------------------------------------------------------------------------------------

    def _head_times(self) -> Iterator[tuple[str, str, str, HistoryKey, Reading]]:
        """Operator, variant and case of every time of the device at the head, with its series and its reading."""
        for request, outcome in self.jobs:
            if request.kind == JobKind.BENCH and request.sha == self.head_sha:
                for finding in outcome.findings:
                    measured = device_time(finding, self.device_kind)
                    if measured is not None:
                        key = key_of(request, outcome.environment, finding, measured.metric)
                        times = measured.median_ns, measured.low_ns, measured.high_ns
                        yield request.operator, finding.variant, finding.case, key, Reading(0, 0, 1, *times)

    def _bench_of(self, operator: str) -> tuple[JobRequest, Outcome]:
        """The bench of an operator at the head."""
        return next(
            (request, outcome)
            for request, outcome in self.jobs
            if (request.operator, request.kind, request.sha) == (operator, JobKind.BENCH, self.head_sha)
        )

    def _past(self, key: HistoryKey) -> list[Reading]:
        """The newest readings of a series at commits before the head on its line, oldest first."""
        places = self._places
        past = [
            Reading(places[sha], places[sha], 1, *times)
            for sha, times in self.history.times.get(key, ())
            if sha in places and sha != self.head_sha
        ]
        return sorted(past, key=lambda reading: reading.ordinal)[-WINDOW:]

    def _rounds_of_trials(self) -> dict[tuple[str, str, str, str], tuple[JobRequest, Comparison]]:
        return {
            (request.operator, pair.variant, pair.case, pair.metric): (request, pair)
            for request, outcome in self.trials
            for pair in outcome.comparisons
            if pair.status is Status.OK
        }

    def _timed(self, rounds: Mapping[tuple[str, str, str, str], tuple[JobRequest, Comparison]]) -> Iterator[TimedFact]:
        device = {request.operator: outcome.environment.device_key for request, outcome in self.jobs}
        for operator, variant, case, key, _ in self._head_times():
            _, pair = rounds.get((operator, variant, case, key.metric), (None, None))
            readings = [[r.ordinal, r.commit_id, r.median_ns, r.low_ns, r.high_ns] for r in self._past(key)]
            base_ns, head_ns = (pair.base_ns, pair.head_ns) if pair is not None else ([], [])
            reason = pair.reason if pair is not None else None
            names = operator, variant, case, device[operator], self.device_kind
            yield TimedFact(*names, readings, base_ns, head_ns, reason)

    def _changes(
        self, item: HistorySuspicion, rounds: Mapping[tuple[str, str, str, str], tuple[JobRequest, Comparison]]
    ) -> Iterator[ChangeFact]:
        """The change as its trial decided it; none where the trial dismissed it."""
        request, pair = rounds.get((item.operator, item.variant, item.case, item.metric), (None, None))
        verdict: Verdict = Verdict.SUSPECTED
        ratio, low, high = item.ratio, None, None
        if pair is not None:
            result = classify_trial(pair.base_ns, pair.head_ns, self.device_kind, pair.reason)
            verdict = _VERDICTS.get(result.outcome, Verdict.DISMISSED)
            ratio, low, high = result.ratio or item.ratio, result.low, result.high
        if verdict == Verdict.DISMISSED:
            return
        asked, outcome = self._bench_of(item.operator)
        compared = request or replace(asked, kind=JobKind.COMPARE, base_sha=item.base_sha)
        yield ChangeFact(
            regression_id=0,
            direction="slower" if ratio >= 1 else "faster",
            verdict=verdict,
            state="new",
            ratio=ratio,
            low=low,
            high=high,
            base_ns=pair.base_ns if pair is not None else [],
            head_ns=pair.head_ns if pair is not None else [],
            message="",
            cell=self._cell(compared, outcome.environment.device_key, item.variant, item.case),
            metric=item.metric,
        )


def job_url(environ: Mapping[str, str]) -> str:
    """The page of the CI job that this is, by the variables of GitHub and GitLab; "" elsewhere."""
    names = ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_RUN_ID")
    if all(environ.get(name) for name in names):
        server, repository, number = (environ[name] for name in names)
        return f"{server}/{repository}/actions/runs/{number}"
    return environ.get("CI_JOB_URL", "")


def write_reports(results: RunResults, report: Report, folder: str, files: Mapping[str, Path]) -> None:
    """Writes the report in every form that was asked for. folder: where the head keeps its operators."""
    for form, file in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(_written(form, results, report, folder), encoding="utf-8")


def _written(form: str, results: RunResults, report: Report, folder: str) -> str:
    if form == "junit":
        return junit(report, results.measured_series())
    if form == "markdown":
        return markdown(report)
    contents: dict[str, Any] = asdict(report)
    if form == "sarif":
        contents = sarif(report, results.repository_url, folder)
    elif form == "github":
        contents = check_run(report, folder)
    return json.dumps(contents, default=datetime.isoformat, ensure_ascii=False) + "\n"
