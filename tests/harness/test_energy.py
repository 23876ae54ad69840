"""The energy of a call, with an energy counter and a graph that stand in for those of a GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.harness.test_turns import problem_of
from warpwatch.contract.messages import GraphPlan
from warpwatch.contract.words import Fault
from warpwatch.worker.harness import bench as harness_bench
from warpwatch.worker.harness.failures import WrongResultError
from warpwatch.worker.harness.guards.integrity import TamperGuard
from warpwatch.worker.harness.problem import CaseProblem
from warpwatch.worker.harness.profile import profiling
from warpwatch.worker.harness.timers import counts, energy
from warpwatch.worker.harness.timers.counts import CallCounts, count_energy
from warpwatch.worker.harness.timers.energy import MOST_SPANS, SPANS, measure_energy, watts_of_spans
from warpwatch.worker.harness.timers.graphs import NoMetricError
from warpwatch.worker.harness.timers.health import DeviceHealth
from warpwatch.worker.harness.turns import ChildTurns

MS = 1_000_000
WATTS, CALL_NS = 400.0, 20_000.0
GPU = torch.device("cuda", 0)


@dataclass
class Card:
    """A card that takes WATTS under load, and whose counter is updated every `every_ns`. It works off its queue as time
    passes, and takes `idle_watts` when that is empty. Its driver keeps at most `queue_ns` of work in the queue, and
    lets the host wait until more fits. The host takes `ask_seconds` to ask for a slice."""

    every_ns: int = 20 * MS
    queue_ns: int = 1000 * MS
    ask_seconds: float = 0.0
    idle_watts: float = 100.0
    now_ns: int = 0
    busy_until_ns: int = 0
    exact_mj: float = 5_000_000.0
    counted_mj: int = 5_000_000
    throttle: int = 0
    read_seconds: float = 0.0
    verified: int = 0

    def wait(self, seconds: float) -> None:
        end = self.now_ns + round(seconds * 1e9)
        while self.now_ns < end:
            then = min(end, (self.now_ns // self.every_ns + 1) * self.every_ns)
            busy = max(0, min(then, self.busy_until_ns) - self.now_ns)
            self.exact_mj += (busy * WATTS + (then - self.now_ns - busy) * self.idle_watts) / 1e6
            self.now_ns = then
            if then % self.every_ns == 0:
                self.counted_mj = int(self.exact_mj)

    def read(self) -> int | None:
        self.wait(self.read_seconds)
        return self.counted_mj


class Event:
    def __init__(self, card: Card) -> None:
        self._card, self.at_ns = card, card.busy_until_ns

    def query(self) -> bool:
        return self._card.now_ns >= self.at_ns

    def synchronize(self) -> None:
        self._card.wait(max(0, self.at_ns - self._card.now_ns) / 1e9)


class Timer:
    """A graph of 100 calls of CALL_NS, each of which is a launch."""

    plan = GraphPlan(10, 1, 100, 10)
    launches: float | None = 1.0

    def __init__(self, card: Card, error: Exception | None = None) -> None:
        self._card, self._error = card, error

    def take(self) -> list[float]:
        return [CALL_NS] * 10

    def queue(self, replays: int) -> Event:
        card = self._card
        card.wait(card.ask_seconds)
        card.busy_until_ns = max(card.now_ns, card.busy_until_ns) + round(replays * 100 * CALL_NS)
        card.wait(max(0, card.busy_until_ns - card.now_ns - card.queue_ns) / 1e9)
        return Event(card)

    def verify_results(self) -> None:
        self._card.verified += 1
        if self._error is not None:
            raise self._error


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    """The only GPU, by NVML, and its clock instead of the host's."""
    card = Card()
    nvml = SimpleNamespace(
        NVMLError=ZeroDivisionError,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetTotalEnergyConsumption=lambda _: card.read(),
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda _: card.throttle,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="0"))
    monkeypatch.setattr(energy, "GraphTimer", lambda *_, **__: Timer(card))
    monkeypatch.setattr(energy, "elapsed_ns", lambda start, end: float(end.at_ns - start.at_ns))
    monkeypatch.setattr(energy, "sleep", card.wait)
    monkeypatch.setattr(energy.watts_of_spans, "__defaults__", (lambda: card.now_ns,))
    return card


