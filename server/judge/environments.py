"""Follows changes of environment: measures a commit again, names the steps of its series, and compares both."""

from __future__ import annotations

from dataclasses import replace

from warpwatch.contract.measurement import is_reported
from warpwatch.contract.spec import JobSpec, name_environment
from warpwatch.contract.words import JobKind
from warpwatch.db.database import Database
from warpwatch.db.environment_changes import (
    EnvironmentChange,
    NewEnvironment,
    ask_comparison,
    find_compared,
    find_new_environment,
    list_border_readings,
    list_changes,
    list_decided,
    list_earlier_readings,
    note_change,
    save_steps,
)
from warpwatch.db.reads.observed import list_job_rounds
from warpwatch.db.reads.query import Session
from warpwatch.db.unjudged import EndedJob
from warpwatch.git import GitError
from warpwatch.server.history.mirror import Mirror
from warpwatch.server.verdicts.environments import ROUNDS, choose_pairs, decide_steps, name_steps


def follow_environment(database: Database, mirror: Mirror, job: EndedJob) -> None:
    """What a judged job, which was measured here, tells of a change of environment."""
    if job.kind == JobKind.BENCH:
        with database.session() as session:
            new = find_new_environment(session, job.id)
        # Git is asked with no transaction open.
        is_by_commit = None if new is None else _is_by_commit(mirror, new)
        with database.session() as session:
            if new is not None and is_by_commit is not None:
                note_change(session, new, is_by_commit=is_by_commit)
            for change in list_changes(session, job.operator_id, job.device_id, job.commit_id):
                _name(session, change, job.spec)
    elif job.kind == JobKind.COMPARE and job.spec.toolchains is not None:
        with database.session() as session:
            compared = find_compared(session, job.submission_id)
            if compared is not None:
                is_crossed = job.commit_id != compared.commit_id
                steps = decide_steps(list_job_rounds(session, job.id), compared.device_kind, is_crossed=is_crossed)
                save_steps(session, compared.id, [step.columns() for step in steps])


def _is_by_commit(mirror: Mirror, new: NewEnvironment) -> bool | None:
    """Whether a commit asks for another interpreter or image than the one before it, which is never measured in its
    environment then. None where its operator imports other modules: that alone makes another environment."""
    try:
        (base, base_modules), (head, head_modules) = (
            (mirror.sources.runtime(sha), mirror.sources.dependencies(sha, new.operator))
            for sha in (new.measured_sha, new.commit_sha)
        )
    except GitError:
        return False
    return True if base != head else None if base_modules != head_modules else False


def _name(session: Session, change: EnvironmentChange, spec: JobSpec) -> None:
    """Names the steps that readings show, and has what moved compared once. What was decided stays."""
    readings = list_border_readings(session, change)
    before = [row for row in readings if not row.is_head]
    again = [row for row in readings if row.is_head and row.commit_id == change.commit_id]
    after = [row for row in readings if row.is_head and row.commit_id == change.head_commit_id]
    earlier = list_earlier_readings(session, {row.series_id for row in before}, change)
    # All that the commits of the border differ in, and what the environment alone did.
    total = name_steps([*before, *after], earlier, change.facts, change.device_kind)
    steps = total if change.is_by_commit else name_steps([*before, *again], earlier, change.facts, change.device_kind)
    if not steps:
        return
    decided = list_decided(session, change.id)
    save_steps(session, change.id, [step.columns() for step in steps if step.series_id not in decided])
    pairs = choose_pairs([*steps, *total], change.facts)
    if pairs and change.compare_job_id is None:
        # A program is run as a whole, at one commit under two toolchains; without an older commit there is one, too.
        ordinals = {row.commit_id: row.ordinal for row in readings}
        is_crossed = bool(after) and ordinals[after[0].commit_id] > ordinals[change.commit_id]
        is_crossed = is_crossed and not any(is_reported(row.protocol) for row in readings)
        if change.is_by_commit and not is_crossed:
            return
        old, new = (name_environment(key) for key in change.keys)
        spec = JobSpec(budget_ns=spec.budget_ns, pairs=pairs, toolchains=(old, new))
        if is_crossed:
            ask_comparison(session, change, after[0].commit_id, replace(spec, rounds=ROUNDS))
        else:
            ask_comparison(session, change, change.commit_id, spec)
