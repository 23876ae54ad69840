"""A worker with a key and without the database's address: what the key opens, and what is done to what it sends."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import func, text, update

from tests.apps import create_app
from tests.builders import CASES, CPU, Lab, bench, count, measurement, trace
from tests.server.conftest import served as served
from tests.waiting import wait_until
from warpwatch.contract.claims import (
    INLINE_BYTES,
    ClaimedJob,
    EndingKind,
    LeaseState,
    RunEnding,
    RunProgress,
    WorkerDescription,
)
from warpwatch.contract.codec import to_json
from warpwatch.contract.environment import key_of
from warpwatch.contract.outcome import Finding, Outcome
from warpwatch.contract.words import Reason, Status
from warpwatch.db import registry, runs, submissions
from warpwatch.db.database import Database
from warpwatch.db.live import announce_queued
from warpwatch.db.models import JobRecord, RunRecord, WorkerRecord
from warpwatch.db.reads.devices import list_workers
from warpwatch.db.reads.work import read_log
from warpwatch.db.traces import iter_trace
from warpwatch.db.worker_keys import add_chunk, add_key, revoke_key
from warpwatch.server.threads.live import Hub
from warpwatch.settings import Settings
from warpwatch.worker.coordinator import (
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    LostRunError,
    ServerDownError,
    UnusableKeyError,
    pause_seconds,
)
from warpwatch.worker.http_coordinator import HttpCoordinator, _results_file
from warpwatch.worker.undelivered import UndeliveredEndings

ENVIRONMENT = replace(CPU, key=key_of(CPU.facts))
WORKER = WorkerDescription("node-7-1-cpu", "0.1.0", "cpu", "full", ["memory"], "core 1", ENVIRONMENT, {"copy": 1e10})
CELL = ("v1", CASES[0])


class Remote:
    """A worker that speaks to the server, and its key."""

    def __init__(self, database: Database, url: str, folder: Path, name: str = "cluster") -> None:
        with database.session() as s:
            self.key = add_key(s, name)
        self.stop_requested = threading.Event()
        self.url = url
        self.coordinator = HttpCoordinator(url, self.key, self.stop_requested, UndeliveredEndings(folder))
        self.coordinator.register(WORKER)

    def claim(self) -> ClaimedJob:
        """The next job, which must be there."""

        async def ask() -> ClaimedJob | None:
            async with self.coordinator._claims() as client:
                return await self.coordinator._claim(client)

        job = asyncio.run(ask())
        assert job is not None
        self.coordinator._last_run_id = job.run_id
        return job

    def post(self, path: str, body: object = None, timeout: float = 60) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.key}"}
        return httpx.post(f"{self.url}/api/v1/worker/{path}", headers=headers, json=body, timeout=timeout, verify=False)

    def run_path(self, job: ClaimedJob) -> str:
        return f"{self.coordinator._worker_id}/runs/{job.run_id}"


@pytest.fixture
def remote(served: Settings, database: Database, tmp_path: Path) -> Iterator[Remote]:
    made = Remote(database, served.server_url, tmp_path / "undelivered")
    yield made
    made.coordinator.close()


def state(database: Database, job_id: int) -> tuple[str, str | None]:
    with database.session() as s:
        job = s.get_one(JobRecord, job_id)
        return job.state, job.reason


def test_a_job_is_claimed_reported_and_recorded(remote: Remote, lab: Lab, database: Database) -> None:
    job_id = lab.submit("bench", 2, variants=["v1"], known={"variants": ["v1"], "cases": [CASES[0]]})
    job = remote.claim()
    assert (job.job_id, job.attempt, job.request.sha, job.request.url) == (job_id, 1, lab.shas[2], str(lab.source))
    remote.coordinator.write_log(job.run_id, "compiling\n", RunProgress(1, 2, "v1", CELL))
    assert remote.coordinator.watch_lease(job.run_id, renew=True, hold_seconds=0) == LeaseState()
    timed = Finding(*CELL, Status.OK, bench=bench(measurement(1234.5, "hot")))
    remote.coordinator.end_run(job, RunEnding(EndingKind.DONE), replace(lab.outcome([timed]), environment=ENVIRONMENT))
    assert state(database, job_id) == ("done", None)
    with database.session() as s:
        assert [line.text for line in read_log(s, job.run_id)] == ["compiling\n"]
        assert s.scalars(text("SELECT median_ns FROM points")).all() == [1234.5]
        run = s.get_one(RunRecord, job.run_id)
        assert run.times is not None
        assert run.times["record"] > 0
        worker = next(row for row in list_workers(s) if row.id == run.worker_id)
    assert (worker.name, worker.isolation, worker.missing_protections) == ("cluster/node-7-1-cpu", "full", ["memory"])
    assert count(database, "result_chunks") == 0


def test_an_ending_whose_answer_was_lost_may_be_sent_again(remote: Remote, lab: Lab, database: Database) -> None:
    job_id = lab.submit("bench", 2)
    job = remote.claim()
    failed = RunEnding(EndingKind.FAILED, message="no compiler", reason=Reason.INTERNAL_ERROR)
    for _ in range(2):
        remote.coordinator.end_run(job, failed, None)
    assert state(database, job_id) == ("failed", Reason.INTERNAL_ERROR)
    with pytest.raises(LostRunError):
        remote.coordinator.end_run(job, RunEnding(EndingKind.DONE), replace(lab.outcome([]), environment=ENVIRONMENT))


def test_a_claim_whose_answer_was_lost_is_given_again(remote: Remote, lab: Lab) -> None:
    lab.submit("bench", 2)
    first = remote.claim()
    remote.coordinator._last_run_id = 0
    assert remote.claim() == first


def test_a_new_worker_of_the_same_name_does_not_go_on_with_a_dead_ones_run(
    remote: Remote, lab: Lab, served: Settings, tmp_path: Path
) -> None:
    lab.submit("bench", 2)
    job = remote.claim()
    undelivered = UndeliveredEndings(tmp_path / "undelivered")
    again = HttpCoordinator(served.server_url, remote.key, threading.Event(), undelivered)
    again.register(WORKER)
    assert again._last_run_id == job.run_id


def test_what_a_yielded_run_found_comes_with_the_next_claim(remote: Remote, lab: Lab, database: Database) -> None:
    job_id = lab.submit("bench", 2)
    job = remote.claim()
    timed = Finding(*CELL, Status.OK, bench=bench(measurement(1000.0, "hot")))
    outcome = replace(lab.outcome([timed]), environment=ENVIRONMENT)
    urgent = lab.submit("check", 1)
    remote.coordinator.end_run(job, RunEnding(EndingKind.YIELDED, yielded_to=urgent), outcome)
    assert state(database, job_id)[0] == "queued"
    with database.session() as s:
        submissions.cancel_job(s, urgent)
    job = remote.claim()
    assert job.job_id == job_id
    assert job.partial is not None
    assert job.partial.findings == [timed]


def test_a_cancel_answers_a_held_question_at_once(remote: Remote, lab: Lab, database: Database) -> None:
    job_id = lab.submit("bench", 2)
    job = remote.claim()
    answers: list[LeaseState] = []
    holding = threading.Thread(
        target=lambda: answers.append(remote.coordinator.watch_lease(job.run_id, renew=True, hold_seconds=20))
    )
    holding.start()
    holding.join(0.5)
    assert holding.is_alive()
    with database.session() as s:
        submissions.cancel_job(s, job_id)
    holding.join(10)
    assert answers == [LeaseState(is_cancelled=True)]
    remote.coordinator.end_run(job, RunEnding(EndingKind.CANCELLED), None)
    with database.session() as s:
        assert s.get_one(RunRecord, job.run_id).state == "cancelled"


def test_a_more_urgent_job_answers_a_held_question_at_once(remote: Remote, lab: Lab, database: Database) -> None:
    lab.submit("bench", 2)
    job = remote.claim()
    with database.session() as s:
        # An idle worker would take the job, and nobody would have to make room for it.
        s.execute(
            update(WorkerRecord).where(WorkerRecord.id != remote.coordinator._worker_id).values(stopped_at=func.now())
        )
    answers: list[LeaseState] = []
    holding = threading.Thread(
        target=lambda: answers.append(remote.coordinator.watch_lease(job.run_id, renew=True, hold_seconds=60))
    )
    holding.start()
    holding.join(0.5)
    assert holding.is_alive()
    waiting = lab.submit("check", 1)
    with database.session() as s:
        s.get_one(JobRecord, waiting).priority = 10
        announce_queued(s, [lab.device])
    holding.join(30)
    assert answers == [LeaseState(yield_to=waiting)]


def test_a_question_to_a_server_that_stops_is_not_held(database: Database) -> None:
    hub = Hub(database, lease_seconds=15)
    with hub.follow_lease(1, "a-card") as changed:
        assert not changed.is_set()
        hub.close()
        assert changed.is_set()
    with hub.follow_lease(1, "a-card") as changed:
        assert changed.is_set(), "its request came when all held ones had been answered"


def test_a_run_that_lost_its_job_writes_nothing(remote: Remote, lab: Lab, database: Database) -> None:
    job_id = lab.submit("bench", 2)
    job = remote.claim()
    with database.session() as s:
        s.execute(text("UPDATE runs SET state = 'lost'"))
        s.execute(text("UPDATE jobs SET attempt = attempt + 1"))
    assert remote.coordinator.watch_lease(job.run_id, renew=True, hold_seconds=20).is_lost
    timed = Finding(*CELL, Status.OK, bench=bench(measurement(1000.0, "hot")))
    for write in (
        lambda: remote.coordinator.write_log(job.run_id, "still here\n", None),
        lambda: remote.coordinator.end_run(job, RunEnding(EndingKind.DONE), lab.outcome([timed])),
    ):
        with pytest.raises(LostRunError):
            write()
    assert count(database, "results") == count(database, "run_logs") == count(database, "result_chunks") == 0
    assert state(database, job_id)[0] == "running"


def test_a_worker_that_stops_gives_back_what_it_did_not_hear_of(remote: Remote, lab: Lab, database: Database) -> None:
    job_id = lab.submit("bench", 2)
    remote.claim()
    assert remote.post(f"{remote.coordinator._worker_id}/stop").status_code == 204
    assert state(database, job_id) == ("queued", None)
    with database.session() as s:
        assert {row.state for row in list_workers(s) if row.name.startswith("cluster/")} == {"stopped"}


def test_a_trace_travels_in_pieces_and_goes_on_where_the_connection_broke(
    remote: Remote, lab: Lab, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.submit("profile", 2)
    job = remote.claim()
    reply = trace(lab.folder, padding=1_500_000)
    assert reply.path is not None
    sent: list[int] = []
    request = remote.coordinator._client.request

    def break_now_and_then(method: str, path: str, **more: Any) -> httpx.Response:
        answer = request(method, path, **more)
        if method == "PUT":
            sent.append(len(more["content"]))
            if len(sent) in (2, 4):
                # The piece has arrived, and its sender does not hear so.
                raise httpx.ReadError("connection reset")
        return answer

    monkeypatch.setattr(remote.coordinator._client, "request", break_now_and_then)
    monkeypatch.setattr("warpwatch.worker.coordinator.LONGEST_PAUSE_SECONDS", 0.01)
    findings = [Finding(*CELL, Status.OK, profile=reply)]
    outcome = replace(lab.outcome(findings), environment=ENVIRONMENT)
    remote.coordinator.end_run(job, RunEnding(EndingKind.DONE), outcome)
    with database.session() as s:
        trace_id = s.scalars(text("SELECT id FROM traces")).one()
        assert b"".join(iter_trace(s, trace_id)) == Path(reply.path).read_bytes()
    assert len(sent) > 3
    assert sum(sent) < Path(reply.path).stat().st_size * 2


def test_results_outlive_errors_of_the_server(
    remote: Remote, lab: Lab, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that stops answers 500 to what waits there; the results are no worse for it."""
    job_id = lab.submit("bench", 2)
    job = remote.claim()
    request = remote.coordinator._client.request
    answers = [500, 502, 500, 503]

    def fail_at_first(method: str, path: str, **more: Any) -> httpx.Response:
        if answers:
            return httpx.Response(answers.pop(), text="Internal Server Error")
        return request(method, path, **more)

    monkeypatch.setattr(remote.coordinator._client, "request", fail_at_first)
    monkeypatch.setattr("warpwatch.worker.coordinator.LONGEST_PAUSE_SECONDS", 0.01)
    timed = Finding(*CELL, Status.OK, bench=bench(measurement(1000.0, "hot")))
    remote.coordinator.end_run(job, RunEnding(EndingKind.DONE), replace(lab.outcome([timed]), environment=ENVIRONMENT))
    assert state(database, job_id) == ("done", None)


