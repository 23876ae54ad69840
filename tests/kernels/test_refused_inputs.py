"""Calls through warpwatch.load: a variant refuses what its operator calls unsupported, and nothing else.

Tensors here have shapes and no numbers, so cases of any size cost nothing and those of a GPU need none.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from warpwatch.loading import LoadedVariant, UnsupportedDeviceError, UnsupportedInputError, operator_names
from warpwatch.operator import Case, DeviceKind, Operator, Variant
from warpwatch.quantization import number_format, stored_dtype
from warpwatch.worker.harness.problem import (
    DTYPES,
    SeededMaker,
    as_bytes,
    map_tensors,
    named_tensors,
    precision_switches,
)

from .conftest import ready

ALTERNATIVES = {"tf32": ("tf32", "f32", "3xtf32"), "f32": ("f32", "3xtf32"), "3xtf32": ("f32", "3xtf32")}
"""Precisions in which a program that computes in floats takes results, by that of the case."""


class ShapeMaker:
    """Makes tensors of which only the shape matters."""

    def __init__(self, precision: str) -> None:
        self._dtype = DTYPES[precision]

    def normal(self, *shape: int, scale: float = 1.0) -> Tensor:
        return torch.empty(shape, dtype=self._dtype)

    def codes(self, name: str, rows: int, columns: int) -> tuple[Tensor, Any]:
        form = number_format(name)
        codes = torch.empty(rows, columns // 2 if form.is_packed else columns, dtype=stored_dtype(form.element))
        if not form.scale:
            return codes, None
        scale = torch.empty(form.scale_shape(rows, columns), dtype=stored_dtype(form.scale))
        return codes, (scale, torch.empty(())) if form.has_tensor_scale else scale

    def quantizable(self, name: str, rows: int, columns: int) -> Tensor:
        return self.normal(rows, columns)

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.int64 if self._dtype.is_floating_point else self._dtype)


def inputs_of(operator: Operator, case: Case, device: DeviceKind) -> dict[str, Any]:
    """The case's inputs, as if they lay on the device."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    with mode:
        inputs = operator.inputs(case, ShapeMaker(case.precision))

    def moved(tensor: Tensor) -> Tensor:
        placed: Tensor = FakeTensor(
            mode, torch.empty(tensor.shape, dtype=tensor.dtype, device="meta"), torch.device(device)
        )
        return placed

    inputs = {
        name: torch.device(device) if isinstance(value, torch.device) else value
        for name, value in map_tensors(moved, inputs).items()
    }
    if case.direction == "bwd":
        for name, tensor in named_tensors(inputs):
            if name.split("[")[0].split(".")[0] in operator.gradients:
                tensor.requires_grad_()
    return inputs


def takes(operator: Operator, variant: Variant, case: Case, device: DeviceKind) -> bool:
    declared = {each.precision for each in operator.all_cases()}
    precisions = [p for p in ALTERNATIVES.get(case.precision, (case.precision,)) if p in declared]
    return any(variant.reason_unsupported(replace(case, precision=p), device) is None for p in precisions)


def loaded(operator: Operator, variant: Variant) -> LoadedVariant:
    """The variant on a machine with a GPU, with a function that only takes the arguments."""

    @functools.wraps(variant.function)
    def reached(*args: Any, **kwargs: Any) -> str:
        return "reached"

    return LoadedVariant(operator, replace(variant, function=reached), "cuda")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", operator_names())
def test_a_variant_refuses_what_is_unsupported(name: str, device: DeviceKind, monkeypatch: pytest.MonkeyPatch) -> None:
    operator: Operator = importlib.import_module(f"kernels.{name}").operator
    hopper = SimpleNamespace(multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: hopper)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: True)
        variants = {key: loaded(operator, variant) for key, variant in operator.variants.items()}
    for case in dict.fromkeys(case.as_declared for case in operator.all_cases()):
        # A call by name may give its inputs in any order.
        inputs = dict(reversed(inputs_of(operator, case, device).items()))
        for key, call in variants.items():
            variant = operator.variants[key]
            outcome = "reached"
            with precision_switches(case.precision):
                try:
                    call(**inputs)
                except (UnsupportedDeviceError, UnsupportedInputError) as error:
                    outcome = str(error)
            expected = takes(operator, variant, case, device)
            assert (outcome == "reached") == expected, f"{name}.{key} {case.key}: {outcome}"


