"""Reads what the next step with a regression depends on: what is suspected already, its series, its trials."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import text
from sqlalchemy.orm import Session

from warpwatch.contract.spec import JobSpec
from warpwatch.contract.words import Cause, ChangeDirection
from warpwatch.db.reads.lines import share_line
from warpwatch.db.reads.observed import NEWEST_RUN, CheckRow, RoundsRow, list_trial_checks, list_trial_rounds
from warpwatch.db.reads.query import fetch, fetch_one, fetch_scalar
from warpwatch.db.regressions import COMMITS_BETWEEN


@dataclass(frozen=True, slots=True)
class JobOrigin:
    """Where a job came from. trunk_sha: the newest commit of the watched branch, where it is known. definitions_sha:
    the version that the job measured. card_id: the physical card of its newest run, where that is known. confirm:
    whether changes that these imported results show are to be compared here."""

    repository_id: int
    repository_url: str
    origin: str
    operator: str
    device_kind: str
    trunk_sha: str | None = None
    definitions_url: str | None = None
    definitions_sha: str | None = None
    card_id: int | None = None
    confirm: bool = False


@dataclass(frozen=True, slots=True)
class KnownChange:
    """A suspected or decided change of an operator on a device, and the ranges of commits that its trials covered."""

    id: int
    direction: str
    verdict: str
    is_settled: bool
    base_commit_id: int
    head_commit_id: int
    base_sha: str
    head_sha: str
    base_ordinal: int
    head_ordinal: int
    series: list[int]
    dismissed: list[int]
    """Those of its series that do not show it."""
    asked: list[list[int]]
    """[base ordinal, head ordinal] of every trial that confirmed it or was to."""
    cause: str = Cause.HISTORY
    ratio: float | None = None


@dataclass(frozen=True, slots=True)
class RegressionState:
    """A regression with its operator, device and commits."""

    id: int
    repository_id: int
    repository_url: str
    operator_id: int
    operator: str
    device_id: int
    device_kind: str
    direction: str
    cause: str
    verdict: str
    base_commit_id: int
    head_commit_id: int
    base_sha: str
    head_sha: str
    ratio: float | None
    settled_at: datetime | None
    definitions_url: str | None = None
    definitions_sha: str | None = None


@dataclass(frozen=True, slots=True)
class MemberRow:
    """A series of a regression. metric, protocol: of its time. ratio, low, high: measured; None before."""

    series_id: int
    variant_id: int
    case_id: int
    variant: str
    case: str
    suspected_ratio: float | None
    base_status: str | None
    head_status: str | None
    verdict: str
    ratio: float | None
    low: float | None
    high: float | None
    metric: str = ""
    protocol: str = ""


@dataclass(frozen=True, slots=True)
class TrialState:
    """A trial of a regression, the state of its job, and its answer so far."""

    id: int
    regression_id: int
    job_id: int
    kind: str
    job_state: str
    job_message: str
    purpose: str
    base_commit_id: int
    head_commit_id: int
    base_sha: str
    head_sha: str
    answer: str
    ratio: float | None
    low: float | None
    high: float | None
    message: str
    spec: JobSpec
    answered_at: datetime | None


@dataclass(frozen=True, slots=True)
class SiblingRegression:
    """Another regression of the same operator on the same device. confirmed: ids of the series that show it."""

    id: int
    direction: str
    base_sha: str
    head_sha: str
    confirmed: list[int]


@dataclass(frozen=True, slots=True)
class MergedRange:
    """The located change of a branch, and how many commits its range holds."""

    base_sha: str
    head_sha: str
    commits: int


@dataclass(frozen=True, slots=True)
class RegressionFacts:
    """All rows that the next step with a regression depends on.

    trials: in the order in which they were asked for. rounds, checks: what the newest run of each trial's job measured,
    by job. right_at_base: trials whose base is right in their own environment. tried: see list_tried. merged_change:
    the located change of a branch that became this regression when the branch was merged.
    """

    regression: RegressionState
    members: list[MemberRow]
    trials: list[TrialState]
    rounds: dict[int, dict[int, RoundsRow]]
    checks: dict[int, list[CheckRow]]
    right_at_base: frozenset[int]
    siblings: list[SiblingRegression]
    tried: frozenset[tuple[str, str]]
    merged_change: MergedRange | None = None


def read_facts(session: Session, regression_id: int) -> RegressionFacts:
    """All that is known of a regression; the regression must exist."""
    regression = read_state(session, regression_id)
    is_broken = regression.direction == ChangeDirection.BROKEN
    return RegressionFacts(
        regression,
        list_members(session, regression_id),
        list_trials(session, regression_id),
        {} if is_broken else list_trial_rounds(session, regression_id),
        list_trial_checks(session, regression_id) if is_broken else {},
        list_right_at_base(session, regression_id) if is_broken else frozenset(),
        list_siblings(session, regression_id),
        list_tried(session, regression_id),
        _find_merged_change(session, regression_id),
    )


def _find_merged_change(session: Session, regression_id: int) -> MergedRange | None:
    sql = f"""
    SELECT coalesce(merged_base.sha, base.sha) AS base_sha, coalesce(merged_head.sha, head.sha) AS head_sha,
           coalesce(regressions.merged_commits, {COMMITS_BETWEEN} + 1) AS commits
    FROM regressions JOIN regressions AS merged ON merged.id = regressions.merged_as_id
         AND merged.direction = regressions.direction
    JOIN commits AS base ON base.id = regressions.base_commit_id
    JOIN commits AS head ON head.id = regressions.head_commit_id
    LEFT JOIN commits AS merged_base ON merged_base.id = regressions.merged_base_commit_id
    LEFT JOIN commits AS merged_head ON merged_head.id = regressions.merged_head_commit_id
    WHERE regressions.merged_as_id = :id AND regressions.verdict = 'confirmed' AND regressions.settled_at IS NOT NULL
    ORDER BY commits, regressions.id LIMIT 1
    """
    return fetch_one(session, MergedRange, sql, id=regression_id)


def read_origin(session: Session, job_id: int) -> JobOrigin:
    sql = """
    SELECT repositories.id AS repository_id, url AS repository_url, origin, operators.name AS operator,
         devices.kind AS device_kind,
         (SELECT head_sha FROM branches WHERE repository_id = repositories.id AND is_watched) AS trunk_sha,
         definitions_url, jobs.definitions_sha,
         (SELECT card_id FROM runs WHERE job_id = jobs.id AND state = 'done' ORDER BY id DESC LIMIT 1) AS card_id,
         submissions.request @> '{"confirm": true}' AS confirm
    FROM jobs JOIN submissions ON submissions.id = jobs.submission_id JOIN repositories
         ON repositories.id = submissions.repository_id
    JOIN operators ON operators.id = jobs.operator_id JOIN devices ON devices.id = jobs.device_id WHERE jobs.id = :id
    """
    origin = fetch_one(session, JobOrigin, sql, id=job_id)
    assert origin is not None
    return origin


def list_awaited(session: Session, job_id: int) -> list[int]:
    """The ordinals of the commits at which the submission of a job has yet to measure the same operator on the same
    device, by jobs of the same kind."""
    sql = """
    SELECT DISTINCT commits.ordinal FROM jobs AS own
    JOIN jobs AS other ON other.submission_id = own.submission_id AND other.operator_id = own.operator_id
         AND other.device_id = own.device_id AND other.kind = own.kind
    JOIN commits ON commits.id = other.commit_id
    WHERE own.id = :id AND other.state IN ('queued', 'running') ORDER BY commits.ordinal
    """
    return list(session.scalars(text(sql), {"id": job_id}))


def list_known(session: Session, operator_id: int, device_id: int, oldest: int) -> list[KnownChange]:
    """The changes of an operator on a device that end after the commit with the ordinal `oldest`."""
    sql = """
    SELECT regressions.id, direction, verdict, settled_at IS NOT NULL AS is_settled, regressions.base_commit_id,
           regressions.head_commit_id, base.sha AS base_sha, head.sha AS head_sha, base.ordinal AS base_ordinal,
           head.ordinal AS head_ordinal,
           (SELECT coalesce(jsonb_agg(series_id), '[]') FROM regression_series
                WHERE regression_id = regressions.id) AS series,
           (SELECT coalesce(jsonb_agg(series_id), '[]') FROM regression_series AS member
            WHERE regression_id = regressions.id AND member.verdict = 'dismissed') AS dismissed,
           (SELECT coalesce(jsonb_agg(jsonb_build_array(one.ordinal, other.ordinal)), '[]') FROM trials
            JOIN commits AS one ON one.id = trials.base_commit_id JOIN commits AS other
                 ON other.id = trials.head_commit_id
            WHERE regression_id = regressions.id AND purpose IN ('confirm', 'retry')) AS asked, cause, ratio
    FROM regressions JOIN commits AS base ON base.id = regressions.base_commit_id
    JOIN commits AS head ON head.id = regressions.head_commit_id
    WHERE operator_id = :operator_id AND device_id = :device_id AND head.ordinal >= :oldest ORDER BY regressions.id
    """
    return fetch(session, KnownChange, sql, operator_id=operator_id, device_id=device_id, oldest=oldest)


def read_state(session: Session, regression_id: int) -> RegressionState:
    sql = """
    SELECT regressions.id, operators.repository_id, url AS repository_url, operator_id, operators.name AS operator,
         device_id,
           devices.kind AS device_kind, direction, cause, verdict, base_commit_id, head_commit_id, base.sha AS base_sha,
           head.sha AS head_sha, ratio, settled_at, definitions_url, definitions_sha
    FROM regressions JOIN operators ON operators.id = operator_id JOIN repositories
         ON repositories.id = operators.repository_id
    JOIN devices ON devices.id = device_id JOIN commits AS base ON base.id = base_commit_id
    JOIN commits AS head ON head.id = head_commit_id WHERE regressions.id = :id
    """
    state = fetch_one(session, RegressionState, sql, id=regression_id)
    assert state is not None
    return state


def list_members(session: Session, regression_id: int) -> list[MemberRow]:
    """The series of a regression, by id."""
    sql = """
    SELECT series_id, series.variant_id, series.case_id, variants.name AS variant, cases.key AS case, suspected_ratio,
         base_status,
           head_status, verdict, ratio, low, high, series.metric, series.protocol
    FROM regression_series JOIN series ON series.id = series_id JOIN variants ON variants.id = series.variant_id
    JOIN cases ON cases.id = series.case_id WHERE regression_id = :id ORDER BY series_id
    """
    return fetch(session, MemberRow, sql, id=regression_id)


_TRIALS = """
SELECT trials.id, regression_id, job_id, jobs.kind, jobs.state AS job_state, jobs.message AS job_message, purpose,
       trials.base_commit_id, trials.head_commit_id, base.sha AS base_sha, head.sha AS head_sha, answer, ratio, low,
            high,
       trials.message, jobs.spec, answered_at
