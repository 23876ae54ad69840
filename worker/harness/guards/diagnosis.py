"""Explains a wrong result: cached, found in memory, never written, of lower precision, or right only when untimed.

It runs only after a result was wrong, so it may take several more runs of the oracle.
"""

from __future__ import annotations

import random
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from time import perf_counter_ns

import torch
from torch import Tensor

from warpwatch.contract.measurement import TensorError
from warpwatch.contract.words import Fault

from ..failures import WrongResultError
from ..oracle import EPSILON, Oracle
from ..problem import CaseData, CaseProblem, is_poison
from .digits import describe_digits, find_digits

_DECOY_BYTES = 4 * 2**20
"""The largest decoy. A larger one would take memory from the variant, and small cases catch the same search."""
_DECOY_SEED = 0xDEC07
_OTHER_SEEDS = range(0xDEC08, 0xDEC20)
"""Of inputs that no call has had: two of them have the same answer where there are fewer than some 300."""
_FEW_NUMBERS = 1024
"""Results of more numbers are compared with those of other inputs alone."""
_CLOSE = 1e-3
_SYSTEMATIC, _FEWEST_NEIGHBOURS, _MOST_NEIGHBOURS = 0.9, 16, 2**20
"""Rounding errors of neighbours are independent; those of a wrong factor correlate."""
_MOST_OF_IT = 0.5
"""A relative error from which a result has little to do with the oracle."""
_MOSTLY = 0.9
_REPEATED = 6
"""Calls of each kind. In random order, code that is right and wrong by turns tells them apart once in 900 times."""
_FEWEST_CALLS, _MOST_CALLS, _CALLS_NS = 8, 100, 200_000_000
"""Calls on the same inputs that tell whether a variant is wrong now and then: a hundred, if they take no longer."""
_COARSER = {"f64": ("bf16", "f32"), "f32": ("bf16", "tf32", "f16"), "tf32": ("bf16",)}
_ROUNDED = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The likely cause of a wrong result; text is the end of a sentence, empty when the cause is unknown."""

    fault: Fault
    text: str = ""
    subjects: tuple[str, ...] = ()


class Decoys:
    """Random float64 tensors with the shapes of the outputs, for variants that search memory for the oracle.

    The garbage collector lists them, and frames refer to them, as long as this object lives.
    """

    def __init__(self, problem: CaseProblem) -> None:
        generator = torch.Generator().manual_seed(_DECOY_SEED)
        shapes = [shape for shape, dtype in problem.expected if dtype.is_floating_point]
        small = [shape for shape in shapes if 8 * torch.Size(shape).numel() <= _DECOY_BYTES]
        self.tensors = [
            torch.randn(shape, generator=generator, dtype=torch.float64).to(problem.device) for shape in small
        ]
        self._versions = [tensor._version for tensor in self.tensors]

    @property
    def are_altered(self) -> bool:
        """Whether somebody wrote into a decoy."""
        return [tensor._version for tensor in self.tensors] != self._versions

    def match(self, result: Tensor) -> bool:
        """Whether `result` holds the numbers of a decoy."""
        return any(_is_close(result, decoy) for decoy in self.tensors)


@lru_cache(maxsize=1)
def decoys_of(problem: CaseProblem) -> Decoys:
    """The decoys of a problem, which all its timers share, because to draw them takes milliseconds."""
    return Decoys(problem)


def explain(
    problem: CaseProblem,
    redraw: Callable[[], CaseData],
    results: dict[str, Tensor],
    earlier: Iterable[CaseData],
    decoys: Decoys,
) -> Diagnosis:
    """The likely cause of wrong `results`.

    redraw: draws the inputs of these results again. earlier: inputs that were in the same buffers before.
    """
    values = {name: result.detach() for name, result in results.items()}
    judge = Oracle(problem, redraw(), redraw)
    errors = [error for error in judge.judge(results) if not error.right]
    wrong = next(iter(errors), None)
    if wrong is None:
        return Diagnosis(Fault.UNFINISHED, "; it became right later, so work went on after the call had returned")
    if any(decoys.match(value) for value in values.values()):
        text = "; it is a decoy from the harness's memory, so the variant searches memory for the oracle"
        return Diagnosis(Fault.SEARCHED_MEMORY, text)
    if decoys.are_altered:
        text = "; a decoy in the harness's memory has changed, so the variant searches memory for the oracle"
        return Diagnosis(Fault.SEARCHED_MEMORY, text)
    if any(is_poison(value) for value in values.values()):
        return Diagnosis(
            Fault.UNWRITTEN_RESULT, "; it is the poison from before the call, so the variant never wrote it"
        )
    # Threads that the file of the variant has started.
    module = getattr(problem.variant.function, "__module__", None)
    targets = [(thread.name, getattr(thread, "_target", None)) for thread in threading.enumerate()]
    running = [name for name, target in targets if target is not None and getattr(target, "__module__", "") == module]
    late = "" if not running else f"; the thread {running[0]!r} that it started still runs, so it may do the work later"
    unfinished = Diagnosis(Fault.UNFINISHED, late, (wrong.name, *running))
    others = problem.data(_OTHER_SEEDS[0])
    wrong_calls, calls = count_wrong(partial(problem.run, redraw()), judge, partial(problem.run, others))
    if 0 < wrong_calls < calls:
        # Each answer below may be chance.
        text = f"; {wrong_calls} of {calls} calls on the same inputs are wrong, so it is wrong now and then"
        return unfinished if running else Diagnosis(Fault.WRONG_VALUES, text, (wrong.name,))
    # Where answers hardly depend on the inputs, any answer is close to those of other inputs.
    stale = {error.name: values[error.name] for error in errors}
    is_close_already = all(_is_close(value, judge.expected[name].oracle) for name, value in stale.items())
    for before in () if is_close_already else _with_new_gradients(problem, earlier, redraw):
        if _are_close(stale, problem.oracle(before)) and not is_common(problem, stale):
            text = "; it is right for inputs that were in these buffers before, so the variant caches results"
            return Diagnosis(Fault.CACHED_RESULT, text)
    if _is_right_only_untimed(problem, redraw, judge):
        text = "; the same call is right when nothing times it, so the variant detects the timer"
        return Diagnosis(Fault.DETECTED_TIMER, text)
    if not any(map(_is_mostly_nan, values.values())) and _is_unwritten(problem, redraw):
        text = "; it is poison where torch fills new memory with it, so the variant never wrote it"
        return Diagnosis(Fault.UNWRITTEN_RESULT, text)
    diagnosis = _lower_precision(problem, redraw, values[wrong.name], judge.expected[wrong.name].oracle, wrong)
    return unfinished if running and diagnosis.fault is Fault.WRONG_VALUES else diagnosis


def count_wrong(
    run: Callable[[], dict[str, Tensor]], judge: Oracle, between: Callable[[], object] = lambda: None
) -> tuple[int, int]:
    """(wrong calls, calls): `run` calls a variant on the same inputs until it was both right and wrong, or for long.

    Code that keeps results, searches memory or detects a timer gives the same inputs the same answer. between: is
    called before half of the calls, at random; on other inputs, because code may return what it has of these.
    """
    verdicts: list[bool] = []
    for _ in _in_time(range(_MOST_CALLS), _FEWEST_CALLS):
        if random.random() < 0.5:
            with suppress(RuntimeError, WrongResultError):
                between()
        verdicts.append(not _is_right(run, judge))
        if len(set(verdicts)) > 1:
            break
    return sum(verdicts), len(verdicts)


def _in_time(numbers: Iterable[int], fewest: int = 2) -> Iterator[int]:
    """The first `fewest` numbers, and further ones until a fifth of a second has passed: a large case takes seconds."""
    begin = perf_counter_ns()
    for index, number in enumerate(numbers):
        if index >= fewest and perf_counter_ns() - begin >= _CALLS_NS:
            return
        yield number


def _is_right(run: Callable[[], dict[str, Tensor]], judge: Oracle) -> bool:
    with suppress(RuntimeError, WrongResultError):
        return judge.find_wrong(run()) is None
    return False


def _with_new_gradients(
    problem: CaseProblem, earlier: Iterable[CaseData], redraw: Callable[[], CaseData]
) -> Iterator[CaseData]:
    """Earlier inputs, in a step also with the current incoming gradients: a variant may keep what its forward pass has
    computed, and take new gradients through it."""
    for before in earlier:
        yield before
        if problem.case.direction == "step":
            yield CaseData(before.inputs, redraw().incoming)


def _is_close(result: Tensor, oracle: Tensor, least: float = _CLOSE) -> bool:
    if result.shape != oracle.shape or not result.numel():
        return False
    epsilon = torch.finfo(result.dtype).eps if result.dtype.is_floating_point else 0.0
    difference = torch.linalg.vector_norm(result.double() - oracle.double().to(result.device))
    return bool(difference <= max(least, 4 * epsilon) * float(torch.linalg.vector_norm(oracle.double())))


def _are_close(results: dict[str, Tensor], oracle: dict[str, Tensor], least: float = _CLOSE) -> bool:
    return all(_is_close(value, oracle[name], least) for name, value in results.items())


def is_common(
    problem: CaseProblem,
    results: dict[str, Tensor],
    draw: Callable[[int], CaseData] | None = None,
    least: float = _CLOSE,
) -> bool:
    """Whether chance may bring the results about: they are close to those of inputs that no call has had, or so few
    answers exist that some of these inputs share theirs.

    draw: makes such inputs of a seed. least: the difference up to which results are close, beside that of rounding.
    """
    known = [results]
    for seed in _in_time(_OTHER_SEEDS):
        oracle = problem.oracle((draw or problem.data)(seed))
        if any(_are_close(answer, oracle, least) for answer in known):
            return True
        if sum(result.numel() for result in results.values()) <= _FEW_NUMBERS:
            known.append({name: oracle[name] for name in results})
    return False


def _is_right_only_untimed(problem: CaseProblem, redraw: Callable[[], CaseData], judge: Oracle) -> bool:
    """Whether the same call is wrong again and again with a timer on its stack, and right every time in a thread that
    has none. That thread makes many calls, on other inputs as well, because code may keep something for each of its
    threads."""

    def call(draw: Callable[[], CaseData] = redraw) -> bool:
        with problem.modes():
            return _is_right(lambda: problem.run(draw()), judge)

    with ThreadPoolExecutor(1, "untimed calls") as thread:
        for seed in _in_time(_OTHER_SEEDS):
            thread.submit(call, partial(problem.data, seed)).result()
        if not all(thread.submit(call).result() for _ in _in_time(range(_MOST_CALLS))):
            return False
        order = random.sample([True, False] * _REPEATED, 2 * _REPEATED)
        return all(call() is False if is_timed else thread.submit(call).result() for is_timed in order)


def _is_mostly_nan(result: Tensor) -> bool:
    return bool(result.numel() and result.is_floating_point() and result.isnan().float().mean() > _MOSTLY)


def _is_unwritten(problem: CaseProblem, redraw: Callable[[], CaseData]) -> bool:
    """Whether a result of the same call is NaN every time that torch fills with it whatever it allocates without
    numbers."""
    data = redraw()
    was_enabled = torch.are_deterministic_algorithms_enabled()
    warned = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with suppress(RuntimeError, WrongResultError), warnings.catch_warnings(action="ignore"), problem.modes():
            return all(any(map(_is_mostly_nan, problem.run(data).values())) for _ in range(_REPEATED))
    finally:
        torch.use_deterministic_algorithms(was_enabled, warn_only=warned)
    return False


def _is_systematic(result: Tensor, oracle: Tensor) -> bool:
    """Whether the relative errors of neighbours are nearly the same, as those of a row with a wrong factor."""
    oracle = oracle.flatten()[:_MOST_NEIGHBOURS]
    errors = (result.flatten()[:_MOST_NEIGHBOURS].double() - oracle) / oracle
    errors = errors[errors.isfinite()]
    if len(errors) < _FEWEST_NEIGHBOURS:
        return False
    return float(torch.corrcoef(torch.stack([errors[1:], errors[:-1]]))[0, 1]) > _SYSTEMATIC


def _lower_precision(
    problem: CaseProblem, redraw: Callable[[], CaseData], result: Tensor, oracle: Tensor, error: TensorError
) -> Diagnosis:
    """Names a lower precision that holds every element exactly, whose digits the result has, or whose rounding explains
    the size of the error."""
    coarser = _COARSER.get(problem.case.precision, ())
    if not result.is_floating_point():
        return Diagnosis(Fault.WRONG_VALUES, subjects=(error.name,))
    if error.relative > _MOST_OF_IT or _is_systematic(result, oracle):
        return Diagnosis(Fault.WRONG_VALUES, subjects=(error.name,))
    for precision, dtype in _ROUNDED.items():
        if precision in coarser and result.numel() > 1 and torch.equal(result.to(dtype).to(result.dtype), result):
            text = f"; {precision} holds every element exactly, so the variant computes in {precision}"
            return Diagnosis(Fault.REDUCED_PRECISION, text, (precision,))
    shown = find_digits(problem, redraw, error.name, result, oracle)
    if shown is not None:
        return Diagnosis(Fault.REDUCED_PRECISION, describe_digits(shown), (shown,))
    matching = tuple(name for name in coarser if EPSILON[name] / 16 <= error.relative <= EPSILON[name] * 2)
    if not matching:
        return Diagnosis(Fault.WRONG_VALUES, subjects=(error.name,))
    text = f"; the error is as large as the rounding of {' or '.join(matching)}"
    return Diagnosis(Fault.REDUCED_PRECISION, text, matching)
