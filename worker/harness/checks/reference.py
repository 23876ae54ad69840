"""Checks that the reference of an operator can judge its variants, before any variant is judged by it.

A reference must give numbers for ordinary inputs, gradients where backward cases ask for them, the same answer each
time, and the same answer in every memory layout. Else its faults would be booked on variants.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpwatch.contract.activities import Activity
from warpwatch.contract.words import Status
from warpwatch.quantization import is_coded

from ..codes import CodeJudge
from ..dispatch import DispatchMode
from ..failures import BadDefinitionError, Refusal, device_works, status_of
from ..guards.bands import GuardedInputs, strided
from ..problem import CaseData, CaseProblem, map_tensors
from ..turns import STOPWATCH

_SAME = 1e-6
"""The largest relative difference of two answers in float64 that are the same: sums on a GPU may change their order."""
_LONG_SECONDS = 5.0
"""A reference that takes longer runs once."""
_FINITE = (
    "compute it from finite numbers alone, with `torch.where` around the divisor or the root and not around the "
    "result, or let `inputs` draw numbers within its domain"
)
_RANDOM = "draw random numbers in `inputs`, with `make`, and not in the reference"
_LAYOUT = "read the inputs by their indices and not in the order of their memory, as `as_strided` and `data_ptr` do"
_QUANTIZED = (
    "let `quantized` name the input, the outputs and the number format, and the reference return what "
    "`warpwatch.quantization.quantize` does"
)
_GRADIENTS = (
    "use operations that have gradients, without `detach`, `round` or `argmax`, or leave out the backward cases and "
    "`gradients`"
)


class ReferenceChecks:
    """The references that this process has checked, by case; a fault is reported once per operator."""

    def __init__(self) -> None:
        self._faults: dict[tuple[str, str], BadDefinitionError | None] = {}
        self._reported: dict[str, str] = {}

    def expect_usable(self, problem: CaseProblem, seed: int) -> None:
        """Raises BadDefinitionError at the first fault of the operator's reference, and Refusal at later ones."""
        name, case = problem.operator.name, problem.case.key
        if (name, case) not in self._faults:
            try:
                _expect_usable(problem, seed)
                self._faults[name, case] = None
            except BadDefinitionError as error:
                self._faults[name, case] = error
        fault = self._faults[name, case]
        if fault is None:
            return
        if name in self._reported:
            message = f"The reference of {name} cannot judge it, as {self._reported[name]} says"
            raise Refusal(Status.SKIPPED, message)
        self._reported[name] = f"{problem.variant.name} {case}"
        raise fault


@STOPWATCH.measure(Activity.ORACLE)
def _expect_usable(problem: CaseProblem, seed: int) -> None:
    try:
        data = problem.data(seed)
        begin = time.monotonic()
        answers = problem.oracle(data)
        took = time.monotonic() - begin
        if problem.records and not problem.is_differentiable:
            raise _fault(problem, "has no gradient", _GRADIENTS)
        _expect_finite(problem, data, answers)
        _expect_codes(problem, data, answers)
        if took > _LONG_SECONDS:
            return
        if not _are_same(answers, problem.oracle(data)):
            raise _fault(problem, "gives different answers for the same inputs", _RANDOM)
    except BadDefinitionError:
        raise
    except Exception as error:
        if status_of(error) is Status.OUT_OF_MEMORY or not device_works(problem.device):
            raise
        place = _place_of(problem, error) or _definition_of(problem)
        text = f"{place}: inputs or reference of {problem.operator.name} raise {type(error).__name__}: {error}"
        raise BadDefinitionError(text) from error
    moved = GuardedInputs(problem.widened(data), strided).data
    try:
        elsewhere = problem.evaluate_reference(moved)
    except Exception:
        if not device_works(problem.device):
            raise
        # Nothing but this check gives it such inputs.
        return
    if not _are_same(answers, elsewhere):
        raise _fault(problem, "gives another answer for the same numbers in another memory layout", _LAYOUT)


def _expect_finite(problem: CaseProblem, data: CaseData, answers: dict[str, Tensor]) -> None:
    """Raises BadDefinitionError for an answer that is not a number, or a gradient that is infinite, although all inputs
    are finite. A result may be infinite, as that of a mask is."""
    floats = [tensor for _, tensor in data.tensors() if tensor.dtype.is_floating_point]
    # torch does not test codes of eight bits.
    if not all(bool((tensor.float() if is_coded(tensor) else tensor).isfinite().all()) for tensor in floats):
        return
    for name, answer in answers.items():
        if not answer.dtype.is_floating_point:
            continue
        bad = ~answer.isfinite() if name.startswith("grad ") else answer.isnan()
        if bool(bad.any()):
            kind = "NaN" if bool(answer.isnan().any()) else "infinite"
            text = f"gives {kind} for finite inputs, in {int(bad.sum())} of {bad.numel()} elements of {name}"
            raise _fault(problem, text, _FINITE, _find_origin(problem, data))


