"""Finds histories that ended: a series that had points at every commit, and has none at the newest, nor a word why.

A status is a word: what crashed, or cannot be built, is told elsewhere. Every query starts from an index and reads the
newest few commits only, so that it costs as much in the tenth year as in the first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any, NamedTuple

from warpwatch.contract.spec import JobSpec
from warpwatch.db.reads.query import Session, fetch
from warpwatch.db.reads.rows import AlarmRow, alarm

BEFORE = 3
"""Measured commits in a row that must have had a result for its absence at the next one to be missed."""
COMMITS = BEFORE + 3
"""Newest commits measured of an operator on a device that are looked at: some may have been asked for in part only."""
MISSING_DAYS, VANISHED_DAYS = 90, 14
"""How long something is missed: what was taken out of the catalogue was most likely taken out on purpose."""
_ON_PURPOSE = (
    f"put it back; if it went on purpose there is nothing to do, this ends {VANISHED_DAYS} days after its last result"
)

Cell = tuple[str, str]
"""A variant and a case."""


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


# A loose index scan: one step per commit instead of one per result.
_HISTORIES = f"""
WITH RECURSIVE lines AS (
    SELECT DISTINCT series.operator_id, series.device_id FROM series JOIN operators ON operators.id = series.operator_id
    WHERE CAST(:repository_id AS bigint) IS NULL OR operators.repository_id = :repository_id
), steps AS (
    SELECT operator_id, device_id, 1 AS step,
           (SELECT max(ordinal) FROM results WHERE operator_id = lines.operator_id AND device_id = lines.device_id
                AND kind = 'bench') AS ordinal
    FROM lines
    UNION ALL
    SELECT operator_id, device_id, step + 1,
           (SELECT max(ordinal) FROM results WHERE operator_id = steps.operator_id AND device_id = steps.device_id
                AND kind = 'bench'
            AND ordinal < steps.ordinal)
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
         AND ordinal = steps.ordinal
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
           AND coalesce(request -> 'cases', '[]') = '[]', false) AS whole
