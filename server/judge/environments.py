"""Follows changes of environment: measures a commit again, names the steps of its series, and compares both."""

from __future__ import annotations

from warpwatch.contract.spec import JobSpec, name_environment
from warpwatch.contract.words import JobKind
from warpwatch.db.database import Database
from warpwatch.db.environment_changes import (
    EnvironmentChange,
    ask_comparison,
    find_compared,
    list_both_readings,
    list_changes,
    list_decided,
    list_earlier_readings,
    note_change,
    save_steps,
)
from warpwatch.db.reads.observed import list_job_rounds
from warpwatch.db.reads.query import Session
from warpwatch.db.unjudged import EndedJob
from warpwatch.server.verdicts.environments import choose_pairs, decide_steps, name_steps


def follow_environment(database: Database, job: EndedJob) -> None:
    """What a judged job, which was measured here, tells of a change of environment."""
    with database.session() as session:
        if job.kind == JobKind.BENCH:
            note_change(session, job.id)
            for change in list_changes(session, job.operator_id, job.device_id, job.commit_id):
                _name(session, change, job.spec)
        elif job.kind == JobKind.COMPARE and job.spec.toolchains is not None:
            compared = find_compared(session, job.submission_id)
            if compared is not None:
                steps = decide_steps(list_job_rounds(session, job.id), compared.device_kind)
                save_steps(session, compared.id, [step.columns() for step in steps])


def _name(session: Session, change: EnvironmentChange, spec: JobSpec) -> None:
    """Names the steps that readings show, and has what moved compared once. What was decided stays."""
    readings = list_both_readings(session, change)
    base_id = change.base_environment_id
    series = {row.series_id for row in readings if row.environment_id == base_id}
    earlier = list_earlier_readings(session, series, base_id)
    decided = list_decided(session, change.id)
    steps = name_steps(readings, base_id, earlier, change.facts, change.device_kind)
    steps = [step for step in steps if step.series_id not in decided]
    save_steps(session, change.id, [step.columns() for step in steps])
    pairs = choose_pairs(steps, change.facts)
    if pairs and change.compare_job_id is None:
        old, new = (name_environment(key) for key in change.keys)
        ask_comparison(session, change, JobSpec(budget_ns=spec.budget_ns, pairs=pairs, toolchains=(old, new)))