FROM trials JOIN jobs ON jobs.id = job_id JOIN commits AS base ON base.id = trials.base_commit_id
JOIN commits AS head ON head.id = trials.head_commit_id
"""


def list_trials(session: Session, regression_id: int) -> list[TrialState]:
    """The trials of a regression in the order they were asked for."""
    return fetch(session, TrialState, _TRIALS + "WHERE regression_id = :id ORDER BY trials.id", id=regression_id)


def find_trial(session: Session, job_id: int) -> TrialState | None:
    """The trial that this job is to answer."""
    return fetch_one(session, TrialState, _TRIALS + "WHERE job_id = :job_id", job_id=job_id)


def list_tried(session: Session, regression_id: int) -> frozenset[tuple[str, str]]:
    """(base, head) ids of the commits that trials of suspicions compared on the operator and device of a regression,
    where the head is one of the regression's trials."""
    sql = """
    SELECT base.sha, head.sha FROM regressions AS this
    JOIN regressions ON regressions.operator_id = this.operator_id AND regressions.device_id = this.device_id
    JOIN trials ON trials.regression_id = regressions.id AND purpose = 'confirm'
    JOIN commits AS base ON base.id = trials.base_commit_id JOIN commits AS head ON head.id = trials.head_commit_id
    WHERE this.id = :id AND trials.head_commit_id IN (SELECT head_commit_id FROM trials WHERE regression_id = :id)
    """
    return frozenset((base, head) for base, head in session.execute(text(sql), {"id": regression_id}))


