"""Measures the energy of a call on an NVIDIA GPU while the GPU replays a CUDA graph of calls without a gap.

NVML counts the millijoules that the whole card has taken, and updates the number every 20 to 100 ms. A reading is
therefore old by up to that much, unless it is the first after an update. Each span begins and ends at such a reading,
which is late by at most the time between two readings: 4.5 ms on an H200, where NVML takes 4 ms for one.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter_ns, sleep

import torch

from warpwatch.contract.activities import Activity
from warpwatch.contract.measurement import Counter
from warpwatch.contract.words import LaneUse

from ..problem import CaseProblem
from ..turns import STOPWATCH
from .cuda import PAIRED, GraphTimer, elapsed_ns
from .graphs import NoMetricError
from .health import DeviceHealth
from .summary import summarize_counts

SPANS, MOST_SPANS = 2, 4
"""How many spans count: neighbours that agree, or the last, where one more than so many hold none that do."""
SPAN_NS = 90_000_000
"""Less than 100 ms, so that a span is one update of a counter that is updated that often."""
_SETTLING_SPANS = 1
"""Spans in which the power may rise to that of the load: they count only where their neighbour agrees."""
_ALIKE = 1.02
"""How many times as much power a span may show as its neighbour: where it still rises, or where the counter's updates
come late, they differ by more."""
_LONGEST_NS = 3_000_000_000
"""A counter that needs longer for all spans is updated too rarely."""
_LONGEST_CALL_NS = 100_000_000
"""To capture, replay and verify longer calls takes minutes."""
_SLICE_NS = 5_000_000
_AHEAD = 3
"""Slices that are queued at least, so that the GPU works on while the host reads the counter or loses its core."""
_PAUSE_SECONDS = 0.0005
_GAPLESS = 1.1
"""How many times as long as in a slice that was queued as a whole a call may take, so that no gaps were counted."""


def measure_energy(problem: CaseProblem, seed: int, call_ns: float) -> dict[str, Counter]:
    """`energy` of a call in joules, and the `power` of the card in watts meanwhile; call_ns: how long a call takes.

    The energy is that of the whole card, what it takes when it is idle included. One more replay is verified; replays
    that leave out work on numbers that they have seen are for a bench to find. NoMetricError where this card or this
    call has no such number.
    """
    health = DeviceHealth(problem.device)
    if health.millijoules() is None:
        raise NoMetricError("NVML has no energy counter for this GPU")
    if call_ns > _LONGEST_CALL_NS:
        raise NoMetricError("a call takes too long")
    with problem.turns.use(LaneUse.DEVICE):
        with STOPWATCH.measure(Activity.WARM_UP):
            # Spans in which the card still warms up do not agree, so no pace need warm it before.
            timer = GraphTimer(problem, seed, 1, pace=PAIRED)
        if timer.launches == 0:
            raise NoMetricError("a call gives the GPU nothing to do")
        with STOPWATCH.measure(Activity.SAMPLES):
            load = _Load(timer)
            watts = watts_of_spans(health.millijoules, load.keep_up)
            seconds = load.finish()
        if reasons := health.throttle_reasons():
            raise NoMetricError(f"the device was throttled ({reasons})")
        with STOPWATCH.measure(Activity.VERIFY):
            timer.verify_results()
    return {
        "energy": summarize_counts("joules per call", [each * seconds for each in watts]),
        "power": summarize_counts("W", watts),
    }


def watts_of_spans(
    read: Callable[[], int | None], keep_up: Callable[[], None], now_ns: Callable[[], int] = perf_counter_ns
) -> list[float]:
    """The mean power in the first SPANS neighbouring spans that agree, or in the last MOST_SPANS where none do. read:
    the counter in millijoules. keep_up: keeps the load going and waits a little; it is called before each reading."""
    keep_up()
    begin, last = now_ns(), read()
    start: tuple[int, int] | None = None
    watts: list[float] = []
    while True:
        keep_up()
        reading, now = read(), now_ns()
        if reading is None or now - begin > _LONGEST_NS:
            raise NoMetricError("NVML updates its energy counter too rarely")
        if reading != last and start is None:
            start = now, reading
        elif reading != last and start is not None and now - start[0] >= SPAN_NS:
            watts.append((reading - start[1]) * 1e6 / (now - start[0]))
            if watts[-1] <= 0:
                raise NoMetricError("NVML's energy counter ran backwards")
            start = now, reading
            newest = watts[-SPANS:]
            if len(newest) == SPANS and max(newest) <= _ALIKE * min(newest):
                return newest
            if len(watts) == _SETTLING_SPANS + MOST_SPANS:
                return watts[_SETTLING_SPANS:]
        last = reading


class _Load:
    """Replays of a timer's graph, queued so far ahead that the GPU does not wait for the host."""

    def __init__(self, timer: GraphTimer) -> None:
        self._timer = timer
        self._replays = max(1, round(_SLICE_NS / (median(timer.take()) * timer.plan.launches)))
        self._ends: list[torch.cuda.Event] = []

    def keep_up(self) -> None:
        """Queues slices where fewer than _AHEAD are left, then pauses.

        Never more than _AHEAD: a driver whose own queue is full makes the host wait until the GPU has worked off most
        of a slice, and then no number of slices would leave so many.
        """
        for _ in range(_AHEAD):
            if len(self._ends) >= _AHEAD and not self._ends[-_AHEAD].query():  # type: ignore[no-untyped-call]
                break
            self._ends.append(self._timer.queue(self._replays))
        sleep(_PAUSE_SECONDS)

    def finish(self) -> float:
        """Waits for what is queued; returns the seconds of a call, from the end of the first slice on.

        NoMetricError where the GPU waited for the host, because a call would cost what an idle card takes besides.
        """
        self._ends[-1].synchronize()
        launches = (len(self._ends) - 1) * self._replays * self._timer.plan.launches
        call_ns = elapsed_ns(self._ends[0], self._ends[-1]) / launches
        if call_ns > _GAPLESS * median(self._timer.take()):
            raise NoMetricError("the host asks for calls more slowly than the GPU makes them")
        return call_ns / 1e9
