"""On a GPU, a fork of a template measures as a program does, and no fork reaches the context of another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
import torch

from tests.worker.conftest import Diary
from warpwatch.contract.messages import BenchReply, CheckReply
from warpwatch.contract.words import Status
from warpwatch.settings import Settings
from warpwatch.worker import templates
from warpwatch.worker.child import Child, ChildFailure
from warpwatch.worker.host import Host

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]
ROOT = Path(__file__).parent / "gpu_repository"
CASE = "n=2048,f32,fwd"
PROCESSES = 5
Start = Callable[[bool], Child]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    host = Host(Settings(home=tmp_path / "home"), "cuda:0")
    host.home.mkdir()
    with ExitStack() as stack:

        def start_child(forked: bool) -> Child:
            child = host.start_child(replace(host.empty_child(ROOT), may_be_forked=forked), Diary())
            stack.callback(child.close)
            return child

        yield start_child


def check(child: Child, variant: str) -> Status:
    return child.ask(CheckReply, "check", 120, Diary(), operator="product", variant=variant, case=CASE).status


def expect_import() -> None:
    """The template has imported torch: it had one thread and no open device afterwards."""
    current = templates._templates._current
    assert current is not None
    assert b"bare" not in Path(f"/proc/{current.process.pid}/cmdline").read_bytes()


def test_forks_have_contexts_of_their_own(start: Start) -> None:
    first, second = start(True), start(True)
    expect_import()
    assert (check(first, "good"), check(second, "good")) == (Status.OK, Status.OK)
    with suppress(ChildFailure):
        assert check(first, "illegal") is not Status.OK
    assert check(second, "good") is Status.OK
    assert check(start(True), "good") is Status.OK


def test_a_fork_measures_as_a_program_does(start: Start) -> None:
    times: dict[bool, dict[str, list[float]]] = {True: {}, False: {}}
    for number in range(PROCESSES):
        for forked in (True, False) if number % 2 == 0 else (False, True):
            child = start(forked)
            reply = child.ask(BenchReply, "bench", 120, Diary(), operator="product", variant="good", case=CASE)
            assert reply.status is Status.OK, reply.message
            for measurement in reply.measurements:
                times[forked].setdefault(measurement.metric, []).append(measurement.median_ns)
            child.close()
    expect_import()
    for metric, of_programs in times[False].items():
        of_forks = times[True][metric]
        print(metric, [round(time) for time in of_programs], [round(time) for time in of_forks])
        spread = max(of_programs) / min(of_programs) - 1
        assert median(of_forks) / median(of_programs) == pytest.approx(1, abs=max(0.02, 2 * spread)), metric