def test_workers_ask_an_overloaded_server_less_often_and_not_together() -> None:
    down = ServerDownError()
    bounds = [FIRST_PAUSE_SECONDS, 2 * FIRST_PAUSE_SECONDS, 4 * FIRST_PAUSE_SECONDS]
    for failures, bound in [*enumerate(bounds, 1), (20, LONGEST_PAUSE_SECONDS), (10_000, LONGEST_PAUSE_SECONDS)]:
        pauses = {pause_seconds(failures, down) for _ in range(50)}
        assert len(pauses) > 40
        assert bound / 2 <= min(pauses) <= max(pauses) <= bound
    asked = ServerDownError(retry_after=7.0)
    assert 7 + FIRST_PAUSE_SECONDS / 2 <= pause_seconds(1, asked) <= 7 + FIRST_PAUSE_SECONDS
    assert pause_seconds(1, ServerDownError(retry_after=1e9)) <= LONGEST_PAUSE_SECONDS + FIRST_PAUSE_SECONDS


@pytest.mark.parametrize(("status", "header", "seconds"), [(503, "7", 7), (429, "30", 30), (503, "soon", 0)])
def test_what_the_server_asks_of_a_worker_is_known(
    remote: Remote, monkeypatch: pytest.MonkeyPatch, status: int, header: str, seconds: float
) -> None:
    """Too many requests are an outage: the results that were sent with one are no worse for it."""
    answer = httpx.Response(status, headers={"Retry-After": header})
    monkeypatch.setattr(remote.coordinator._client, "request", lambda *_, **__: answer)
    with pytest.raises(ServerDownError) as error:
        remote.coordinator.list_waiting(1)
    assert error.value.retry_after == seconds