def list_siblings(session: Session, regression_id: int) -> list[SiblingRegression]:
    """Other regressions of the operator on the device whose ranges of commits lie within those of the trials."""
    sql = """
    WITH range AS (SELECT min(base.ordinal) AS first, max(head.ordinal) AS last FROM trials
                   JOIN commits AS base ON base.id = trials.base_commit_id
                   JOIN commits AS head ON head.id = trials.head_commit_id WHERE regression_id = :id)
    SELECT regressions.id, regressions.direction, base.sha AS base_sha, head.sha AS head_sha,
           (SELECT coalesce(jsonb_agg(series_id ORDER BY series_id), '[]') FROM regression_series AS member
            WHERE member.regression_id = regressions.id AND member.verdict = 'confirmed') AS confirmed
    FROM regressions AS this
    JOIN regressions ON regressions.operator_id = this.operator_id AND regressions.device_id = this.device_id
         AND regressions.id <> this.id
    JOIN commits AS base ON base.id = regressions.base_commit_id
    JOIN commits AS head ON head.id = regressions.head_commit_id CROSS JOIN range
    WHERE this.id = :id AND base.ordinal >= range.first AND head.ordinal <= range.last ORDER BY regressions.id
    """
    return fetch(session, SiblingRegression, sql, id=regression_id)


