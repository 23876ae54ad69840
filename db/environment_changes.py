"""New environments of devices, and by how much series stepped there."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import text, update
from sqlalchemy.orm import Session

from warpwatch.contract.priorities import SCHEDULED
from warpwatch.contract.spec import JobSpec
from warpwatch.contract.words import JobKind, StepCause
from warpwatch.db.models import EnvironmentChangeRecord, EnvironmentStepRecord
from warpwatch.db.reads.lines import ALL_COMMITS, HistoryLine, on_line, read_line_of
from warpwatch.db.reads.query import IS_JUDGED, fetch, fetch_one, fetch_scalar
from warpwatch.db.registry import upsert
from warpwatch.db.submissions import NewJob, NewSubmission, bench_again, create_submission

RECENT_DAYS = 14
"""For how long a change of environment is news."""
NOISE_READINGS = 64
"""Readings of a series in the old environment that its noise is learned from."""


@dataclass(frozen=True, slots=True)
class EnvironmentChange:
    """A device whose environment changed for an operator. commit: measured in both environments. facts: those in which
    they differ, as (old, new). keys: of both environments."""

    id: int
    repository_id: int
    operator_id: int
    operator: str
    device_id: int
    device_kind: str
    commit_id: int
    base_environment_id: int
    head_environment_id: int
    keys: tuple[str, str]
    facts: dict[str, tuple[Any, Any]]
    compare_job_id: int | None


@dataclass(frozen=True, slots=True)
class RecentStep:
    """The largest step of an operator on a device in a new environment. series: how many stepped there."""

    operator: str
    device_key: str
    series: int
    step: EnvironmentStep


@dataclass(frozen=True, slots=True)
class EnvironmentReading:
    """One right reading of a series. card_id: None where the card is not known."""

    series_id: int
    variant: str
    case: str
    metric: str
    commit_id: int
    ordinal: int
    environment_id: int
    card_id: int | None
    median_ns: float
    low_ns: float
    high_ns: float
    protocol: str = ""


@dataclass(frozen=True, slots=True)
class EnvironmentStep:
    """The step of a series at a commit that was measured in two environments: new over old.

    is_decided: by paired rounds in both; else readings of separate runs suggest it. facts: in which the environments
    differ, as (old, new). job_id: of the comparison, None where none was asked for.
    """

    series_id: int
    commit_sha: str
    ordinal: int
    base_environment_id: int
    head_environment_id: int
    cause: StepCause
    ratio: float
    low: float
    high: float
    is_decided: bool
    facts: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    job_id: int | None = None


def differing_facts(base: Mapping[str, Any], head: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The facts in which two environments differ, by name."""
    return {name: (base.get(name), head.get(name)) for name in {**base, **head} if base.get(name) != head.get(name)}


