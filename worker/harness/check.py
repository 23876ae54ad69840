"""Checks one variant on one case against the float64 oracle.

Three runs in the same buffers: two with different numbers, so that a result kept from an earlier call is caught, and one with
the first numbers again, which shows whether the variant is repeatable to the last bit. After each, the inputs must be what they were.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..protocol import CheckReply, Status, TensorError
from .compare import compare, expect_alike, explain
from .failures import WrongResultError
from .problem import Data, Problem

_OTHER_NUMBERS = 1_000_003

Progress = Callable[[int, int, str], None]


def check(problem: Problem, seed: int, progress: Progress) -> CheckReply:
    """How the variant fares; a wrong result is a reply and not an exception."""
    with problem.modes():
        live = problem.data(seed)
        first, judged = _run_and_judge(problem, live)
        kept = {name: tensor.clone() for name, tensor in first.items()}
        if any(not error.right for error in judged):
            return _reply(judged, first, seed)
        progress(1, 3, "first numbers right")
        live = _renumber(live, problem.data(seed + _OTHER_NUMBERS))
        second, judged_again = _run_and_judge(problem, live)
        if any(not error.right for error in judged_again):
            return _reply(judged_again, second, seed, " (second call, other numbers: does it keep earlier results?)")
        _expect_kept(first, kept, live)
        progress(2, 3, "other numbers right")
        live = _renumber(live, problem.data(seed))
        third = problem.run(live)
    return CheckReply(Status.OK, _repeatability(kept, third), seed, judged)


def judge(problem: Problem, data: Data, results: dict[str, Tensor]) -> list[TensorError]:
    """Every tensor of `results` against the oracle for `data`; WrongResultError for one of wrong shape, dtype or device."""
    oracle = problem.oracle(data)
    if results.keys() != oracle.keys():
        raise WrongResultError(f"it returned {len(results)} tensors and not {len(oracle)}")
    by_torch = problem.own_precision(data)
    depth = problem.operator.depth(problem.case)
    errors = []
    for name, result in results.items():
        expect_alike(name, result, oracle[name].shape, _expected_dtype(problem, data, name), problem.device)
        own = None if by_torch is None else by_torch[name]
        errors.append(compare(name, result.detach(), oracle[name], own, problem.case.precision, depth))
    return errors


def first_wrong(errors: list[TensorError], results: dict[str, Tensor]) -> str | None:
    """What is wrong with the first wrong tensor, None when all are right."""
    return next((explain(error, results[error.name].detach()) for error in errors if not error.right), None)


def _run_and_judge(problem: Problem, live: Data) -> tuple[dict[str, Tensor], list[TensorError]]:
    pristine = live.clone()
    _poison(problem)
    results = problem.run(live)
    changed = live.changed_since(pristine)
    if changed is not None:
        raise WrongResultError(f"it modifies its input: {changed}")
    return results, judge(problem, pristine, results)


def _renumber(live: Data, other: Data) -> Data:
    """`other`'s numbers in the buffers of `live` where they fit, so that a cache keyed by address is fooled."""
    if not live.fits(other):
        return other
    live.overwrite(other)
    return live


def _poison(problem: Problem) -> None:
    """Leaves NaN in the memory that the allocator hands out next, so that an element never written does not pass for zero."""
    poisoned = []
    for shape, dtype in problem.expected:
        fill = float("nan") if dtype.is_floating_point else 77
        poisoned.append(torch.full(shape, fill, dtype=dtype, device=problem.device))
    del poisoned


def _expected_dtype(problem: Problem, data: Data, name: str) -> torch.dtype:
    """Outputs have the dtype of the reference's; a gradient that of its input."""
    if problem.backward:
        return dict(data.tensors())[name.removeprefix("grad ")].dtype
    index = int(name[2:-1]) if name != "y" else 0
    return problem.expected[index][1]


def _expect_kept(first: dict[str, Tensor], kept: dict[str, Tensor], live: Data) -> None:
    """A result must outlive the next call, unless it is a view of an input, which has just been given other numbers."""
    inputs = {tensor.untyped_storage().data_ptr() for _, tensor in live.tensors()}
    for name, tensor in first.items():
        view = tensor.untyped_storage().data_ptr() in inputs
        if not view and not torch.equal(_bits(tensor), _bits(kept[name])):
            raise WrongResultError(f"{name} of one call is overwritten by the next")


def _repeatability(before: dict[str, Tensor], after: dict[str, Tensor]) -> str:
    moved = [name for name in before if not torch.equal(_bits(before[name]), _bits(after[name]))]
    return f"nondeterministic: {', '.join(moved)} differ between two calls on the same inputs" if moved else ""


def _bits(tensor: Tensor) -> Tensor:
    """The tensor's bits as whole numbers, since NaN does not equal itself."""
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.detach().contiguous().view(whole[tensor.element_size()])


def _reply(errors: list[TensorError], results: dict[str, Tensor], seed: int, note: str = "") -> CheckReply:
    return CheckReply(Status.WRONG, f"{first_wrong(errors, results)}{note}", seed, errors)
