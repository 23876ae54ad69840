"""The judge calls git only while no transaction is open, and starts over when somebody changed what it read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import event

from tests.builders import Lab
from tests.server.simulated import V1, V2, V3, Machine, Truth, write_history
from warpwatch import git
from warpwatch.contract.words import Status
from warpwatch.db.database import Database
from warpwatch.db.reads import judging
from warpwatch.db.triage import set_triage
from warpwatch.server.judge import Judge, interpreter
from warpwatch.settings import Settings

Build = Callable[[Truth], Machine]


@pytest.fixture
def build(client: TestClient, settings: Settings, database: Database, tmp_path: Path) -> Build:
    def make(truth: Truth) -> Machine:
        source = tmp_path / "history" / "kernels"
        shas = write_history(source, dict.fromkeys(range(8), "kernels/square.py"), 8)
        git.update_mirror(str(source), settings.home)
        return Machine(client, Lab(database, source, shas, tmp_path), Judge(settings, database), truth)

    return make


@pytest.fixture
def git_calls(database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Whether a transaction of the judge was open at each of its git calls; such a call fails as well."""
    open_transactions, calls, judging_thread = set[int](), list[bool](), threading.local()
    real_git, real_sweep = git.git, Judge.sweep

    def sweep(judge: Judge) -> None:
        judging_thread.is_judging = True
        try:
            real_sweep(judge)
        finally:
            judging_thread.is_judging = False

    def guarded(*arguments: str, **options: Any) -> str:
        if getattr(judging_thread, "is_judging", False):
            calls.append(bool(open_transactions))
            assert not open_transactions, f"git {arguments[0]} runs inside a transaction"
        return real_git(*arguments, **options)

    def begun(connection: Any) -> None:
        if getattr(judging_thread, "is_judging", False):
            open_transactions.add(id(connection))

    def ended(connection: Any) -> None:
        open_transactions.discard(id(connection))

    listeners = {"begin": begun, "commit": ended, "rollback": ended}
    for name, listener in listeners.items():
        event.listen(database.engine, name, listener)
    monkeypatch.setattr(git, "git", guarded)
    monkeypatch.setattr(Judge, "sweep", sweep)
    yield calls
    for name, listener in listeners.items():
        event.remove(database.engine, name, listener)


def test_git_never_runs_inside_a_transaction(build: Build, git_calls: list[bool]) -> None:
    """From suspicions of times, code and checks to located commits, with two changes in one range."""
    worker = build(Truth(times={V1: {2: 1.1, 5: 1.25}, V2: {4: 0.7}}, broken={V3: (3, Status.WRONG)}))
    for number in (0, 7):
        worker.check(number)
        worker.bench(number)
        worker.work()
    assert {("broken", 2, 3), ("slower", 1, 2), ("faster", 3, 4)} <= worker.found()
    assert git_calls
    assert not any(git_calls)


def test_a_change_between_reading_and_writing_starts_over(
    build: Build, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While git is asked, another process records the answer of the same trial."""
    worker = build(Truth(times={V1: {3: 1.3}}))
    worker.cells = (V1,)
    worker.bench(0)
    worker.bench(7)
    (job,) = worker.waiting()
    real = interpreter.plan_job
    plans: list[Any] = []

    def plan_and_disturb(*arguments: Any) -> interpreter.Write:
        write = real(*arguments)
        if not plans:
            with database.session() as session:
                trial = judging.find_trial(session, job["id"])
                assert trial is not None
                session.connection().exec_driver_sql("UPDATE trials SET message = 'disturbed'")
                set_triage(session, trial.regression_id, "acknowledged", "ann", "I look at it")
        plans.append(write)
        return write

    monkeypatch.setattr(interpreter, "plan_job", plan_and_disturb)
    worker.answer(job)
    worker.judge.sweep()
    assert len(plans) == 2, "the first plan was void"
    (row,) = worker.rows()
    detail = worker.client.get(f"/api/v1/regressions/{row['id']}").json()
    assert [(trial["purpose"], trial["answer"]) for trial in detail["trials"]] == [
        ("confirm", "changed"),
        ("bisect", "pending"),
    ]
    assert "disturbed" not in [trial["message"] for trial in detail["trials"]]


def test_several_servers_write_each_verdict_once(build: Build, settings: Settings, database: Database) -> None:
    worker = build(Truth(times={V1: {1: 1.3}, V2: {3: 1.2}}))
    for number in (0, 4):
        worker.lab.bench(number, {cell: worker.truth.time(cell, number) for cell in (V1, V2, V3)})
    for _ in range(40):
        servers = [threading.Thread(target=Judge(settings, database).sweep) for _ in range(3)]
        for server in servers:
            server.start()
        for server in servers:
            server.join()
        waiting = worker.waiting()
        if not waiting:
            break
        worker.answer(waiting[0])
    assert worker.found() == {("slower", 0, 1), ("slower", 2, 3)}
    notes = [note for row in worker.rows() for note in worker.notes(row["id"])]
    assert len(notes) == len(set(notes)), "no verdict was written twice"