def problem(**more: Any) -> CaseProblem:
    values: dict[str, Any] = {"device": GPU, "turns": ChildTurns(), **more}
    return SimpleNamespace(**values)  # type: ignore[return-value]


@pytest.mark.parametrize("every_ms", [1, 20, 33, 100])
def test_the_energy_of_a_call_is_power_times_time(card: Card, every_ms: int) -> None:
    card.every_ns = every_ms * MS
    counters = measure_energy(problem(), 1, CALL_NS)
    joules, power = counters["energy"], counters["power"]
    assert (joules.unit, joules.count, power.unit) == ("joules per call", SPANS, "W")
    assert joules.median == pytest.approx(WATTS * CALL_NS / 1e9, rel=0.01)
    assert [joules.low, joules.high] == pytest.approx([joules.median] * 2, rel=0.03)
    assert power.median == pytest.approx(WATTS, rel=0.01)
    assert card.verified == 1
    assert 180 * MS < card.now_ns < 400 * MS, "two spans, and what comes before the first update"


def test_a_driver_that_lets_the_host_wait(card: Card) -> None:
    """When graphs have many launches, its queue holds less than a slice."""
    card.queue_ns = MS
    assert measure_energy(problem(), 1, CALL_NS)["power"].median == pytest.approx(WATTS, rel=0.05)
    assert card.now_ns < 900 * MS


def test_a_host_that_is_slower_than_the_card(card: Card) -> None:
    card.ask_seconds = 0.006
    with pytest.raises(NoMetricError, match="more slowly"):
        measure_energy(problem(), 1, CALL_NS)
    assert card.now_ns < 900 * MS


def test_a_call_that_launches_nothing_has_no_energy(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Timer, "launches", 0.0)
    with pytest.raises(NoMetricError, match="nothing to do"):
        measure_energy(problem(), 1, CALL_NS)
    assert card.now_ns == 0


def test_the_queue_never_runs_empty(card: Card) -> None:
    """Not even while the counter is read slowly: an idle card would make a call cheap."""
    card.idle_watts, card.read_seconds = 0.0, 0.0053
    assert measure_energy(problem(), 1, CALL_NS)["power"].median > 0.97 * WATTS


def test_spans_begin_and_end_at_updates(card: Card) -> None:
    """Without that, half of the spans would have one update of 60 ms too many or too few."""
    card.every_ns = 60 * MS
    card.idle_watts = WATTS
    watts = watts_of_spans(card.read, lambda: card.wait(0.001), lambda: card.now_ns)
    assert watts == pytest.approx([WATTS] * SPANS, rel=0.02)


def test_a_first_span_in_which_power_rises_is_not_counted(card: Card) -> None:
    """The power of a card rises for a moment after the load has begun."""

    def read() -> int:
        late = min(card.now_ns, 90 * MS)
        return int((card.now_ns * WATTS - late * WATTS / 2) / 1e6) // 8 * 8

    watts = watts_of_spans(read, lambda: card.wait(0.001), lambda: card.now_ns)
    assert watts == pytest.approx([WATTS] * SPANS, rel=0.05)


def test_power_that_still_rises_is_waited_for(card: Card) -> None:
    def read() -> int:
        now_ms = card.now_ns // MS // 10 * 10
        rising_ms = min(now_ms, 300)
        # From half of the load's power to all of it.
        return round(WATTS * (rising_ms / 2 + rising_ms**2 / 1200 + now_ms - rising_ms))

    watts = watts_of_spans(read, lambda: card.wait(0.001), lambda: card.now_ns)
    assert watts == pytest.approx([WATTS] * SPANS, rel=0.02)


