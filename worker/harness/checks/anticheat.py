"""Checks, outside the samples, that a variant computes its result on every call and has finished when it returns.

`expect_finished` fails when a result still changes after its call has returned. `expect_recomputed` fails when a call
on repeated inputs, which are those that timers draw, is much faster than a call on new ones. New inputs come from seeds
that a variant cannot predict.
"""

from __future__ import annotations

import gc
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from warpwatch.contract.words import Fault

from ..failures import WrongResultError
from ..guards.diagnosis import decoys_of, explain
from ..oracle import Oracle
from ..problem import CaseData, CaseProblem, LiveCall, bits
from ..timers.cuda import elapsed_ns, new_event, sleep
from ..timers.kernel import busy_ns
from ..timers.rotation import set_seeds

_PAIRS, _FEWEST_PAIRS = 5, 3
_LONG_NS = 20_000_000
"""Calls longer than this, or than four times this with the time to draw their inputs, are timed three times instead of
five.

Beside such a call, the time that the host takes to compare inputs is negligible, so device time is not measured.
"""
_CACHED_SHARE = 0.5
"""A call on repeated inputs that takes less than this share of one on new inputs did not do the same work."""
_MORE_PAIRS = (1, 2, 4)
"""A suspicion is followed by twice and by four times as many pairs of calls."""
_FAST_SHARE = 4
"""One call in so many on repeated inputs must be fast: a variant may have kept the results of one timed set alone."""
_NOTICEABLE_NS = 1_000
_TIMED_SETS = 3
"""As many input sets of a timer as are repeated; a CPU has no more."""
_SCRAMBLED = 20_000
_ROUNDS, _CALLS_IN_A_ROW = 3, 3
_SETTLE_SECONDS, _PATIENCE_SECONDS, _MOST_WAITS = 0.01, 0.3, 10
_STREAM_DELAY_NS, _LONGER = 2_000_000, 4
_SEED_BITS = 40

Clock = Callable[[CaseProblem, Callable[[], Any]], tuple[float, Any]]
"""Makes one call; returns its nanoseconds and what it returned."""


def expect_honest(problem: CaseProblem, timed_seed: int) -> None:
    """Raises WrongResultError that names how the variant avoids its work.

    timed_seed: the seed of the timers, whose inputs a variant could foresee.
    """
    # Reference cycles of earlier work hold tensors beside the decoys, and a variant that searches memory finds those
    # first.
    gc.collect()
    seed = _new_seed()
    live = LiveCall(problem, seed)
    problem.results(live.first_returned)
    if live.can_change:
        expect_finished(live, seed, timed_seed)
        expect_recomputed(live, timed_seed)


def expect_finished(live: LiveCall, first_seed: int, timed_seed: int) -> None:
    """Raises WrongResultError when work goes on after a call has returned, or on another stream of a GPU.

    live: holds the inputs of `first_seed`. timed_seed: of the inputs of the first call in this process, which may have
    had the same memory.
    """
    problem = live.problem
    threads, decoys = set(threading.enumerate()), decoys_of(problem)
    delay_ns = _STREAM_DELAY_NS
    for _ in range(_ROUNDS):
        seed = _new_seed()
        # A Lead would retry on the same inputs, and a kernel that did not wait would find them in place.
        results, at_return, in_time = _run_without_waiting(live, live.draw(seed), delay_ns)
        delay_ns *= 1 if in_time else _LONGER
        running = [t.name for t in threading.enumerate() if t not in threads and not _is_compiler_thread(t)]
        problem.synchronize()
        time.sleep(_SETTLE_SECONDS)
        _expect_unchanged(at_return, results, running)
        if running:
            message = f"The variant returns while the thread {running[0]!r} that it started still runs"
            raise WrongResultError(message, Fault.UNFINISHED, *running)
    redraw = partial(live.redraw, seed)
    error = Oracle(problem, redraw(), redraw).find_wrong(results)
    # Work that was late may have ended beside the oracle, so a right result does not show that it was in time.
    _expect_unchanged(at_return, results, [])
    if error is not None:
        # A slow thread or stream may not have started on the work yet, least of all on a busy host.
        for _ in range(_MOST_WAITS):
            time.sleep(_PATIENCE_SECONDS)
            _expect_unchanged(at_return, results, [])
        changed = problem.replaceable(live.data).changed_since(live.draw(seed))
        if changed is not None:
            raise WrongResultError(f"The variant modifies its input {changed}", Fault.MODIFIED_INPUT, changed)
        if problem.device.type == "cuda" and _is_right_on_idle_device(live):
            cause = "the same call is right on an idle device, so it does not wait for the current stream"
            raise WrongResultError(f"Wrong on fresh inputs: {error}; {cause}", Fault.OTHER_STREAM)
        earlier = [live.redraw(first_seed), problem.data(timed_seed)]
        diagnosis = explain(problem, redraw, results, earlier, decoys)
        message = f"Wrong on fresh inputs: {error}{diagnosis.text}"
        raise WrongResultError(message, diagnosis.fault, *diagnosis.subjects)


