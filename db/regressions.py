"""Writes verdicts: suspicions from history, and decisions from interleaved comparisons."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import func, select, update
from sqlalchemy.dialects.postgresql import insert as upsert_into
from sqlalchemy.orm import Session

from warpwatch.contract.spec import JobSpec
from warpwatch.contract.words import Cause, ChangeDirection, JobState, MergeCause, Triage, Verdict
from warpwatch.db.errors import NotFoundError
from warpwatch.db.live import announce
from warpwatch.db.models import JobRecord, RegressionRecord, RegressionSeriesRecord
from warpwatch.db.triage import SERVICE, set_triage

_ENDED = (JobState.DONE, JobState.FAILED, JobState.CANCELLED)


@dataclass(frozen=True, slots=True)
class EndedJob:
    """A job that ended and from which no verdict was drawn yet. base_commit_id is set for compare jobs."""

    id: int
    kind: str
    state: str
    commit_id: int
    base_commit_id: int | None
    operator_id: int
    device_id: int
    submission_id: int
    finished_at: datetime | None
    spec: JobSpec
    message: str
    trace_parent: str | None


@dataclass(frozen=True, slots=True)
class SeriesDecision:
    """What the comparison said of one series; ratio is head over base, low and high its 95 % interval."""

    series_id: int
    verdict: Verdict
    ratio: float | None = None
    low: float | None = None
    high: float | None = None


class SuspectedSeries(NamedTuple):
    """A series that a suspicion is about.

    ratio: head over base in history; statuses are those of checks, where something broke.
    """

    series_id: int
    ratio: float | None = None
    base_status: str | None = None
    head_status: str | None = None


def open_suspicion(
    s: Session,
    *,
    operator_id: int,
    device_id: int,
    base_commit_id: int,
    head_commit_id: int,
    direction: str,
    ratio: float | None,
    series: Iterable[tuple[int, float] | SuspectedSeries],
    cause: str = Cause.HISTORY,
) -> int | None:
    """The id of the suspected change; None when it is known already, with all of these series.

    direction: slower | faster | broken. ratio: head over base of the worst series. One that is known gets the series
    that are new in it, which are still to be decided then.
    """
    key = {
        "operator_id": operator_id,
        "device_id": device_id,
        "base_commit_id": base_commit_id,
        "head_commit_id": head_commit_id,
        "direction": direction,
    }
    statement = upsert_into(RegressionRecord).values(**key, ratio=ratio, cause=cause).on_conflict_do_nothing()
    is_new = s.scalar(statement.returning(RegressionRecord.id)) is not None
    regression = s.scalars(select(RegressionRecord).filter_by(**key).with_for_update()).one()
    members = [
        {"regression_id": regression.id, "suspected_ratio": member.ratio, **_statuses(member)}
        for member in (SuspectedSeries(*item) for item in series)
    ]
    if not add_members(s, members) and not is_new:
        return None
    regression.settled_at = None
    if regression.verdict != Verdict.CONFIRMED:
        regression.verdict = Verdict.SUSPECTED
    s.flush()
    announce(s, "regression")
    return regression.id


def add_members(s: Session, rows: list[dict[str, Any]]) -> int:
    """Adds series to a regression, those that it has already aside; returns how many were new."""
    if not rows:
        return 0
    statement = (
        upsert_into(RegressionSeriesRecord)
        .values(rows)
        .on_conflict_do_nothing()
        .returning(RegressionSeriesRecord.series_id)
    )
    return len(s.scalars(statement).all())


def _statuses(member: SuspectedSeries) -> dict[str, Any]:
    return {"series_id": member.series_id, "base_status": member.base_status, "head_status": member.head_status}


def attach_compare_job(s: Session, regression_id: int, job_id: int) -> None:
    """Remembers which job decides the suspicion."""
    _get(s, regression_id).compare_job_id = job_id
    s.flush()


def decide(
    s: Session,
    regression_id: int,
    verdict: Verdict,
    *,
    ratio: float | None = None,
    low: float | None = None,
    high: float | None = None,
    series: Sequence[SeriesDecision] = (),
    base_trace_id: int | None = None,
    head_trace_id: int | None = None,
) -> None:
    """Writes what the comparison said.

    Without a ratio the suspected one stays; deciding anew replaces the last decision.
    """
    regression = _get(s, regression_id)
    regression.verdict = Verdict(verdict)
    regression.ratio = regression.ratio if ratio is None else ratio
    regression.low, regression.high = low, high
    regression.base_trace_id, regression.head_trace_id = base_trace_id, head_trace_id
    regression.decided_at = func.now()
    s.flush()
    decide_series(s, regression_id, series)
    announce(s, "regression")


def decide_series(s: Session, regression_id: int, decisions: Iterable[SeriesDecision]) -> None:
    """Writes the verdicts on single series, while the whole is not decided yet."""
    for decision in decisions:
        member = (
            RegressionSeriesRecord.regression_id == regression_id,
            RegressionSeriesRecord.series_id == decision.series_id,
        )
        values = {
            "verdict": Verdict(decision.verdict),
            "ratio": decision.ratio,
            "low": decision.low,
            "high": decision.high,
        }
        s.execute(update(RegressionSeriesRecord).where(*member).values(values))


def lock(s: Session, regression_id: int) -> None:
    """Lets one process at a time decide what becomes of a regression; NotFoundError when there is no such one."""
    _get(s, regression_id)


def settle(s: Session, regression_id: int) -> None:
    """Says that nothing is left to be measured for it."""
    _get(s, regression_id).settled_at = func.now()
    s.flush()
    announce(s, "regression")


def unsettle(s: Session, regression_id: int) -> None:
    """Says that something is to be measured for it again."""
    _get(s, regression_id).settled_at = None
    s.flush()


def move(s: Session, regression_id: int, base_commit_id: int, head_commit_id: int) -> int | None:
    """Gives it the narrower range of commits; the id of another regression that has this range already, and nothing is
    changed."""
    regression = _get(s, regression_id)
    other = _same(s, regression, base_commit_id, head_commit_id, regression.direction)
    if other is None:
        regression.base_commit_id, regression.head_commit_id = base_commit_id, head_commit_id
        s.flush()
        announce(s, "regression")
    return other


def name_merge(
    s: Session,
    regression_id: int,
    cause: MergeCause | None = None,
    merged_range: tuple[int, int] | None = None,
    commits: int | None = None,
) -> None:
    """Writes what of the merge commit at its head changed something; nothing where the head is no merge.

    merged_range: row ids of (last good, first bad) in the merged branch. commits: how many the range holds.
    """
    regression = _get(s, regression_id)
    regression.merge_cause = cause
    regression.merged_base_commit_id, regression.merged_head_commit_id = merged_range or (None, None)
    regression.merged_commits = commits
    s.flush()


def turn(s: Session, regression_id: int) -> bool:
    """Changes slower into faster or back, as the comparison says; False where the other direction has a regression of
    its own."""
    regression = _get(s, regression_id)
    direction = ChangeDirection.FASTER if regression.direction == ChangeDirection.SLOWER else ChangeDirection.SLOWER
    if _same(s, regression, regression.base_commit_id, regression.head_commit_id, direction) is not None:
        return False
    regression.direction = direction
    s.flush()
    return True


def copy_members(s: Session, source_id: int, target_id: int) -> None:
    """Adds the confirmed series of one regression to another that has the same cause, with what was found of them."""
    confirmed = select(RegressionSeriesRecord).filter_by(regression_id=source_id, verdict=Verdict.CONFIRMED)
    columns = ("series_id", "suspected_ratio", "base_status", "head_status", "verdict", "ratio", "low", "high")
    rows = [
        {name: getattr(row, name) for name in columns} | {"regression_id": target_id} for row in s.scalars(confirmed)
    ]
    add_members(s, rows)


def close_as(s: Session, regression_id: int, state: Triage, commit_id: int, note: str) -> bool:
    """Closes an open change by the commit that ended it; False where somebody has closed it meanwhile."""
    regression = _get(s, regression_id)
    if regression.verdict != Verdict.CONFIRMED or regression.state not in (Triage.NEW, Triage.ACKNOWLEDGED):
        return False
    regression.fixed_by_commit_id = commit_id
    set_triage(s, regression_id, state, SERVICE, note)
    return True


def link_merged(s: Session, regression_id: int, other_id: int) -> bool:
    """Remembers which change of the watched branch one became when its branch was merged; False where it is known."""
    regression = _get(s, regression_id)
    if regression.merged_as_id is not None or regression_id == other_id:
        return False
    regression.merged_as_id = other_id
    s.flush()
    announce(s, "regression")
    return True


def find_same(
    s: Session, operator_id: int, device_id: int, base_commit_id: int, head_commit_id: int, direction: str
) -> int | None:
    """The id of the regression with this range and direction."""
    same_key = select(RegressionRecord.id).filter_by(
        operator_id=operator_id,
        device_id=device_id,
        base_commit_id=base_commit_id,
        head_commit_id=head_commit_id,
        direction=direction,
    )
    return s.scalars(same_key).one_or_none()


def _same(
    s: Session, regression: RegressionRecord, base_commit_id: int, head_commit_id: int, direction: str
) -> int | None:
    """The id of another regression of the operator on the device, with this range and direction."""
    found = find_same(s, regression.operator_id, regression.device_id, base_commit_id, head_commit_id, direction)
    return found if found != regression.id else None


def unjudged_jobs(s: Session, limit: int = 100) -> list[EndedJob]:
    """Ended jobs that no verdict was drawn from, oldest first, without those that another process is judging right now.

    Failed and cancelled ones are among them: a suspicion whose compare job could not run must not wait for ever.
    """
    statement = (
        select(JobRecord)
        .where(JobRecord.state.in_(_ENDED), JobRecord.judged_at.is_(None))
        .order_by(JobRecord.id)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    return [
        EndedJob(
            job.id,
            job.kind,
            job.state,
            job.commit_id,
            job.base_commit_id,
            job.operator_id,
            job.device_id,
            job.submission_id,
            job.finished_at,
            job.spec,
            job.message,
            job.trace_parent,
        )
        for job in s.scalars(statement)
    ]


def claim_unjudged(s: Session, job: EndedJob) -> bool:
    """Whether no verdict was drawn from an ended job yet and it was not run again; it is locked until the transaction
    ends."""
    statement = select(JobRecord.finished_at).where(
        JobRecord.id == job.id, JobRecord.state == job.state, JobRecord.judged_at.is_(None)
    )
    row = s.execute(statement.with_for_update()).one_or_none()
    return row is not None and row.finished_at == job.finished_at


def mark_judged(s: Session, job_id: int) -> None:
    """Says that verdicts were drawn from the job."""
    s.execute(update(JobRecord).where(JobRecord.id == job_id).values(judged_at=func.now()))


def _get(s: Session, regression_id: int) -> RegressionRecord:
    regression = s.scalars(
        select(RegressionRecord).where(RegressionRecord.id == regression_id).with_for_update()
    ).one_or_none()
    if regression is None:
        raise NotFoundError(f"there is no regression {regression_id}")
    return regression
