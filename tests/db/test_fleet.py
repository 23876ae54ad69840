"""A hundred workers share one database: nobody waits for a row that stays as it is, and heartbeats are cheap."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

import pytest
from sqlalchemy import event, text
from sqlalchemy.orm import Session

from tests.db.conftest import CATALOGUE, ENVIRONMENT, PEAKS, World, make_world, outcome
from tests.waiting import wait_until
from warpwatch.db import registry, runs
from warpwatch.db.database import Database
from warpwatch.db.errors import DatabaseBusyError
from warpwatch.db.models import JobRecord, RepositoryRecord


@pytest.fixture
def impatient(database_url: str) -> Iterator[Database]:
    """A database whose sessions fail at once where they would wait for a lock."""
    opened = Database(database_url, lock_timeout_seconds=0.2)
    yield opened
    opened.close()


def write_repository(s: Session, world: World) -> None:
    registry.ensure_repository(s, "example", "/srv/example")
    registry.ensure_operators(s, world.repository, ["kron"])


def write_environment(s: Session, world: World) -> None:
    registry.ensure_environment(s, ENVIRONMENT, PEAKS)
    registry.ensure_device(s, "test-cpu", "cpu", "Test CPU")


def write_catalogue(s: Session, world: World) -> None:
    registry.record_catalogue(s, world.commits[0], CATALOGUE)
    # Another commit brings the same operators, variants and cases.
    registry.record_catalogue(s, world.commits[1], replace(CATALOGUE))


@pytest.mark.parametrize("write", [write_repository, write_environment, write_catalogue])
def test_rows_that_stay_as_they_are_are_not_locked(
    impatient: Database, write: Callable[[Session, World], None]
) -> None:
    world = make_world(impatient)
    with impatient.session() as s:
        write(s, world)
    with impatient.session() as first:
        write(first, world)
        with impatient.session() as second:
            write(second, world)


def test_a_row_that_changes_is_locked(impatient: Database) -> None:
    make_world(impatient)
    with impatient.session() as first:
        registry.ensure_repository(first, "example", "/srv/elsewhere")
        with pytest.raises(DatabaseBusyError), impatient.session() as second:
            registry.ensure_repository(second, "example", "/srv/third")
    with impatient.session() as s:
        assert [row.url for row in s.query(RepositoryRecord)] == ["/srv/elsewhere"]


def test_the_results_of_two_jobs_are_recorded_at_once(impatient: Database) -> None:
    """Both name an environment, a catalogue, variants and series that nobody has stored before."""
    world = make_world(impatient)
    claims = []
    for _ in range(2):
        job_id = world.job()
        with impatient.session() as s:
            claim = runs.begin_run(s, job_id, world.worker)
            assert claim is not None
            claims.append((claim, runs.prepare_finish(s, job_id, outcome())))
    with impatient.session() as first, impatient.session() as second:
        for s, (claim, names) in zip((first, second), claims, strict=True):
            runs.finish_run(s, claim.run_id, outcome(), names)
    with impatient.session() as s:
        assert {job.state for job in s.query(JobRecord)} == {"done"}


def test_the_first_results_of_a_repository_do_not_queue_for_its_rows(world: World) -> None:
    """While one worker stores what a catalogue names, others wait, and then find it."""
    written: dict[str, list[str]] = defaultdict(list)
    event.listen(
        world.database.engine,
        "before_cursor_execute",
        lambda c, cursor, sql, *rest: written[threading.current_thread().name].append(" ".join(sql.split()[:3])),
    )

    def write(commit: int) -> None:
        with world.database.session() as s:
            registry.record_catalogue(s, world.commits[commit], CATALOGUE)

    others = [threading.Thread(target=write, args=[commit], name=f"commit {commit}") for commit in (0, 1)]
    with world.database.session() as s:
        registry.record_catalogue(s, world.commits[0], CATALOGUE)
        for thread in others:
            thread.start()
        wait_until(lambda: all(any("advisory" in sql for sql in written[thread.name]) for thread in others))
    for thread in others:
        thread.join()
    changes = {
        thread.name: [sql for sql in written[thread.name] if sql.startswith(("INSERT", "UPDATE"))] for thread in others
    }
    assert changes == {"commit 0": [], "commit 1": ["UPDATE commits SET"]}


def test_commits_whose_names_are_known_store_their_catalogues_at_once(impatient: Database) -> None:
    world = make_world(impatient)
    with impatient.session() as s:
        registry.record_catalogue(s, world.commits[0], CATALOGUE)
    (entry, *others) = CATALOGUE.operators
    changed = replace(CATALOGUE, operators=[replace(entry, summary="another one"), *others])
    with impatient.session() as first, impatient.session() as second:
        registry.record_catalogue(first, world.commits[0], changed)
        # The first one holds the repository's lock until it ends, which this would wait for without end.
        registry.record_catalogue(second, world.commits[1], CATALOGUE)
    with impatient.session() as s:
        without = s.scalars(text("SELECT id FROM commits WHERE catalogue_digest IS NULL")).all()
    assert not {world.commits[0], world.commits[1]} & set(without)


def test_changes_are_announced_after_their_transaction(world: World) -> None:
    """PostgreSQL commits transactions with a NOTIFY one after the other, each with its wait for the disk."""
    steps: list[str] = []
    engine = world.database.engine
    event.listen(engine, "commit", lambda _connection: steps.append("commit"))
    event.listen(
        engine,
        "before_cursor_execute",
        lambda c, cursor, sql, *rest: steps.append("notify" if "pg_notify" in sql else ""),
    )
    job_id = world.job()
    steps.clear()
    with world.database.session() as s:
        runs.begin_run(s, job_id, world.worker)
    assert [step for step in steps if step] == ["commit", "notify"]


def test_what_is_rolled_back_is_not_announced(world: World) -> None:
    sent: list[str] = []
    event.listen(world.database.engine, "before_cursor_execute", lambda c, cursor, sql, *rest: sent.append(sql))
    job_id = world.job()
    sent.clear()
    with suppress(ZeroDivisionError), world.database.session() as s:
        runs.begin_run(s, job_id, world.worker)
        raise ZeroDivisionError
    assert sent
    assert not [sql for sql in sent if "pg_notify" in sql]


def test_heartbeats_write_to_no_index(world: World) -> None:
    with world.database.session() as s:
        claim = runs.begin_run(s, world.job(), world.worker)
    assert claim is not None
    counts = (
        "SELECT pg_stat_get_xact_tuples_updated('{0}'::regclass), pg_stat_get_xact_tuples_hot_updated('{0}'::regclass)"
    )
    with world.database.session() as s:
        runs.heartbeat(s, claim.run_id)
        registry.worker_heartbeat(s, world.worker)
        for table in ("runs", "workers"):
            assert tuple(s.execute(text(counts.format(table))).one()) == (1, 1)