def test_a_request_that_the_server_never_answers_ends_its_job(
    remote: Remote, lab: Lab, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = lab.submit("bench", 2)
    job = remote.claim()
    request = remote.coordinator._client.request

    def fail_with_results(method: str, path: str, **more: Any) -> httpx.Response:
        has_results = "results" in (more.get("json") or {})
        return httpx.Response(500) if has_results else request(method, path, **more)

    monkeypatch.setattr(remote.coordinator._client, "request", fail_with_results)
    monkeypatch.setattr("warpwatch.worker.coordinator.LONGEST_PAUSE_SECONDS", 0.001)
    timed = Finding(*CELL, Status.OK, bench=bench(measurement(1000.0, "hot")))
    remote.coordinator.end_run(job, RunEnding(EndingKind.DONE), replace(lab.outcome([timed]), environment=ENVIRONMENT))
    assert state(database, job_id) == ("failed", Reason.UNSTORABLE)


def hostile_files(lab: Lab, job: ClaimedJob) -> dict[str, Callable[[Path], None]]:
    """Writers of files that are no results of the job."""

    def other_job(path: Path) -> None:
        other = replace(job, request=replace(job.request, operator="cube"))
        with _results_file(other, replace(lab.outcome([]), environment=ENVIRONMENT)) as made:
            assert made is not None
            path.write_bytes(made.read_bytes())

    def other_device(path: Path) -> None:
        environment = replace(ENVIRONMENT, device_key="other-cpu")
        with _results_file(job, replace(lab.outcome([]), environment=environment)) as made:
            assert made is not None
            path.write_bytes(made.read_bytes())

    def other_kind(path: Path) -> None:
        environment = replace(ENVIRONMENT, device_kind="abacus")
        with _results_file(job, replace(lab.outcome([]), environment=environment)) as made:
            assert made is not None
            path.write_bytes(made.read_bytes())

    def bomb(path: Path) -> None:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
            made.writestr("manifest.json", b" " * 50_000_000)

    return {
        "garbage": lambda path: void(path.write_bytes(b"PK\5\6 no")),
        "empty": lambda path: void(path.write_bytes(b"")),
        "other job": other_job,
        "other device": other_device,
        "other kind": other_kind,
        "bomb": bomb,
    }


def void(_: object) -> None:
    """Drops the result of a writer."""


@pytest.mark.parametrize("name", ["garbage", "empty", "other job", "other device", "other kind", "bomb"])
def test_what_is_no_result_of_the_job_is_refused(
    remote: Remote, lab: Lab, database: Database, tmp_path: Path, name: str
) -> None:
    job_id = lab.submit("bench", 2)
    job = remote.claim()
    path = tmp_path / "hostile.wwb"
    hostile_files(lab, job)[name](path)
    data = path.read_bytes()
    with database.session() as s:
        add_chunk(s, job.run_id, 0, data)
    body = {"ending": to_json(RunEnding(EndingKind.DONE)), "sha256": hashlib.sha256(data).hexdigest()}
    answer = remote.post(f"{remote.run_path(job)}/end", body)
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "sha256")
    assert count(database, "results") == 0
    assert state(database, job_id)[0] == "running"


