"""What a call must return: the float64 oracle of one set of numbers, and how far from it a result may be."""

from __future__ import annotations

import torch
from torch import Tensor

from warpwatch.contract.measurement import TensorError

from .compare import Expected, compare, expect, expect_alike, explain, is_right
from .failures import WrongResultError
from .problem import CaseData, CaseProblem


class Oracle:
    """The oracle for `data`, computed once and held against as many results as wanted."""

    def __init__(self, problem: CaseProblem, data: CaseData) -> None:
        oracle, by_torch = problem.oracle(data), problem.own_precision(data)
        depth, precision = problem.operator.depth(problem.case), problem.case.precision
        self.expected: dict[str, Expected] = {
            name: expect(tensor, None if by_torch is None else by_torch[name], precision, depth)
            for name, tensor in oracle.items()
        }
        self._dtypes = {name: expected_dtype(problem, data, name) for name in oracle}

    def judge(self, results: dict[str, Tensor]) -> list[TensorError]:
        """Every error measure of every tensor; WrongResultError for one of wrong shape, dtype or device."""
        self._expect_alike(results)
        return [compare(name, result.detach(), self.expected[name]) for name, result in results.items()]

    def expect(self, results: dict[str, Tensor]) -> None:
        """Raises WrongResultError, which names tensor and worst index, unless all of `results` are right."""
        self._expect_alike(results)
        for name, result in results.items():
            if not is_right(result.detach(), self.expected[name]):
                raise WrongResultError(explain(compare(name, result.detach(), self.expected[name]), result.detach()))

    def _expect_alike(self, results: dict[str, Tensor]) -> None:
        if results.keys() != self.expected.keys():
            raise WrongResultError(f"it returned {len(results)} tensors and not {len(self.expected)}")
        for name, result in results.items():
            expect_alike(
                name, result, self.expected[name].oracle.shape, self._dtypes[name], self.expected[name].oracle.device
            )


def explain_first(errors: list[TensorError], results: dict[str, Tensor]) -> str | None:
    """What is wrong with the first wrong tensor, None when all are right."""
    return next((explain(error, results[error.name].detach()) for error in errors if not error.right), None)


def expected_dtype(problem: CaseProblem, data: CaseData, name: str) -> torch.dtype:
    """Outputs have the dtype of the reference's; a gradient that of its input."""
    if problem.backward:
        return dict(data.tensors())[name.removeprefix("grad ")].dtype
    index = int(name[2:-1]) if name != "y" else 0
    return problem.expected[index][1]
