"""Checks that `prepare` leaves the work to the call, and finds what it must be counted for.

`prepare` runs once per set of numbers outside the call's time, for a converted format or a plan. It may not compute the
answer. Where a call uses nothing but what was prepared, every new input needs `prepare` again, so nothing is amortised
and its time is part of the call's.
"""

from __future__ import annotations

import gc
import math
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor

from warpwatch.contract.words import Fault

from ..failures import WrongResultError
from ..problem import CaseData, CaseProblem, bits, is_same, keywords_of
from ..timers.ceilings import one_thread

_FEWEST_ELEMENTS = 16
"""Two numbers always correlate; this many do not by chance."""
_CORRELATED = 0.99
_MOST_OBJECTS = 20_000
_TIMINGS = 5
_COPY_SHARE, _COPY_SLACK_NS = 2.0, 5_000
"""A call that takes at most this many times a copy of its results only copies them."""
_WORTH_COPYING = 4.0
"""How many times a call's time the reference must take before a call that copies is suspicious."""
_SEED_BITS = 40


def expect_no_answer(problem: CaseProblem) -> bool:
    """Whether `prepare` is amortised: a call also depends on the inputs themselves, or `prepare` only moved these.

    Raises WrongResultError when `prepare` has computed the answer. Backward cases prepare before the incoming gradients
    exist. Of a step only the outputs are looked at: its gradients always depend on the incoming ones.
    """
    if problem.variant.prepare is None or problem.backward:
        return True
    live, others = (problem.data(secrets.randbits(_SEED_BITS)) for _ in range(2))
    call = problem.call(live)
    prepared = {name: value for name, value in keywords_of(call).items() if name not in live.inputs}
    # A call may leave its results in memory that was prepared, such as that of a CUDA graph.
    candidates = [tensor.detach().clone() for tensor in _candidates(problem, prepared, live)]
    answers = _run(problem, call)
    _expect_no_copy_of_the_answer(candidates, answers, live)
    # Whether every prepared tensor holds the numbers of an input, perhaps in other memory.
    is_moved = all(
        any(
            tensor.shape == given.shape and tensor.dtype == given.dtype and is_same(tensor.to(given.device), given)
            for _, given in live.tensors()
        )
        for tensor in _tensors([prepared])
    )
    if not live.fits(others):
        return True
    inputs = live.clone()
    # Whole numbers stay, unless there is nothing else: offsets that were prepared for other indices would lead a kernel
    # that relies on them outside its memory.
    pairs = [(mine, theirs) for (_, mine), (_, theirs) in zip(others.tensors(), live.tensors(), strict=True)]
    whole = [(mine, theirs) for mine, theirs in pairs if not (mine.is_floating_point() or mine.is_complex())]
    if len(whole) < len(pairs):
        for mine, theirs in whole:
            mine.copy_(theirs)
    live.overwrite(others)
    stale = _run(problem, call)
    if not _are_equal(stale, answers) or _are_equal(_outputs_of(problem.run(others)), answers):
        return True
    _expect_more_than_a_copy(problem, call, answers, inputs)
    return is_moved and bool(prepared)


def _run(problem: CaseProblem, call: Callable[[], Any]) -> dict[str, Tensor]:
    """Copies of the outputs of one call."""
    outputs = _outputs_of(problem.results(call()))
    copies = {name: tensor.detach().clone() for name, tensor in outputs.items()}
    problem.synchronize()
    return copies


def _outputs_of(results: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in results.items() if not name.startswith("grad ")}


def _are_equal(some: dict[str, Tensor], others: dict[str, Tensor]) -> bool:
    return some.keys() == others.keys() and all(
        tensor.shape == others[name].shape and torch.equal(bits(tensor), bits(others[name]))
        for name, tensor in some.items()
    )


def _expect_no_copy_of_the_answer(candidates: list[Tensor], answers: dict[str, Tensor], live: CaseData) -> None:
    """Raises WrongResultError when a prepared tensor correlates with a result, and no input does as well."""
    for name, answer in answers.items():
        if not any(_correlates(tensor, answer) for tensor in candidates):
            continue
        # Where the answer is nearly an input, a copy of that input is a format and no answer.
        if not any(_correlates(tensor, answer) for _, tensor in live.tensors()):
            message = f"`prepare` computes the answer: a tensor that it made correlates with {name}"
            raise WrongResultError(message, Fault.PREPARED_ANSWER, name)


