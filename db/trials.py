"""Writes trials: jobs that test a regression, their answers, and their share of a device's time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import exists, func, select, text, update
from sqlalchemy.orm import Session

from warpwatch.contract.measurement import PROTOCOLS
from warpwatch.contract.priorities import CONFIRM_CODE, HURRIED, ORDINARY, SCHEDULED
from warpwatch.contract.spec import JobSpec
from warpwatch.contract.words import Answer, JobState, Purpose
from warpwatch.db.database import storable
from warpwatch.db.live import announce
from warpwatch.db.models import DeviceRecord, JobRecord, SeriesRecord, SubmissionRecord, TrialRecord
from warpwatch.db.reads.reports import FIRST_TRIAL
from warpwatch.db.registry import ensure_rows
from warpwatch.db.submissions import NewJob, NewSubmission, create_submission

RECENT = 50
"""Ended runs of a device that the share is taken from."""
IMPORTED = ("bundle", "example")
"""Origins of submissions that were measured elsewhere: nothing can be measured again for them here."""


@dataclass(frozen=True, slots=True)
class NewTrial:
    """A trial of a regression, as a job to ask for.

    kind: compare, or check of the head alone. priority: as a submission's, where no submission waits for the verdict.
    merge_commit_id: the merge commit whose merged branch is searched.
    """

    regression_id: int
    repository_id: int
    operator_id: int
    device_id: int
    kind: str
    purpose: Purpose
    base_commit_id: int
    head_commit_id: int
    spec: JobSpec
    priority: int
    merge_commit_id: int | None = None


def ask(session: Session, new: NewTrial) -> int:
    """Writes a trial with its job and queue entry; returns the id of the job."""
    is_compare = new.kind == "compare"
    job = NewJob(
        kind=new.kind,
        commit_id=new.head_commit_id,
        base_commit_id=new.base_commit_id if is_compare else None,
        operator_id=new.operator_id,
        device_id=new.device_id,
        spec=new.spec,
    )
    request = {"regression": new.regression_id, "kinds": [new.kind], "purpose": str(new.purpose)}
    awaited = _awaited_priority(session, new.regression_id)
    # A suspicion is compared once before the head's other signals; more rounds of it wait for them.
    priority = max(new.priority, awaited if new.purpose == Purpose.CONFIRM else min(awaited, ORDINARY))
    submission_id = create_submission(session, NewSubmission(new.repository_id, request, [job], "confirm", priority))
    job_id = session.scalars(select(JobRecord.id).where(JobRecord.submission_id == submission_id)).one()
    session.add(
        TrialRecord(
            regression_id=new.regression_id,
            job_id=job_id,
            purpose=new.purpose,
            base_commit_id=new.base_commit_id,
            head_commit_id=new.head_commit_id,
            merge_commit_id=new.merge_commit_id,
        )
    )
    session.flush()
    announce(session, "regression")
    return job_id


def _awaited_priority(session: Session, regression_id: int) -> int:
    """The highest priority of the submissions that wait for the verdict on a suspicion; SCHEDULED where none is above
    ordinary."""
    return int(session.scalar(text(_AWAITED), {"id": regression_id, "ordinary": ORDINARY}) or SCHEDULED)


def find_imported(session: Session, new: NewTrial, judged_job_id: int) -> int | None:
    """The id of an imported job that measured what a trial is to measure and that nothing was concluded from yet; None
    where no file brought one. judged_job_id: the job that gives rise to the trial, which cannot answer it.

    A check counts where its specification names the cases: that of a whole suite was no trial.
    """
    base_commit_id = new.base_commit_id if new.kind == "compare" else None
    statement = (
        select(JobRecord.id)
        .join(SubmissionRecord, SubmissionRecord.id == JobRecord.submission_id)
        .where(
            JobRecord.commit_id == new.head_commit_id,
            JobRecord.operator_id == new.operator_id,
            JobRecord.device_id == new.device_id,
            JobRecord.kind == new.kind,
            JobRecord.base_commit_id.is_not_distinct_from(base_commit_id),
            JobRecord.state == JobState.DONE,
            JobRecord.judged_at.is_(None),
            JobRecord.id != judged_job_id,
            text("(jobs.kind <> 'check' OR jsonb_typeof(jobs.spec -> 'cases') = 'array')"),
            SubmissionRecord.origin.in_(IMPORTED),
            ~exists().where(TrialRecord.job_id == JobRecord.id),
        )
        .order_by(JobRecord.id)
        .limit(1)
    )
    return session.scalar(statement)


def record(
    session: Session,
    regression_id: int,
    job_id: int,
    base_commit_id: int,
    head_commit_id: int,
    purpose: Purpose = Purpose.CONFIRM,
) -> int:
    """Makes a job that ended elsewhere a trial of a regression; returns the id of the trial."""
    trial = TrialRecord(
        regression_id=regression_id,
        job_id=job_id,
        purpose=purpose,
        base_commit_id=base_commit_id,
        head_commit_id=head_commit_id,
    )
    session.add(trial)
    session.flush()
    announce(session, "regression")
    return trial.id


def answer(
    session: Session,
    trial_id: int,
    new_answer: Answer,
    message: str,
    ratio: float | None = None,
    low: float | None = None,
    high: float | None = None,
) -> None:
    """Writes the answer of a trial; a job that was run once more replaces the earlier answer."""
    values = {"answer": Answer(new_answer), "message": storable(message), "ratio": ratio, "low": low, "high": high}
    session.execute(
        update(TrialRecord).where(TrialRecord.id == trial_id).values(**values, answered_at=func.clock_timestamp())
    )
    announce(session, "regression")


def ensure_series(
    session: Session, operator_id: int, device_id: int, cells: list[tuple[int, int]], metrics: Sequence[str]
) -> dict[tuple[int, int], int]:
    """The series by which (variant id, case id) are known in the first of these metrics that they have, the newest
    protocol's; made in the first metric where they were never timed."""
    metric = metrics[0]
    series: dict[tuple[int, int], int] = {}
    for name in reversed(metrics):
        series |= _series(session, operator_id, device_id, name)
    missing = [cell for cell in cells if cell not in series]
    # A program's series have a protocol of their own, so only those of the same operator tell.
    newest = select(SeriesRecord.protocol).filter_by(operator_id=operator_id, device_id=device_id, metric=metric)
    protocol = session.scalar(newest.order_by(SeriesRecord.id.desc()).limit(1))
    protocol = protocol or PROTOCOLS[session.get_one(DeviceRecord, device_id).kind]
    common = {"operator_id": operator_id, "device_id": device_id, "metric": metric, "protocol": protocol}
    rows = [{**common, "variant_id": variant, "case_id": case} for variant, case in missing]
    ensure_rows(
        session, SeriesRecord, rows, key=["operator_id", "device_id", "case_id", "variant_id", "metric", "protocol"]
    )
    return series | _series(session, operator_id, device_id, metric) if missing else series


