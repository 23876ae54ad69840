"""A measurement begins only on a device that is fit for it; otherwise its job waits, and the device is marked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import MagicMock

import pytest
from sqlalchemy import select

from tests.builders import Lab, make_repository
from tests.worker.conftest import Diary
from warpwatch.contract.claims import EndingKind, RunEnding
from warpwatch.contract.messages import CanaryReply
from warpwatch.contract.outcome import Outcome
from warpwatch.contract.words import JobKind, Reason, Status
from warpwatch.db.database import Database
from warpwatch.db.endings import EndedRun, end_run
from warpwatch.db.models import JobRecord, RunRecord
from warpwatch.db.reads.devices import list_workers
from warpwatch.db.reads.query import Session
from warpwatch.worker import gate
from warpwatch.worker.child import ChildFailure
from warpwatch.worker.gate import IdleWatch, LastCanary, expect_healthy, slower_than
from warpwatch.worker.harness.timers.ceilings import troubles
from warpwatch.worker.reporter import Stopped, UnhealthyError

T = TypeVar("T")
FIT = CanaryReply(Status.OK, rates={"copy": 2.9e12, "f32": 5.1e13})
HOT = CanaryReply(Status.OK, troubles=["it is 91 °C hot, more than 85"])
PEAKS = {"copy": 3.0e12, "f32": 5.2e13, "bf16": 7.0e14}


class Device:
    """Answers as it is told, the last answer again and again."""

    def __init__(self, *answers: CanaryReply | ChildFailure) -> None:
        self._answers = list(answers)
        self.asked = 0

    def ask(self, kind: Any, verb: str, seconds: float, reporter: Any) -> Any:
        assert (kind, verb) == (CanaryReply, "canary")
        self.asked += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, ChildFailure):
            raise answer
        return answer


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "WAIT_SECONDS", 0.5)
    monkeypatch.setattr(gate, "PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(gate, "_TICK_SECONDS", 0.01)


def test_a_fit_device_is_looked_at_once_and_a_cpu_never(diary: Diary) -> None:
    device = Device(FIT)
    expect_healthy(device, "cuda:0", PEAKS, diary, LastCanary())
    expect_healthy(device, "cpu", PEAKS, diary, LastCanary())
    assert (device.asked, diary.lines) == (1, [])


def test_a_look_counts_for_the_jobs_that_follow_at_once(diary: Diary, monkeypatch: pytest.MonkeyPatch) -> None:
    device, last = Device(FIT, HOT, FIT), LastCanary()
    for _ in range(3):
        expect_healthy(device, "cuda:0", PEAKS, diary, last)
    assert device.asked == 1
    monkeypatch.setattr(gate, "CANARY_HOLDS_SECONDS", 0.0)
    expect_healthy(device, "cuda:0", PEAKS, diary, last)
    assert device.asked == 3


def test_a_device_that_was_not_fit_is_looked_at_again(diary: Diary) -> None:
    device, last = Device(HOT), LastCanary()
    for asked in (1, 2):
        with pytest.raises(UnhealthyError):
            expect_healthy(device, "cuda:0", PEAKS, diary, last)
        assert device.asked > asked


def test_a_device_may_take_a_while_to_cool(diary: Diary) -> None:
    device = Device(HOT, HOT, FIT)
    expect_healthy(device, "cuda:0", PEAKS, diary, LastCanary())
    assert device.asked == 3
    assert diary.lines == ["cuda:0 is not fit to be measured on: it is 91 °C hot, more than 85; waiting"] * 2


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (HOT, "91 °C"),
        (
            CanaryReply(Status.OK, rates={"copy": 2.0e12, "f32": 5.1e13}),
            "the canary's copy reaches 67% of what was measured",
        ),
        (CanaryReply(Status.OUT_OF_MEMORY, "no room"), "the canary ended as out_of_memory: no room"),
        (ChildFailure(Status.TIMED_OUT, "no answer"), "the canary ended as timed_out: no answer"),
    ],
)
def test_an_unfit_device_gives_the_job_back_with_a_reason(
    diary: Diary, answer: CanaryReply | ChildFailure, words: str
) -> None:
    with pytest.raises(UnhealthyError, match=words) as caught:
        expect_healthy(Device(answer), "cuda:0", PEAKS, diary, LastCanary())
    assert caught.value.retry


def test_waiting_ends_when_the_job_must_stop() -> None:
    with pytest.raises(Stopped):
        expect_healthy(Device(HOT), "cuda:0", None, Diary(stop_after=0.05), LastCanary())


BUSY_CHILD, IDLE_CHILD = "while True: pass", "import time; time.sleep(60)"


@pytest.mark.parametrize(
    ("code", "is_asked", "named"), [(BUSY_CHILD, False, True), (BUSY_CHILD, True, False), (IDLE_CHILD, False, False)]
)
def test_an_idle_child_that_works_is_named_beside_the_trouble(
    code: str, is_asked: bool, named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As in a sandbox, what works is a child of the process that was started.
    shell = [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}])"]
    with subprocess.Popen(shell, start_new_session=True) as process:
        child = MagicMock(requests=3, pid=process.pid, root=Path("0123456789ab"))
        monkeypatch.setattr(gate, "LIVING", {child})
        try:
            while not gate._work_ns(child):
                time.sleep(0.01)
            time.sleep(1.0)
            watch = IdleWatch()
            time.sleep(2.0)
            child.requests += is_asked
            messages = watch.list_working()
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    assert [f"process {process.pid}" in message for message in messages] == [True] * named


def test_without_known_ceilings_nothing_is_too_slow() -> None:
    assert slower_than(FIT.rates, None) == []
    assert slower_than(FIT.rates, {"copy": 0.0}) == []
    assert slower_than({"copy": 1.0}, {"copy": 2.0}) == [
        "the canary's copy reaches 50% of what was measured on this device before"
    ]


def test_what_the_card_says_is_put_into_words() -> None:
    fit = {
        "utilization": 0,
        "others": [],
        "celsius": 40,
        "limit_celsius": 87,
        "held_back": [],
        "held_back_under_load": [],
    }
    assert troubles(fit) == []
    assert troubles({"note": "NVML not available: no module"}) == []
    assert troubles(fit | {"others": [77]}) == []
    assert troubles(fit | {"utilization": 60, "others": [77]}) == ["other work keeps it 60 % busy (processes 77)"]
    own = {"utilization": 60, "others": [77], "own_share": 0.6}
    assert troubles(fit | own) == ["code of the commit that nothing called keeps it 60 % busy"]
    assert troubles(fit | {"celsius": 83}) == ["it is at 83 °C, above 82 °C"]
    held = {"held_back": ["software thermal"], "held_back_under_load": ["software thermal", "hardware slowdown"]}
    assert troubles(fit | held) == ["it is throttled: software thermal, hardware slowdown"]


def test_the_job_waits_again_and_fails_after_its_last_attempt(database: Database, tmp_path: Any) -> None:
    lab = Lab(database, tmp_path / "source", make_repository(tmp_path / "source", 1), tmp_path)
    job = lab.submit("bench", 0)
    unfit = RunEnding(EndingKind.FAILED, message="it is on fire", retry=True, reason=UnhealthyError("").reason)
    states = []

    def end(job_id: int, ending: RunEnding, outcome: Outcome | None = None) -> None:
        run = EndedRun(lab.worker, job_id, lab.begin(job_id), JobKind.BENCH, is_patch=False)

        def write(action: Callable[[Session], T]) -> T:
            with database.session() as s:
                return action(s)

        end_run(write, run, ending, outcome)

    for _ in range(3):
        end(job, unfit)
        with database.session() as s:
            states.append(s.scalars(select(JobRecord.state).where(JobRecord.id == job)).one())
            (row,) = list_workers(s)
            assert row.trouble
    assert states == ["queued", "queued", "failed"]
    with database.session() as s:
        assert s.scalars(select(JobRecord.reason).where(JobRecord.id == job)).one() == Reason.UNFIT_DEVICE
        assert set(s.scalars(select(RunRecord.reason))) == {Reason.UNFIT_DEVICE}
    end(lab.submit("bench", 0), RunEnding(EndingKind.DONE), lab.outcome([]))
    with database.session() as s:
        (row,) = list_workers(s)
        assert row.trouble == ""
