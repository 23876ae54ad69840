"""Finds series that had a point at every commit and have none, and no status, at the newest.

A case that crashed or cannot be built has a status, so it is not missing. Every query starts from an index and reads
only the newest few commits, so its cost does not grow with the length of history. server.explanation.alarms writes the
sentences.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import groupby
from typing import Any, NamedTuple

from sqlalchemy.orm import Session

from warpwatch.contract.spec import JobSpec
from warpwatch.db.muted import IS_MUTED
from warpwatch.db.reads.lines import on_line
from warpwatch.db.reads.query import fetch

BEFORE = 3
"""Measured commits in a row that must have had a result for its absence at the next one to be missed."""
COMMITS = BEFORE + 3
"""Newest commits measured of an operator on a device that are looked at: some may have been asked for in part only."""
MISSING_DAYS, VANISHED_DAYS = 90, 14
"""How long something is missed: what was taken out of the catalogue was most likely taken out on purpose."""


class MissingCause(StrEnum):
    """Why results are missing.

    job_failed: the operator's job failed. no_job: everything was asked for, and the operator got no job. no_result: its
    job ended without a result for some cases. operator_removed, variant_removed, cases_removed: the catalogue of the
    commit does not name them any more.
    """

    JOB_FAILED = "job_failed"
    NO_JOB = "no_job"
    NO_RESULT = "no_result"
    OPERATOR_REMOVED = "operator_removed"
    VARIANT_REMOVED = "variant_removed"
    CASES_REMOVED = "cases_removed"


REMOVALS = (MissingCause.OPERATOR_REMOVED, MissingCause.VARIANT_REMOVED, MissingCause.CASES_REMOVED)
"""Causes that are most likely intended, so they count for VANISHED_DAYS only."""


@dataclass(frozen=True, slots=True)
class MissingResults:
    """Results that an operator, a variant or some of its cases had at earlier commits and lack at `commit_sha`.

    since: when that commit was measured. last_sha: the newest commit with results of the operator. variant is empty
    where all are missing. job_id, job_message: of the job that failed.
    """

    cause: MissingCause
    repository: str
    operator: str
    device_key: str
    suite: str
    last_sha: str
    commit_sha: str
    since: datetime
    variant: str = ""
    cases: list[str] = field(default_factory=list)
    job_id: int | None = None
    job_message: str = ""


@dataclass(frozen=True, slots=True)
class _Measured:
    """The results of one operator on one device at one commit, those of whole suites alone."""

    repository_id: int
    repository: str
    operator: str
    device_key: str
    device_id: int
    commit_id: int
    sha: str
    ordinal: int
    measured_at: datetime
    suite: str
    cells: list[list[str]]
    """variant, case and status of each."""


# Only the watched branch is missed on: another one may leave out what it likes.
_WATCHED = on_line("results.commit_id", "{0}.watched_id", "CAST(NULL AS bigint)", "0")

# A loose index scan: one step per commit instead of one per result.
_HISTORIES = f"""
WITH RECURSIVE lines AS (
    SELECT DISTINCT series.operator_id, series.device_id, branches.id AS watched_id
    FROM series JOIN operators ON operators.id = series.operator_id
    LEFT JOIN branches ON branches.repository_id = operators.repository_id AND branches.is_watched
    WHERE CAST(:repository_id AS bigint) IS NULL OR operators.repository_id = :repository_id
), steps AS (
    SELECT operator_id, device_id, watched_id, 1 AS step,
           (SELECT ordinal FROM results WHERE operator_id = lines.operator_id AND device_id = lines.device_id
                AND kind = 'bench' AND {_WATCHED.format("lines")} ORDER BY ordinal DESC LIMIT 1) AS ordinal
    FROM lines
    UNION ALL
    SELECT operator_id, device_id, watched_id, step + 1,
           (SELECT ordinal FROM results WHERE operator_id = steps.operator_id AND device_id = steps.device_id
                AND kind = 'bench' AND ordinal < steps.ordinal AND {_WATCHED.format("steps")}
            ORDER BY ordinal DESC LIMIT 1)
    FROM steps WHERE step < {COMMITS} AND ordinal IS NOT NULL
)
SELECT repositories.id AS repository_id, repositories.name AS repository, operators.name AS operator,
     devices.key AS device_key,
       steps.device_id, found.commit_id, commits.sha, steps.ordinal, found.measured_at,
       coalesce(jobs.spec ->> 'suite', 'quick') AS suite, found.cells, jobs.spec - 'known' AS spec