# The first judged bench of an operator in an environment, and that of the bench before.
_NEW = """
SELECT jobs.operator_id, jobs.device_id, new.commit_id, before.environment_id AS base_id, base.facts AS base_facts,
       new.environment_id AS head_id, head.facts AS head_facts
FROM job_sources AS new JOIN jobs ON jobs.id = new.job_id
CROSS JOIN LATERAL (
    SELECT old.environment_id FROM job_sources AS old JOIN environments ON environments.id = old.environment_id
    WHERE old.operator_id = new.operator_id AND environments.device_id = jobs.device_id AND old.job_id < new.job_id
    ORDER BY old.job_id DESC LIMIT 1
) AS before
JOIN environments AS base ON base.id = before.environment_id
JOIN environments AS head ON head.id = new.environment_id
WHERE new.job_id = :job_id AND NOT EXISTS (
    SELECT FROM job_sources AS old
    WHERE old.operator_id = new.operator_id AND old.environment_id = new.environment_id AND old.job_id < new.job_id)
"""
_NEWEST = f"""
SELECT job_sources.job_id FROM job_sources JOIN commits ON commits.id = job_sources.commit_id
WHERE job_sources.operator_id = :operator_id AND job_sources.environment_id = :environment_id
  AND {on_line("job_sources.commit_id")}
ORDER BY commits.ordinal DESC, job_sources.job_id DESC LIMIT 1
"""
_NOTE = """
INSERT INTO environment_changes (operator_id, device_id, commit_id, base_environment_id, head_environment_id)
SELECT operator_id, device_id, commit_id, :base_id, :head_id FROM jobs WHERE id = :measured_id
ON CONFLICT (operator_id, device_id, base_environment_id, head_environment_id) DO NOTHING
RETURNING commit_id
"""
_CHANGES = """
SELECT changes.id, operators.repository_id, changes.operator_id, operators.name AS operator, changes.device_id,
       devices.kind AS device_kind, changes.commit_id, base_environment_id, head_environment_id, base.key AS base_key,
       head.key AS head_key, base.facts AS base_facts, head.facts AS head_facts, compare_job_id
FROM environment_changes AS changes JOIN operators ON operators.id = changes.operator_id
JOIN devices ON devices.id = changes.device_id
JOIN environments AS base ON base.id = base_environment_id JOIN environments AS head ON head.id = head_environment_id
"""
_AT_COMMIT = f"""
SELECT series.id AS series_id, variants.name AS variant, cases.key AS case, series.metric, points.commit_id,
       points.ordinal, points.environment_id, points.card_id, median_ns, low_ns, high_ns, series.protocol
FROM points JOIN results ON results.id = points.result_id JOIN series ON series.id = points.series_id
JOIN devices AS device ON device.id = series.device_id JOIN variants ON variants.id = series.variant_id
JOIN cases ON cases.id = series.case_id
WHERE points.commit_id = :commit_id AND points.environment_id IN (:base_id, :head_id) AND results.status = 'ok'
  AND series.operator_id = :operator_id AND series.device_id = :device_id AND {IS_JUDGED}
ORDER BY points.id
"""
_EARLIER = f"""
SELECT earlier.* FROM unnest(CAST(:ids AS bigint[])) AS wanted(id) CROSS JOIN LATERAL (
    SELECT points.series_id, '' AS variant, '' AS case, '' AS metric, points.commit_id, points.ordinal,
           points.environment_id, points.card_id, median_ns, low_ns, high_ns, '' AS protocol
    FROM points WHERE points.series_id = wanted.id AND points.environment_id = :environment_id
    ORDER BY points.ordinal DESC, points.id DESC LIMIT {NOISE_READINGS}
) AS earlier
ORDER BY earlier.series_id, earlier.ordinal
"""
_COLUMNS = """
steps.series_id, commits.sha AS commit_sha, commits.ordinal, base_environment_id, head_environment_id, cause, ratio,
low, high, is_decided, base.facts AS base_facts, head.facts AS head_facts, compare_job_id AS job_id
"""
_JOINS = """
environment_steps AS steps JOIN environment_changes AS changes ON changes.id = steps.change_id
JOIN commits ON commits.id = changes.commit_id
JOIN environments AS base ON base.id = base_environment_id JOIN environments AS head ON head.id = head_environment_id
"""
_STEPS = f"""
SELECT {_COLUMNS} FROM {_JOINS}
WHERE steps.series_id = :series_id AND commits.ordinal BETWEEN :first AND :last AND {on_line("commits.id")}
ORDER BY commits.ordinal, changes.id
"""
_RECENT = f"""
SELECT DISTINCT ON (changes.id) operators.name AS operator, devices.key AS device_key,
       count(*) OVER (PARTITION BY changes.id) AS series, {_COLUMNS}
FROM {_JOINS} JOIN operators ON operators.id = changes.operator_id JOIN devices ON devices.id = changes.device_id
WHERE operators.repository_id = :repository_id AND steps.cause <> '{StepCause.NOISE}'
  AND changes.created_at > now() - interval '{RECENT_DAYS} days' AND {on_line("commits.id")}
ORDER BY changes.id DESC, is_decided DESC, abs(ln(ratio)) DESC LIMIT :limit
"""


def note_change(session: Session, job_id: int) -> None:
    """Notes that a bench was the first of its operator in a new environment, and asks for the newest commit that was
    measured in the old one to be measured there, too. Nothing where the operator's definition changed: that is no
    change of the machine."""
    new = session.execute(text(_NEW), {"job_id": job_id}).one_or_none()
    if new is None or "definition" in differing_facts(new.base_facts, new.head_facts):
        return
    line = read_line_of(session, new.commit_id) or ALL_COMMITS
    place = {"operator_id": new.operator_id, "environment_id": new.base_id, **line.parameters}
    measured_id: int | None = fetch_scalar(session, _NEWEST, **place)
    if measured_id is None:
        return
    ends = {"base_id": new.base_id, "head_id": new.head_id, "measured_id": measured_id}
    noted = session.scalar(text(_NOTE), ends)
    if noted is not None and noted != new.commit_id:
        bench_again(session, measured_id)