def has_series(session: Session, operator_id: int, device_id: int, variant: str, case: str) -> bool:
    """Whether a variant was ever timed on a case, both by name, on the device."""
    sql = """
    SELECT 1 FROM series JOIN variants ON variants.id = series.variant_id JOIN cases ON cases.id = series.case_id
    WHERE series.operator_id = :operator_id AND series.device_id = :device_id
      AND variants.name = :variant AND cases.key = :case LIMIT 1
    """
    place = {"operator_id": operator_id, "device_id": device_id}
    return fetch_scalar(session, sql, **place, variant=variant, case=case) is not None


def find_trace(session: Session, compare_job_id: int, commit_id: int, series_id: int) -> int | None:
    """The trace that a compare job took of one series at one of its two commits."""
    sql = f"""
    SELECT max(traces.id) FROM traces
    JOIN results ON results.id = traces.result_id
    JOIN series ON series.variant_id = results.variant_id AND series.case_id = results.case_id
    WHERE results.run_id = {NEWEST_RUN.replace(":job_id", ":compare_job_id")}
      AND results.commit_id = :commit_id AND series.id = :series_id
    """
    trace_id: int | None = fetch_scalar(
        session, sql, compare_job_id=compare_job_id, commit_id=commit_id, series_id=series_id
    )
    return trace_id


def read_code_hash(session: Session, operator_id: int, commit_id: int, environment_id: int) -> str:
    """The fingerprint of an operator's machine code at a commit; empty where it is unknown."""
    sql = """
    SELECT code_hash FROM builds WHERE commit_id = :commit_id AND operator_id = :operator_id
         AND environment_id = :environment_id
    """
    code_hash = fetch_scalar(session, sql, operator_id=operator_id, commit_id=commit_id, environment_id=environment_id)
    return str(code_hash or "")


def list_native(session: Session, commit_id: int, operator: str) -> set[str]:
    """Names of an operator's native variants by the catalogue of a commit."""
    sql = """
    SELECT variant ->> 'name' FROM commits, jsonb_array_elements(catalogue -> 'operators') AS entry,
           jsonb_array_elements(entry -> 'variants') AS variant
    WHERE commits.id = :commit_id AND entry ->> 'name' = :operator AND (variant ->> 'native')::boolean
    """
    return set(session.execute(text(sql), {"commit_id": commit_id, "operator": operator}).scalars())


def list_right_at_base(session: Session, regression_id: int) -> frozenset[int]:
    """Ids of the trials at whose base a check of a broken series was ok, in the environment of the trial's newest
    run."""
    sql = """
    SELECT trials.id FROM trials
    WHERE regression_id = :id AND EXISTS (SELECT FROM regression_series AS member
        JOIN series ON series.id = member.series_id
        JOIN results ON results.commit_id = trials.base_commit_id AND results.operator_id = series.operator_id
             AND results.kind = 'check' AND results.device_id = series.device_id
             AND results.variant_id = series.variant_id AND results.case_id = series.case_id
        WHERE member.regression_id = trials.regression_id AND results.status = 'ok'
          AND results.environment_id = (SELECT runs.environment_id FROM runs
              WHERE runs.job_id = trials.job_id AND runs.state = 'done' ORDER BY runs.id DESC LIMIT 1))
    """
    return frozenset(session.execute(text(sql), {"id": regression_id}).scalars())


def list_wider(session: Session, regression_id: int) -> list[int]:
    """Confirmed and settled changes nobody has triaged whose range of commits holds a narrower confirmed one, that of
    `regression_id`."""
    sql = f"""
    SELECT array_agg(wide.id) FROM regressions AS narrow
    JOIN regressions AS wide ON wide.operator_id = narrow.operator_id AND wide.device_id = narrow.device_id
         AND wide.direction = narrow.direction AND wide.id <> narrow.id
    JOIN commits AS narrow_base ON narrow_base.id = narrow.base_commit_id
    JOIN commits AS narrow_head ON narrow_head.id = narrow.head_commit_id
    JOIN commits AS wide_base ON wide_base.id = wide.base_commit_id
    JOIN commits AS wide_head ON wide_head.id = wide.head_commit_id
    WHERE narrow.id = :id AND wide.verdict = 'confirmed' AND wide.state = 'new'
      AND wide.settled_at IS NOT NULL
      AND {share_line("narrow_head.id", "wide_head.id")}
      AND wide_base.ordinal <= narrow_base.ordinal AND narrow_head.ordinal <= wide_head.ordinal
      AND EXISTS (SELECT FROM regression_series AS one JOIN regression_series AS other USING (series_id)
                  WHERE one.regression_id = narrow.id AND other.regression_id = wide.id)
    """
    return fetch_scalar(session, sql, id=regression_id) or []