def test_all_spans_count_where_none_agrees_with_the_next(card: Card) -> None:
    """Some updates come late, and then a span has what belongs to its neighbour."""

    def read() -> int:
        updates = card.now_ns // MS // 100
        return round(WATTS * 100 * (updates + 0.2 * (updates % 2)))

    watts = watts_of_spans(read, lambda: card.wait(0.001), lambda: card.now_ns)
    assert len(watts) == MOST_SPANS
    assert sum(watts) / len(watts) == pytest.approx(WATTS, rel=0.02)


def _no_counter(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Any) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr(sys.modules["pynvml"], "nvmlDeviceGetTotalEnergyConsumption", refuse)


def _no_nvml(_: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)


def _standing_counter(card: Card, _: pytest.MonkeyPatch) -> None:
    card.every_ns = 10**12


def _slow_counter(card: Card, _: pytest.MonkeyPatch) -> None:
    card.every_ns = 1500 * MS


def _throttled(card: Card, _: pytest.MonkeyPatch) -> None:
    card.throttle = 0x40


def _backwards(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(card, "read", lambda: 10**9 - card.counted_mj)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (_no_counter, "no energy counter"),
        (_no_nvml, "no energy counter"),
        (_standing_counter, "too rarely"),
        (_slow_counter, "too rarely"),
        (_throttled, "hardware thermal"),
        (_backwards, "backwards"),
    ],
)
def test_what_has_no_energy_is_absent_and_says_why(
    card: Card, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Card, pytest.MonkeyPatch], None], why: str
) -> None:
    spoil(card, monkeypatch)
    counted = count_energy(problem(), 1, CALL_NS)
    assert counted.counters == {}
    assert why in counted.notes[0]


def test_long_calls_and_cpus_have_none(card: Card) -> None:
    with pytest.raises(NoMetricError, match="too long"):
        measure_energy(problem(), 1, 200e6)
    assert (count_energy(problem(device=torch.device("cpu")), 1, CALL_NS), card.now_ns) == (CallCounts(), 0)
    assert DeviceHealth(torch.device("cpu")).millijoules() is None


def test_the_device_is_its_own_meanwhile(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    uses: list[str] = []
    turns = ChildTurns(lambda use: uses.append(f"{use} {card.now_ns // MS > 180}"))
    turns.start(2)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    measure_energy(problem(turns=turns), 1, CALL_NS)
    assert uses == ["device False", "none True"]


def test_a_wrong_call_is_wrong_in_a_bench_and_profiled_without_energy(
    card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = WrongResultError("y is wrong", Fault.WRONG_VALUES)
    monkeypatch.setattr(energy, "GraphTimer", lambda *_, **__: Timer(card, error))
    with pytest.raises(WrongResultError):
        count_energy(problem(), 1, CALL_NS)
    assert profiling._count_energy(problem(modes=nullcontext), 1, CALL_NS) == {}


@pytest.mark.parametrize(("budget_ns", "times"), [(10_000_000, 1), (9_999_999, 0)])
def test_a_bench_takes_the_time_for_it_when_it_has_a_large_budget(
    monkeypatch: pytest.MonkeyPatch, budget_ns: int, times: int
) -> None:
    """It would double the time of a usual bench."""
    taken: list[float] = []

    def count(_problem: CaseProblem, _seed: int, call_ns: float) -> CallCounts:
        taken.append(call_ns)
        return CallCounts(notes=("counted",))

    monkeypatch.setattr(harness_bench, "ENERGY_BUDGET_NS", 10_000_000)
    monkeypatch.setattr(counts, "count_energy", count)
    reply = harness_bench.bench(problem_of([]), 0, budget_ns, TamperGuard(), lambda *_step: None)
    assert taken == [reply.measurements[0].median_ns] * times
    assert reply.health["notes"].count("counted") == times
