"""Samples, their statistics, and the check of timed results."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
import torch

from tests.harness.child import Harness
from tests.harness.twice import twice
from warpwatch.contract.messages import BenchReply, CheckReply, ProfileReply, SampleReply
from warpwatch.contract.words import Fault, Status
from warpwatch.worker.harness import bench as harness_bench
from warpwatch.worker.harness.bench import Budget, _sample
from warpwatch.worker.harness.checks import anticheat
from warpwatch.worker.harness.failures import WrongResultError
from warpwatch.worker.harness.guards.integrity import TamperGuard
from warpwatch.worker.harness.oracle import Oracle
from warpwatch.worker.harness.timers import cpu as timer_cpu
from warpwatch.worker.harness.timers.cpu import CpuHotTimer
from warpwatch.worker.harness.timers.health import DeviceHealth
from warpwatch.worker.harness.timers.rotation import Rotation
from warpwatch.worker.harness.timers.summary import interval, is_narrow, summarize
from warpwatch.worker.harness.timers.warm_up import call_first

BUDGET_NS = 100_000_000


def bench(harness: Harness, variant: str, case: str = "n=1000,f32,fwd", operator: str = "scale") -> BenchReply:
    return harness.ask(BenchReply, "bench", operator=operator, variant=variant, case=case, budget_ns=BUDGET_NS)


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_bench_measures_every_metric(harness: Harness, direction: str) -> None:
    reply = bench(harness, "right_gradient", f"n=1000,f32,{direction}")
    assert (reply.status, reply.message) == (Status.OK, "")
    assert (reply.flops, reply.bytes) == (2000, 8000)
    assert [m.metric for m in reply.measurements] == ["hot", "cold"]
    for measurement in reply.measurements:
        assert len(measurement.samples_ns) >= 10
        assert measurement.low_ns <= measurement.median_ns <= measurement.high_ns
        assert measurement.median_ns == pytest.approx(statistics.median(measurement.samples_ns), rel=1e-6)
        assert measurement.dropped == 0
    assert reply.health["before"]["cores"] >= 1
    assert 0 < reply.health["empty_ns"]["hot"] < reply.measurements[0].median_ns
    assert reply.counters["memory"].median >= 4000, "the result is allocated in the call"
    assert ("instructions" in reply.counters) != bool(reply.health["notes"])
    assert [event["text"] for event in harness.events] == ["hot", "cold"]


class Clock:
    """Time that passes while a fake timer samples."""

    def __init__(self) -> None:
        self.ns = 0


class NoisyTimer:
    """Takes one sample of 1 ms in each of its placements; the samples never agree."""

    placements = 3

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def take(self) -> list[float]:
        self._clock.ns += 1_000_000
        return [1e6 * (1 + self._clock.ns % 7)]

    def verify(self) -> None: ...


@pytest.mark.parametrize(
    ("budget", "count"),
    [
        (Budget(30_000_000), 30),
        (Budget(30_000_000, allowed_ns=60_000_000), 30),
        (Budget(30_000_000, allowed_ns=60_000_000).without_opening(22_000_000), 18),
        # Opening took all that is allowed: the fewest samples, every placement as often as the others.
        (Budget(30_000_000, allowed_ns=10_000_000).without_opening(9_000_000), 12),
        # Ten samples would take more than ten times the usual time.
        (Budget(200_000), 3),
    ],
)
def test_a_side_metric_takes_what_is_left_to_it(monkeypatch: pytest.MonkeyPatch, budget: Budget, count: int) -> None:
    clock = Clock()
    monkeypatch.setattr(harness_bench, "perf_counter_ns", lambda: clock.ns)
    guard = TamperGuard()
    times, kept = _sample(NoisyTimer(clock), "hot", budget, DeviceHealth(torch.device("cpu")), guard)
    assert (len(times), kept.dropped) == (count, 0)
    assert kept.nanoseconds == tuple(times)


def test_more_work_takes_longer(harness: Harness) -> None:
    small, large = bench(harness, "good"), bench(harness, "good", "n=1000000,f32,fwd")
    assert large.measurements[0].median_ns > 3 * small.measurements[0].median_ns


@pytest.mark.parametrize("variant", ["last_wrong", "keeps_by_shape", "keeps_by_address", "keeps_when_timed", "mutates"])
def test_what_is_wrong_when_timed_has_no_time(harness: Harness, variant: str) -> None:
    reply = bench(harness, variant)
    assert reply.status is Status.WRONG, reply.message
    assert reply.measurements == []


def test_a_check_alone_would_not_see_it(harness: Harness) -> None:
    reply = harness.ask(CheckReply, "check", operator="scale", variant="keeps_when_timed", case="n=1000,f32,fwd")
    assert reply.status is Status.OK


@pytest.mark.parametrize("slices", [1, 2, 3])
def test_numbers_that_come_round_again_hide_nothing(slices: int) -> None:
    """Three sets return to their first place after three slices; a result cached by address is then right again."""
    cached: dict[int, torch.Tensor] = {}
    problem = twice(lambda x: cached.setdefault(x.data_ptr(), 2 * x))
    with problem.modes():
        timer = CpuHotTimer(problem, 0, 1_000_000)
        for _ in range(slices):
            timer.take()
        with pytest.raises(WrongResultError) as wrong:
            timer.verify()
    # What is left in the buffer depends on the addresses that the allocator gives out.
    assert wrong.value.fault in (Fault.CACHED_RESULT, Fault.UNWRITTEN_RESULT)


def test_work_that_ends_beside_the_oracle_was_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread with several calls' work before it may start on the last one when the harness has waited for it."""
    left: list[tuple[torch.Tensor, torch.Tensor]] = []

    def later(x: torch.Tensor) -> torch.Tensor:
        left.append((x, torch.zeros_like(x)))
        return left[-1][1]

    class BusyOracle(Oracle):
        def find_wrong(self, results: dict[str, torch.Tensor]) -> str | None:
            for x, y in left:
                y.copy_(2 * x)
            return super().find_wrong(results)

    monkeypatch.setattr(anticheat, "Oracle", BusyOracle)
    problem = twice(later)
    with problem.modes(), pytest.raises(WrongResultError, match="y still changes after the call") as wrong:
        anticheat.expect_honest(problem, 0)
    assert (wrong.value.fault, wrong.value.subjects) == (Fault.UNFINISHED, ["y"])