def test_results_that_cannot_be_stored_end_their_job(remote: Remote, lab: Lab, database: Database) -> None:
    job_id = lab.submit("bench", 2)
    job = remote.claim()
    unknown = replace(lab.outcome([Finding("v1", "no such case", Status.OK)]), environment=ENVIRONMENT)
    remote.coordinator.end_run(job, RunEnding(EndingKind.DONE), unknown)
    assert state(database, job_id) == ("failed", Reason.UNSTORABLE)
    job_id = lab.submit("bench", 3)
    missing = replace(trace(lab.folder), path=str(lab.folder / "nowhere.json.gz"))
    lost = replace(lab.outcome([Finding(*CELL, Status.OK, profile=missing)]), environment=ENVIRONMENT)
    remote.coordinator.end_run(remote.claim(), RunEnding(EndingKind.DONE), lost)
    assert state(database, job_id) == ("failed", Reason.UNSTORABLE)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"device_kind": "abacus"}, "environment.device_kind"),
        ({"key": "0" * 64}, "environment.key"),
    ],
)
def test_an_environment_that_claims_what_it_is_not_is_refused(
    remote: Remote, change: dict[str, Any], field: str
) -> None:
    body = to_json(replace(WORKER, environment=replace(ENVIRONMENT, **change)))
    answer = remote.post("registration", body)
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, field)