FROM steps
-- Grouped here, so that nobody starts from all runs there ever were.
CROSS JOIN LATERAL (
    SELECT run_id, commit_id, max(created_at) AS measured_at, array_agg(ARRAY[variants.name, cases.key,
         status]) AS cells
    FROM results JOIN variants ON variants.id = variant_id JOIN cases ON cases.id = case_id
    WHERE results.operator_id = steps.operator_id AND device_id = steps.device_id AND kind = 'bench'
         AND ordinal = steps.ordinal AND {_WATCHED.format("steps")}
         AND NOT EXISTS (SELECT FROM series AS quiet
                         WHERE quiet.operator_id = results.operator_id AND quiet.device_id = results.device_id
                           AND quiet.case_id = results.case_id AND quiet.variant_id = results.variant_id
                           AND {IS_MUTED.format("quiet.id")})
    GROUP BY run_id, commit_id
) AS found
JOIN runs ON runs.id = found.run_id
JOIN jobs ON jobs.id = runs.job_id
JOIN commits ON commits.id = found.commit_id
JOIN operators ON operators.id = steps.operator_id
JOIN repositories ON repositories.id = operators.repository_id
JOIN devices ON devices.id = steps.device_id
ORDER BY operators.id, devices.id, steps.ordinal DESC, found.commit_id DESC, found.run_id
"""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A bench job at a commit. whole: its submission asked for everything there."""

    commit_id: int
    device_id: int
    operator: str
    job_id: int
    state: str
    message: str
    whole: bool


# Of a schedule nobody knows what it left for later turns.
_ASKED = """
SELECT jobs.commit_id, jobs.device_id, operators.name AS operator, jobs.id AS job_id, state, message,
       schedule_id IS NULL AND coalesce(request -> 'operators' = '[]' AND coalesce(request -> 'variants', '[]') = '[]'
           AND coalesce(request -> 'cases', '[]') = '[]' AND request ->> 'case_limit' IS NULL, false) AS whole
FROM jobs JOIN submissions ON submissions.id = jobs.submission_id JOIN operators ON operators.id = jobs.operator_id
WHERE jobs.commit_id = ANY(:commits) AND jobs.kind = 'bench' ORDER BY jobs.id
"""

_CATALOGUES = """
SELECT id AS commit_id, catalogue -> 'operators' AS operators FROM commits
WHERE id = ANY(:commits) AND catalogue IS NOT NULL
"""


class _Entry(NamedTuple):
    """Variants and cases of one operator in the catalogue; cases with the suites they belong to."""

    variants: set[str]
    cases: dict[str, list[str]]


@dataclass(frozen=True, slots=True)
class _Ended:
    """An operator that has no result on its device at any of these commits, newest first, though others have."""

    last: _Measured
    later: list[_Measured]


@dataclass(frozen=True, slots=True)
class _Thinned:
    """Cells that have no result at the newest commit at which the operator has others; cases by variant."""

    head: _Measured
    cases: dict[str, list[str]]


def list_missing(session: Session, now: datetime, repository_id: int | None = None) -> Iterator[MissingResults]:
    """The missing results of one repository, or of all repositories."""
    lines: dict[tuple[int, str, int], list[_Measured]] = defaultdict(list)
    for row in _read_histories(session, repository_id):
        if now - row.measured_at < timedelta(days=MISSING_DAYS):
            lines[row.repository_id, row.operator, row.device_id].append(row)
    measured: dict[tuple[int, int], dict[int, _Measured]] = defaultdict(dict)
    for (repository, _, device), rows in lines.items():
        measured[repository, device] |= {row.commit_id: row for row in rows}
    ended, thinned = [], []
    for (repository, _, device), rows in lines.items():
        later = [row for row in measured[repository, device].values() if row.ordinal > rows[0].ordinal]
        if later and _had_points(rows):
            ended.append(_Ended(rows[0], sorted(later, key=lambda row: -row.ordinal)))
        if cells := _lost_cells(rows):
            thinned.append(_Thinned(rows[0], cells))
    yield from _explain_ended(session, now, ended)
    yield from _explain_thinned(session, now, thinned)


def _read_histories(session: Session, repository_id: int | None) -> list[_Measured]:
    """The newest commits measured of every operator on every device, newest first; runs of one commit count as one."""

    def row(spec: JobSpec, **fields: Any) -> _Measured | None:
        return _Measured(**fields) if spec.is_whole_suite() else None

    measured: dict[tuple[int, str, int, int, str], _Measured] = {}
    for run in fetch(session, row, _HISTORIES, repository_id=repository_id):
        if run is None:
            continue
        key = run.repository_id, run.operator, run.device_id, run.commit_id, run.suite
        if key in measured:
            measured[key].cells.extend(run.cells)
        else:
            measured[key] = run
    return list(measured.values())