def test_a_result_that_is_kept_since_the_first_call_is_named() -> None:
    """In a child beside others the first call has inputs of its own, whose memory those of the checks may get."""
    kept: list[torch.Tensor] = []

    def once(x: torch.Tensor) -> torch.Tensor:
        kept.append(2 * x)
        return kept[0]

    problem = twice(once)
    call_first(problem, 3, TamperGuard())
    with problem.modes(), pytest.raises(WrongResultError) as wrong:
        anticheat.expect_honest(problem, 3)
    assert wrong.value.fault is Fault.CACHED_RESULT
    with problem.modes(), pytest.raises(WrongResultError) as wrong:
        Rotation(problem, 3, 2).verify({})
    assert wrong.value.fault is Fault.CACHED_RESULT


@pytest.mark.parametrize(("at_first_ns", "later_ns", "samples"), [(2_000, 200_000, 8), (20_000_000, 20_000_000, 1)])
def test_a_slice_that_other_work_stops_has_a_fastest_tenth(
    at_first_ns: int, later_ns: int, samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second variant takes longer than a slice by itself, so that one sample is all there is room for."""
    now, call_ns = [0], [at_first_ns]

    def pausing(x: torch.Tensor) -> torch.Tensor:
        now[0] += call_ns[0]
        return 2 * x

    monkeypatch.setattr(timer_cpu, "perf_counter_ns", lambda: now[0])
    problem = twice(pausing)
    with problem.modes():
        timer = CpuHotTimer(problem, 0, 5_000_000)
        call_ns[0] = later_ns
        assert len(timer.take()) == samples


@pytest.mark.parametrize("stopped", [1, 4])
def test_other_work_that_stops_the_first_rounds_makes_no_slices_of_fewer_samples(
    monkeypatch: pytest.MonkeyPatch, stopped: int
) -> None:
    """It stops so many of the rounds of three calls that the samples are planned by, and every later call."""
    now, calls, is_planned = [0], [0], [False]

    def stopping(x: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        # The first three calls are no round.
        is_stopped = is_planned[0] or (calls[0] % 3 == 0 and 1 < calls[0] // 3 <= 1 + stopped)
        now[0] += 20_000_000 if is_stopped else 500_000
        return 2 * x

    monkeypatch.setattr(timer_cpu, "perf_counter_ns", lambda: now[0])
    problem = twice(stopping)
    with problem.modes():
        timer = CpuHotTimer(problem, 0, 5_000_000)
        is_planned[0] = True
        assert len(timer.take()) == 8


def test_slow_first_calls_make_no_shorter_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0]

    def waking(x: torch.Tensor) -> torch.Tensor:
        now[0] += 100_000 if now[0] < 600_000 else 2_000
        return 2 * x

    monkeypatch.setattr(timer_cpu, "perf_counter_ns", lambda: now[0])
    problem = twice(waking)
    with problem.modes():
        timer = CpuHotTimer(problem, 0, 5_000_000)
        assert now[0] > 600_000, "the first calls were slow"
        begin = now[0]
        timer._sample()
    assert now[0] - begin >= timer_cpu.SAMPLE_NS


def test_wrong_gradients_have_no_time(harness: Harness) -> None:
    for variant in ("gradient_is_incoming", "gradient_is_none", "detached"):
        assert bench(harness, variant, "n=1000,f32,bwd").status is Status.WRONG


@pytest.mark.parametrize(("variant", "status"), [("raises", Status.CRASHED), ("huge", Status.OUT_OF_MEMORY)])
def test_failures_of_bench_and_profile(harness: Harness, tmp_path: Path, variant: str, status: Status) -> None:
    assert bench(harness, variant).status is status
    names = {"operator": "scale", "variant": variant, "case": "n=1000,f32,fwd"}
    assert harness.ask(ProfileReply, "profile", **names, output=str(tmp_path / "t.json.gz")).status is status
    assert harness.ask(SampleReply, "prepare", **names).status is status
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("case", ["n=33,f32,fwd", "n=33,f32,bwd"])
def test_interleaved_slices(harness: Harness, case: str) -> None:
    names = {"operator": "pair", "variant": "good", "case": case, "budget_ns": 60_000_000, "rounds": 12}
    prepared = harness.ask(SampleReply, "prepare", **names)
    assert (prepared.status, prepared.metric, prepared.samples_ns) == (Status.OK, "hot", [])
    for _ in range(3):
        reply = harness.ask(SampleReply, "sample", **names)
        assert reply.status is Status.OK
        assert len(reply.samples_ns) >= 1
        assert min(reply.samples_ns) > 0
    assert harness.ask(SampleReply, "finish", **names).status is Status.OK
    assert harness.ask(SampleReply, "sample", **names).status is Status.SKIPPED


def test_a_wrong_result_comes_out_at_the_finish(harness: Harness) -> None:
    names = {"operator": "scale", "variant": "keeps_when_timed", "case": "n=1000,f32,fwd"}
    assert harness.ask(SampleReply, "prepare", **names).status is Status.OK
    assert harness.ask(SampleReply, "sample", **names).status is Status.OK
    reply = harness.ask(SampleReply, "finish", **names)
    assert reply.status is Status.WRONG
    assert "Wrong in timed calls" in reply.message


def test_median_interval_covers_as_often_as_it_says() -> None:
    import random

    source = random.Random(1)
    for count in (10, 30, 100):
        hits = 0
        for _ in range(400):
            _, low, high = interval([source.gauss(0, 1) for _ in range(count)])
            hits += low <= 0 <= high
        assert hits >= 0.93 * 400


def test_summaries() -> None:
    assert is_narrow([100.0] * 10)
    assert not is_narrow([100.0] * 9)
    assert not is_narrow([90.0, 110.0] * 20)
    measurement = summarize("hot", [3.0, 1.0, 2.0], 4, "software thermal")
    assert (measurement.samples_ns, measurement.median_ns, measurement.low_ns, measurement.high_ns) == (
        [3.0, 1.0, 2.0],
        2.0,
        1.0,
        3.0,
    )
    assert (measurement.noise, measurement.dropped, measurement.dropped_reason) == (0.5, 4, "software thermal")
