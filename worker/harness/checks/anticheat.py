"""Checks, outside the samples, that a variant computes its result on every call and has finished when it returns.

`expect_finished` fails when a result still changes after its call has returned; recomputation.py finds results that are
kept from earlier calls. New inputs come from seeds that a variant cannot predict.
"""

from __future__ import annotations

import concurrent.futures.thread
import gc
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import chain

import torch
from torch import Tensor

from warpwatch.contract.words import Fault

from ..failures import WrongResultError
from ..guards.diagnosis import decoys_of, explain
from ..oracle import Oracle
from ..problem import CaseData, CaseProblem, LiveCall, bits
from ..timers.cuda import new_event, sleep
from .recomputation import CHECK_SEEDS, expect_recomputed, new_seed
from .rest import expect_rest_once

_ROUNDS, _CALLS_IN_A_ROW = 3, 3
_SETTLE_SECONDS, _PATIENCE_SECONDS, _MOST_WAITS = 0.01, 0.3, 10
_STREAM_DELAY_NS, _LONGER = 2_000_000, 4
_TURNS = 4
"""Calls on an idle and on a sleeping device: code that is wrong half of the time passes once in 256 times."""
_WAITS_IN_POOL = concurrent.futures.thread._worker.__code__
"""The code of a pool's thread that waits, of which only the queue has a frame above, in C."""


def expect_honest(problem: CaseProblem, timed_seed: int) -> None:
    """Raises WrongResultError that names how the variant avoids its work.

    timed_seed: the seed of the timers, whose inputs a variant could foresee.
    """
    # Reference cycles of earlier work hold tensors beside the decoys, and a variant that searches memory finds those
    # first.
    gc.collect()
    seed = new_seed()
    live = LiveCall(problem, seed)
    problem.results(live.first_returned)
    expect_rest_once(problem)
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
        seed = new_seed()
        # A Lead would retry on the same inputs, and a kernel that did not wait would find them in place.
        results, at_return, in_time = _run_without_waiting(live, live.draw(seed), delay_ns)
        delay_ns *= 1 if in_time else _LONGER
        started = [t for t in threading.enumerate() if t not in threads]
        problem.synchronize()
        time.sleep(_SETTLE_SECONDS)
        # A thread that has reported its result ends a moment later, and later still on a busy host.
        for _ in range(_MOST_WAITS):
            if not any(map(_works, started)):
                break
            time.sleep(_SETTLE_SECONDS)
        _expect_unchanged(at_return, results, [thread.name for thread in started])
        running = [thread.name for thread in started if _works(thread)]
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
        if problem.device.type == "cuda" and _is_right_only_on_idle_device(live, delay_ns):
            cause = "the same call is right on an idle device, so it does not wait for the current stream"
            raise WrongResultError(f"Wrong on fresh inputs: {error}; {cause}", Fault.OTHER_STREAM)
        known = dict.fromkeys([first_seed, timed_seed, timed_seed + CHECK_SEEDS, *live.seeds])
        redrawn = (live.redraw(before) for before in known if before != seed)
        earlier = chain(redrawn, (problem.data(timed_seed) for _ in range(problem.backward)))
        diagnosis = explain(problem, redraw, results, earlier, decoys)
        message = f"Wrong on fresh inputs: {error}{diagnosis.text}"
        raise WrongResultError(message, diagnosis.fault, *diagnosis.subjects)


def _works(thread: threading.Thread) -> bool:
    """Whether a thread may still work for a call. Those of a pool wait for the next call, and torch.compile, whose pool
    starts a timer when idle, has threads that outlive the variant."""
    if not thread.is_alive() or _is_compiler_thread(thread):
        return False
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is None or frame.f_code is not _WAITS_IN_POOL


def _is_compiler_thread(thread: threading.Thread) -> bool:
    return str(getattr(getattr(thread, "_target", None), "__module__", "")).startswith("torch._inductor.")


def _expect_unchanged(at_return: dict[str, Tensor], results: dict[str, Tensor], running: list[str]) -> None:
    """Raises WrongResultError when `results` changed since their call returned; running: threads that it started."""
    for name, tensor in results.items():
        if not torch.equal(bits(at_return[name]), bits(tensor)):
            worker = f"the thread {running[0]!r} that it started" if running else "another thread or stream"
            message = f"{name} still changes after the call has returned: {worker} does the work"
            raise WrongResultError(message, Fault.UNFINISHED, name, *running)


def _is_right_only_on_idle_device(live: LiveCall, delay_ns: int) -> bool:
    """Whether calls are right after all earlier work has finished, and wrong while the device sleeps, by turns and
    every time. The calls still have a timer on their stack."""
    problem = live.problem

    def is_right(call: Callable[[CaseData], dict[str, Tensor]]) -> bool:
        seed = new_seed()
        results = call(live.draw(seed))
        problem.synchronize()
        redraw = partial(live.redraw, seed)
        return Oracle(problem, redraw(), redraw).find_wrong(results) is None

    def run_idle(numbers: CaseData) -> dict[str, Tensor]:
        call = live.change(numbers)
        problem.synchronize()
        return problem.results(call())

    def run_busy(numbers: CaseData) -> dict[str, Tensor]:
        return _run_without_waiting(live, numbers, delay_ns)[0]

    return all(is_right(run_idle) and not is_right(run_busy) for _ in range(_TURNS))


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