def test_a_gradient_that_a_variant_lacks_is_refused_with_the_remedy() -> None:
    operator: Operator = importlib.import_module("kernels.spmm").operator
    call = LoadedVariant(operator, operator.variants["coo"], "cpu")
    crow, col = torch.tensor([0, 1, 2], dtype=torch.int32), torch.tensor([0, 1], dtype=torch.int32)
    given = {"crow": crow, "col": col, "values": torch.ones(2), "b": torch.eye(2, requires_grad=True)}
    with pytest.raises(UnsupportedInputError, match=r"spmm\.coo: .*; its forward pass takes them: .*no_grad"):
        call(**given, indices=torch.zeros(2, 2))
    with torch.no_grad():
        torch.testing.assert_close(call(**given, indices=torch.tensor([[0, 1], [0, 1]])), torch.eye(2))


@pytest.mark.parametrize(
    ("variant", "dtype", "name", "reason"),
    [("v2", torch.float32, "mxfp4", "no format of four bits"), ("v3", torch.float16, "nvfp4", "a pass of its own")],
)
def test_a_number_format_is_refused_in_precisions_without_a_case_of_it(
    variant: str, dtype: torch.dtype, name: str, reason: str
) -> None:
    operator: Operator = importlib.import_module("kernels.quantize").operator
    call = LoadedVariant(operator, operator.variants[variant], "cpu")
    with pytest.raises(UnsupportedInputError, match=rf"quantize\.{variant}: .*{reason}"):
        call(torch.ones(2, 64, dtype=dtype), name, False)


def test_a_malformed_input_is_the_functions_own_error() -> None:
    operator: Operator = importlib.import_module("kernels.matmul").operator
    call = LoadedVariant(operator, operator.variants["v1"], "cpu")
    with pytest.raises(IndexError):
        call(torch.ones(()), torch.ones(()))
    with pytest.raises(TypeError):
        call(*(torch.ones(2, 2) for _ in range(3)))


def emptied(operator: Operator, variants: list[Variant]) -> Iterator[dict[str, Any]]:
    """Inputs of the smallest case that a variant takes, with one size after the other zero."""
    floats = [case for case in operator.all_cases() if case.direction == "fwd" and case.precision in ("f32", "i32")]
    taken = [case for case in floats if any(v.reason_unsupported(case, "cpu") is None for v in variants)]
    base = min(taken, key=lambda case: (operator.cost(case).flops, operator.cost(case).bytes))
    for name, size in base.sizes:
        if isinstance(size, str):
            continue
        numbers = size if isinstance(size, tuple) else (size,)
        for place in range(len(numbers)):
            zeroed = (*numbers[:place], 0, *numbers[place + 1 :])
            new = (name, zeroed if isinstance(size, tuple) else 0)
            case = replace(base, sizes=tuple(new if old[0] == name else old for old in base.sizes))
            # Where the inputs divide by the size, or draw numbers from nothing, there is no such case.
            with contextlib.suppress(ZeroDivisionError, RuntimeError):
                inputs = operator.inputs(case, SeededMaker(3, torch.device("cpu"), case.precision))
                if any(tensor.numel() == 0 for _, tensor in named_tensors(inputs)):
                    yield inputs


@pytest.mark.parametrize("name", operator_names())
def test_an_input_without_elements_is_computed_or_named(name: str, build_cache: Path) -> None:
    operator: Operator = importlib.import_module(f"kernels.{name}").operator
    variants = [variant for variant in operator.variants.values() if variant.native and "cpu" in variant.devices]
    # Operators without a library compute with torch alone.
    variants = variants or [operator.variants[key] for key in ("v1", "v2")]
    if operator.native is not None:
        ready(operator, build_cache)
    for inputs in emptied(operator, variants):
        names = [key for key, tensor in named_tensors(inputs) if tensor.numel() == 0]
        for call in [LoadedVariant(operator, variant, "cpu") for variant in variants]:
            refusal = ""
            actual = expected = []
            try:
                actual = call(**inputs, **call.prepare(**inputs))
                expected = operator.reference(**inputs)
            except UnsupportedInputError as error:
                refusal = str(error)
            except RuntimeError:
                # The reference stacks what it computes, and there is nothing.
                expected = map_tensors(torch.empty_like, actual)
                assert all(tensor.numel() == 0 for _, tensor in named_tensors([actual])), call
            if "without elements" in refusal:
                assert any(key.split("[")[0] in refusal for key in names), refusal
            # torch compares codes of eight bits without any tolerance.
            actual, expected = (map_tensors(as_bytes, values) for values in (actual, expected))
            torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4, equal_nan=True, msg=str(call))
