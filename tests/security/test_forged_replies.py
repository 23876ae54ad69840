"""Kernel code shares a process with the code that measures it and can write replies: what it gains is bounded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worker import probes
from tests.worker.conftest import Diary, Repository, identify
from warpwatch.contract.outcome import Finding
from warpwatch.contract.spec import JobRequest, JobSpec
from warpwatch.contract.words import Fault, JobKind, Status
from warpwatch.settings import Settings
from warpwatch.worker.execution import execute
from warpwatch.worker.host import Host
from warpwatch.worker.plausibility import TimeLimits, fastest_possible_ns
from warpwatch.worker.tools import Tools

PEAKS = {"copy": 1e12, "f32": 1e13, "bf16": 1e14}
FORGER = """

import gc
import json
import os
import sys
import time


def reply(verb, body):
    \"\"\"Writes a reply to every pipe of the process, as the answer to the request that the harness works on.\"\"\"
    frame = sys._getframe()
    while frame is not None and "request" not in frame.f_locals:
        frame = frame.f_back
    request = frame.f_locals["request"]
    if request.verb != verb:
        return
    line = json.dumps({"id": request.id, "reply": body}) + "\\n"
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("pipe:"):
                os.write(int(name), line.encode())
        except OSError:
            pass


@operator.variant("says_right", idea="wrong, and answers the check itself")
def says_right(x):
    reply("check", {"status": "ok"})
    return x * 3


@operator.variant("says_right_and_waits", idea="the same, and never returns")
def says_right_and_waits(x):
    reply("check", {"status": "ok"})
    time.sleep(1000)


@operator.variant("says_fast", idea="right, and answers the bench itself")
def says_fast(x):
    one = {"metric": "hot", "samples_ns": [1e-3] * 20, "median_ns": 1e-3, "low_ns": 1e-3, "high_ns": 1e-3, "noise": 0.0}
    reply("bench", {"status": "ok", "flops": 100, "bytes": 800, "measurements": [one]})
    time.sleep(1000)
"""


def measure(tmp_path: Path, kind: JobKind, variant: str) -> Finding:
    repository = Repository(tmp_path / "repository")
    sha = repository.commit("forges", probes.files() | {"kernels/probe.py": probes.OPERATOR + FORGER})
    settings = Settings(home=tmp_path / "home", case_timeout_seconds=10, build_timeout_seconds=60)
    identify(settings.home)
    tools = Tools(Host(settings, "cpu"))
    spec = JobSpec(variants=[variant], cases=["n=100,f32,fwd"], budget_ns=20_000_000)
    (finding,) = execute(JobRequest(kind, repository.url, sha, "probe", spec), tools, Diary(), tmp_path).findings
    tools.close()
    return finding


def test_a_reply_before_the_harnesss_own_is_noticed(tmp_path: Path) -> None:
    finding = measure(tmp_path, JobKind.CHECK, "says_right")
    assert (finding.status, finding.fault) == (Status.WRONG, Fault.FORGED_REPLY)


@pytest.mark.parametrize(("kind", "variant"), [(JobKind.CHECK, "says_right_and_waits"), (JobKind.BENCH, "says_fast")])
def test_a_reply_instead_of_the_harnesss_own_does_not_count(tmp_path: Path, kind: JobKind, variant: str) -> None:
    assert measure(tmp_path, kind, variant).status is Status.TIMED_OUT


def test_times_that_no_device_can_show_are_refused() -> None:
    limits = TimeLimits(PEAKS, "cuda", lambda: PEAKS)
    floor_ns = fastest_possible_ns(10**9, 10**8, PEAKS, "cuda")
    assert floor_ns == pytest.approx(1e9 * 10**8 / 16e12)
    assert limits.objection([floor_ns * 1.01] * 9, 10**9, 10**8, 1.0) is None
    assert limits.objection([floor_ns * 0.99] * 9, 10**9, 10**8, 1.0) is not None
    # Operations bind where little is moved, and one sample that is too short accuses nobody.
    assert limits.objection([2_000.0] * 9, 10**9, 8, 1.0) is not None
    assert limits.objection([1.0, 3_000.0, 3_000.0], 10**9, 8, 1.0) is None


def test_ceilings_of_a_busy_host_are_measured_again_before_they_accuse() -> None:
    floor_ns = fastest_possible_ns(10**9, 10**8, PEAKS, "cuda")
    looks: list[float] = []

    def limits(*rates: float) -> TimeLimits:
        """Ceilings that were measured at a tenth of the rate, and then at these."""
        shares, looks[:] = iter(rates), []

        def measure_again() -> dict[str, float]:
            looks.append(next(shares))
            return {name: rate * looks[-1] for name, rate in PEAKS.items()}

        return TimeLimits({name: rate / 10 for name, rate in PEAKS.items()}, "cuda", measure_again)

    honest, forged = [floor_ns * 1.5] * 9, [floor_ns * 0.5] * 9
    assert limits(1.0).objection(honest, 10**9, 10**8, 1.0) is None
    assert limits(0.2, 1.0).objection(honest, 10**9, 10**8, 1.0) is None, "the host was busy again"
    assert looks == [0.2, 1.0]
    assert limits().objection([floor_ns * 15] * 9, 10**9, 10**8, 1.0) is None, "nobody is accused"
    bounded = limits(1.0, 1.0, 1.0)
    for _ in range(2):
        assert bounded.objection(forged, 10**9, 10**8, 1.0) is not None
    assert len(looks) == 3, "a forger does not have them measured for ever"


def test_nobody_is_accused_by_ceilings_that_could_not_be_measured_again() -> None:
    answers = iter([None, None, None, PEAKS])
    limits = TimeLimits(PEAKS, "cpu", lambda: next(answers))
    assert limits.objection([0.001] * 9, 10**9, 10**8, 1.0) is None
    assert limits.objection([0.001] * 9, 10**9, 10**8, 1.0) is None, "nor by a later look"


def test_samples_cannot_take_longer_than_their_request() -> None:
    limits = TimeLimits(None, "cpu", lambda: None)
    assert limits.objection([1e9] * 3, 0, 0, elapsed_seconds=3.1) is None
    assert limits.objection([1e9] * 3, 0, 0, elapsed_seconds=2.9) is not None
    # The time of `prepare` was measured apart, and is part of every sample.
    assert limits.objection([1e9] * 3, 0, 0, 0.1, prepare_ns=0.99e9) is None
    assert limits.objection([1e9] * 3, 0, 0, 0.1, prepare_ns=0.9e9) is not None
