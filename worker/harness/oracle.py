"""Judges results: the float64 oracle of one set of inputs, and the largest error allowed around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from warpwatch.contract.activities import Activity
from warpwatch.contract.measurement import TensorError
from warpwatch.contract.words import Fault

from .compare import Expected, compare, expect, expect_alike, explain, is_right, with_torch
from .failures import WrongResultError
from .problem import CaseData, CaseProblem
from .sensitivity import measure_sensitivity
from .spent import STOPWATCH


class Oracle:
    """The float64 oracle for `data`, computed once; it can judge any number of results.

    What allows a larger error is computed when a result needs it, or its measures are asked for: first torch's own
    result, then the oracle's sensitivity. redraw: draws `data` again for the latter; the inputs of a large case fit
    into memory only once.
    """

    @STOPWATCH.measure(Activity.ORACLE)
    def __init__(self, problem: CaseProblem, data: CaseData, redraw: Callable[[], CaseData]) -> None:
        self._problem, self._redraw, self._is_measured = problem, redraw, False
        self._data: CaseData | None = data
        oracle = problem.oracle(data)
        depth, precision = problem.operator.depth(problem.case), problem.case.precision
        self.expected: dict[str, Expected] = {name: expect(tensor, precision, depth) for name, tensor in oracle.items()}
        self._dtypes = {name: expected_dtype(problem, data, name) for name in oracle}

    def judge(self, results: dict[str, Tensor]) -> list[TensorError]:
        """Every error measure of every tensor; raises WrongResultError for a wrong shape, dtype or device."""
        self._expect_alike(results)
        self._measure_torch()
        errors = [compare(name, result.detach(), self.expected[name]) for name, result in results.items()]
        if all(error.right for error in errors) or not self._measure_sensitivity():
            return errors
        return [compare(name, result.detach(), self.expected[name]) for name, result in results.items()]

    def is_right(self, name: str, result: Tensor) -> bool:
        """Whether `result` is right; measures what allows a larger error if it is outside the usual tolerance."""
        result = result.detach()
        return (
            is_right(result, self.expected[name])
            or (self._measure_torch() and is_right(result, self.expected[name]))
            or (self._measure_sensitivity() and is_right(result, self.expected[name]))
        )

    def find_wrong(self, results: dict[str, Tensor]) -> str | None:
        """One line on the first wrong tensor; None when all are right, which is known sooner than all errors are.
        Raises like `judge`."""
        name = self._find_wrong(results)
        return None if name is None else self._explain(name, results[name])

    def expect(self, results: dict[str, Tensor]) -> None:
        """Raises WrongResultError with the tensor and its worst index unless all `results` are right."""
        name = self._find_wrong(results)
        if name is not None:
            raise WrongResultError(self._explain(name, results[name]), Fault.WRONG_VALUES, name)

    def _find_wrong(self, results: dict[str, Tensor]) -> str | None:
        self._expect_alike(results)
        return next((name for name, result in results.items() if not self.is_right(name, result)), None)

    def _explain(self, name: str, result: Tensor) -> str:
        return explain(compare(name, result.detach(), self.expected[name]), result.detach())

    @STOPWATCH.measure(Activity.ORACLE)
    def _measure_torch(self) -> bool:
        """Lets torch's own result, once, say how exact a result can be; whether it did so now."""
        if self._data is None:
            return False
        by_torch, self._data = self._problem.own_precision(self._data), None
        for name, tensor in (by_torch or {}).items():
            self.expected[name] = with_torch(self.expected[name], tensor)
        return by_torch is not None

    @STOPWATCH.measure(Activity.ORACLE)
    def _measure_sensitivity(self) -> bool:
        """Measures the sensitivity of every tensor, once; whether there is one. Whole numbers have none."""
        if not self._is_measured and self._problem.case.precision != "i32":
            oracle = {name: expected.oracle for name, expected in self.expected.items()}
            for name, sensitivity in measure_sensitivity(self._problem, self._redraw(), oracle).items():
                self.expected[name] = replace(self.expected[name], sensitivity=sensitivity)
        self._is_measured = True
        return any(expected.sensitivity is not None for expected in self.expected.values())

    def _expect_alike(self, results: dict[str, Tensor]) -> None:
        if results.keys() != self.expected.keys():
            message = f"The variant returns {len(results)} tensors, expected {len(self.expected)}"
            raise WrongResultError(message, Fault.WRONG_FORM)
        for name, result in results.items():
            oracle = self.expected[name].oracle
            expect_alike(name, result, oracle.shape, self._dtypes[name], oracle.device)


def explain_first(errors: list[TensorError], results: dict[str, Tensor]) -> str | None:
    """One line on the first wrong tensor; None when all are right."""
    return next((explain(error, results[error.name].detach()) for error in errors if not error.right), None)


def expected_dtype(problem: CaseProblem, data: CaseData, name: str) -> torch.dtype:
    """The dtype of a result: an output has that of the reference's output, a gradient that of its input."""
    if problem.backward:
        return dict(data.tensors())[name.removeprefix("grad ")].dtype
    index = int(name[2:-1]) if name != "y" else 0
    return problem.expected[index][1]
