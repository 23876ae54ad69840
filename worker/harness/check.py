"""Checks one variant on one case against the float64 oracle.

Three runs in the same buffers: two with different numbers, so that a result kept from an earlier call is caught, and
one with the first numbers again, which shows whether the variant is repeatable to the last bit. After each, the inputs
must be what they were. A variant that is right so far is then probed further: see probes.py.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from warpwatch.contract.measurement import TensorError
from warpwatch.contract.messages import CheckReply
from warpwatch.contract.words import Status

from .failures import WrongResultError
from .oracle import Oracle, explain_first
from .probe_context import Memory, ProbeContext
from .probes import run_probes
from .problem import CaseData, CaseProblem

_OTHER_NUMBERS = 1_000_003

Progress = Callable[[int, int, str], None]


def check(problem: CaseProblem, seed: int, memory: Memory, progress: Progress) -> CheckReply:
    """How the variant fares; a wrong result is a reply and not an exception. `memory` is the child's own."""
    with problem.modes():
        live = problem.data(seed)
        first, judged, truth = _run_and_judge(problem, live)
        kept = {name: tensor.clone() for name, tensor in first.items()}
        if any(not error.right for error in judged):
            return _reply(judged, first, seed)
        progress(1, 3, "first numbers right")
        # Two oracles at once may not fit beside a large case.
        del truth
        live = _renumber(live, problem.data(seed + _OTHER_NUMBERS))
        second, judged_again, truth = _run_and_judge(problem, live)
        if any(not error.right for error in judged_again):
            return _reply(judged_again, second, seed, " (second call, other numbers: does it keep earlier results?)")
        _expect_kept(first, kept, live)
        progress(2, 3, "other numbers right")
        del second
        live = _renumber(live, problem.data(seed))
        third = problem.run(live)
        note = _repeatability(kept, third)
        del first, third, kept, live
        probes = run_probes(ProbeContext(problem, seed, problem.data(seed + _OTHER_NUMBERS), truth, memory), progress)
    wrong = [f"{probe.name}: {probe.message}" for probe in probes if probe.status == "wrong"]
    if wrong:
        return CheckReply(Status.WRONG, "\n".join(wrong), seed, judged, probes)
    return CheckReply(Status.OK, note, seed, judged, probes)


def _run_and_judge(problem: CaseProblem, live: CaseData) -> tuple[dict[str, Tensor], list[TensorError], Oracle]:
    pristine = live.clone()
    _poison(problem)
    results = problem.run(live)
    changed = live.changed_since(pristine)
    if changed is not None:
        raise WrongResultError(f"it modifies its input: {changed}")
    truth = Oracle(problem, pristine)
    return results, truth.judge(results), truth


def _renumber(live: CaseData, other: CaseData) -> CaseData:
    """`other`'s numbers in the buffers of `live` where they fit, so that a cache keyed by address is fooled."""
    if not live.fits(other):
        return other
    live.overwrite(other)
    return live


def _poison(problem: CaseProblem) -> None:
    """Leaves NaN in the memory that the allocator hands out next, so that an element never written does not pass for
    zero."""
    poisoned = []
    for shape, dtype in problem.expected:
        fill = float("nan") if dtype.is_floating_point else 77
        poisoned.append(torch.full(shape, fill, dtype=dtype, device=problem.device))
    del poisoned


def _expect_kept(first: dict[str, Tensor], kept: dict[str, Tensor], live: CaseData) -> None:
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
    return CheckReply(Status.WRONG, f"{explain_first(errors, results)}{note}", seed, errors)
