"""What the files beside this one share: the operator without its variants, and gradients that are wrong on purpose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from warpwatch.operator import Operator


def without_variants(shipped: Operator) -> Operator:
    """The operator with its inputs, reference and cases, for variants that need no library."""
    return replace(shipped, variants={}, native=None, uses=())


class _Skew(torch.autograd.Function):
    """The identity, with a gradient that goes through a function."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.change = change
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.change(gradients[0]), None


def skew(x: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """`x`, whose gradient becomes change(gradient)."""
    skewed: Tensor = _Skew.apply(x, change)  # type: ignore[no-untyped-call]
    return skewed


class _Exchange(torch.autograd.Function):
    """Both tensors as they are, each with the gradient of the other."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return a.view_as(a), b.view_as(b)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        return gradients[1], gradients[0]


def exchange(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Two tensors of one shape, whose gradients go to the wrong one."""
    first, second = _Exchange.apply(a, b)  # type: ignore[no-untyped-call]
    return first, second