def list_changes(session: Session, operator_id: int, device_id: int, commit_id: int) -> list[EnvironmentChange]:
    """The changes of environment that a commit is measured on both sides of."""
    sql = f"""{_CHANGES} WHERE changes.commit_id = :commit_id AND changes.operator_id = :operator_id
    AND changes.device_id = :device_id ORDER BY changes.id"""
    place = {"operator_id": operator_id, "device_id": device_id, "commit_id": commit_id}
    return fetch(session, _change, sql, **place)


def find_compared(session: Session, submission_id: int) -> EnvironmentChange | None:
    """The change of environment whose comparison a submission holds."""
    sql = f"{_CHANGES} JOIN jobs ON jobs.id = compare_job_id WHERE jobs.submission_id = :submission_id"
    return fetch_one(session, _change, sql, submission_id=submission_id)


def list_both_readings(session: Session, change: EnvironmentChange) -> list[EnvironmentReading]:
    """The readings of the commit in both environments."""
    values = {"commit_id": change.commit_id, "operator_id": change.operator_id, "device_id": change.device_id}
    values |= {"base_id": change.base_environment_id, "head_id": change.head_environment_id}
    return fetch(session, EnvironmentReading, _AT_COMMIT, **values)


def list_earlier_readings(
    session: Session, series_ids: Collection[int], environment_id: int
) -> dict[int, list[EnvironmentReading]]:
    """The newest readings of each series in an environment, in order of history."""
    rows: dict[int, list[EnvironmentReading]] = {number: [] for number in series_ids}
    for row in fetch(session, EnvironmentReading, _EARLIER, ids=list(series_ids), environment_id=environment_id):
        rows[row.series_id].append(row)
    return rows


def list_series_steps(
    session: Session, series_id: int, line: HistoryLine, first: int = 0, last: int = 2**62
) -> list[EnvironmentStep]:
    """The steps of a series on a line where its environment changed, oldest first."""
    values = {"series_id": series_id, "first": first, "last": last, **line.parameters}
    return fetch(session, _step, _STEPS, **values)


def list_recent_steps(session: Session, repository_id: int, line: HistoryLine, limit: int) -> list[RecentStep]:
    """The newest changes of environment in which something stepped, of a line."""
    return fetch(session, _recent, _RECENT, repository_id=repository_id, limit=limit, **line.parameters)


def save_steps(session: Session, change_id: int, steps: Sequence[dict[str, Any]]) -> None:
    """Writes steps, each with the columns of EnvironmentStepRecord but the change, in place of earlier ones."""
    rows = [{"change_id": change_id, **step} for step in steps]
    refresh = ["cause", "ratio", "low", "high", "is_decided"]
    upsert(session, EnvironmentStepRecord, rows, key=["change_id", "series_id"], refresh=refresh)


def list_decided(session: Session, change_id: int) -> set[int]:
    """The series whose step paired rounds decided."""
    sql = "SELECT series_id FROM environment_steps WHERE change_id = :id AND is_decided"
    return set(fetch(session, lambda series_id: series_id, sql, id=change_id))


def ask_comparison(session: Session, change: EnvironmentChange, spec: JobSpec) -> int:
    """Asks for paired rounds of the commit in both environments, after all other work; returns the id of the job."""
    job = NewJob(
        JobKind.COMPARE, change.commit_id, change.operator_id, change.device_id, spec, base_commit_id=change.commit_id
    )
    request = {"kinds": ["compare"], "operators": [change.operator], "environment_change": change.id}
    new = NewSubmission(change.repository_id, request, [job], "judge", SCHEDULED - 1)
    submission_id = create_submission(session, new)
    job_id = int(fetch_scalar(session, "SELECT id FROM jobs WHERE submission_id = :id", id=submission_id))
    this = EnvironmentChangeRecord.id == change.id
    session.execute(update(EnvironmentChangeRecord).where(this).values(compare_job_id=job_id))
    return job_id


def _change(base_key: str, head_key: str, base_facts: Any, head_facts: Any, **columns: Any) -> EnvironmentChange:
    return EnvironmentChange(keys=(base_key, head_key), facts=differing_facts(base_facts, head_facts), **columns)


def _recent(operator: str, device_key: str, series: int, **columns: Any) -> RecentStep:
    return RecentStep(operator, device_key, series, _step(**columns))


def _step(cause: str, base_facts: Any, head_facts: Any, **columns: Any) -> EnvironmentStep:
    return EnvironmentStep(cause=StepCause(cause), facts=differing_facts(base_facts, head_facts), **columns)
