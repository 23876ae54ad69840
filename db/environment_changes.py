"""New environments of devices, and by how much series stepped there."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import text, update
from sqlalchemy.orm import Session

from warpwatch.contract.environment import card_name
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
    """A device whose environment changed for an operator, or whose card did. commit: measured in both. head_commit: the
    first that was measured in the new one. is_by_commit: whether this asked for the new environment by its
    warpwatch.toml; the other is never measured in it then. facts: those in which both environments differ, as
    (old, new). keys: of both. cards: where they alone differ, both."""

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
    head_commit_id: int | None = None
    is_by_commit: bool = False
    cards: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class NewEnvironment:
    """The first bench of an operator in an environment, or on a card, and the newest commit that was measured in the
    one before, by which job."""

    operator_id: int
    operator: str
    device_id: int
    commit_id: int
    commit_sha: str
    base_environment_id: int
    head_environment_id: int
    base_card_id: int | None
    head_card_id: int | None
    measured_id: int
    measured_sha: str


@dataclass(frozen=True, slots=True)
class RecentStep:
    """The largest step of an operator on a device in a new environment. series: how many stepped there."""

    operator: str
    device_key: str
    series: int
    step: EnvironmentStep


@dataclass(frozen=True, slots=True)
class EnvironmentReading:
    """One right reading of a series. card_id: None where the card is not known. is_head: of the new environment, or of
    the new card."""

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
    is_head: bool = False


@dataclass(frozen=True, slots=True)
class StepEffect:
    """What the code alone, or the toolchain alone, did to a time: new over old, with its 95 % interval."""

    ratio: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class EnvironmentStep:
    """The step of a series at a commit that was measured in two environments: new over old, by what the cause names.

    is_decided: by paired rounds in both; else readings of separate runs suggest it. facts: in which the environments
    differ, as (old, new); of cards, their names. job_id: of the comparison, None where none was asked for. code,
    toolchain: what either did, where the comparison measured this commit and head_sha in both environments.
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
    head_sha: str | None = None
    code: StepEffect | None = None
    toolchain: StepEffect | None = None


