"""Whether rows of a result depend on the rows beside them in the batch.

Rows from the middle of a batch run once more as a batch of their own, and the bits of their results are compared with
those in the whole batch. A kernel that divides its work by the size of the batch adds in another order there, and stays
right within the tolerance: this is a fact for users who need the same answer in every batch, and no failure. Results
may differ from call to call as well, and two calls agree now and then. So a difference is repeated before it counts.

It applies where the leading dimension of a result counts rows that the reference computes independently. Which size of
a case that is, the operator declares, or its cases show by varying it: a variant that was written for one size must not
meet another.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from warpwatch.contract.measurement import BatchRows
from warpwatch.contract.words import BatchState
from warpwatch.operator import DeviceKind

from ..failures import device_works
from ..problem import CaseData, CaseProblem, bits
from .probes import NotProbedError, ProbeContext, first_line, no_recompilation

_SAME = 1e-9
"""Relative norm by which two float64 references of the same rows may differ."""
_VERIFIED = 2
"""Rows that the reference computes alone, to see whether they are independent."""
_REPEATED = 4
"""Further calls, of the whole batch and of its part each, that must show a difference. Bits that calls draw by chance
pass for a dependence on other rows once in 1,000 checks if two calls agree in half of all cases, and else less often.
"""


@dataclass(frozen=True, slots=True)
class BatchScope:
    """The batch of a case. name, size: of the case. only_first: whether the batch is a dimension of the first input
    alone, where others happen to be as long. results: those whose leading dimension counts its rows."""

    name: str
    size: int
    only_first: bool
    results: tuple[str, ...]

    @property
    def middle(self) -> slice:
        """The rows that run alone: half of them, with neighbours on both sides where there are any."""
        count = self.size // 2
        start = (self.size - count + 1) // 2
        return slice(start, start + count)


class _UnsteadyError(NotProbedError):
    """Results differ from call to call. moved: how many elements of each differ between two calls."""

    def __init__(self, moved: dict[str, int]) -> None:
        super().__init__("the results differ from call to call")
        self.moved = moved


def count_moved(before: dict[str, Tensor], after: dict[str, Tensor]) -> dict[str, int]:
    """How many elements of each result have other bits in another call, without the results in which none has."""
    counts = {name: int((bits(before[name]) != bits(after[name])).sum()) for name in before}
    return {name: count for name, count in counts.items() if count}


def compare_rows(
    context: ProbeContext, data: CaseData, results: dict[str, Tensor], moved: dict[str, int]
) -> tuple[BatchRows, dict[str, int]]:
    """Compares rows that run alone with the same rows in the whole batch; returns with it what is known to differ from
    call to call.

    data, results: of a call of the whole batch. moved: see count_moved, of two such calls. Raises only when the CUDA
    context is lost.
    """
    try:
        if moved:
            raise _UnsteadyError(moved)
        rows = _find_rows(context)
        return _run_alone(context.problem, rows, data, results), moved
    except _UnsteadyError as unsteady:
        return BatchRows(BatchState.NOT_APPLICABLE, note=str(unsteady)), unsteady.moved
    except NotProbedError as reason:
        return BatchRows(BatchState.NOT_APPLICABLE, note=str(reason)), moved
    except Exception as error:
        if not device_works(context.problem.device):
            error.add_note("A part of the batch raised this.")
            raise
        note = f"a part of the batch does not run: {first_line(error)}"
        return BatchRows(BatchState.NOT_APPLICABLE, note=note), moved


def _run_alone(problem: CaseProblem, rows: BatchScope, data: CaseData, results: dict[str, Tensor]) -> BatchRows:
    count = rows.size // 2
    sizes = tuple((name, count if name == rows.name else size) for name, size in problem.case.sizes)
    kind: DeviceKind = "cuda" if problem.device.type == "cuda" else "cpu"
    reason = problem.variant.reason_unsupported(replace(problem.case, sizes=sizes), kind)
    if reason is not None:
        raise NotProbedError(f"the variant does not support {rows.name}={count}: {reason}")
    part = _cut(data, rows, rows.middle)
    with no_recompilation():
        alone = problem.run(part)
    changed = _changed_rows(rows, alone, results)
    if changed.any():
        changed = _repeat(problem, rows, (data, results), (part, alone), changed)
    state = BatchState.DEPENDENT if changed.any() else BatchState.INVARIANT
    return BatchRows(state, changed.numel(), int(changed.sum()))


def _changed_rows(rows: BatchScope, alone: dict[str, Tensor], results: dict[str, Tensor]) -> Tensor:
    """Which rows have other bits alone than in the whole batch, those of all results behind one another."""
    changed = []
    for name in rows.results:
        together = results[name][rows.middle]
        if alone[name].shape != together.shape:
            raise NotProbedError(f"{name} of a part of the batch has another shape")
        changed.append((bits(alone[name]) != bits(together)).reshape(len(together), -1).any(1))
    return torch.cat(changed)


def _repeat(
    problem: CaseProblem,
    rows: BatchScope,
    whole: tuple[CaseData, dict[str, Tensor]],
    part: tuple[CaseData, dict[str, Tensor]],
    changed: Tensor,
) -> Tensor:
    """Which of the changed rows are changed in each of several further calls; _UnsteadyError where the results differ
    from call to call instead.

    whole, part: the data and the results of the whole batch and of a part of it.
    """
    for _ in range(_REPEATED):
        moved = count_moved(whole[1], problem.run(whole[0]))
        if moved:
            raise _UnsteadyError(moved)
        with no_recompilation():
            alone = problem.run(part[0])
        changed = changed & _changed_rows(rows, alone, whole[1])
        if not changed.any():
            raise _UnsteadyError(count_moved(part[1], alone))
    return changed


def _find_rows(context: ProbeContext) -> BatchScope:
    """The batch of the case, found once for all variants; NotProbedError where there is none."""
    problem = context.problem
    known, key = context.history.rows, (problem.operator.name, problem.case.key)
    if key not in known:
        known[key] = next(
            (
                found
                for name in _batch_names(problem)
                for only_first in (False, True)
                if (found := _verify(context, name, only_first=only_first)) is not None
            ),
            None,
        )
    if known[key] is None:
        raise NotProbedError("no result has independent rows, or no case varies their number")
    rows: BatchScope = known[key]
    return rows


def _batch_names(problem: CaseProblem) -> list[str]:
    """Names of sizes that may count the rows of a batch."""
    sizes = dict(problem.case.sizes)
    lengths = {shape[0] for shape, _ in problem.expected if shape}
    names = [name for name, size in sizes.items() if isinstance(size, int) and size > 1 and size in lengths]
    if problem.operator.batch:
        return [name for name in names if name == problem.operator.batch]
    others = [dict(case.sizes) for case in problem.operator.all_cases()]
    return [name for name in names if any(other.get(name, sizes[name]) != sizes[name] for other in others)]


def _verify(context: ProbeContext, name: str, *, only_first: bool) -> BatchScope | None:
    """The batch that the size of this name counts, if the reference computes some of its rows alone as it does among
    the others."""
    size = dict(context.problem.case.sizes)[name]
    assert isinstance(size, int)
    rows = BatchScope(name, size, only_first, ())
    part = slice(rows.middle.start, min(rows.middle.stop, rows.middle.start + _VERIFIED))
    # An element of a vector is no row: nothing that a kernel could compute lies beside it in a batch.
    if not any(tensor.dim() > 1 and len(tensor) == size for _, tensor in context.data.tensors()):
        return None
    try:
        alone = context.problem.oracle(_cut(context.data, rows, part))
    except (RuntimeError, ValueError, TypeError, IndexError, AssertionError):
        # The reference may rely on the sizes of the case, or another dimension may be as long by chance.
        return None
    found = [
        result
        for result, expected in context.oracle.expected.items()
        if expected.oracle.dim() and len(expected.oracle) == size and _is_same(alone[result], expected.oracle[part])
    ]
    return replace(rows, results=tuple(found)) if found else None


def _cut(data: CaseData, rows: BatchScope, part: slice) -> CaseData:
    """The data with this part of the batch alone, in memory of its own."""
    first = next((tensor for _, tensor in data.tensors() if tensor.dim() and len(tensor) == rows.size), None)
    given = {id(tensor) for tensor in data.incoming}

    def is_batch(tensor: Tensor) -> bool:
        is_chosen = not rows.only_first or tensor is first or id(tensor) in given
        return bool(tensor.dim()) and len(tensor) == rows.size and is_chosen

    return data.map(lambda tensor: tensor.detach()[part].clone() if is_batch(tensor) else tensor.detach())


def _is_same(alone: Tensor, together: Tensor) -> bool:
    if alone.shape != together.shape or alone.dtype != together.dtype:
        return False
    if not alone.dtype.is_floating_point:
        return torch.equal(alone, together)
    return float(torch.linalg.vector_norm(alone - together)) <= _SAME * float(torch.linalg.vector_norm(together))
