"""What is asked for comes to be once and whole; it can be taken back and asked for again."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from sqlalchemy import event, text

from tests.db.conftest import World
from warpwatch.contract.spec import JobSpec
from warpwatch.contract.words import JobState
from warpwatch.db import runs, submissions
from warpwatch.db.errors import NotFoundError
from warpwatch.db.models import JobRecord, SubmissionRecord


def new_submission(
    world: World, kinds: tuple[str, ...] = ("check", "bench"), key: str | None = None
) -> submissions.NewSubmission:
    jobs = [
        submissions.NewJob(kind, commit, world.operator, world.device, JobSpec())
        for commit in world.commits
        for kind in kinds
    ]
    return submissions.NewSubmission(
        world.repository, {"kinds": list(kinds)}, jobs, origin="cli", priority=3, idempotency_key=key
    )


def create(world: World, new: submissions.NewSubmission) -> int:
    with world.database.session() as s:
        return submissions.create_submission(s, new)


def states(world: World, submission_id: int) -> list[str]:
    with world.database.session() as s:
        return [
            state
            for (state,) in s.query(JobRecord.state)
            .where(JobRecord.submission_id == submission_id)
            .order_by(JobRecord.id)
        ]


def test_a_submission_is_kept_as_it_was_asked_for(world: World) -> None:
    number = create(world, new_submission(world))
    with world.database.session() as s:
        submission = s.get_one(SubmissionRecord, number)
        jobs = s.query(JobRecord).order_by(JobRecord.id).all()
    assert (submission.request, submission.origin, submission.priority) == ({"kinds": ["check", "bench"]}, "cli", 3)
    assert [(job.commit_id, job.kind) for job in jobs] == [
        (commit, kind) for commit in world.commits for kind in ("check", "bench")
    ]
    assert {(job.state, job.priority, job.attempt, job.max_attempts) for job in jobs} == {(JobState.QUEUED, 3, 0, 3)}


def test_asking_twice_with_one_key_is_asking_once(world: World, counted: Callable[[str], int]) -> None:
    first = create(world, new_submission(world, key="ci-17"))
    assert create(world, new_submission(world, ("profile",), key="ci-17")) == first
    assert create(world, new_submission(world, key="ci-18")) != first
    assert counted("jobs") == 12


def test_asking_twice_at_once_with_one_key_is_asking_once(world: World, counted: Callable[[str], int]) -> None:
    barrier, numbers = threading.Barrier(4), []

    def ask() -> None:
        barrier.wait()
        numbers.append(create(world, new_submission(world, key="ci-17")))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(numbers) == 4
    assert len(set(numbers)) == 1
    assert counted("jobs") == 6


def test_a_cancelled_submission_leaves_the_queue(world: World) -> None:
    number = create(world, new_submission(world))
    with world.database.session() as s:
        first = s.query(JobRecord.id).order_by(JobRecord.id).limit(1).scalar()
        assert runs.begin_run(s, first, world.worker) is not None
    with world.database.session() as s:
        assert submissions.cancel_submission(s, number) == 6
    assert states(world, number) == [JobState.CANCELLED] * 6
    with world.database.session() as s:
        assert submissions.cancel_submission(s, number) == 0


def test_a_retried_submission_runs_what_did_not_end_well(world: World) -> None:
    number = create(world, new_submission(world, ("bench",)))
    with world.database.session() as s:
        jobs = s.scalars(text("SELECT id FROM jobs ORDER BY id")).all()
        s.execute(text("UPDATE jobs SET state = 'done' WHERE id = :id"), {"id": jobs[0]})
        s.execute(text("UPDATE jobs SET state = 'failed', message = 'no compiler' WHERE id = :id"), {"id": jobs[1]})
        submissions.cancel_job(s, jobs[2])
    with world.database.session() as s:
        assert submissions.retry_submission(s, number) == 2
    assert states(world, number) == [JobState.DONE, JobState.QUEUED, JobState.QUEUED]


@pytest.mark.parametrize(
    "act", [submissions.cancel_job, submissions.retry_job, submissions.cancel_submission, submissions.retry_submission]
)
def test_what_does_not_exist_is_named(world: World, act: Callable[..., object]) -> None:
    with pytest.raises(NotFoundError, match=r"there is no (job|submission) 4711"), world.database.session() as s:
        act(s, 4711)


def test_thousands_of_jobs_are_one_transaction_of_few_statements(world: World, counted: Callable[[str], int]) -> None:
    statements: list[str] = []
    event.listen(
        world.database.engine, "before_cursor_execute", lambda c, cursor, statement, *rest: statements.append(statement)
    )
    job = submissions.NewJob("bench", world.commits[0], world.operator, world.device, JobSpec(suite="full"))
    create(world, submissions.NewSubmission(world.repository, {}, [job] * 3000))
    assert counted("jobs") == 3000
    assert len(statements) < 40
