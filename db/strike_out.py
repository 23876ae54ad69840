"""Strikes out the results of a job: they stay visible there and count nowhere else, until that is undone."""

from __future__ import annotations

from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from warpwatch.contract.words import Answer, Cause, JobState, Purpose, Verdict
from warpwatch.db.database import storable
from warpwatch.db.errors import NotFoundError, StateError
from warpwatch.db.live import announce
from warpwatch.db.submissions import retry_job
from warpwatch.db.tallies import forget_all_counts
from warpwatch.db.trends import forget_trends

_RESULTS = "UPDATE all_results SET is_struck_out = :struck WHERE run_id = :run"
_POINTS = """
UPDATE all_points SET is_struck_out = :struck
WHERE result_id = ANY(ARRAY(SELECT id FROM all_results WHERE run_id = :run))
"""
# The judge finds them anew from what counts then.
_TRADES = "DELETE FROM trades WHERE commit_id = :commit AND operator_id = :operator AND device_id = :device"
_COMPARISONS = "UPDATE all_comparisons SET is_struck_out = :struck WHERE run_id = :run"

# What such a trial decided is open again.
_REOPEN = f"""
UPDATE regressions SET verdict = '{Verdict.SUSPECTED}', decided_at = NULL, settled_at = NULL,
       base_trace_id = NULL, head_trace_id = NULL, low = NULL, high = NULL
WHERE id IN (SELECT regression_id FROM trials WHERE job_id = :job AND purpose = '{Purpose.CONFIRM}')
"""
_REOPEN_SERIES = f"""
UPDATE regression_series SET verdict = '{Verdict.SUSPECTED}', ratio = NULL, low = NULL, high = NULL
WHERE regression_id IN (SELECT regression_id FROM trials WHERE job_id = :job AND purpose = '{Purpose.CONFIRM}')
"""
_UNSETTLE = """
UPDATE regressions SET settled_at = NULL WHERE id IN (SELECT regression_id FROM trials WHERE job_id = :job)
"""
_ASK_AGAIN = f"""
UPDATE trials SET answer = '{Answer.PENDING}', ratio = NULL, low = NULL, high = NULL, message = '', answered_at = NULL
WHERE job_id = :job RETURNING id
"""

# A suspicion whose newer end was seen in these results alone has nothing left that speaks for it.
_DISMISS = f"""
UPDATE regressions SET verdict = '{Verdict.DISMISSED}', settled_at = now(), decided_at = now()
WHERE head_commit_id = :commit AND operator_id = :operator AND device_id = :device AND cause <> '{Cause.CODE}'
  AND verdict = '{Verdict.SUSPECTED}' AND settled_at IS NULL
  AND NOT EXISTS (SELECT FROM trials WHERE regression_id = regressions.id AND answer <> '{Answer.PENDING}')
  AND NOT EXISTS (SELECT FROM results WHERE results.commit_id = :commit AND results.operator_id = :operator
                  AND results.device_id = :device AND results.kind = :kind)
"""


def strike_out(s: Session, job_id: int, reason: str) -> None:
    """Strikes out the results of the newest run of an ended job; StateError when there are none to strike out.

    The job is queued again when a regression waits for its answer.
    """
    values = _lock(s, job_id)
    sql = """
    UPDATE runs SET struck_out_at = now(), struck_out_reason = :reason WHERE id = :run AND struck_out_at IS NULL
    RETURNING id
    """
    if s.execute(text(sql), values | {"reason": storable(reason)}).one_or_none() is None:
        raise StateError(f"the results of job {job_id} are struck out already")
    _mark(s, values, struck=True)
    for statement in (_REOPEN_SERIES, _REOPEN, _UNSETTLE, _DISMISS):
        s.execute(text(statement), values)
    if s.execute(text(_ASK_AGAIN), values).one_or_none() is not None:
        retry_job(s, job_id)
    announce(s, "state", job_id=job_id)


def undo_strike_out(s: Session, job_id: int) -> None:
    """Lets the results of a job count again, and has the judge look at them once more; StateError when they count."""
    values = _lock(s, job_id)
    sql = """
    UPDATE runs SET struck_out_at = NULL, struck_out_reason = NULL WHERE id = :run AND struck_out_at IS NOT NULL
    RETURNING id
    """
    if s.execute(text(sql), values).one_or_none() is None:
        raise StateError(f"the results of job {job_id} are not struck out")
    _mark(s, values, struck=False)
    s.execute(text("UPDATE jobs SET judged_at = NULL WHERE id = :job"), values)
    announce(s, "state", job_id=job_id)


def _lock(s: Session, job_id: int) -> dict[str, Any]:
    """Locks an ended job that has results, and returns the values that the statements need."""
    sql = "SELECT state, kind, commit_id, operator_id, device_id FROM jobs WHERE id = :job FOR UPDATE"
    job = s.execute(text(sql), {"job": job_id}).one_or_none()
    if job is None:
        raise NotFoundError(f"there is no job {job_id}")
    if job.state in (JobState.QUEUED, JobState.RUNNING):
        raise StateError(f"job {job_id} is still {job.state}; cancel it first, or wait for its end")
    newest = "SELECT max(id) FROM runs WHERE job_id = :job AND state = 'done'"
    run_id = s.scalar(text(newest), {"job": job_id})
    if run_id is None:
        raise StateError(f"job {job_id} has no results")
    values = {"job": job_id, "run": run_id, "commit": job.commit_id, "kind": job.kind}
    return values | {"operator": job.operator_id, "device": job.device_id}


def _mark(s: Session, values: dict[str, Any], *, struck: bool) -> None:
    for statement in (_RESULTS, _POINTS, _COMPARISONS, _TRADES):
        s.execute(text(statement), values | {"struck": struck})
    s.execute(text("UPDATE runs SET statuses = NULL WHERE id = :run"), values)
    commits = "SELECT DISTINCT commit_id FROM all_results WHERE run_id = :run"
    forget_all_counts(s, list(s.scalars(text(commits), values)))
    # A row of results that is inserted has this lock; see db.trends.
    s.execute(text("SELECT id FROM operators WHERE id = :operator FOR KEY SHARE"), values)
    forget_trends(s, values["operator"], values["device"])
