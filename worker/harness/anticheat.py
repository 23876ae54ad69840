"""Asks a variant, outside its samples, whether it does its work at all and has done it when it returns.

`expect_finished`: what a call returned must not change any more. `expect_recomputed`: a call on numbers that it has
just seen must take as long as one on new numbers. Numbers are drawn from seeds that nobody can foretell.
"""

from __future__ import annotations

import gc
import secrets
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .diagnosis import Decoys, explain
from .failures import WrongResultError
from .oracle import Oracle, explain_first
from .problem import CaseData, CaseProblem
from .timer_cuda import elapsed_ns, new_event, sleep
from .timer_kernel import busy_ns

_PAIRS, _FEWEST_PAIRS = 5, 3
_LONG_NS = 20_000_000
"""A call that takes longer than this, or four times this with the drawing of its numbers, is asked three times instead
of five.

Next to such a call the host's looking at the numbers is nothing, so the device is not asked besides.
"""
_KEPT_SHARE = 0.5
"""A repeated call that takes less than this part of one on new numbers did not do the same work."""
_SUSPICIONS = 2
_NOTICEABLE_NS = 1_000
_SCRAMBLED = 20_000
_ROUNDS, _IN_A_ROW = 3, 3
_SETTLE_SECONDS, _PATIENCE_SECONDS = 0.01, 0.3
_STREAM_DELAY_NS, _LONGER = 2_000_000, 4
_SEED_BITS = 40

Clock = Callable[[CaseProblem, Callable[[], Any]], float]
"""Nanoseconds of one call, by some measure."""


def expect_honest(problem: CaseProblem) -> None:
    """Raises WrongResultError that names what the variant does instead of its work."""
    # What earlier work left in reference cycles lies beside the decoys otherwise, and a variant that searches memory
    # finds it first.
    gc.collect()
    seed = _seed()
    live = problem.data(seed)
    call = problem.call(live)
    raw = call()
    problem.synchronize()
    problem.results(raw)
    if _moving(problem, live).fits(_moving(problem, live)):
        expect_finished(problem, seed, live, call)
        expect_recomputed(problem, live, call)


def expect_finished(problem: CaseProblem, first: int, live: CaseData, call: Callable[[], Any]) -> None:
    """`live` holds the numbers of the seed `first`.

    Raises WrongResultError when work goes on after a call has returned, or on a GPU beside the stream it was called on.
    """
    threads, decoys = set(threading.enumerate()), Decoys(problem)
    delay_ns = _STREAM_DELAY_NS
    for _ in range(_ROUNDS):
        seed = _seed()
        # A Lead would try again on the same numbers, and a kernel that did not wait would find them there.
        results, early, in_time = _run_unawaited(problem, live, problem.data(seed), call, delay_ns)
        delay_ns *= 1 if in_time else _LONGER
        left = [thread.name for thread in threading.enumerate() if thread not in threads and not _is_compilers(thread)]
        problem.synchronize()
        time.sleep(_SETTLE_SECONDS)
        _expect_unmoved(early, results, left)
        if left:
            raise WrongResultError(f"it returns while the thread {left[0]!r} that it started is still running")
    wrong = explain_first(Oracle(problem, _drawn(problem, live, seed)).judge(results), results)
    if wrong is not None:
        # Perhaps whoever has the work has not come to it yet.
        time.sleep(_PATIENCE_SECONDS)
        _expect_unmoved(early, results, [])
        if problem.device.type == "cuda" and _is_right_once_idle(problem, live, call):
            late = "it is right on an idle device: it does not wait for the stream that it is called on"
            raise WrongResultError(f"wrong on numbers never seen: {wrong}; {late}")
        looks = explain(problem, partial(_drawn, problem, live, seed), results, [_drawn(problem, live, first)], decoys)
        raise WrongResultError(f"wrong on numbers never seen: {wrong}{looks}")


def _is_compilers(thread: threading.Thread) -> bool:
    """Whether it is of torch.compile's pool of compilers, which sets a timer whenever it has been idle; earlier
    variants leave it behind."""
    return str(getattr(getattr(thread, "_target", None), "__module__", "")).startswith("torch._inductor.")


def _expect_unmoved(early: dict[str, Tensor], results: dict[str, Tensor], left: list[str]) -> None:
    """Raises WrongResultError unless `results` hold what they held when their call returned; left: threads that it
    started."""
    moved = [name for name, tensor in results.items() if not _same_bits(early[name], tensor)]
    if moved:
        where = f"the thread {left[0]!r} that it started" if left else "another thread or stream"
        raise WrongResultError(f"{moved[0]} still changes after the call has returned: the work is left to {where}")


def _is_right_once_idle(problem: CaseProblem, live: CaseData, call: Callable[[], Any]) -> bool:
    """Whether a call is right when all that came before it is done; it is timed like any other."""
    seed = _seed()
    _moving(problem, live).overwrite(_moving(problem, problem.data(seed)))
    call = problem.refreshed(call, live)
    problem.synchronize()
    results = problem.results(call())
    problem.synchronize()
    return explain_first(Oracle(problem, _drawn(problem, live, seed)).judge(results), results) is None


def _run_unawaited(
    problem: CaseProblem, live: CaseData, fresh: CaseData, call: Callable[[], Any], delay_ns: int
) -> tuple[dict[str, Tensor], dict[str, Tensor], bool]:
    """(results of a call on the numbers of `fresh`, what they held when the call returned, whether a GPU slept until
    all was queued)."""
    problem.synchronize()
    awake = None
    if problem.device.type == "cuda":
        # A kernel that does not wait for the current stream now finds the old numbers.
        sleep(delay_ns)
        awake = new_event()
        awake.record()
    _moving(problem, live).overwrite(_moving(problem, fresh))
    call = problem.refreshed(call, live)
    # Several in a row: work that is put off piles up.
    results = [problem.results(call()) for _ in range(_IN_A_ROW)][-1]
    in_time = awake is None or not awake.query()  # type: ignore[no-untyped-call]
    # Copied at once, and on a GPU in the order of the current stream: what is missing now was not done when it said so.
    return results, {name: tensor.detach().clone() for name, tensor in results.items()}, in_time


