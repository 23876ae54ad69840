"""Names what a wrong result looks like: kept, searched for, never written, of lower precision, or right only when
nobody times it.

Looked at only once a result is known to be wrong, so it may cost a few more runs of the oracle.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

import torch
from torch import Tensor

from .compare import EPSILON
from .failures import WrongResultError
from .oracle import Oracle, explain_first
from .problem import CaseData, CaseProblem

_DECOY_BYTES = 4 * 2**20
"""A larger one would take memory from the variant; whoever finds the oracle of a small case is caught already."""
_DECOY_SEED = 0xDEC07
_CLOSE = 1e-3
_MOSTLY = 0.9
_COARSER = {"f64": ("bf16", "f32"), "f32": ("bf16", "f16"), "tf32": ("bf16",)}
_ROUNDED = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


class Decoys:
    """Tensors that look like the oracle's answer and are none.

    A variant that searches memory for the answer finds them.

    They are alive, in this object's frame and in the garbage collector's lists, as long as this is.
    """

    def __init__(self, problem: CaseProblem) -> None:
        make = torch.Generator().manual_seed(_DECOY_SEED)
        shapes = [shape for shape, dtype in problem.expected if dtype.is_floating_point]
        small = [shape for shape in shapes if 8 * torch.Size(shape).numel() <= _DECOY_BYTES]
        self.tensors = [torch.randn(shape, generator=make, dtype=torch.float64).to(problem.device) for shape in small]

    def match(self, result: Tensor) -> bool:
        """Whether `result` holds the numbers of one of them."""
        return any(_is_close(result, decoy) for decoy in self.tensors)


def explain(
    problem: CaseProblem,
    redraw: Callable[[], CaseData],
    results: dict[str, Tensor],
    earlier: Sequence[CaseData],
    decoys: Decoys,
) -> str:
    """What wrong `results` look like, as the end of a sentence; empty when they look like nothing known.

    redraw: draws the numbers anew that they answer. earlier: numbers that had been in the same buffers before.
    """
    values = {name: result.detach() for name, result in results.items()}
    wrong = next((error for error in Oracle(problem, redraw()).judge(results) if not error.right), None)
    if wrong is None:
        return "; it has become right since: work went on after the call had returned"
    if any(decoys.match(value) for value in values.values()):
        return "; it is a decoy that lay in the harness's memory: the variant searches for the reference's result"
    if any(_is_unwritten(value) for value in values.values()):
        return "; it is the poison that the memory held before: nothing was ever written there"
    if any(_answers(problem, before, values) for before in earlier):
        return "; it is the right answer to numbers that were in these buffers before: a result was kept"
    told = "; the same call is right where nobody times it: the variant tells when it is timed"
    return (told if _is_right_elsewhere(problem, redraw) else "") + _coarse(problem, values[wrong.name], wrong.relative)


def _answers(problem: CaseProblem, data: CaseData, values: dict[str, Tensor]) -> bool:
    """Whether `values` answer these numbers, which are not the ones they were asked about."""
    oracle = problem.oracle(data)
    return values.keys() == oracle.keys() and all(_is_close(value, oracle[name]) for name, value in values.items())


def _is_close(result: Tensor, oracle: Tensor) -> bool:
    if result.shape != oracle.shape or not result.numel():
        return False
    difference = torch.linalg.vector_norm(result.double() - oracle.double().to(result.device))
    return bool(difference <= max(_CLOSE, 4 * _epsilon(result)) * float(torch.linalg.vector_norm(oracle.double())))


def _epsilon(result: Tensor) -> float:
    return torch.finfo(result.dtype).eps if result.dtype.is_floating_point else 0.0


def _is_unwritten(result: Tensor) -> bool:
    # An allocator may have written a few bytes of its own into memory that it got back.
    return result.numel() > 0 and result.dtype.is_floating_point and float(result.isnan().float().mean()) > _MOSTLY


def _is_right_elsewhere(problem: CaseProblem, redraw: Callable[[], CaseData]) -> bool:
    """Whether the same call is right in a thread of its own, on whose stack nothing of the timing lies."""
    verdict: list[bool] = []

    def call() -> None:
        with suppress(RuntimeError, WrongResultError), problem.modes():
            results = problem.run(redraw())
            verdict.append(explain_first(Oracle(problem, redraw()).judge(results), results) is None)

    thread = threading.Thread(target=call, name="call nobody times")
    thread.start()
    thread.join()
    return verdict == [True]


def _coarse(problem: CaseProblem, result: Tensor, relative: float) -> str:
    """Names a lower precision that every number fits into, or whose rounding explains the size of the error."""
    coarser = _COARSER.get(problem.case.precision, ())
    for precision in coarser:
        if result.numel() > 1 and torch.equal(result.to(_ROUNDED[precision]).to(result.dtype), result):
            return f"; every number of it fits into {precision}: it was computed in {precision}"
    found = [name for name in coarser if EPSILON[name] / 16 <= relative <= EPSILON[name] * 2]
    return f"; an error of this size is what {' or '.join(found)} leaves" if found else ""
