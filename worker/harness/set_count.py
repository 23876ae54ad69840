"""How many input sets a timer on a GPU rotates through."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from time import perf_counter_ns

import torch

from warpwatch.contract.words import Status

from .failures import Refusal
from .problem import CaseProblem

L2_COVERED = 3
"""How many times the sets cover the L2, where calls are fast enough."""
_MOST_SETS = 256
_WARM_SETS = 64
"""Enough where even the most sets fill a quarter of the L2 at most: data is as warm, and each set costs a capture in
every placement. With half of it, which is one of the two partitions of an H200, times differed."""
_WALK_NS = 200_000_000
"""The longest walk through all sets, roughly.

Slow calls therefore get few sets; reading a set from memory takes less than a thousandth of such a call.
"""
_WALKS_NS = 400_000_000
"""The longest walk through the sets of all placements together, roughly.

It limits calls of more than 0.4 ms. Where they launch many kernels, their places in memory average out within one
placement.
"""
_MEMORY_SHARE = 0.4
_UNLIMITED = 2**62
_ENOUGH_SETS = 1024
"""In all placements together. The more sets, the less it matters where each of them lies, and each costs a capture."""
_FEWEST_PLACEMENTS = 2
_PREPARING_NS = 400_000_000
"""The longest preparing of all sets of eager calls, roughly: whenever their numbers move on, each is prepared anew. A
variant that captures a CUDA graph for its calls takes a tenth of a second for each.
"""
_TUNING_NS = 100_000_000
"""By so much longer a first call may have tuned itself: Triton times each configuration for 125 ms."""


@dataclass(frozen=True, slots=True)
class MeasuredInput:
    """bytes: that one set with its result takes. call_ns: of one eager call, at least 1000. first_ns: of the first.
    prepare_ns: that the variant prepares for it."""

    bytes: int
    call_ns: int
    first_ns: int
    prepare_ns: int

    @property
    def may_have_tuned(self) -> bool:
        """Whether the first call may have timed configurations to choose one, which needs a device of its own."""
        return self.first_ns - self.call_ns > _TUNING_NS

    @property
    def prepared_sets(self) -> int:
        """How many sets may be prepared for eager calls."""
        return max(2, _PREPARING_NS // max(1, self.prepare_ns))


@lru_cache(maxsize=1)
def measure_set(problem: CaseProblem, seed: int) -> MeasuredInput:
    """What the variant takes for one set of inputs, measured once for all timers of a problem; the process should not
    have called it on this case before."""
    device = problem.device
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    data = problem.data(seed)
    call = problem.call(data)
    begin = perf_counter_ns()
    result = call()
    torch.cuda.synchronize(device)
    first_ns = perf_counter_ns() - begin
    set_bytes = torch.cuda.memory_allocated(device) - before
    times = []
    for _ in range(3):
        start = perf_counter_ns()
        result = call()
        torch.cuda.synchronize(device)
        times.append(perf_counter_ns() - start)
    del result
    start = perf_counter_ns()
    problem.prepared(data)
    torch.cuda.synchronize(device)
    prepare_ns = perf_counter_ns() - start
    # A set in host memory must not count as 0 bytes.
    return MeasuredInput(max(set_bytes, data.nbytes, 1), max(min(times), 1000), first_ns, prepare_ns)


def plan_sets(problem: CaseProblem, set_bytes: int, call_ns: int, placements: int) -> tuple[int, int]:
    """(sets per placement, placements): enough sets to exceed the L2, few enough for memory and time.

    Raises Refusal where that takes more memory than there is for each lane.
    """
    l2_bytes = torch.cuda.get_device_properties(problem.device).L2_cache_size
    planned = plan(l2_bytes, affordable_sets(problem, set_bytes), set_bytes, call_ns, placements)
    expect_room(problem, is_enough=planned == plan(l2_bytes, _UNLIMITED, set_bytes, call_ns, placements))
    return planned


def expect_room(problem: CaseProblem, *, is_enough: bool) -> None:
    """Raises Refusal unless the memory of a lane is enough: what is timed must not depend on the number of lanes."""
    if problem.turns.are_taken and not is_enough:
        raise Refusal(Status.OUT_OF_MEMORY, "The input sets take more memory than there is for each lane")


def plan(l2_bytes: int, affordable: int, set_bytes: int, call_ns: int, placements: int) -> tuple[int, int]:
    """(sets per placement, placements) with memory for `affordable` sets.

    At least two sets where memory allows, and where calls are fast enough so many that they cover the L2 three times.
    """
    covering = max(2, math.ceil(L2_COVERED * l2_bytes / set_bytes) + 1)
    most = _WARM_SETS if 4 * _MOST_SETS * set_bytes <= l2_bytes else _MOST_SETS
    sets = max(1, min(covering, most, sets_in_one_walk(call_ns), affordable))
    enough = max(_FEWEST_PLACEMENTS, _ENOUGH_SETS // sets)
    return sets, max(1, min(placements, enough, affordable // sets, _WALKS_NS // (sets * call_ns)))


def sets_in_one_walk(call_ns: int) -> int:
    return max(2, _WALK_NS // call_ns)


def affordable_sets(problem: CaseProblem, set_bytes: int) -> int:
    """The number of sets that leaves most of the free memory free; in several lanes, most of each lane's memory."""
    device = problem.device
    free, total = torch.cuda.mem_get_info(device)
    if problem.turns.are_taken:
        return int(total * _MEMORY_SHARE / problem.turns.lanes / set_bytes)
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(free * _MEMORY_SHARE / set_bytes)
