"""Times what a call on an NVIDIA GPU takes the host, from entering the variant until it returns: `launch`.

Each call is timed for itself while the device sleeps. So no call waits for room in the device's queue. A call that
waits for the device takes as long as the device sleeps, however long that is. It has no `launch`, since that would
contain the device's time.

Other work on the host only adds time, so the fastest of a few calls in a row show the time of the code. The thread
stays on one core meanwhile, and both sides of a comparison take turns on the same core, because cores differ by more
than code does. Before each row the contents of the sets move on, and a row calls every set once at most:
host code that caches by address or version finds nothing that it has seen.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from os import urandom
from time import perf_counter_ns
from typing import Any

import torch

from warpwatch.contract.messages import GraphPlan

from ..guards.integrity import expect_unaltered
from ..problem import CaseProblem
from .cpu import spin
from .cuda import LONGEST_SURE_LEAD_NS, Lead, measure_queueing, new_event
from .graphs import NoMetricError
from .kernel import plan_sessions
from .rotation import Rotation

FASTEST = 0.1
"""The quantile of calls in a row that is their sample: of eight the second fastest."""
_SLICE_NS = 4_000_000
"""Short, because the device idles meanwhile: of a call of 100 µs about 30."""
_FEWEST_ROWS = 2
_LEAD, _LONGEST_LEAD, _SHORTEST_NS = 2, 16, 500_000
"""The device first sleeps twice as long as the host usually needs, and at most 16 times as long and half a
millisecond: a call that returns only after all of that has waited for the device."""
_MOST_LATE = 3
"""A single call that was late so often waits for the device: a host stalls now and then, but not every time."""
_RUNTIME = ctypes.CDLL(None)


class LaunchTimer:
    """Rows of eager calls, each timed by the host's clock, while the device sleeps.

    plan: that of the device's time, whose `calls` are those of a row. Raises NoMetricError, here or later, where a call
    waits for the device, and where it takes that too long.
    """

    placements = 1

    def __init__(self, problem: CaseProblem, seed: int, plan: GraphPlan | None = None) -> None:
        plan = plan or plan_sessions(problem, seed)
        if not plan.calls:
            raise NoMetricError("each launch would wait for the end of the one before, which takes the device too long")
        self._problem = problem
        self._calls = plan.calls
        # The contents of a single set cannot move on. Where the device's time has one, there is no room for another.
        self._rotation = Rotation(problem, seed, max(min(2, plan.sets), plan.calls))
        self._results: dict[int, Any] = {}
        self.core: int | None = None
        self._host_ns = max(1000, measure_queueing(self._rotation.calls))
        self._at_once = 1
        self._row(1, 0.0)
        # A row must fit into the longest sleep and into the device's queue; `_row` finds out about the latter.
        self._at_once = max(1, min(self._calls, LONGEST_SURE_LEAD_NS // (_LEAD * self._host_ns)))

    def take(self, wait_ns: float = 0.0, core: int | None = None) -> list[float]:
        """Takes one slice: the fast quantile of each of two rows at least, and of as many as fit into 4 ms.

        wait_ns: how much longer every call is made, on the host. core: the number of the core to run on, if this thread
        may; by default the one on which it runs. `self.core` is the number of the core that was used.
        """
        samples: list[float] = []
        kept: tuple[float, ...] = ()
        end = perf_counter_ns() + _SLICE_NS
        with on_one_core(core) as self.core:
            while len(samples) < _FEWEST_ROWS or perf_counter_ns() < end:
                # Results of the row before belong to other inputs.
                self._results.clear()
                self._rotation.roll()
                sample = fast_quantile(self._row(self._calls, wait_ns))
                expect_unaltered(samples, kept)
                samples.append(sample)
                kept = (*kept, sample)
        return samples

    def verify(self) -> None:
        """Raises WrongResultError when one more call, on fresh inputs of a set that no code can foresee, is wrong."""
        chosen = int.from_bytes(urandom(4)) % len(self._rotation.sets)
        self._results.clear()
        self._rotation.renew([chosen])
        while chosen not in self._results:
            self._run(self._lead(0.0), self._at_once, 0.0)
        self._rotation.verify(self._results, [chosen])

    def _row(self, count: int, wait_ns: float) -> list[float]:
        """Nanoseconds of `count` calls, none of which waited for the device."""
        times: list[float] = []
        late = 0
        lead = self._lead(wait_ns)
        while len(times) < count:
            taken, awake, is_late = self._run(lead, min(self._at_once, count - len(times)), wait_ns)
            if not is_late:
                times += taken
            elif lead.lengthen_where_late(awake):
                continue
            elif self._at_once > 1:
                # Together they may launch more than the device's queue holds.
                self._at_once //= 2
                lead = self._lead(wait_ns)
            else:
                late += 1
                if late == _MOST_LATE:
                    slept_ms = lead.nanoseconds / 1e6
                    raise NoMetricError(
                        f"every call returned after the device had slept for {slept_ms:.2g} ms, so it waits for the "
                        "device, or takes the host as long"
                    )
        return times

    def _lead(self, wait_ns: float) -> Lead:
        usual_ns = (self._host_ns + wait_ns) * self._at_once
        longest_ns = min(_LONGEST_LEAD * usual_ns + _SHORTEST_NS, LONGEST_SURE_LEAD_NS)
        return Lead(min(_LEAD * usual_ns, longest_ns), longest_ns)

    def _run(self, lead: Lead, count: int, wait_ns: float) -> tuple[list[float], torch.cuda.Event, bool]:
        """(nanoseconds of calls on the next sets, the event that the device reaches when it wakes, whether it had woken
        when the last call returned)."""
        times: list[float] = []
        awake = new_event()
        lead.sleep()
        awake.record()
        for _ in range(count):
            (call,), index = self._rotation.batch(1)
            begin = perf_counter_ns()
            result = call()
            elapsed = perf_counter_ns() - begin
            times.append(float(elapsed + spin(wait_ns)))
            self._results[index] = result
        is_late = bool(awake.query())  # type: ignore[no-untyped-call]
        # Nothing of it may run beside a slice of the other side.
        self._problem.synchronize()
        return times, awake, is_late


def fast_quantile(times_ns: Sequence[float]) -> float:
    """The time in ns that represents calls in a row."""
    return sorted(times_ns)[round(FASTEST * (len(times_ns) - 1))]


@contextmanager
def on_one_core(core: int | None) -> Iterator[int]:
    """Keeps this thread on this core, or without one on the core that it runs on; gives the number of the core. Threads
    that run already stay where they are."""
    cores = os.sched_getaffinity(0)
    chosen = core if core in cores else _RUNTIME.sched_getcpu()
    with suppress(OSError):
        os.sched_setaffinity(0, {chosen} & cores or cores)
    try:
        yield chosen
    finally:
        with suppress(OSError):
            os.sched_setaffinity(0, cores)
