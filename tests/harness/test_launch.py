"""The host time of a call on a simulated device, which sleeps, wakes and holds so many launches in its queue."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from torch import Tensor

from tests.harness.twice import twice
from warpwatch.contract.messages import GraphPlan
from warpwatch.contract.words import Fault
from warpwatch.worker.harness.failures import WrongResultError
from warpwatch.worker.harness.timers import cuda as timer_cuda
from warpwatch.worker.harness.timers import launch
from warpwatch.worker.harness.timers.graphs import NoMetricError
from warpwatch.worker.harness.timers.launch import LaunchTimer

HOST_NS, QUEUE = 50_000, 1024


class Device:
    """Time that calls and sleeps pass. launches: of each call. stalls: every so many calls the host loses 2 ms."""

    def __init__(self, *, launches: int = 1, waits: bool = False, stalls: int = 0) -> None:
        self.now = self.wakes_at = self.queued = self.calls = 0
        self._launches, self._waits, self._stalls = launches, waits, stalls

    def sleep(self, nanoseconds: float) -> None:
        self.queued, self.wakes_at = 0, self.now + int(nanoseconds)

    def run(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.now += 2_000_000 if self._stalls and self.calls % self._stalls == 0 else HOST_NS
        self.queued += self._launches
        if self._waits or self.queued > QUEUE:
            self.now = max(self.now, self.wakes_at)
        return 2 * x

    def spin(self, nanoseconds: float) -> int:
        self.now += int(nanoseconds)
        return int(nanoseconds)


def timer_of(monkeypatch: pytest.MonkeyPatch, device: Device, function: Any = None) -> LaunchTimer:
    event = SimpleNamespace(record=lambda: None, query=lambda: device.now >= device.wakes_at)
    monkeypatch.setattr(timer_cuda, "sleep", device.sleep)
    monkeypatch.setattr(launch, "new_event", lambda: event)
    monkeypatch.setattr(launch, "perf_counter_ns", lambda: device.now)
    monkeypatch.setattr(launch, "measure_queueing", lambda calls: HOST_NS * len([call() for call in calls]) // 8)
    monkeypatch.setattr(launch, "spin", device.spin)
    return LaunchTimer(twice(function or device.run), 0, GraphPlan(8, 1, 8, 1, calls=8))


@pytest.mark.parametrize(
    "device",
    [
        pytest.param(Device(), id="idle"),
        pytest.param(Device(stalls=5), id="a busy host"),
        pytest.param(Device(launches=300), id="many launches"),
        pytest.param(Device(launches=1000), id="a queue that holds one call"),
    ],
)
def test_a_launch_takes_what_the_code_takes(monkeypatch: pytest.MonkeyPatch, device: Device) -> None:
    timer = timer_of(monkeypatch, device)
    samples = timer.take()
    assert len(samples) >= 2
    assert set(samples) == {HOST_NS}
    assert set(timer.take(20_000.0)) == {HOST_NS + 20_000}, "a wait is found whole"
    timer.verify()


@pytest.mark.parametrize("device", [Device(waits=True), Device(launches=2 * QUEUE)], ids=["a result", "room"])
def test_a_call_that_waits_for_the_device_has_no_launch(monkeypatch: pytest.MonkeyPatch, device: Device) -> None:
    with pytest.raises(NoMetricError, match=r"after the device had slept for 1\.3 ms, so it waits for the device"):
        timer_of(monkeypatch, device)


def test_a_call_that_takes_the_device_long_has_no_launch() -> None:
    with pytest.raises(NoMetricError, match="takes the device too long"):
        LaunchTimer(twice(lambda x: 2 * x), 0, GraphPlan(2, 1, 2, 1, calls=0))


def test_a_call_that_returns_what_it_has_computed_before_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device()
    kept: dict[int, Tensor] = {}
    timer = timer_of(monkeypatch, device, lambda x: kept.setdefault(x.data_ptr(), device.run(x)))
    timer.take()
    with pytest.raises(WrongResultError) as caught:
        timer.verify()
    assert caught.value.fault is Fault.CACHED_RESULT