def differing_facts(base: Mapping[str, Any], head: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The facts in which two environments differ, by name."""
    return {name: (base.get(name), head.get(name)) for name in {**base, **head} if base.get(name) != head.get(name)}


# The first judged bench of an operator in an environment, or on a card of it, and the bench before.
_NEW = """
SELECT jobs.operator_id, operators.name AS operator, jobs.device_id, new.commit_id, commits.sha AS commit_sha,
       before.environment_id AS base_id, base.facts AS base_facts, new.environment_id AS head_id,
       head.facts AS head_facts, new.card_id AS head_card_id, before.card_id AS base_card_id
FROM job_sources AS new JOIN jobs ON jobs.id = new.job_id JOIN operators ON operators.id = new.operator_id
JOIN commits ON commits.id = new.commit_id
CROSS JOIN LATERAL (
    SELECT old.environment_id, old.card_id FROM job_sources AS old
    JOIN environments ON environments.id = old.environment_id
    WHERE old.operator_id = new.operator_id AND environments.device_id = jobs.device_id AND old.job_id < new.job_id
    ORDER BY old.job_id DESC LIMIT 1
) AS before
JOIN environments AS base ON base.id = before.environment_id
JOIN environments AS head ON head.id = new.environment_id
WHERE new.job_id = :job_id AND NOT EXISTS (
    SELECT FROM job_sources AS old
    WHERE old.operator_id = new.operator_id AND old.environment_id = new.environment_id AND old.job_id < new.job_id
      AND (old.environment_id <> before.environment_id OR before.card_id IS NULL OR new.card_id IS NULL
           OR old.card_id = new.card_id))
"""
_NEWEST = f"""
SELECT job_sources.job_id, commits.sha FROM job_sources JOIN commits ON commits.id = job_sources.commit_id
WHERE job_sources.operator_id = :operator_id AND job_sources.environment_id = :environment_id
  AND (CAST(:card_id AS bigint) IS NULL OR job_sources.card_id = :card_id)
  AND {on_line("job_sources.commit_id")}
ORDER BY commits.ordinal DESC, job_sources.job_id DESC LIMIT 1
"""
_NOTE = """
INSERT INTO environment_changes (operator_id, device_id, commit_id, base_environment_id, head_environment_id,
                                 base_card_id, head_card_id, head_commit_id, is_by_commit)
SELECT operator_id, device_id, commit_id, :base_id, :head_id, :base_card_id, :head_card_id, :head_commit_id,
       :is_by_commit
FROM jobs WHERE id = :measured_id
ON CONFLICT (operator_id, device_id, base_environment_id, head_environment_id, base_card_id, head_card_id) DO NOTHING
RETURNING commit_id
"""
# Workers of the last hour: one that starts anew for each job may be another machine each time.
_WORKERS = """
SELECT count(*) FROM workers
WHERE device_id = :device_id AND stopped_at IS NULL AND heartbeat_at > now() - interval '1 hour'
"""
_CHANGES = """
SELECT changes.id, operators.repository_id, changes.operator_id, operators.name AS operator, changes.device_id,
       devices.kind AS device_kind, changes.commit_id, base_environment_id, head_environment_id, base.key AS base_key,
       head.key AS head_key, base.facts AS base_facts, head.facts AS head_facts, compare_job_id, head_commit_id,
       is_by_commit, base_card_id, head_card_id
FROM environment_changes AS changes JOIN operators ON operators.id = changes.operator_id
JOIN devices ON devices.id = changes.device_id
JOIN environments AS base ON base.id = base_environment_id JOIN environments AS head ON head.id = head_environment_id
"""
_READINGS = f"""
SELECT series.id AS series_id, variants.name AS variant, cases.key AS case, series.metric, points.commit_id,
       points.ordinal, points.environment_id, points.card_id, median_ns, low_ns, high_ns, series.protocol, side.is_head
FROM points JOIN results ON results.id = points.result_id JOIN series ON series.id = points.series_id
JOIN devices AS device ON device.id = series.device_id JOIN variants ON variants.id = series.variant_id
JOIN cases ON cases.id = series.case_id
CROSS JOIN LATERAL (
    SELECT CASE WHEN CAST(:head_card_id AS bigint) IS NULL THEN points.environment_id = :head_id
                ELSE points.card_id = :head_card_id END AS is_head
) AS side
WHERE points.environment_id IN (:base_id, :head_id) AND results.status = 'ok'
  AND (points.commit_id = :commit_id OR (points.commit_id = :head_commit_id AND side.is_head))
  AND (CAST(:head_card_id AS bigint) IS NULL OR points.card_id IN (:base_card_id, :head_card_id))
  AND series.operator_id = :operator_id AND series.device_id = :device_id AND {IS_JUDGED}
ORDER BY points.id
"""
_EARLIER = f"""
SELECT earlier.* FROM unnest(CAST(:ids AS bigint[])) AS wanted(id) CROSS JOIN LATERAL (
    SELECT points.series_id, '' AS variant, '' AS case, '' AS metric, points.commit_id, points.ordinal,
           points.environment_id, points.card_id, median_ns, low_ns, high_ns, '' AS protocol
    FROM points WHERE points.series_id = wanted.id AND points.environment_id = :environment_id
      AND (CAST(:card_id AS bigint) IS NULL OR points.card_id = :card_id)
    ORDER BY points.ordinal DESC, points.id DESC LIMIT {NOISE_READINGS}
) AS earlier
ORDER BY earlier.series_id, earlier.ordinal
"""
_COLUMNS = """
steps.series_id, commits.sha AS commit_sha, commits.ordinal, changes.base_environment_id, changes.head_environment_id,
steps.cause, steps.ratio, steps.low, steps.high, steps.is_decided, base.facts AS base_facts, head.facts AS head_facts,
changes.compare_job_id AS job_id, (SELECT sha FROM commits WHERE id = changes.head_commit_id) AS head_sha,
code_ratio, code_low, code_high, toolchain_ratio, toolchain_low, toolchain_high,
(SELECT key FROM cards WHERE id = changes.base_card_id) AS base_card,
(SELECT key FROM cards WHERE id = changes.head_card_id) AS head_card
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
# The commits of the border lie in the range of the change.
_OF_REGRESSION = f"""
SELECT {_COLUMNS} FROM {_JOINS}
JOIN regressions ON regressions.operator_id = changes.operator_id AND regressions.device_id = changes.device_id
JOIN commits AS first ON first.id = regressions.base_commit_id
JOIN commits AS last ON last.id = regressions.head_commit_id
JOIN commits AS after ON after.id = changes.head_commit_id
JOIN regression_series AS member
     ON member.regression_id = regressions.id AND member.series_id = steps.series_id
WHERE regressions.id = :id AND steps.code_ratio IS NOT NULL AND commits.ordinal >= first.ordinal
  AND after.ordinal <= last.ordinal
ORDER BY abs(ln(steps.ratio)) DESC, steps.series_id
"""
_RECENT = f"""
SELECT DISTINCT ON (changes.id) operators.name AS operator, devices.key AS device_key,
       count(*) OVER (PARTITION BY changes.id) AS series, {_COLUMNS}
FROM {_JOINS} JOIN operators ON operators.id = changes.operator_id JOIN devices ON devices.id = changes.device_id
WHERE operators.repository_id = :repository_id AND steps.cause NOT IN ('{StepCause.NOISE}', '{StepCause.CODE}')
  AND changes.created_at > now() - interval '{RECENT_DAYS} days' AND {on_line("commits.id")}
ORDER BY changes.id DESC, is_decided DESC, abs(ln(ratio)) DESC LIMIT :limit
"""


def find_new_environment(session: Session, job_id: int) -> NewEnvironment | None:
    """What a bench began if it was the first of its operator in a new environment, or on a new card. None where nothing
    was measured before, or the operator's definition changed: that is no change of the machine."""
    new = session.execute(text(_NEW), {"job_id": job_id}).one_or_none()
    if new is None or "definition" in differing_facts(new.base_facts, new.head_facts):
        return None
    is_card = new.base_id == new.head_id
    base_card_id, head_card_id = (new.base_card_id, new.head_card_id) if is_card else (None, None)
    line = read_line_of(session, new.commit_id) or ALL_COMMITS
    place = {"operator_id": new.operator_id, "environment_id": new.base_id, "card_id": base_card_id, **line.parameters}
    measured = session.execute(text(_NEWEST), place).one_or_none()
    if measured is None:
        return None
    names = new.operator_id, new.operator, new.device_id, new.commit_id, new.commit_sha, new.base_id, new.head_id
    return NewEnvironment(*names, base_card_id, head_card_id, measured.job_id, measured.sha)


def note_change(session: Session, new: NewEnvironment, *, is_by_commit: bool) -> None:
    """Notes a new environment, and asks for the newest commit that was measured in the old one to be measured in it,
    unless it asks for the old one itself. Of a new card it does so where its worker alone may take the job: a fleet
    measures most commits on some other card."""
    ends = {
        "base_id": new.base_environment_id,
        "head_id": new.head_environment_id,
        "base_card_id": new.base_card_id,
        "head_card_id": new.head_card_id,
        "head_commit_id": new.commit_id,
        "measured_id": new.measured_id,
        "is_by_commit": is_by_commit,
    }
    noted = session.scalar(text(_NOTE), ends)
    if noted is None or noted == new.commit_id or is_by_commit:
        return
    if new.head_card_id is None or fetch_scalar(session, _WORKERS, device_id=new.device_id) == 1:
        bench_again(session, new.measured_id)


def list_changes(session: Session, operator_id: int, device_id: int, commit_id: int) -> list[EnvironmentChange]:
    """The changes of environment at whose border a commit was measured."""
    sql = f"""{_CHANGES} WHERE :commit_id IN (changes.commit_id, changes.head_commit_id)
    AND changes.operator_id = :operator_id AND changes.device_id = :device_id ORDER BY changes.id"""
    place = {"operator_id": operator_id, "device_id": device_id, "commit_id": commit_id}
    return fetch(session, _change, sql, **place)


def find_compared(session: Session, submission_id: int) -> EnvironmentChange | None:
    """The change of environment whose comparison a submission holds."""
    sql = f"{_CHANGES} JOIN jobs ON jobs.id = compare_job_id WHERE jobs.submission_id = :submission_id"
    return fetch_one(session, _change, sql, submission_id=submission_id)


def list_border_readings(session: Session, change: EnvironmentChange) -> list[EnvironmentReading]:
    """The readings of the commit in both environments, and of the head in the new one."""
    base_card_id, head_card_id = change.cards or (None, None)
    return fetch(
        session,
        EnvironmentReading,
        _READINGS,
        commit_id=change.commit_id,
        head_commit_id=change.head_commit_id or change.commit_id,
        operator_id=change.operator_id,
        device_id=change.device_id,
        base_id=change.base_environment_id,
        head_id=change.head_environment_id,
        base_card_id=base_card_id,
        head_card_id=head_card_id,
    )


def list_earlier_readings(
    session: Session, series_ids: Collection[int], change: EnvironmentChange
) -> dict[int, list[EnvironmentReading]]:
    """The newest readings of each series in the old environment of a change, in order of history."""
    rows: dict[int, list[EnvironmentReading]] = {number: [] for number in series_ids}
    place = {"environment_id": change.base_environment_id, "card_id": change.cards[0] if change.cards else None}
    for row in fetch(session, EnvironmentReading, _EARLIER, ids=list(series_ids), **place):
        rows[row.series_id].append(row)
    return rows


def list_series_steps(
    session: Session, series_id: int, line: HistoryLine, first: int = 0, last: int = 2**62
) -> list[EnvironmentStep]:
    """The steps of a series on a line where its environment changed, oldest first."""
    values = {"series_id": series_id, "first": first, "last": last, **line.parameters}
    return fetch(session, _step, _STEPS, **values)


def list_regression_steps(session: Session, regression_id: int) -> list[EnvironmentStep]:
    """What code and toolchain did to the series of a regression whose range holds a change of environment, where rounds
    of its commits in both environments told them apart; the largest first."""
    return fetch(session, _step, _OF_REGRESSION, id=regression_id)


def list_job_steps(session: Session, job_id: int) -> list[EnvironmentStep]:
    """The steps that a comparison of two environments decided."""
    sql = f"SELECT {_COLUMNS} FROM {_JOINS} WHERE changes.compare_job_id = :id AND is_decided ORDER BY steps.series_id"
    return fetch(session, _step, sql, id=job_id)


def list_recent_steps(session: Session, repository_id: int, line: HistoryLine, limit: int) -> list[RecentStep]:
    """The newest changes of environment in which something stepped, of a line."""
    return fetch(session, _recent, _RECENT, repository_id=repository_id, limit=limit, **line.parameters)


def save_steps(session: Session, change_id: int, steps: Sequence[dict[str, Any]]) -> None:
    """Writes steps, each with the columns of EnvironmentStepRecord but the change, in place of earlier ones."""
    rows = [{"change_id": change_id, **step} for step in steps]
    refresh = [name for name in (steps[0] if steps else ()) if name != "series_id"]
    upsert(session, EnvironmentStepRecord, rows, key=["change_id", "series_id"], refresh=refresh)


def list_decided(session: Session, change_id: int) -> set[int]:
    """The series whose step paired rounds decided."""
    sql = "SELECT series_id FROM environment_steps WHERE change_id = :id AND is_decided"
    return set(fetch(session, lambda series_id: series_id, sql, id=change_id))


def ask_comparison(session: Session, change: EnvironmentChange, commit_id: int, spec: JobSpec) -> None:
    """Asks for paired rounds of the commit of a change and `commit_id`, which may be the same, in both environments,
    after all other work."""
    job = NewJob(JobKind.COMPARE, commit_id, change.operator_id, change.device_id, spec, change.commit_id)
    request = {"kinds": ["compare"], "operators": [change.operator], "environment_change": change.id}
    new = NewSubmission(change.repository_id, request, [job], "judge", SCHEDULED - 1)
    submission_id = create_submission(session, new)
    job_id = int(fetch_scalar(session, "SELECT id FROM jobs WHERE submission_id = :id", id=submission_id))
    this = EnvironmentChangeRecord.id == change.id
    session.execute(update(EnvironmentChangeRecord).where(this).values(compare_job_id=job_id))


def _change(
    base_key: str,
    head_key: str,
    base_facts: Any,
    head_facts: Any,
    base_card_id: int | None,
    head_card_id: int | None,
    **columns: Any,
) -> EnvironmentChange:
    cards = None if base_card_id is None or head_card_id is None else (base_card_id, head_card_id)
    facts = differing_facts(base_facts, head_facts)
    return EnvironmentChange(keys=(base_key, head_key), facts=facts, cards=cards, **columns)


def _recent(operator: str, device_key: str, series: int, **columns: Any) -> RecentStep:
    return RecentStep(operator, device_key, series, _step(**columns))


def _step(
    cause: str, base_facts: Any, head_facts: Any, base_card: str | None, head_card: str | None, **columns: Any
) -> EnvironmentStep:
    facts = differing_facts(base_facts, head_facts)
    if base_card is not None and head_card is not None:
        facts = {"card": (card_name(base_card), card_name(head_card))}
    code, toolchain = (
        [columns.pop(f"{part}_{name}") for name in ("ratio", "low", "high")] for part in ("code", "toolchain")
    )
    return EnvironmentStep(
        cause=StepCause(cause),
        facts=facts,
        code=None if code[0] is None else StepEffect(*code),
        toolchain=None if toolchain[0] is None else StepEffect(*toolchain),
        **columns,
    )
