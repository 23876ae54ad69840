"""Draws every verdict that one ended job allows."""

from __future__ import annotations

from warpwatch.db.reads import judging
from warpwatch.db.reads.query import Session
from warpwatch.db.regressions import EndedJob
from warpwatch.server.history.mirror import Mirrors
from warpwatch.server.judge.confirmation import take_answer
from warpwatch.server.judge.correctness import suspect_breakage
from warpwatch.server.judge.repetition import repeat_unsure
from warpwatch.server.judge.suspicion import suspect_changes

_MEASURED_ELSEWHERE = ("bundle", "example")
"""Origins of what was imported: it cannot be measured again here."""


def judge_job(session: Session, mirrors: Mirrors, job: EndedJob) -> None:
    """Takes the answer of a trial's job; suspects what the results of any other job show."""
    trial = judging.find_trial(session, job.id)
    if trial is not None:
        take_answer(session, mirrors, trial)
        return
    origin = judging.read_origin(session, job.id)
    if origin.origin in _MEASURED_ELSEWHERE:
        return
    if job.kind == "compare":
        repeat_unsure(session, job.submission_id)
    elif job.state == "done" and job.kind == "bench":
        suspect_changes(session, mirrors, job, origin)
    elif job.state == "done" and job.kind == "check" and job.spec.sanitize is None:
        # A sanitizer finds what a plain check cannot see, so the two are not held against each other.
        suspect_breakage(session, mirrors, job, origin)
