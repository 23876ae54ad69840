"""Second derivatives by the native variants: right, or refused; torch alone would leave out terms in silence."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from warpwatch.operator import Case, Operator, Variant
from warpwatch.worker.harness.problem import SeededMaker, map_tensors, named_tensors

from .conftest import ROOT, ready


def operators() -> list[Operator]:
    names = sorted(path.stem for path in (ROOT / "kernels").glob("[!_]*.py"))
    found: list[Operator] = [importlib.import_module(f"kernels.{name}").operator for name in names]
    return [
        operator
        for operator in found
        if operator.gradients and any(native_variants(operator, case) for case in operator.all_cases())
    ]


def smallest_case(operator: Operator) -> Case:
    """The cheapest backward case of full precision that a native variant takes, f64 where there is one."""
    cases = [case for case in operator.all_cases() if case.direction == "bwd" and native_variants(operator, case)]
    return min(cases, key=lambda case: (case.precision != "f64", operator.cost(case).flops))


def native_variants(operator: Operator, case: Case) -> list[Variant]:
    """Those that compute a case of full precision on a CPU."""
    is_full = case.precision in ("f64", "f32")
    variants = operator.variants.values()
    return [v for v in variants if is_full and v.native and v.reason_unsupported(case, "cpu") is None]


def gradient_of_penalty(
    operator: Operator, inputs: dict[str, Any], function: Callable[..., Any], prepare: Callable[..., Any] | None = None
) -> list[Tensor]:
    """The gradients of a loss with a penalty on its gradients, as a training with gradient penalty computes them."""
    inputs = map_tensors(lambda tensor: tensor.clone(), inputs)
    leaves = [
        tensor.requires_grad_() for name, tensor in named_tensors(inputs) if name.split("[")[0] in operator.gradients
    ]
    returned = function(**inputs, **(prepare(**inputs) if prepare else {}))
    values = returned if isinstance(returned, (tuple, list)) else (returned,)
    loss = torch.stack([value.square().sum() for value in values if value.requires_grad]).sum()
    first = torch.autograd.grad(loss, leaves, create_graph=True)
    penalty = torch.stack([gradient.square().sum() for gradient in first]).sum()
    return list(torch.autograd.grad(loss + penalty, leaves))


@pytest.mark.parametrize("operator", operators(), ids=lambda operator: operator.name)
def test_a_second_derivative_is_right_or_refused(operator: Operator, build_cache: Path) -> None:
    ready(operator, build_cache)
    case = smallest_case(operator)
    inputs = operator.inputs(case, SeededMaker(3, torch.device("cpu"), case.precision))
    expected = gradient_of_penalty(operator, inputs, operator.reference)
    for variant in native_variants(operator, case):
        refusal, actual = None, expected
        try:
            actual = gradient_of_penalty(operator, inputs, variant.function, variant.prepare)
        except RuntimeError as error:
            refusal = str(error)
        assert refusal is None or "call the operator's v1" in refusal, variant.name
        for ours, right in zip(actual, expected, strict=True):
            # Some elements are small beside the terms that they are the sum of.
            scale = float(right.abs().max())
            torch.testing.assert_close(ours, right, rtol=1e-4, atol=1e-5 * scale, msg=variant.name)


def test_a_first_derivative_is_taken_with_a_graph(build_cache: Path) -> None:
    from kernels.square import operator

    square = ready(operator, build_cache).variants["v3"].function
    a = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(square(a).sum(), a, create_graph=True)
    torch.testing.assert_close(gradient, 2 * a)
    with pytest.raises(RuntimeError, match="cannot be differentiated again"):
        gradient.sum().backward()
