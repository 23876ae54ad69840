"""Metrics, cheaters and the canary on a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.harness.child import Harness
from tests.harness.test_cheaters import BURNS_SECONDS, CASE, CASES, CHEATERS, variants
from tests.harness.twice import twice
from warpwatch.contract.measurement import METRICS
from warpwatch.contract.messages import BenchReply, CanaryReply, CeilingsReply, CheckReply
from warpwatch.contract.outcome import Finding
from warpwatch.contract.words import Fault, Status
from warpwatch.worker.harness.bench import bench
from warpwatch.worker.harness.guards.integrity import TamperGuard
from warpwatch.worker.harness.problem import CaseProblem
from warpwatch.worker.harness.timers.cpu import spin
from warpwatch.worker.harness.timers.cuda import GraphTimer, plan_graphs, sleep
from warpwatch.worker.harness.timers.graphs import NoMetricError
from warpwatch.worker.harness.timers.launch import LaunchTimer
from warpwatch.worker.proving import ExpectedFault

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]
PRODUCTS = Path(__file__).parent / "gpu_repository"


@pytest.fixture(scope="module")
def cheaters(cache: Path) -> Iterator[Harness]:
    child = Harness(CHEATERS, cache.parent / "gpu-cheaters", device="cuda:0")
    yield child
    assert child.stop() == 0, child.log.read_text()


@pytest.fixture(scope="module")
def products(cache: Path) -> Iterator[Harness]:
    child = Harness(PRODUCTS, cache.parent / "gpu-products", device="cuda:0")
    yield child
    assert child.stop() == 0, child.log.read_text()


@pytest.mark.parametrize(("operator", "variant", "expected"), variants(elsewhere="cpu"), ids=str)
def test_every_cheater_is_named_and_no_honest_twin_is(
    cheaters: Harness, operator: str, variant: str, expected: ExpectedFault | None
) -> None:
    case = CASES["cuda"].get(operator, CASE)
    reply = cheaters.ask(BenchReply, "bench", operator=operator, variant=variant, case=case)
    print(operator, variant, reply.status, reply.message)
    if operator == "burning":
        # Its thread works on for a while, and other variants of this process would be accused of that.
        time.sleep(BURNS_SECONDS)
    if expected is None:
        assert reply.status is Status.OK, reply.message
        assert reply.message == "" or reply.fault is Fault.NOT_CAPTURABLE
        assert variant != "honest_default_stream" or reply.fault is Fault.NOT_CAPTURABLE
        return
    assert reply.status is Status.WRONG, reply.message
    finding = Finding(variant, case, reply.status, fault=reply.fault, subjects=reply.subjects)
    assert expected.matches(finding), (reply.fault, reply.subjects)


@pytest.mark.parametrize("n", [64, 256, 2048])
def test_metrics_stand_in_the_order_that_they_must(products: Harness, n: int) -> None:
    reply = products.ask(BenchReply, "bench", operator="product", variant="good", case=f"n={n},f32,fwd")
    medians = {m.metric: m.median_ns for m in reply.measurements}
    print(n, medians, reply.health)
    assert tuple(medians) == METRICS["cuda"]
    assert reply.health["empty_ns"].keys() == medians.keys()
    # Device time excludes launches and events, and launches on data in the L2 are not slower.
    assert medians["kernel"] < 1.05 * medians["cold"]
    assert medians["kernel"] < medians["call"]
    assert medians["launch"] < medians["call"]
    assert medians["hot"] < 1.1 * medians["graph"]
    assert medians["graph"] > 0.8 * medians["kernel"]
    # Cycles over the clock equal the time by events, unless kernel launches of the process became slower in between.
    cycles, clock = reply.counters["cycles"], reply.counters["clock"]
    assert cycles.median / clock.median == pytest.approx(medians["graph"], rel=0.03, abs=700)
    assert 0.5 < 1e3 * clock.median / reply.health["after"].get("sm_mhz", 1e3 * clock.median) < 1.1


@pytest.mark.parametrize("direction", ["step", "fwd_train"])
def test_both_passes_of_a_step_are_captured_in_one_graph(products: Harness, direction: str) -> None:
    case = f"n=256,f32,{direction}"
    names = {"operator": "product", "case": case}
    checked = products.ask(CheckReply, "check", variant="good", **names)
    assert (checked.status, checked.message) == (Status.OK, "")
    assert {probe.name: probe.status for probe in checked.probes}["graph capture"] == "ok"
    reply = products.ask(BenchReply, "bench", variant="good", **names)
    medians = {item.metric: item.median_ns for item in reply.measurements}
    print(direction, medians, {name: counter.median for name, counter in reply.counters.items()})
    assert (reply.status, reply.message, tuple(medians)) == (Status.OK, "", METRICS["cuda"])
    # One product forward and two backward; what is kept is the result, since both factors are inputs.
    facts = reply.health["testimony"]
    assert facts["captured_launches"] >= (3 if direction == "step" else 1)
    assert reply.counters["kept"].median >= 4 * 256**2
    waiting = products.ask(BenchReply, "bench", variant="waits", **names)
    assert waiting.status is Status.OK
    assert "No metric graph" in waiting.message
    assert [item.metric for item in waiting.measurements] == ["kernel", "cold", "call"]


def test_a_step_shows_what_moved_into_the_forward_pass(cache: Path) -> None:
    """A quarter of the products backward is a gain of four there, none of a step, and the forward pass pays."""
    child = Harness(CHEATERS.with_name("honest"), cache.parent / "gpu-honest", device="cuda:0")
    graph = {}
    for variant in ("chain", "in_forward"):
        for direction in ("fwd", "bwd", "step", "fwd_train"):
            case = f"rows=1536,n=2048,f32,{direction}"
            reply = child.ask(BenchReply, "bench", operator="steps", variant=variant, case=case)
            assert (reply.status, reply.message) == (Status.OK, "")
            graph[variant, direction] = next(m.median_ns for m in reply.measurements if m.metric == "graph")
    assert child.stop() == 0
    ratios = {name: graph["in_forward", name] / graph["chain", name] for name in ("fwd", "bwd", "step", "fwd_train")}
    print(graph, ratios)
    assert ratios["bwd"] < 0.5
    assert 0.9 < ratios["fwd"] < 1.1
    assert ratios["step"] > 1.02
    assert ratios["fwd_train"] > 1.5


def test_the_canary_is_near_the_ceilings(products: Harness) -> None:
    peaks = products.ask(CeilingsReply, "ceilings").peaks
    reply = products.ask(CanaryReply, "canary")
    print(reply, peaks)
    assert reply.status is Status.OK
    assert set(reply.rates) == {"copy", "f32"}
    assert all(0.85 * peaks[name] < rate < 1.1 * peaks[name] for name, rate in reply.rates.items())


def test_what_prepares_slowly_is_prepared_for_few_sets() -> None:
    """A graph cannot capture a wait for the host, and eager timers take no more sets than are prepared in time."""
    prepared: list[int] = []

    def prepare(x: Tensor) -> dict[str, Any]:
        time.sleep(0.04)
        prepared.append(x.numel())
        return {}

    def double(x: Tensor) -> Tensor:
        torch.cuda.synchronize()
        return 2 * x

    problem = twice(double, device="cuda:0")
    object.__setattr__(problem.variant, "prepare", prepare)
    reply = bench(problem, 0, 10_000_000, TamperGuard(), lambda *_step: None)
    assert (reply.status, {m.metric for m in reply.measurements} & set(METRICS["cuda"])) == (
        Status.OK,
        {"kernel", "cold", "call"},
    )
    assert len(prepared) < 200, "64 sets, prepared again for each slice, are more than 500"


def after(wait_ns: int, work: Callable[[Tensor], Tensor] = lambda x: 2 * x) -> CaseProblem:
    """2 x, and so much more time on the host."""

    def double(x: Tensor) -> Tensor:
        spin(wait_ns)
        return work(x)

    return twice(double, device="cuda:0")


@pytest.mark.parametrize("wait_ns", [10_000, 100_000, 1_000_000])
def test_host_time_changes_no_plan(wait_ns: int) -> None:
    problem = after(wait_ns)
    with problem.modes():
        quick, slow = (plan_graphs(measured, 0, 6) for measured in (after(0), problem))
        print(quick, slow)
        assert (quick.sets, quick.launches, quick.calls) == (slow.sets, slow.launches, slow.calls)
        both = quick & slow
        timer = GraphTimer(problem, 0, 6, plan=both)
        assert timer.plan == both
        assert min(timer.take()) < wait_ns, "no host time is in a replay"


def test_a_launch_has_the_host_time_and_none_of_the_device() -> None:
    wait_ns, device_ns = 200_000, 5_000_000
    problems = after(0), after(wait_ns), after(0, lambda x: _sleep(device_ns, 2 * x))
    with problems[0].modes():
        quick, slow, long = (LaunchTimer(problem, 0) for problem in problems)
        base, waited, busy = (min(timer.take()) for timer in (quick, slow, long))
        added = min(quick.take(wait_ns))
        print(base, waited, added, busy)
        assert waited - base == pytest.approx(wait_ns, rel=0.2)
        assert added - base == pytest.approx(wait_ns, rel=0.2)
        assert busy - base < wait_ns
        for timer in (quick, slow, long):
            timer.verify()


def _sleep(nanoseconds: int, y: Tensor) -> Tensor:
    sleep(nanoseconds)
    return y


def test_a_call_that_waits_for_the_device_has_no_launch() -> None:
    def waits(x: Tensor) -> Tensor:
        torch.cuda.current_stream().synchronize()
        return 2 * x

    problem = after(0, waits)
    with problem.modes(), pytest.raises(NoMetricError, match="waits for the device"):
        LaunchTimer(problem, 0)
