"""Judges results: the float64 oracle of one set of inputs, and the largest error allowed around it."""

from __future__ import annotations

import torch
from torch import Tensor

from warpwatch.contract.activities import Activity
from warpwatch.contract.measurement import TensorError
from warpwatch.contract.words import Fault

from .compare import Expected, compare, expect, expect_alike, explain, is_right
from .failures import WrongResultError
from .problem import CaseData, CaseProblem
from .spent import STOPWATCH


class Oracle:
    """The float64 oracle for `data`, computed once; it can judge any number of results."""

    @STOPWATCH.measure(Activity.ORACLE)
    def __init__(self, problem: CaseProblem, data: CaseData) -> None:
        oracle, by_torch = problem.oracle(data), problem.own_precision(data)
        depth, precision = problem.operator.depth(problem.case), problem.case.precision
        self.expected: dict[str, Expected] = {
            name: expect(tensor, None if by_torch is None else by_torch[name], precision, depth)
            for name, tensor in oracle.items()
        }
        self._dtypes = {name: expected_dtype(problem, data, name) for name in oracle}

    def judge(self, results: dict[str, Tensor]) -> list[TensorError]:
        """Every error measure of every tensor; raises WrongResultError for a wrong shape, dtype or device."""
        self._expect_alike(results)
        return [compare(name, result.detach(), self.expected[name]) for name, result in results.items()]

    def expect(self, results: dict[str, Tensor]) -> None:
        """Raises WrongResultError with the tensor and its worst index unless all `results` are right."""
        self._expect_alike(results)
        for name, result in results.items():
            if not is_right(result.detach(), self.expected[name]):
                error = compare(name, result.detach(), self.expected[name])
                raise WrongResultError(explain(error, result.detach()), Fault.WRONG_VALUES, name)

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
