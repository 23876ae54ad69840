"""Makes seeded tensors on the device under test, sets the precision of a case, and walks nested tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

DTYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "3xtf32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "i32": torch.int32,
}


class SeededMaker:
    """The Maker that operator files use: the same seed gives the same tensors on the same kind of device."""

    def __init__(self, seed: int, device: torch.device, precision: str) -> None:
        self.seed = seed
        self._device = device
        self._dtype = DTYPES[precision]
        self._generator = torch.Generator(device=device)
        self._generator.manual_seed(seed)

    def normal(self, *shape: int, scale: float = 1.0) -> Tensor:
        """Normal numbers with standard deviation `scale`, in the case's dtype; ValueError in an i32 case."""
        if not self._dtype.is_floating_point:
            raise ValueError("make.normal makes floating-point numbers: use make.integers in cases of precision i32")
        drawn_as = torch.float64 if self._dtype == torch.float64 else torch.float32
        drawn = torch.randn(shape, generator=self._generator, device=self._device, dtype=drawn_as)
        return drawn.mul_(scale).to(self._dtype)

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        """Integers in [low, high): int32 in i32 cases, elsewhere int64, which torch accepts as indices."""
        dtype = torch.int64 if self._dtype.is_floating_point else self._dtype
        return torch.randint(low, high, shape, generator=self._generator, device=self._device, dtype=dtype)


@contextmanager
def precision_switches(precision: str) -> Iterator[None]:
    """Turns TF32 on for tf32 cases and off for all others, whatever an operator file set; restores it afterwards."""
    matmul, convolution = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    use_tf32 = precision == "tf32"
    torch.set_float32_matmul_precision("high" if use_tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = use_tf32
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(matmul)
        torch.backends.cudnn.allow_tf32 = convolution


def bits(tensor: Tensor) -> Tensor:
    """The bits of the tensor as integers, which compare equal where both are the same NaN."""
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.detach().contiguous().view(integers[tensor.element_size()])


def map_tensors(function: Callable[[Tensor], Any], value: Any) -> Any:
    """`value` with every tensor in its lists, tuples and dicts replaced by function(tensor)."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, dict):
        return {key: map_tensors(function, item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map_tensors(function, item) for item in value)
    return value


def named_tensors(value: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor in `value` with a name such as `w` or `w[1]`, in a fixed order."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from named_tensors(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from named_tensors(item, f"{name}[{index}]")