def test_an_environment_of_another_device_cannot_be_taken(remote: Remote, database: Database) -> None:
    body = to_json(replace(WORKER, environment=replace(ENVIRONMENT, device_key="mine")))
    assert remote.post("registration", body).status_code == 409
    with database.session() as s:
        assert s.scalars(text("SELECT devices.key FROM environments JOIN devices ON devices.id = device_id")).all() == [
            "test-cpu"
        ]


@pytest.mark.parametrize(("protocol", "older"), [(0, "worker"), (99, "server")])
def test_whoever_is_too_old_is_named(remote: Remote, protocol: int, older: str) -> None:
    answer = remote.post("registration", to_json(replace(WORKER, protocol=protocol)))
    assert answer.status_code == 409
    assert f"the {older} is too old" in answer.json()["detail"]
    assert f"update the {older}" in answer.json()["detail"]


def test_a_worker_that_says_more_than_the_server_knows_is_registered(remote: Remote) -> None:
    assert remote.post("registration", to_json(WORKER) | {"surprise": 1}).status_code == 200


def timed_outcome(lab: Lab) -> Outcome:
    timed = Finding(*CELL, Status.OK, bench=bench(measurement(1000.0, "hot")))
    return replace(lab.outcome([timed]), environment=ENVIRONMENT)


