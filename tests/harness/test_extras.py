"""Tests what is measured beside the metrics: setup, counters, empty calls, and the load of the machine."""

from __future__ import annotations

import pytest
import torch

from tests.harness.child import Harness
from warpwatch.contract.messages import BenchReply, CheckReply, SampleReply
from warpwatch.contract.words import Status
from warpwatch.worker.harness.bench import empty_ns
from warpwatch.worker.harness.timers import counts
from warpwatch.worker.harness.timers.counts import Events, NotCountedError, between, count_calls
from warpwatch.worker.harness.timers.cuda import MeasuredInput, choose_launches, choose_sets
from warpwatch.worker.harness.timers.health import Load
from warpwatch.worker.harness.timers.kernel import split

SOFTWARE, TASK_CLOCK = 1, 1
CASE = "n=1000,f32,fwd"


def bench(harness: Harness, variant: str, case: str = CASE) -> BenchReply:
    return harness.ask(BenchReply, "bench", operator="scale", variant=variant, case=case, budget_ns=60_000_000)


@pytest.mark.parametrize("variant", ["prepares", "prepares_slowly"])
def test_what_is_prepared_is_timed_apart_and_made_anew_for_new_numbers(harness: Harness, variant: str) -> None:
    reply = bench(harness, variant)
    assert (reply.status, reply.message) == (Status.OK, "")
    measured = {m.metric: m for m in reply.measurements}
    assert list(measured) == ["hot", "cold", "setup"]
    assert len(measured["setup"].samples_ns) >= 3
    if variant == "prepares_slowly":
        assert measured["setup"].median_ns > 2_000_000 > measured["hot"].median_ns


def test_check_backward_and_slices_prepare_too(harness: Harness) -> None:
    names = {"operator": "scale", "variant": "prepares"}
    assert harness.ask(CheckReply, "check", case=CASE, **names).status is Status.OK
    assert bench(harness, "prepares_slowly", "n=1000,f32,bwd").status is Status.OK
    assert harness.ask(SampleReply, "prepare", case=CASE, **names).status is Status.OK
    assert harness.ask(SampleReply, "sample", case=CASE, **names).status is Status.OK
    assert harness.ask(SampleReply, "finish", case=CASE, **names).status is Status.OK


def test_events_are_read_where_the_kernel_gives_them() -> None:
    try:
        events = Events(SOFTWARE, TASK_CLOCK)
    except NotCountedError as error:
        pytest.skip(f"not even software events: {error}")
    before = events.total()
    sum(range(200_000))
    assert events.total() > before
    events.close()


def test_calls_are_counted() -> None:
    try:
        counter = count_calls([lambda: sum(range(100_000)), lambda: sum(range(100_000))], SOFTWARE, TASK_CLOCK)
    except NotCountedError as error:
        pytest.skip(f"not even software events: {error}")
    assert 0 < counter.low <= counter.median <= counter.high
    assert (counter.unit, counter.count) == (counts.UNIT, 10)


def test_what_no_machine_counts_is_refused_with_a_reason() -> None:
    with pytest.raises(NotCountedError, match="perf_event_open"):
        count_calls([int], 0, 9999)


def test_an_empty_call_takes_less_by_the_loop_than_alone() -> None:
    first = empty_ns(torch.device("cpu"))
    assert set(first) == {"hot", "cold"}
    assert 0 < first["hot"] < first["cold"]
    # Only the first metric is measured every time.
    later = [empty_ns(torch.device("cpu")) for _ in range(5)]
    assert {again["cold"] for again in later} == {first["cold"]}
    assert len({again["hot"] for again in later}) > 1


def test_load_is_told_in_shares() -> None:
    load = Load().read()
    assert load["cores"] >= 1
    assert all(0 <= load[name] <= 1 for name in ("steal", "idle", "pressure") if name in load)


def test_durations_of_kernels_fall_into_calls() -> None:
    assert split([1, 10, 2, 20], 2) == [11.0, 22.0]
    assert split([1, 10, 2, 20, 3], 2) == [18.0]


@pytest.mark.parametrize(
    ("set_bytes", "call_ns", "planned"),
    [
        (2**20, 10_000, (151, 6)),
        (2**30, 10_000, (2, 6)),
        (2**16, 10_000, (256, 4)),
        (2**10, 10_000, (64, 6)),
        (2**36, 10_000, (1, 1)),
        (2**20, 20_000_000, (10, 2)),
        (2**20, 200_000_000, (2, 1)),
        (2**20, 10**9, (2, 1)),
    ],
)
def test_sets_leave_the_l2_behind_unless_calls_are_slow(set_bytes: int, call_ns: int, planned: tuple[int, int]) -> None:
    assert choose_sets(50 * 2**20, 2**36 // set_bytes, set_bytes, call_ns, 6) == planned


def test_up_to_a_millisecond_of_host_time_changes_neither_sets_nor_launches() -> None:
    for sets, device_ns in ((2, 3_000), (20, 12_000), (64, 26_000), (151, 8_000), (256, 2_000)):
        plans = {host_ns: choose_launches(sets, 6, device_ns, host_ns) for host_ns in (1, 10_000, 100_000, 1_000_000)}
        assert {(plan[0], plan[2]) for plan in plans.values()} == {(sets, plans[1][2])}
        assert plans[1][2] % sets == 0, "all sets are called equally often"
        assert [plan[1] for plan in plans.values()][::3] == [6, 2]


def test_captures_of_slow_hosts_end_in_time() -> None:
    """200 sets of a call that takes the host 10 ms would take 4 s."""
    sets, placements, launches = choose_launches(200, 6, 1_000_000, 10_000_000)
    assert (sets, placements, launches) == (40, 2, 40)
    assert choose_launches(1, 1, 5_000, 100_000_000) == (1, 1, 4)


@pytest.mark.parametrize(("first_ns", "may"), [(40_000_000, False), (250_000_000, True), (20_000, False)])
def test_a_long_first_call_may_have_tuned_itself(first_ns: int, may: bool) -> None:
    """Loading code takes tens of milliseconds, two configurations of Triton 250."""
    assert MeasuredInput(2**20, 20_000, first_ns, 0).may_have_tuned is may


@pytest.mark.parametrize(("prepare_ns", "sets"), [(75_000_000, 5), (1_000_000, 400), (10**9, 2)])
def test_the_longer_a_set_is_prepared_the_fewer_there_are(prepare_ns: int, sets: int) -> None:
    assert MeasuredInput(2**20, 20_000, 20_000, prepare_ns).prepared_sets == sets


def test_cycles_are_those_of_multiprocessors_that_were_seen_twice() -> None:
    before = torch.tensor([[100, 50], [0, 0], [7, 60], [10, 40], [900, 10]])
    after = torch.tensor([[2100, 1050], [5000, 1060], [0, 0], [2010, 1040], [2901, 1010]])
    assert between(before, after) == (2000.0, 2.0)