def _expect_codes(problem: CaseProblem, data: CaseData, answers: dict[str, Tensor]) -> None:
    """Raises BadDefinitionError where outputs that the operator declares as codes are none of its reference, or are not
    what their number format makes of the input."""
    outputs = () if problem.records else problem.operator.quantized(problem.case)
    for output in outputs:
        source = data.inputs.get(output.source)
        if not isinstance(source, Tensor) or source.dim() != 2:
            raise _fault(problem, f"quantizes {output.source!r}, which is no matrix among the inputs", _QUANTIZED)
        indices = [index for index in (output.codes, output.scale, output.tensor_scale) if index is not None]
        if max(indices) >= len(answers):
            raise _fault(problem, f"has no output {max(indices)}, which is declared as quantized", _QUANTIZED)
    judge = CodeJudge(outputs, data.inputs, len(answers))
    for fault in judge.faults(answers).values():
        raise _fault(problem, f"gives other codes than it declares ({fault.message})", _QUANTIZED)


def _fault(problem: CaseProblem, text: str, remedy: str, place: str | None = None) -> BadDefinitionError:
    name, case = problem.operator.name, problem.case.key
    return BadDefinitionError(f"{place or _definition_of(problem)}: the reference of {name} {text} ({case}): {remedy}")


def _are_same(some: dict[str, Tensor], others: dict[str, Tensor]) -> bool:
    for name, answer in some.items():
        other = others[name]
        if answer.shape != other.shape:
            return False
        if not answer.dtype.is_floating_point:
            if not torch.equal(answer, other):
                return False
            continue
        finite = answer.isfinite()
        if not torch.equal(finite, other.isfinite()):
            return False
        answer, other = answer.where(finite, 0.0), other.where(finite, 0.0)
        if float(torch.linalg.vector_norm(answer - other)) > _SAME * float(torch.linalg.vector_norm(answer)):
            return False
    return True


def _definition_of(problem: CaseProblem) -> str:
    code = getattr(problem.operator.reference, "__code__", None)
    return f"{problem.operator.name}.py" if code is None else f"{_short(code.co_filename)}, line {code.co_firstlineno}"


def _short(file: str) -> str:
    return "/".join(file.split("/")[-2:])


def _place_of(problem: CaseProblem, error: BaseException) -> str | None:
    """The line of the operator's file that an exception came through last; None where it did not."""
    frames = reversed(list(traceback.walk_tb(error.__traceback__)))
    files = {_file_of(problem.operator.reference), _file_of(problem.operator.inputs)} - {None}
    lines = (f"{_short(frame.f_code.co_filename)}, line {line}" for frame, line in frames if _is_in(frame, files))
    return next(lines, None)


def _file_of(function: Callable[..., Any]) -> str | None:
    code = getattr(function, "__code__", None)
    return None if code is None else str(code.co_filename)


def _is_in(frame: Any, files: set[str | None]) -> bool:
    return frame.f_code.co_filename in files


def _find_origin(problem: CaseProblem, data: CaseData) -> str | None:
    """The line of the reference where the first NaN comes from numbers that are none, or else the first infinity."""
    file = _file_of(problem.operator.reference)
    if file is None:
        return None
    origins = _Origins(file)
    wide = problem.widened(data)
    with torch.no_grad(), origins:
        problem.operator.reference(**map_tensors(lambda tensor: tensor.detach(), wide.inputs))
    return origins.nan or origins.infinity


class _Origins(DispatchMode):  # type: ignore[no-untyped-call]
    """The lines of `file` whose operations were the first to make a NaN and an infinity from other numbers."""

    def __init__(self, file: str) -> None:
        super().__init__()
        self._file = file
        self.nan: str | None = None
        self.infinity: str | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.nan is None and _holds(result, torch.isnan) and not _holds([args, kwargs], torch.isnan):
            self.nan = self._line()
        if self.infinity is None and _holds(result, torch.isinf) and not _holds([args, kwargs], torch.isinf):
            self.infinity = self._line()
        return result

    def _line(self) -> str | None:
        frames = [frame for frame in traceback.extract_stack() if frame.filename == self._file]
        return f"{_short(self._file)}, line {frames[-1].lineno}" if frames else None


def _holds(value: Any, kind: Callable[[Tensor], Tensor]) -> bool:
    """Whether a number of the kind is among the tensors in `value`."""
    found: list[bool] = []
    map_tensors(lambda t: found.append(t.dtype.is_floating_point and bool(kind(t).any())), value)
    return any(found)
