"""Times calls on the CPU with the monotonic clock.

`hot`: an inner loop of at least 50 µs over rotated inputs, divided by its number of calls. `cold`: single calls, each
after the last-level cache was filled with other data. Both include the cost of the loop, about 50 ns per call.

Meanwhile each OpenMP thread has a core of its own. Threads that may run on any core often share one, and then each
waits for the other in every loop: calls of 8 µs take 65, in some processes and not in others. The runtime's own
OMP_PROC_BIND would bind the main thread as well, and with it every thread that a variant starts.
"""

from __future__ import annotations

import ctypes
import math
import os
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, cycle, islice, pairwise
from operator import call as _call
from pathlib import Path
from statistics import fmean, median
from threading import Thread
from time import perf_counter_ns
from typing import Any

import torch

from warpwatch.contract.words import Fault

from ..failures import WrongResultError
from ..guards.integrity import expect_unaltered
from ..problem import CaseProblem
from .rotation import Rotation

SAMPLE_NS = 50_000
"""The shortest hot sample, a thousand times the resolution of the clock."""
_CALIBRATION_NS, _MOST_ROUNDS = 20 * SAMPLE_NS, 400
"""Time and number of the rounds of calls that the length of a sample comes from."""
_LEAST_ROUNDS, _LONGEST_CALIBRATION_NS = 5, 100_000_000
"""Rounds without which other work may have stopped each of them, and the time that they may take."""
SLICE_SAMPLES = 25
"""Samples between two rolls of the inputs."""
SLICE_NS = 20_000_000
_FEWEST_SAMPLES = 8
"""Samples of a slice whose time has room for so many. Other work that stops the process for a moment would leave one,
and with it no fastest tenth."""
_MOST_SAMPLES = 1000
_FALLBACK_CACHE = 32 * 2**20
_LARGEST_FLUSH = 256 * 2**20
_SETS = 3
_LARGEST_SETS_BYTES = 2**30
"""Where three input sets are larger than this, two are used."""
_UNTIMED_NS, _MOST_UNTIMED = 60_000_000, 60
"""For so long, and so many, calls are made in a thread of their own: on a busy host few may show no true time."""
_WAITS_SHARE, _WAITS_NS = 3.0, 5_000
"""A call that takes so many times as long where a timer is on its stack, and so much longer, waits for it. Threads of
their own have other caches and other threads of OpenMP, so honest calls hardly take less time there."""
_WAIT_LOOKS, _MOST_IN_A_ROW = 3, 20