def expect_recomputed(problem: CaseProblem, live: CaseData, call: Callable[[], Any]) -> None:
    """Raises WrongResultError when a call is much faster on numbers that it has just seen: results are kept by value.

    Suspected twice in a row only: on shared cores all calls on new numbers may be slow by chance.
    """
    new = _expect_as_long(problem, live, call, _wall_ns, _PAIRS)
    if problem.device.type == "cuda" and new < _LONG_NS:
        # Where looking at the numbers takes the host longer than it saves the device, only the device can tell.
        _expect_as_long(problem, live, call, _busy_ns, _FEWEST_PAIRS)


def _expect_as_long(problem: CaseProblem, live: CaseData, call: Callable[[], Any], clock: Clock, most: int) -> float:
    """Nanoseconds of a call on new numbers by `clock`, the fastest of at most so many; WrongResultError when repeated
    ones are faster."""
    repeat = new = 0.0
    for _ in range(_SUSPICIONS):
        # What else the host does makes calls slower, never faster: the fastest are alike in what they had to do.
        repeat, new = map(min, _repeats_beside_new(problem, live, call, clock, most))
        if repeat >= _KEPT_SHARE * new or new - repeat < _NOTICEABLE_NS:
            return new
    raise WrongResultError(
        f"a call on numbers that it has just seen takes {repeat / new:.0%} of one on new numbers: results are kept by value"
    )


def _repeats_beside_new(
    problem: CaseProblem, live: CaseData, call: Callable[[], Any], clock: Clock, most: int
) -> tuple[list[float], list[float]]:
    """Nanoseconds of calls on (the numbers of the call before, other numbers than the call before), as many of either.

    All come second after a call on new numbers, so that neither memory nor caches tell them apart, and take turns at
    being first.
    """
    repeats: list[float] = []
    news: list[float] = []
    while len(news) < most:
        for is_repeat in (True, False) if len(news) % 2 else (False, True):
            began = time.perf_counter_ns()
            numbers, others = (_moving(problem, problem.data(_seed())) for _ in range(2))
            first, kept = _timed(problem, live, numbers, call, _wall_ns)
            taken, again = _timed(problem, live, numbers if is_repeat else others, call, clock)
            if is_repeat:
                _expect_own_memory(problem, live, kept, again)
            (repeats if is_repeat else news).append(taken)
            if first > _LONG_NS or time.perf_counter_ns() - began > 4 * _LONG_NS:
                most = _FEWEST_PAIRS
    return repeats, news


def _timed(
    problem: CaseProblem, live: CaseData, numbers: CaseData, call: Callable[[], Any], clock: Clock
) -> tuple[float, Any]:
    """(nanoseconds of one call after `numbers` were put into its buffers, what it returned)."""
    _moving(problem, live).overwrite(numbers)
    call = problem.refreshed(call, live)
    # Neither caches nor the branch predictor may remember the call before: an honest sort would be faster the second
    # time.
    torch.sort(torch.rand(_SCRAMBLED))
    problem.synchronize()
    returned: list[Any] = []
    return clock(problem, lambda: returned.append(call())), returned[0]


def _wall_ns(problem: CaseProblem, run: Callable[[], Any]) -> float:
    """What the host waits; on a GPU what the device takes, if that is longer.

    A result kept on the host leaves the device nothing to do.
    """
    begin = time.perf_counter_ns()
    if problem.device.type != "cuda":
        run()
        return float(time.perf_counter_ns() - begin)
    start, end = new_event(), new_event()
    start.record()
    run()
    end.record()
    problem.synchronize()
    return max(elapsed_ns(start, end), float(time.perf_counter_ns() - begin))


def _busy_ns(_problem: CaseProblem, run: Callable[[], Any]) -> float:
    return float(sum(busy_ns(run)))


def _expect_own_memory(problem: CaseProblem, live: CaseData, kept: Any, again: Any) -> None:
    """Two results alive at once in one place are one result, unless both are views of an input."""
    inputs = {tensor.untyped_storage().data_ptr() for _, tensor in live.tensors()}
    first, second = problem.results(kept), problem.results(again)
    for name, tensor in second.items():
        place = tensor.untyped_storage().data_ptr()
        if tensor.numel() and place not in inputs and place == first[name].untyped_storage().data_ptr():
            raise WrongResultError(
                f"{name} of two calls on the same numbers is one and the same memory: a result was kept"
            )


def _moving(problem: CaseProblem, data: CaseData) -> CaseData:
    """What may change between two calls: in a backward case the forward run behind it belongs to its inputs."""
    return CaseData({}, data.incoming) if problem.backward else data


def _drawn(problem: CaseProblem, live: CaseData, seed: int) -> CaseData:
    """What `live` holds after the numbers of `seed` were put into it."""
    drawn = problem.data(seed)
    return CaseData(live.inputs, drawn.incoming) if problem.backward else drawn


def _same_bits(one: Tensor, other: Tensor) -> bool:
    return torch.equal(_bits(one), _bits(other))


def _bits(tensor: Tensor) -> Tensor:
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.detach().contiguous().view(whole[tensor.element_size()])


def _seed() -> int:
    return secrets.randbits(_SEED_BITS)