FROM jobs JOIN submissions ON submissions.id = jobs.submission_id JOIN operators ON operators.id = jobs.operator_id
WHERE jobs.commit_id = ANY(:commits) AND jobs.kind = 'bench' ORDER BY jobs.id
"""

_CATALOGUES = "SELECT id AS commit_id, catalogue -> 'operators' AS operators FROM commits WHERE id = ANY(:commits) AND catalogue IS NOT NULL"


class _Entry(NamedTuple):
    """What the catalogue says of one operator; cases with the suites they belong to."""

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


def list_missing(session: Session, now: datetime, repository_id: int | None = None) -> Iterator[AlarmRow]:
    """What is missing of one repository, or of all."""
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
    yield from _tell_ended(session, now, ended)
    yield from _tell_thinned(session, now, thinned)


def _read_histories(session: Session, repository_id: int | None) -> list[_Measured]:
    """The newest commits measured of every operator on every device, newest first; runs of one commit count as one."""

    def row(spec: JobSpec, **fields: Any) -> _Measured | None:
        return _Measured(**fields) if spec.is_whole_suite() else None

    found: dict[tuple[int, str, int, int, str], _Measured] = {}
    for one in fetch(session, row, _HISTORIES, repository_id=repository_id):
        if one is None:
            continue
        key = one.repository_id, one.operator, one.device_id, one.commit_id, one.suite
        if key in found:
            found[key].cells.extend(one.cells)
        else:
            found[key] = one
    return list(found.values())


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
    found: dict[str, list[str]] = defaultdict(list)
    for variant, case in sorted(kept - {(cell[0], cell[1]) for cell in head.cells}):
        found[variant].append(case)
    return found


def _tell_ended(session: Session, now: datetime, ended: Sequence[_Ended]) -> Iterator[AlarmRow]:
    commits = sorted({row.commit_id for one in ended for row in one.later})
    jobs: dict[int, list[_Asked]] = defaultdict(list)
    for job in fetch(session, _Asked, _ASKED, commits=commits) if commits else []:
        jobs[job.commit_id].append(job)
    catalogues = _read_catalogues(session, commits)
    for one in ended:
        for place in one.later:
            found = _look_at(
                one.last, place, [job for job in jobs[place.commit_id] if job.device_id == place.device_id], catalogues
            )
            if found is not None:
                yield from (row for row in found if row.kind == "missing" or _is_recent(one.last, now))
                break


def _look_at(
    last: _Measured, place: _Measured, jobs: Sequence[_Asked], catalogues: dict[int, dict[str, _Entry]]
) -> list[AlarmRow] | None:
    """What a commit without results of an operator says: alarms, none where all is well, None where it says nothing of
    it."""
    own = [job for job in jobs if job.operator == last.operator]
    known = catalogues.get(place.commit_id)
    sha = place.sha[:8]
    if own:
        failed = own[-1] if own[-1].state == "failed" else None
        if failed is None:
            return []
        message = (
            f"{last.operator} on {last.device_key} has no times at {sha}: job {failed.job_id} failed: {failed.message}"
        )
        remedy = f"mend what the message names, then run `warpwatch retry --job {failed.job_id}`"
        return [_about(place, "missing", last, message, remedy, job_id=failed.job_id)]
    if known is not None and last.operator not in known:
        message = f"{last.operator} is not in the catalogue of {sha} any more; it was last measured on {last.device_key} at {last.sha[:8]}"
        return [_about(place, "vanished", last, message, _ON_PURPOSE)]
    if any(job.whole for job in jobs):
        message = f"everything was asked for at {sha}, and {last.operator} got no job on {last.device_key}"
        return [_about(place, "missing", last, message, _ask_again(last, place))]
    return None


def _tell_thinned(session: Session, now: datetime, thinned: Sequence[_Thinned]) -> Iterator[AlarmRow]:
    catalogues = _read_catalogues(session, sorted({one.head.commit_id for one in thinned}))
    for one in thinned:
        head = one.head
        entry = catalogues.get(head.commit_id, {}).get(head.operator)
        for variant, cases in one.cases.items():
            what, sha = f"{variant} of {head.operator}", head.sha[:8]
            gone = (
                cases
                if entry and variant not in entry.variants
                else [case for case in cases if entry and _left(entry, case, head)]
            )
            if gone and _is_recent(head, now):
                why = (
                    f"{what} is not in" if entry and variant not in entry.variants else f"{_count(gone)} of {what} left"
                )
                message = f"{why} the catalogue of {sha}, or its suite {head.suite}; the {BEFORE} commits before had times on {head.device_key}"
                yield _about(head, "vanished", head, message, _ON_PURPOSE, variant=variant, cases=gone)
            if rest := [case for case in cases if case not in gone]:
                message = (
                    f"{what} has no result for {_count(rest)} at {sha} on {head.device_key}, nor a status that says why; "
                    f"the {BEFORE} commits measured before had times"
                )
                yield _about(
                    head, "missing", head, message, _ask_again(head, head, variant), variant=variant, cases=rest
                )


def _left(entry: _Entry, case: str, head: _Measured) -> bool:
    return head.suite not in entry.cases.get(case, [])


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


def _about(place: _Measured, kind: str, line: _Measured, message: str, remedy: str, **more: Any) -> AlarmRow:
    return alarm(
        kind,
        place.measured_at,
        message,
        remedy,
        repository=line.repository,
        operator=line.operator,
        device_key=line.device_key,
        commit_sha=place.sha,
        **more,
    )


def _ask_again(line: _Measured, place: _Measured, variant: str = "") -> str:
    only = f" --variants {variant}" if variant else ""
    return (
        f"measure it: `warpwatch submit --repository {line.repository} --commit {place.sha[:12]} --kinds bench "
        f"--operators {line.operator}{only} --suite {line.suite} --device {line.device_key}`"
    )


def _count(cases: Sequence[str]) -> str:
    return f"case {cases[0]}" if len(cases) == 1 else f"{len(cases)} cases"