def test_the_end_of_a_run_is_one_request(remote: Remote, lab: Lab, database: Database) -> None:
    """Results and log of an ordinary job go with its ending, and nothing is left of them but what they say."""
    job_id = lab.submit("bench", 2)
    job = remote.claim()
    sent: list[str] = []
    remote.coordinator._client.event_hooks["request"] = [lambda request: sent.append(request.url.path)]
    remote.coordinator.end_run(job, RunEnding(EndingKind.DONE), timed_outcome(lab), "the last line\ud800\n")
    assert [path.rsplit("/", 1)[-1] for path in sent] == ["end"]
    assert state(database, job_id) == ("done", None)
    assert count(database, "points") == 1
    with database.session() as s:
        assert [line.text for line in read_log(s, job.run_id)] == ["the last line?\n"]


def test_a_worker_of_this_version_works_with_a_server_of_the_last_one(
    remote: Remote, lab: Lab, database: Database
) -> None:
    """That server does not say how much it takes with an ending; it is sent results and log by themselves."""
    job_id = lab.submit("bench", 2)
    job = remote.claim()
    remote.coordinator._inline_bytes = 0
    sent: list[httpx.Request] = []
    remote.coordinator._client.event_hooks["request"] = [sent.append]
    remote.coordinator.end_run(job, RunEnding(EndingKind.DONE), timed_outcome(lab), "the last line\n")
    assert [request.url.path.rsplit("/runs/", 1)[-1].split("/", 1)[-1] for request in sent] == [
        "log",
        "results/0",
        "end",
    ]
    assert set(json.loads(sent[-1].content)) == {"ending", "sha256"}
    assert state(database, job_id) == ("done", None)
    with database.session() as s:
        assert [line.text for line in read_log(s, job.run_id)] == ["the last line\n"]