def _expect_more_than_a_copy(
    problem: CaseProblem, call: Callable[[], Any], answers: dict[str, Tensor], inputs: CaseData
) -> None:
    """Raises WrongResultError when a call that uses only prepared arguments takes no longer than copying its result."""

    def copy() -> list[Tensor]:
        return [tensor.clone() for tensor in answers.values()]

    with one_thread():
        copy_ns, call_ns = _shortest_ns(problem, copy, call)
        if _exceeds_copy(call_ns, copy_ns) or problem.own_precision(inputs) is None:
            return
        copy_ns, call_ns, reference_ns = _shortest_ns(problem, copy, call, problem.own_call(inputs))
    if not _exceeds_copy(call_ns, copy_ns) and reference_ns > _WORTH_COPYING * call_ns:
        raise WrongResultError(
            f"`prepare` computes the answer: a call uses nothing else, and takes {call_ns / 1e3:.1f} µs where a copy of"
            f" the result takes {copy_ns / 1e3:.1f} µs",
            Fault.PREPARED_ANSWER,
        )


def _exceeds_copy(call_ns: float, copy_ns: float) -> bool:
    return call_ns > _COPY_SHARE * copy_ns + _COPY_SLACK_NS


def _shortest_ns(problem: CaseProblem, *runs: Callable[[], Any]) -> list[float]:
    """The shortest time of each run. They take turns, because other work on the host makes any of them longer."""
    turns = [[_elapsed_ns(problem, run) for run in runs] for _ in range(_TIMINGS)]
    return [min(times) for times in zip(*turns, strict=True)]


def _elapsed_ns(problem: CaseProblem, run: Callable[[], Any]) -> float:
    """Nanoseconds of a run until the device has ended it; of a CPU what it took of the cores, since to wait for a core
    is no work."""
    clock = time.process_time_ns if problem.device.type == "cpu" else time.perf_counter_ns
    problem.synchronize()
    begin = clock()
    run()
    problem.synchronize()
    return float(clock() - begin)


def _correlates(tensor: Tensor, answer: Tensor) -> bool:
    """Whether the numbers are those of the answer times a factor plus a constant, in its order or transposed."""
    if tensor.numel() != answer.numel() or answer.numel() < _FEWEST_ELEMENTS:
        return False
    orders = [tensor.flatten()]
    if tensor.dim() > 1:
        orders.append(tensor.mT.flatten())
        orders.append(tensor.permute(*reversed(range(tensor.dim()))).flatten())
    return any(abs(_correlation(order.double(), answer.flatten().double())) > _CORRELATED for order in orders)


def _correlation(some: Tensor, others: Tensor) -> float:
    """Pearson's correlation; 0 where either is constant or not finite."""
    some, others = some.to(others.device) - some.mean().to(others.device), others - others.mean()
    scale = float(torch.linalg.vector_norm(some) * torch.linalg.vector_norm(others))
    return float(some @ others) / scale if 0 < scale < math.inf else 0.0


def _candidates(problem: CaseProblem, prepared: dict[str, Any], live: CaseData) -> Iterator[Tensor]:
    """Tensors as large as an output that `prepare` can hand to the call: by argument, closure or global container."""
    sizes = {math.prod(shape) for shape, _ in problem.expected}
    given = {tensor.untyped_storage().data_ptr() for _, tensor in live.tensors()}
    roots = [prepared, *_reach(problem.variant.prepare), *_reach(problem.variant.function)]
    for tensor in _tensors(roots):
        if tensor.numel() in sizes and tensor.untyped_storage().data_ptr() not in given:
            yield tensor


def _reach(function: Any) -> list[Any]:
    """The objects in which a function can keep values: its closure, its defaults, and containers among the globals that
    the function names."""
    if not isinstance(function, FunctionType):
        return [function]
    names = function.__code__.co_names
    containers = [function.__globals__[name] for name in names if name in function.__globals__]
    kept = [value for value in containers if isinstance(value, (dict, list, set, Tensor)) or hasattr(value, "__dict__")]
    return [function.__closure__, function.__defaults__, function.__kwdefaults__, *kept]


def _tensors(roots: Iterable[Any]) -> Iterator[Tensor]:
    """Every dense tensor that is reachable from `roots`, without the contents of modules, types and functions."""
    queue, seen = list(roots), set[int]()
    while queue and len(seen) < _MOST_OBJECTS:
        value = queue.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            if value.layout is torch.strided and not value.is_meta and type(value) in (Tensor, torch.nn.Parameter):
                yield value
        elif isinstance(value, FunctionType):
            queue += [value.__closure__, value.__defaults__]
        elif not isinstance(value, (type, ModuleType, BuiltinFunctionType)):
            queue += [value.__self__] if isinstance(value, MethodType) else gc.get_referents(value)