def _series(session: Session, operator_id: int, device_id: int, metric: str) -> dict[tuple[int, int], int]:
    statement = select(SeriesRecord.variant_id, SeriesRecord.case_id, SeriesRecord.id).order_by(SeriesRecord.id)
    rows = session.execute(statement.filter_by(operator_id=operator_id, device_id=device_id, metric=metric))
    return {(row.variant_id, row.case_id): row.id for row in rows}


def keep_share(session: Session, device_id: int, share: float) -> int | None:
    """The id of a waiting trial's or repeat's job that was put in front of ordinary work, because these had too little
    of the device lately.

    None where they had their share, where none waits, or where one is in front or at work already. Trials have a lower
    priority than ordinary work, so that they never keep new commits waiting; this keeps new commits from doing that to
    them for ever. All but the first trial of a suspicion stay behind the checks and benches of their commit that were
    asked for before them, and behind those of the watched branch's newest commit where nobody waits for the answer:
    these are few. share: of the device's time, that trials and repeats may take while other work waits; without other
    work they take all of it. Nothing waits for trials of changed code alone: they are neither put in front nor counted.
    """
    spent = session.execute(text(_SPENT), {"device_id": device_id, "recent": RECENT, "code": CONFIRM_CODE}).one()
    if share * float(spent.all_seconds) <= float(spent.trial_seconds):
        return None
    values = {"device_id": device_id, "code": CONFIRM_CODE, "ordinary": ORDINARY}
    waiting = session.execute(text(_WAITING), values).one_or_none()
    if waiting is None or waiting.priority >= HURRIED:
        return None
    session.execute(update(JobRecord).where(JobRecord.id == waiting.id).values(priority=HURRIED))
    announce(session, "state", job_id=waiting.id)
    return int(waiting.id)