class CpuHotTimer:
    """Inner loops of calls, with data and code in caches as far as they fit."""

    placements = 1
    _longer_ns = 0.0

    def __init__(self, problem: CaseProblem, seed: int, budget_ns: int) -> None:
        fits = _SETS * problem.data(seed).nbytes <= _LARGEST_SETS_BYTES
        self._rotation = Rotation(problem, seed, _SETS if fits else _SETS - 1)
        self._results: dict[int, Any] = {}
        self._cores = find_cores()
        calls, _ = self._rotation.batch(len(self._rotation.calls))
        _time(calls)
        # Threads that the first calls started are their variant's, and may use all cores.
        bind_workers(self._cores)
        leave_workers_alone(self._cores)
        # The first rounds wake threads, and samples would be as short as they are slow. By a clock that stands still,
        # no rounds fill _CALIBRATION_NS.
        rounds: list[int] = []
        while _needs_round(rounds):
            rounds.append(_time(calls)[0])
        elapsed = max(1, min(rounds))
        # A long budget makes samples longer and not more numerous, so that the reply stays small.
        sample_ns = max(SAMPLE_NS, budget_ns / _MOST_SAMPLES)
        self._inner = max(1, math.ceil(sample_ns * len(calls) / elapsed))
        self._slice_ns = min(SLICE_NS, budget_ns)
        self._shortest_ns = dict.fromkeys(range(len(calls)), elapsed / len(calls) * self._inner)
        self._last = 0

    def take(self, wait_ns: float = 0.0) -> list[float]:
        """Takes one slice: nanoseconds per call of at most 25 samples within 20 ms, or within the budget where that is
        shorter, and of at least those eight that it would have room for if nothing else ran.

        wait_ns: how much longer every call is made.
        """
        self._longer_ns = wait_ns
        self._rotation.roll()
        return self._slice()

    def verify(self) -> None:
        """Raises WrongResultError when one more slice, on fresh inputs, computes a wrong result."""
        self._rotation.renew()
        self._slice(spoil=True)
        self._rotation.verify(self._results)
        self._rotation.verify_in_a_row()
        self._expect_no_wait()

    def _expect_no_wait(self) -> None:
        """Raises WrongResultError when calls take several times as long as where nothing shows that they are timed."""
        # The threads of OpenMP of the main thread are bound and spin: where others keep their core busy, every call
        # waits for them. So what accuses is a timer in a thread like that of the other calls.
        if self._find_wait(self._slice) is None or (found := self._find_wait(self._slice_in_thread)) is None:
            return
        times = f"{found[0] / 1e3:.1f} µs, and {found[1] / 1e3:.1f} µs in a thread that shows none"
        message = f"The variant waits where a timer is on its stack: a call takes {times}"
        raise WrongResultError(message, Fault.DETECTED_TIMER)

    def _find_wait(self, take: Callable[[], list[float]]) -> tuple[float, float] | None:
        """The fastest timed call, of those that `take` takes, and the usual one of others, where it waits for a timer.

        On a busy host some calls take many times as long as others. Who waits for a timer does so in every timed call
        and in no other, so that the fastest timed call tells, beside the usual one of the others. Code of which some
        calls take far longer shows these among as many calls in a row as a timed sample has.
        """
        fastest, others = math.inf, list[float]()
        self._inner, inner = min(self._inner, _MOST_IN_A_ROW), self._inner
        try:
            for _ in range(_WAIT_LOOKS):
                fastest = min(fastest, *take())
                others += time_untimed(self._rotation.calls)
                usual = max(median(others), _shortest_mean(others, self._inner))
                if fastest <= _WAITS_SHARE * usual + _WAITS_NS:
                    return None
            return fastest, usual
        finally:
            self._inner = inner

    def _slice_in_thread(self) -> list[float]:
        """A slice in a thread of its own, whose threads of OpenMP are not bound; [0] where that raises an error."""
        samples: list[float] = []
        records = torch.is_grad_enabled()
        self._cores, cores = [], self._cores

        def run() -> None:
            with torch.set_grad_enabled(records):
                samples.extend(self._slice())

        thread = Thread(target=run, name="timer")
        thread.start()
        thread.join()
        self._cores = cores
        return samples or [0.0]

    def _slice(self, *, spoil: bool = False) -> list[float]:
        # Results of the slice before belong to other inputs.
        self._results.clear()
        if self._inner > 1:
            self._sample()
        samples: list[float] = []
        kept: tuple[float, ...] = ()
        end = perf_counter_ns() + self._slice_ns
        while len(samples) < SLICE_SAMPLES and (len(samples) < self._fewest() or perf_counter_ns() < end):
            sample = self._sample()
            self._shortest_ns[self._last] = min(self._shortest_ns[self._last], sample * self._inner)
            expect_unaltered(samples, kept)
            samples.append(sample)
            kept = (*kept, sample)
            if spoil:
                self._results[self._last] = self._rotation.spoil(self._results[self._last])
        return samples

    def _fewest(self) -> int:
        """Samples that a slice has at least. Other work that stops the process makes samples longer and fewer, so the
        shortest so far, by the set at their end, show how many a slice has room for."""
        return min(_FEWEST_SAMPLES, max(1, int(self._slice_ns / max(1.0, fmean(self._shortest_ns.values())))))

    def _sample(self) -> float:
        calls, last = self._rotation.batch(self._inner)
        count = len(calls)
        leave_workers_alone(self._cores)
        elapsed, self._results[last] = _time(calls)
        self._last = last
        if len(calls) != count:
            message = "The variant searches the harness's memory: the loop that is timed has other calls than before"
            raise WrongResultError(message, Fault.SEARCHED_MEMORY, "calls")
        return (elapsed + spin(self._longer_ns * count)) / count