def _is_compiler_thread(thread: threading.Thread) -> bool:
    """Whether the thread belongs to torch.compile, whose pool starts a timer when idle and outlives the variant."""
    return str(getattr(getattr(thread, "_target", None), "__module__", "")).startswith("torch._inductor.")


def _expect_unchanged(at_return: dict[str, Tensor], results: dict[str, Tensor], running: list[str]) -> None:
    """Raises WrongResultError when `results` changed since their call returned; running: threads that it started."""
    for name, tensor in results.items():
        if not torch.equal(bits(at_return[name]), bits(tensor)):
            worker = f"the thread {running[0]!r} that it started" if running else "another thread or stream"
            message = f"{name} still changes after the call has returned: {worker} does the work"
            raise WrongResultError(message, Fault.UNFINISHED, name, *running)


def _is_right_on_idle_device(live: LiveCall) -> bool:
    """Whether a call is right after all earlier work has finished. The call still has a timer on its stack."""
    problem, seed = live.problem, _new_seed()
    call = live.change(live.draw(seed))
    problem.synchronize()
    results = problem.results(call())
    problem.synchronize()
    redraw = partial(live.redraw, seed)
    return Oracle(problem, redraw(), redraw).find_wrong(results) is None


def _run_without_waiting(
    live: LiveCall, fresh: CaseData, delay_ns: int
) -> tuple[dict[str, Tensor], dict[str, Tensor], bool]:
    """(results of a call on the inputs `fresh`, their values when it returned, whether the GPU slept until all was
    queued)."""
    problem = live.problem
    problem.synchronize()
    awake = None
    if problem.device.type == "cuda":
        # A kernel that does not wait for the current stream reads the old inputs during this sleep.
        sleep(delay_ns)
        awake = new_event()
        awake.record()
    call = live.change(fresh)
    # Several calls in a row, so that deferred work piles up.
    results = [problem.results(call()) for _ in range(_CALLS_IN_A_ROW)][-1]
    in_time = awake is None or not awake.query()  # type: ignore[no-untyped-call]
    # Copied at once, and on a GPU in the order of the current stream, so that late writes show as a difference.
    return results, {name: tensor.detach().clone() for name, tensor in results.items()}, in_time


def expect_recomputed(live: LiveCall, timed_seed: int) -> None:
    """Raises WrongResultError when a call is much faster on repeated inputs of the timers: the variant caches results
    by value, or has them from before.

    On shared cores the few calls on new inputs may all be slow by chance, so a suspicion is timed more often.
    """
    timed_seeds = set_seeds(timed_seed, _TIMED_SETS)
    new_ns = _expect_as_long(live, _wall_ns, _PAIRS, timed_seeds)
    if live.problem.device.type == "cuda" and new_ns < _LONG_NS:
        # The host may take longer to compare inputs than the cache saves; device time alone then shows the cache.
        _expect_as_long(live, lambda _, call: busy_ns(call), _FEWEST_PAIRS, timed_seeds)