def test_a_server_that_does_not_say_what_it_takes_gets_nothing_more(
    remote: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(_coordinator: HttpCoordinator, *_request: object) -> dict[str, Any]:
        return {"worker_id": 1, "name": "cluster/node", "lease_seconds": 15.0, "last_run_id": 0}

    monkeypatch.setattr(HttpCoordinator, "_patiently", answer)
    undelivered = UndeliveredEndings(tmp_path / "undelivered")
    coordinator = HttpCoordinator(remote.url, remote.key, threading.Event(), undelivered)
    coordinator._inline_bytes = 1
    coordinator.register(WORKER)
    assert coordinator._inline_bytes == 0


def test_the_log_of_a_cancelled_job_is_written_to_its_end(remote: Remote, lab: Lab, database: Database) -> None:
    job_id = lab.submit("bench", 2)
    job = remote.claim()
    with database.session() as s:
        submissions.cancel_job(s, job_id)
    for _ in range(2):
        remote.coordinator.end_run(job, RunEnding(EndingKind.CANCELLED), None, "stopping\n")
    with database.session() as s:
        assert s.get_one(RunRecord, job.run_id).state == "cancelled"
        assert [line.text for line in read_log(s, job.run_id)] == ["stopping\n"]


class Away:
    """A server that answers nothing while it is away."""

    def __init__(self, remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_away = True
        self._request = remote.coordinator._client.request
        monkeypatch.setattr(remote.coordinator._client, "request", self.request)
        monkeypatch.setattr("warpwatch.worker.coordinator.LONGEST_PAUSE_SECONDS", 0.01)
        monkeypatch.setattr("warpwatch.worker.coordinator._LAST_TRY_SECONDS", 0.05)

    def request(self, *arguments: Any, **options: Any) -> httpx.Response:
        if self.is_away:
            raise httpx.ConnectError("connection refused")
        return self._request(*arguments, **options)


@pytest.mark.parametrize("inline_bytes", [INLINE_BYTES, 0])
def test_what_could_not_be_delivered_is_delivered_by_the_next_worker(
    remote: Remote,
    lab: Lab,
    database: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    inline_bytes: int,
) -> None:
    job_id = lab.submit("bench", 2)
    job = remote.claim()
    server = Away(remote, monkeypatch)
    remote.stop_requested.set()
    remote.coordinator.end_run(job, RunEnding(EndingKind.DONE), timed_outcome(lab), "the last line\n")
    assert state(database, job_id)[0] == "running"
    server.is_away = False
    undelivered = UndeliveredEndings(tmp_path / "undelivered")
    later = HttpCoordinator(remote.url, remote.key, threading.Event(), undelivered)
    later._inline_bytes = inline_bytes
    later.deliver_stored()
    assert state(database, job_id) == ("done", None)
    with database.session() as s:
        assert s.get_one(JobRecord, job_id).attempt == 1
        assert s.scalars(text("SELECT median_ns FROM points")).all() == [1000.0]
        assert [line.text for line in read_log(s, job.run_id)] == ["the last line\n"]
    assert list((tmp_path / "undelivered").iterdir()) == []
    later.deliver_stored()
    later._client.close()


def test_what_a_run_found_that_lost_its_job_meanwhile_is_dropped(
    remote: Remote, lab: Lab, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = lab.submit("bench", 2)
    job = remote.claim()
    server = Away(remote, monkeypatch)
    remote.stop_requested.set()
    remote.coordinator.end_run(job, RunEnding(EndingKind.DONE), timed_outcome(lab))
    server.is_away = False
    with database.session() as s:
        runs.lose_run(s, job.run_id, "silent")
    (tmp_path / "undelivered" / "9.json").write_text('{"run_id": 9')
    remote.coordinator.deliver_stored()
    assert state(database, job_id)[0] == "queued"
    assert count(database, "results") == count(database, "result_chunks") == 0
    assert list((tmp_path / "undelivered").iterdir()) == []


def test_an_ending_for_another_server_waits_for_it(
    remote: Remote, lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.submit("bench", 2)
    job = remote.claim()
    server = Away(remote, monkeypatch)
    remote.stop_requested.set()
    remote.coordinator.end_run(job, RunEnding(EndingKind.DONE), timed_outcome(lab))
    server.is_away = False
    monkeypatch.setattr(remote.coordinator, "_address", "http://127.0.0.1:1/api/v1/worker")
    remote.coordinator.deliver_stored()
    assert {path.name for path in (tmp_path / "undelivered").iterdir()} == {f"{job.run_id}.json", f"{job.run_id}.wwb"}


def test_a_key_reaches_its_own_workers_only(
    remote: Remote, lab: Lab, database: Database, served: Settings, tmp_path: Path
) -> None:
    lab.submit("bench", 2)
    job = remote.claim()
    other = Remote(database, served.server_url, tmp_path / "other", "other")
    own = remote.coordinator._worker_id
    assert own != other.coordinator._worker_id, "both workers gave the same name"
    assert other.post(f"{own}/claim", {"after_run_id": 0}).status_code == 404
    assert other.post(f"{own}/stop").status_code == 404
    assert other.post(f"{remote.run_path(job)}/log", {"text": "x"}).status_code == 404
    mixed = f"{other.coordinator._worker_id}/runs/{job.run_id}"
    assert other.post(f"{mixed}/log", {"text": "x"}).status_code == 409
    assert other.post(f"{mixed}/end", {"ending": to_json(RunEnding(EndingKind.RELEASED))}).status_code == 409
    assert other.coordinator.watch_lease(job.run_id, renew=True, hold_seconds=0).is_lost
    assert count(database, "run_logs") == 0
    other.coordinator.close()


def test_a_revoked_key_opens_nothing_at_once(remote: Remote, lab: Lab, database: Database) -> None:
    lab.submit("bench", 2)
    job = remote.claim()
    with database.session() as s:
        revoke_key(s, "cluster")
    for call in (
        remote.claim,
        lambda: remote.coordinator.watch_lease(job.run_id, renew=True, hold_seconds=0),
        lambda: remote.coordinator.write_log(job.run_id, "x", None),
        lambda: remote.coordinator.end_run(job, RunEnding(EndingKind.DONE), lab.outcome([])),
    ):
        with pytest.raises(UnusableKeyError):
            call()
    assert state(database, job.job_id)[0] == "running", "until its lease has run out"


def test_the_depth_of_a_queue_is_told(remote: Remote, lab: Lab, served: Settings) -> None:
    lab.submit("bench", 2)
    lab.submit("bench", 3)
    headers = {"Authorization": f"Bearer {remote.key}"}
    address = f"{served.server_url}/api/v1/worker/queue"
    answer = httpx.get(address, params={"device": "test-cpu"}, headers=headers, timeout=60)
    assert answer.json() == {"queued": 2}


def test_a_worker_that_waits_for_a_job_is_alive(remote: Remote, lab: Lab, database: Database) -> None:
    """It renews nothing itself while the server holds its question."""

    def states() -> set[str]:
        with database.session() as s:
            return {row.state for row in list_workers(s) if row.name.startswith("cluster/")}

    claiming = threading.Thread(target=remote.claim)
    claiming.start()
    with database.session() as s:
        s.execute(text("UPDATE workers SET heartbeat_at = now() - interval '1 minute'"))
    wait_until(lambda: states() == {"alive"}, 30, explain=states)
    lab.submit("bench", 2)
    claiming.join()


def test_more_requests_than_threads_and_connections_are_all_answered(
    remote: Remote, settings: Settings, database: Database
) -> None:
    """A request that holds its connection while it waits for another thread would wait for all others."""
    few = Database(database.url, pool_size=2, max_overflow=0)
    app = create_app(settings, few, judge=False)
    address = f"/api/v1/worker/{remote.coordinator._worker_id}/lease"

    async def ask() -> list[int]:
        transport, headers = httpx.ASGITransport(app=app), {"Authorization": f"Bearer {remote.key}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8321", headers=headers) as client:
            answers = await asyncio.gather(*(client.post(address, json={}) for _ in range(100)))
        return [answer.status_code for answer in answers]

    assert asyncio.run(ask()) == [200] * 100
    few.close()


def test_a_worker_that_hung_up_gets_no_job(remote: Remote, lab: Lab, database: Database) -> None:
    question = {"after_run_id": 0, "wait_seconds": 20}
    with pytest.raises(httpx.ReadTimeout):
        remote.post(f"{remote.coordinator._worker_id}/claim", question, timeout=0.5)
    job_id = lab.submit("bench", 2)
    with database.session() as s:
        second = registry.register_worker(s, "second", lab.device, "0", {})
        assert second
    other = remote.claim()
    assert (other.job_id, other.attempt) == (job_id, 1)


def test_a_gzip_file_is_stored_as_it_is(remote: Remote, lab: Lab, database: Database) -> None:
    """A server may not repack what a worker measured: digests of traces would differ."""
    lab.submit("profile", 2)
    reply = trace(lab.folder)
    assert reply.path is not None
    data = gzip.compress(gzip.decompress(Path(reply.path).read_bytes()), compresslevel=1)
    Path(reply.path).write_bytes(data)
    outcome = replace(lab.outcome([Finding(*CELL, Status.OK, profile=reply)]), environment=ENVIRONMENT)
    remote.coordinator.end_run(remote.claim(), RunEnding(EndingKind.DONE), outcome)
    with database.session() as s:
        assert s.scalars(text("SELECT sha256 FROM traces")).one() == hashlib.sha256(data).hexdigest()