class CpuColdTimer(CpuHotTimer):
    """Single calls on data that is in no cache."""

    def __init__(self, problem: CaseProblem, seed: int, budget_ns: int) -> None:
        super().__init__(problem, seed, budget_ns)
        self._inner = 1
        self._flush = torch.zeros(min(2 * last_level_cache(), _LARGEST_FLUSH) // 4, dtype=torch.int32)

    def _sample(self) -> float:
        self._flush.add_(1)
        return super()._sample()

    def _expect_no_wait(self) -> None:
        """Nothing: `hot` has looked, and calls in a row have warm caches."""


def open_timer(problem: CaseProblem, seed: int, metric: str, budget_ns: int) -> CpuHotTimer:
    """A warmed-up timer for one metric of contract.measurement.METRICS."""
    return (CpuColdTimer if metric == "cold" else CpuHotTimer)(problem, seed, budget_ns)


def last_level_cache() -> int:
    """Bytes of the largest cache of CPU 0; 32 MiB where the system does not provide it."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        unit = {"K": 2**10, "M": 2**20, "G": 2**30}.get(text[-1:], 1)
        sizes.append(int(text.rstrip("KMG")) * unit)
    return max(sizes, default=_FALLBACK_CACHE)


def spin(nanoseconds: float) -> int:
    """Keeps the CPU busy for so long, by the clock that calls are timed with; returns what it took."""
    if not nanoseconds:
        return 0
    start = perf_counter_ns()
    while perf_counter_ns() - start < nanoseconds:
        pass
    return perf_counter_ns() - start


def _needs_round(rounds: Sequence[int]) -> bool:
    """Whether the length of a sample needs one more round of calls than took these times."""
    total = sum(rounds)
    if len(rounds) < _LEAST_ROUNDS and total < _LONGEST_CALIBRATION_NS:
        return True
    return total < _CALIBRATION_NS and len(rounds) < _MOST_ROUNDS


def _time(calls: list[Callable[[], Any]]) -> tuple[int, Any]:
    """(nanoseconds of all the calls together, what the last one returned)."""
    result = None
    start = perf_counter_ns()
    for call in calls:
        result = call()
    return perf_counter_ns() - start, result


def time_untimed(calls: list[Callable[[], Any]]) -> list[float]:
    """Nanoseconds of some calls, in threads that run no code of the harness: their loop is C's."""
    times = _time_in_thread(calls)
    count = min(_MOST_UNTIMED, int(_UNTIMED_NS / max(1.0, min(times))))
    return times + _time_in_thread(list(islice(cycle(calls), count))) if count else times


def _shortest_mean(times: Sequence[float], count: int) -> float:
    """The shortest mean of `count` times in a row."""
    count = min(count, len(times))
    return min(fmean(times[first : first + count]) for first in range(len(times) - count + 1))


def _time_in_thread(calls: list[Callable[[], Any]]) -> list[float]:
    """One that is infinite where the calls raise an error in a thread of their own."""
    # What torch.compile made is made again where gradients are recorded and were not, or the reverse.
    mode = partial(torch._C._set_grad_enabled, torch.is_grad_enabled())
    stamped: list[Callable[[], Any]] = [
        mode,
        perf_counter_ns,
        *chain.from_iterable((call, perf_counter_ns) for call in calls),
    ]
    stamps: deque[int] = deque()
    # Results are no whole numbers, and go as they come.
    loop = Thread(target=stamps.extend, args=(filter(int.__instancecheck__, map(_call, stamped)),), name="calls")
    loop.start()
    loop.join()
    return [float(after - before) for before, after in pairwise(stamps)] or [math.inf]


_RUNTIME = ctypes.CDLL(None)
_LOOP = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def find_cores() -> list[int]:
    """A core for each thread that torch uses, the main thread's first; none where threads cannot be bound, or where
    there is but one."""
    threads = torch.get_num_threads()
    can_bind = hasattr(os, "sched_setaffinity") and hasattr(_RUNTIME, "GOMP_parallel")
    cores = sorted(os.sched_getaffinity(0)) if can_bind else []
    return cores if 1 < len(cores) == threads else []


def bind_workers(cores: Sequence[int]) -> None:
    """Binds the OpenMP threads of the main thread's next loops, each to its core; the main thread may still use all."""
    if not cores:
        return

    def bind(_: int | None) -> None:
        place = _RUNTIME.omp_get_thread_num()
        if place:
            with suppress(OSError, IndexError):
                os.sched_setaffinity(0, {cores[place]})

    _RUNTIME.GOMP_parallel(_LOOP(bind), None, ctypes.c_uint(len(cores)), ctypes.c_uint(0))


def leave_workers_alone(cores: Sequence[int]) -> None:
    """Moves the main thread to its core. The system moves it among the others' now and then, so this comes before every
    sample; the threads that it starts may use all cores."""
    if cores:
        with suppress(OSError):
            os.sched_setaffinity(0, cores[:1])
            os.sched_setaffinity(0, cores)