def _had_points(rows: Sequence[_Measured]) -> bool:
    """Whether something was timed at each of the last commits measured."""
    commits = [
        any(cell[2] == "ok" for row in same for cell in row.cells)
        for _, same in groupby(rows, lambda row: row.commit_id)
    ]
    return len(commits) >= BEFORE and all(commits[:BEFORE])


def _lost_cells(rows: Sequence[_Measured]) -> dict[str, list[str]]:
    """Cases by variant that were timed at the commits before the newest one, and have no status of any kind there."""
    head, *before = [row for row in rows if row.suite == rows[0].suite]
    if len(before) < BEFORE:
        return {}
    kept = set.intersection(*({(cell[0], cell[1]) for cell in row.cells if cell[2] == "ok"} for row in before[:BEFORE]))
    lost: dict[str, list[str]] = defaultdict(list)
    for variant, case in sorted(kept - {(cell[0], cell[1]) for cell in head.cells}):
        lost[variant].append(case)
    return lost


def _explain_ended(session: Session, now: datetime, ended: Sequence[_Ended]) -> Iterator[MissingResults]:
    commits = sorted({commit.commit_id for history in ended for commit in history.later})
    jobs: dict[int, list[_Asked]] = defaultdict(list)
    for job in fetch(session, _Asked, _ASKED, commits=commits) if commits else []:
        jobs[job.commit_id].append(job)
    catalogues = _read_catalogues(session, commits)
    for history in ended:
        for commit in history.later:
            jobs_here = [job for job in jobs[commit.commit_id] if job.device_id == commit.device_id]
            facts = _explain_at(history.last, commit, jobs_here, catalogues)
            if facts is not None:
                yield from (fact for fact in facts if fact.cause not in REMOVALS or _is_recent(history.last, now))
                break


def _explain_at(
    last: _Measured, commit: _Measured, jobs: Sequence[_Asked], catalogues: dict[int, dict[str, _Entry]]
) -> list[MissingResults] | None:
    """Why a commit has no results of an operator: an empty list where nothing is wrong, None where nothing is known."""
    jobs_of_operator = [job for job in jobs if job.operator == last.operator]
    catalogue = catalogues.get(commit.commit_id)
    if jobs_of_operator:
        newest = jobs_of_operator[-1]
        if newest.state != "failed":
            return []
        return [_missing(MissingCause.JOB_FAILED, last, commit, job_id=newest.job_id, job_message=newest.message)]
    if catalogue is not None and last.operator not in catalogue:
        return [_missing(MissingCause.OPERATOR_REMOVED, last, commit)]
    if any(job.whole for job in jobs):
        return [_missing(MissingCause.NO_JOB, last, commit)]
    return None


def _explain_thinned(session: Session, now: datetime, thinned: Sequence[_Thinned]) -> Iterator[MissingResults]:
    catalogues = _read_catalogues(session, sorted({history.head.commit_id for history in thinned}))
    for history in thinned:
        head = history.head
        entry = catalogues.get(head.commit_id, {}).get(head.operator)
        for variant, cases in history.cases.items():
            cause, removed = (
                MissingCause.CASES_REMOVED,
                [case for case in cases if entry and head.suite not in entry.cases.get(case, [])],
            )
            if entry and variant not in entry.variants:
                cause, removed = MissingCause.VARIANT_REMOVED, cases
            if removed and _is_recent(head, now):
                yield _missing(cause, head, head, variant=variant, cases=removed)
            if rest := [case for case in cases if case not in removed]:
                yield _missing(MissingCause.NO_RESULT, head, head, variant=variant, cases=rest)


def _read_catalogues(session: Session, commits: Sequence[int]) -> dict[int, dict[str, _Entry]]:
    if not commits:
        return {}

    def row(commit_id: int, operators: list[dict[str, Any]]) -> tuple[int, dict[str, _Entry]]:
        return commit_id, {
            entry["name"]: _Entry(
                {variant["name"] for variant in entry["variants"]}, {c["key"]: c["suites"] for c in entry["cases"]}
            )
            for entry in operators
        }

    return dict(fetch(session, row, _CATALOGUES, commits=list(commits)))


def _is_recent(last: _Measured, now: datetime) -> bool:
    return now - last.measured_at < timedelta(days=VANISHED_DAYS)


def _missing(cause: MissingCause, last: _Measured, commit: _Measured, **columns: Any) -> MissingResults:
    return MissingResults(
        cause=cause,
        repository=last.repository,
        operator=last.operator,
        device_key=last.device_key,
        suite=last.suite,
        last_sha=last.sha,
        commit_sha=commit.sha,
        since=commit.measured_at,
        **columns,
    )
