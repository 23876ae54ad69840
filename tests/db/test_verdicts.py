"""Bundles are imported whole and once; suspicions, decisions and triage are kept."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import cast

import pytest

from tests.db.conftest import ENVIRONMENT, World, outcome
from warpwatch.contract.catalogue import CommitInfo
from warpwatch.contract.spec import JobRequest
from warpwatch.contract.words import JobKind, JobState, Verdict
from warpwatch.db import bundles, regressions, runs, submissions, triage, unjudged
from warpwatch.db.database import Database
from warpwatch.db.errors import NotFoundError, OutcomeError, StateError
from warpwatch.db.models import (
    JobRecord,
    PointRecord,
    RegressionNoteRecord,
    RegressionRecord,
    RegressionSeriesRecord,
    RunRecord,
    SubmissionRecord,
)

WHEN = datetime(2026, 3, 4, 5, tzinfo=UTC)
H100 = replace(ENVIRONMENT, key="h" * 64, device_kind="cuda", device_key="nvidia-h100", device_name="NVIDIA H100")


def bundled(sha: str = "a" * 40, kind: JobKind = JobKind.BENCH, **changes: object) -> bundles.BundledJob:
    request = JobRequest(kind, "/srv/example", sha, "kron")
    job = bundles.BundledJob(request, outcome(environment=H100), WHEN, WHEN)
    return replace(job, **changes)  # type: ignore[arg-type]


def bundle(jobs: list[bundles.BundledJob] | Iterator[bundles.BundledJob]) -> bundles.NewBundle:
    commits = [CommitInfo(c * 40, None, n, "Ann", WHEN, f"Change {n}") for n, c in enumerate("ab", 1)]
    return bundles.NewBundle("d" * 64, "h100.wwb", "example-h100", "/srv/example", commits, jobs, {"file": "h100.wwb"})


def import_it(database: Database, new: bundles.NewBundle) -> bundles.ImportedBundle:
    with database.session() as s:
        return bundles.import_bundle(s, new)


def test_a_bundle_comes_in_as_work_that_is_done(database: Database) -> None:
    imported = import_it(database, bundle([bundled("a" * 40), bundled("b" * 40)]))
    assert (imported.new, imported.jobs) == (True, 2)
    with database.session() as s:
        assert s.get_one(SubmissionRecord, imported.submission_id).origin == "bundle"
        assert {(job.state, job.attempt, job.finished_at) for job in s.query(JobRecord)} == {(JobState.DONE, 1, WHEN)}
        assert {(run.state, run.worker_id) for run in s.query(RunRecord)} == {("done", None)}
        assert [(p.ordinal, p.measured_at) for p in s.query(PointRecord).order_by(PointRecord.id)] == [
            (1, WHEN)
        ] * 2 + [(2, WHEN)] * 2


def test_importing_again_changes_nothing(database: Database, counted: Callable[[str], int]) -> None:
    first = import_it(database, bundle([bundled()]))
    again = import_it(database, bundle([bundled()]))
    assert again == bundles.ImportedBundle(first.submission_id, new=False, jobs=0)
    assert counted("points") == 2


def test_a_longer_file_brings_only_what_is_new(database: Database, counted: Callable[[str], int]) -> None:
    import_it(database, bundle([bundled("a" * 40)]))
    later = WHEN + timedelta(microseconds=1)
    jobs = [
        bundled("a" * 40),
        bundled("b" * 40),
        bundled("a" * 40, kind=JobKind.CHECK),
        bundled("a" * 40, started_at=WHEN, finished_at=later),
    ]
    longer = import_it(database, replace(bundle(jobs), sha256="e" * 64))
    assert (longer.new, longer.jobs) == (True, 3)
    assert counted("jobs") == counted("runs") == 4


def test_importing_one_file_twice_at_once_is_importing_it_once(
    database: Database, counted: Callable[[str], int]
) -> None:
    barrier, imported = threading.Barrier(3), []

    def one() -> None:
        barrier.wait()
        imported.append(import_it(database, bundle([bundled()])))

    threads = [threading.Thread(target=one) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one.new for one in imported) == [False, False, True]
    assert counted("points") == 2


def broken_off() -> Iterator[bundles.BundledJob]:
    yield bundled()
    raise EOFError


@pytest.mark.parametrize(
    ("jobs", "error"),
    [
        (lambda: broken_off(), EOFError),
        (lambda: [bundled(), bundled("c" * 40)], OutcomeError),
        (lambda: [bundled(), bundled(kind=cast(JobKind, "dance"))], OutcomeError),
        (
            lambda: [
                bundled(),
                bundled(
                    outcome=outcome(
                        environment=H100, catalogue=None, findings=[replace(outcome().findings[0], case="n=9")]
                    )
                ),
            ],
            OutcomeError,
        ),
    ],
)
def test_a_bad_bundle_leaves_nothing(
    database: Database,
    counted: Callable[[str], int],
    jobs: Callable[[], list[bundles.BundledJob]],
    error: type[Exception],
) -> None:
    with pytest.raises(error):
        import_it(database, bundle(jobs()))
    for table in ("bundles", "submissions", "jobs", "runs", "results", "repositories", "commits", "devices", "cases"):
        assert counted(table) == 0
    with database.session() as s:
        assert bundles.bundle_known(s, "d" * 64) is None


@pytest.fixture
def suspected(world: World) -> tuple[int, list[int]]:
    """A suspected regression and its series."""
    with world.database.session() as s:
        order = runs.begin_run(s, world.job(), world.worker)
        assert order is not None
        runs.finish_run(s, order.run_id, outcome())
        series = [number for (number,) in s.query(PointRecord.series_id).order_by(PointRecord.series_id)]
        number = suspect(world, s, series)
        assert number is not None
    return number, series


def suspect(world: World, s: object, series: list[int], direction: str = "slower") -> int | None:
    return regressions.open_suspicion(
        s,  # type: ignore[arg-type]
        operator_id=world.operator,
        device_id=world.device,
        base_commit_id=world.commits[0],
        head_commit_id=world.commits[1],
        direction=direction,
        ratio=1.3,
        series=[(number, 1.3) for number in series],
    )


def test_a_change_is_suspected_once(world: World, suspected: tuple[int, list[int]]) -> None:
    number, series = suspected
    with world.database.session() as s:
        assert suspect(world, s, series) is None
        assert suspect(world, s, series, "faster") not in (None, number)
        regressions.decide(s, number, Verdict.DISMISSED)
        assert suspect(world, s, series) is None


def test_a_decision_keeps_what_was_measured(world: World, suspected: tuple[int, list[int]]) -> None:
    number, series = suspected
    job_id = world.job("compare", commit=1, base=0)
    with world.database.session() as s:
        regressions.attach_compare_job(s, number, job_id)
        one = regressions.SeriesDecision(series[0], Verdict.CONFIRMED, 1.31, 1.29, 1.33)
        regressions.decide(s, number, Verdict.CONFIRMED, ratio=1.31, low=1.29, high=1.33, series=[one])
    with world.database.session() as s:
        regression = s.get_one(RegressionRecord, number)
        members = (
            s.query(RegressionSeriesRecord.verdict, RegressionSeriesRecord.ratio)
            .order_by(RegressionSeriesRecord.series_id)
            .all()
        )
    assert (regression.verdict, regression.ratio, regression.low, regression.high) == ("confirmed", 1.31, 1.29, 1.33)
    assert regression.compare_job_id == job_id
    assert regression.decided_at is not None
    assert [tuple(member) for member in members] == [("confirmed", 1.31), ("suspected", None)]


def test_triage_keeps_every_word(world: World, suspected: tuple[int, list[int]]) -> None:
    number, _ = suspected
    for state, note in (("acknowledged", "looking"), ("accepted", "it is more exact now")):
        with world.database.session() as s:
            triage.set_triage(s, number, state, "Ann", note)
    with world.database.session() as s:
        assert s.get_one(RegressionRecord, number).state == "accepted"
        notes = [(n.author, n.state, n.note) for n in s.query(RegressionNoteRecord).order_by(RegressionNoteRecord.id)]
    assert notes == [("Ann", "acknowledged", "looking"), ("Ann", "accepted", "it is more exact now")]
    with pytest.raises(StateError, match="use one of new, acknowledged"), world.database.session() as s:
        triage.set_triage(s, number, "whatever", "Ann", "")
    with pytest.raises(NotFoundError), world.database.session() as s:
        triage.set_triage(s, number + 99, "fixed", "Ann", "")


def test_triage_of_an_event_changes_all_of_it_or_nothing(world: World, suspected: tuple[int, list[int]]) -> None:
    number, series = suspected
    with world.database.session() as s:
        other = suspect(world, s, series, "faster")
    assert other is not None
    due = date(2026, 4, 1)
    fields: dict[str, str | date | None] = {
        "state": "acknowledged",
        "assignee": "Ann",
        "link": "https://example.com/7",
        "due_on": due,
    }
    with pytest.raises(NotFoundError, match="no regression 999"), world.database.session() as s:
        triage.triage(s, [number, 999], author="Ann", note="", fields=fields)
    with world.database.session() as s:
        assert s.query(RegressionNoteRecord).count() == 0
        triage.triage(s, [number, other], author="Ann", note="mine", fields=fields)
    with world.database.session() as s:
        for one in (number, other):
            row = s.get_one(RegressionRecord, one)
            assert (row.state, row.assignee, row.link, row.due_on) == (
                "acknowledged",
                "Ann",
                "https://example.com/7",
                due,
            )
        triage.triage(
            s,
            [number],
            author="Bea",
            note="",
            fields={"assignee": "Bea", "due_on": None, "link": "https://example.com/7"},
        )
    with world.database.session() as s:
        notes = (
            s.query(RegressionNoteRecord)
            .where(RegressionNoteRecord.regression_id == number)
            .order_by(RegressionNoteRecord.id)
            .all()
        )
    assert notes[0].changes["assignee"] == [None, "Ann"]
    assert (notes[1].author, notes[1].state) == ("Bea", "acknowledged")
    assert notes[1].changes == {"assignee": ["Ann", "Bea"], "due_on": ["2026-04-01", None]}


def test_the_first_person_counts_as_triage(world: World, suspected: tuple[int, list[int]]) -> None:
    number, _ = suspected
    with world.database.session() as s:
        triage.set_triage(s, number, "invalid", triage.SERVICE, "narrowed down")
        s.flush()
        assert s.get_one(RegressionRecord, number).triaged_at is None
    with world.database.session() as s:
        triage.set_triage(s, number, "new", "Ann", "")
    with world.database.session() as s:
        first = s.get_one(RegressionRecord, number).triaged_at
        assert first is not None
        triage.set_triage(s, number, "fixed", "Bea", "")
    with world.database.session() as s:
        assert s.get_one(RegressionRecord, number).triaged_at == first


def test_every_ended_job_is_judged_once(world: World) -> None:
    done, failed, cancelled, waiting = (world.job(kind) for kind in ("bench", "compare", "check", "bench"))
    for job_id in (done, failed):
        with world.database.session() as s:
            order = runs.begin_run(s, job_id, world.worker)
            assert order is not None
            if job_id == done:
                runs.finish_run(s, order.run_id, outcome())
            else:
                runs.fail_run(s, order.run_id, "no compiler", retry=False)
    with world.database.session() as s:
        submissions.cancel_job(s, cancelled)
    for ended in ((done, "done"), (failed, "failed"), (cancelled, "cancelled")):
        with world.database.session() as s:
            assert [(job.id, job.state) for job in unjudged.unjudged_jobs(s)] == [ended]
            with world.database.session() as other:
                assert unjudged.unjudged_jobs(other) == []
            unjudged.mark_judged(s, ended[0])
    with world.database.session() as s:
        assert unjudged.unjudged_jobs(s) == []
        submissions.retry_job(s, failed)
        order = runs.begin_run(s, failed, world.worker)
        assert order is not None
        runs.fail_run(s, order.run_id, "again", retry=False)
        assert [job.id for job in unjudged.unjudged_jobs(s)] == [failed]
    assert world.look(waiting).state == JobState.QUEUED