# As a report counts what its submission waits for.
_AWAITED = f"""
SELECT max(submissions.priority) FROM regressions {FIRST_TRIAL}
JOIN jobs ON jobs.commit_id IN (regressions.head_commit_id, first.head_commit_id) AND jobs.kind = 'bench'
     AND jobs.operator_id = regressions.operator_id AND jobs.device_id = regressions.device_id
JOIN submissions ON submissions.id = jobs.submission_id
WHERE regressions.id = :id AND regressions.verdict = 'suspected' AND submissions.priority > :ordinary
"""

# Whoever asks for a comparison names no number of rounds; a repeat has one.
_IS_TRIAL = "(trials.id IS NOT NULL OR jobs.kind = 'compare' AND jobs.spec ->> 'rounds' IS NOT NULL)"
_JOBS = "jobs LEFT JOIN trials ON trials.job_id = jobs.id"

_SPENT = f"""
SELECT coalesce(sum(seconds), 0) AS all_seconds, coalesce(sum(seconds) FILTER (WHERE is_trial), 0) AS trial_seconds
FROM (SELECT extract(epoch FROM runs.finished_at - runs.started_at) AS seconds,
             jobs.priority > :code AND {_IS_TRIAL} AS is_trial
      FROM runs JOIN jobs ON jobs.id = runs.job_id LEFT JOIN trials ON trials.job_id = jobs.id
      WHERE jobs.device_id = :device_id AND runs.finished_at IS NOT NULL ORDER BY runs.id DESC LIMIT :recent) AS recent
"""

_WAITING = f"""
SELECT jobs.id, jobs.priority FROM {_JOBS}
WHERE jobs.device_id = :device_id AND jobs.state = 'queued' AND jobs.priority > :code AND {_IS_TRIAL}
  AND EXISTS (SELECT FROM jobs AS other WHERE other.device_id = :device_id AND other.state = 'queued'
       AND other.priority >= jobs.priority
              AND other.id <> jobs.id)
  AND NOT EXISTS (SELECT FROM {_JOBS} WHERE device_id = :device_id AND state = 'running' AND {_IS_TRIAL})
  AND (trials.purpose = '{Purpose.CONFIRM}' OR NOT EXISTS (
       SELECT FROM jobs AS earlier WHERE earlier.device_id = :device_id AND earlier.state = 'queued'
         AND earlier.kind IN ('bench', 'check') AND earlier.id < jobs.id
         AND earlier.commit_id IN (
             SELECT jobs.commit_id UNION ALL
             SELECT commits.id FROM submissions JOIN branches USING (repository_id)
             JOIN commits ON commits.repository_id = branches.repository_id AND commits.sha = branches.head_sha
             WHERE submissions.id = jobs.submission_id AND branches.is_watched AND jobs.priority < :ordinary)))
ORDER BY jobs.priority DESC, jobs.id LIMIT 1 FOR UPDATE OF jobs SKIP LOCKED
"""