def _expect_as_long(live: LiveCall, clock: Clock, pairs: int, timed_seeds: Sequence[int]) -> float:
    """Nanoseconds of the fastest call on new inputs, of `pairs`.

    Raises WrongResultError when calls on repeated inputs are much faster.
    """
    repeated: list[float] = []
    new: list[float] = []
    for factor in _MORE_PAIRS:
        more = _time_repeated_and_new(live, clock, factor * pairs, timed_seeds)
        repeated, new = repeated + more[0], new + more[1]
        # Other load makes calls slower and never faster, so the fastest of each kind compare fairly.
        if not _is_cached(min(repeated), min(new)):
            return min(new)
    # Where other load leaves only a few calls alone, these may all be of one kind by chance.
    repeat_ns, new_ns = (sorted(times)[len(times) // _FAST_SHARE] for times in (repeated, new))
    if not _is_cached(repeat_ns, new_ns):
        return min(new)
    message = (
        f"The variant returns what it has computed before: a call on repeated inputs takes {repeat_ns / new_ns:.0%} of"
        " one on new inputs"
    )
    raise WrongResultError(message, Fault.CACHED_RESULT)


def _is_cached(repeat_ns: float, new_ns: float) -> bool:
    return repeat_ns < _CACHED_SHARE * new_ns and new_ns - repeat_ns >= _NOTICEABLE_NS


def _time_repeated_and_new(
    live: LiveCall, clock: Clock, pairs: int, timed_seeds: Sequence[int]
) -> tuple[list[float], list[float]]:
    """(nanoseconds of calls on the inputs of the call before, which are those of timers; of calls on other inputs),
    equally many of each.

    Every timed call is the second after a call on new inputs, so memory and caches are alike. The two kinds alternate
    in going first.
    """
    repeat_ns: list[float] = []
    new_ns: list[float] = []
    while len(new_ns) < pairs:
        for is_repeat in (True, False) if len(new_ns) % 2 else (False, True):
            begin = time.perf_counter_ns()
            seed = timed_seeds[len(new_ns) % len(timed_seeds)] if is_repeat else _new_seed()
            inputs, others = (live.draw(drawn) for drawn in (seed, _new_seed()))
            first_ns, first_result = _timed(live, inputs, _wall_ns)
            if clock is _wall_ns:
                # Without this, caches and the branch predictor of the host remember the call before, and an honest sort
                # is faster the second time.
                torch.sort(torch.rand(_SCRAMBLED))
            second = inputs if is_repeat else others
            second_ns, second_result = _timed(live, second, clock, is_repeat=is_repeat)
            if is_repeat:
                _expect_separate_memory(live, first_result, second_result)
            (repeat_ns if is_repeat else new_ns).append(second_ns)
            if first_ns > _LONG_NS or time.perf_counter_ns() - begin > 4 * _LONG_NS:
                pairs = _FEWEST_PAIRS
    return repeat_ns, new_ns


def _timed(live: LiveCall, inputs: CaseData, clock: Clock, *, is_repeat: bool = False) -> tuple[float, Any]:
    """(nanoseconds of one call after `inputs` were copied into its buffers, what it returned).

    is_repeat: they are those of the call before.
    """
    call = live.change(inputs, are_the_same=is_repeat)
    live.problem.synchronize()
    return clock(live.problem, call)


def _wall_ns(problem: CaseProblem, call: Callable[[], Any]) -> tuple[float, Any]:
    """Host time of a call; on a GPU the larger of host time and device time.

    A variant that caches its result on the host leaves the device idle, so device time alone is not enough.
    """
    begin = time.perf_counter_ns()
    if problem.device.type != "cuda":
        returned = call()
        return float(time.perf_counter_ns() - begin), returned
    start, end = new_event(), new_event()
    start.record()
    returned = call()
    end.record()
    problem.synchronize()
    return max(elapsed_ns(start, end), float(time.perf_counter_ns() - begin)), returned


def _expect_separate_memory(live: LiveCall, first: Any, second: Any) -> None:
    """Raises WrongResultError when two results that are both alive share memory, unless both are views of an input."""
    inputs = {tensor.untyped_storage().data_ptr() for _, tensor in live.data.tensors()}
    first_results = live.problem.results(first)
    for name, tensor in live.problem.results(second).items():
        address = tensor.untyped_storage().data_ptr()
        shared = address == first_results[name].untyped_storage().data_ptr()
        if tensor.numel() and shared and address not in inputs:
            message = f"The variant returns the same memory for {name} of two calls on the same inputs"
            raise WrongResultError(message, Fault.SHARED_RESULT, name)


def _new_seed() -> int:
    return secrets.randbits(_SEED_BITS)
