"""Gradients that kernels compute, and which have no gradients of their own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten


class _Last(torch.autograd.Function):
    """Results that depend on tensors and must not be differentiated by them."""

    @staticmethod
    def forward(sources: int, *tensors: Tensor | None) -> tuple[Tensor | None, ...]:
        return tuple(None if result is None else result.view_as(result) for result in tensors[sources:])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise RuntimeError(
            "a kernel computed this gradient, and it cannot be differentiated again: where a graph of the gradient is "
            "needed (create_graph=True), call the operator's v1, which torch differentiates"
        )


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """A backward pass whose gradients raise RuntimeError where they are differentiated again.

    torch would leave out the terms of a kernel in silence, and so give a wrong Hessian or gradient penalty. Its own
    decorator of this name raises only where the incoming gradient requires a gradient, not where a saved input does.
    """

    @functools.wraps(backward)
    def wrapped(ctx: Any, *gradients: Any) -> Any:
        if not torch.is_grad_enabled():
            return backward(ctx, *gradients)
        sources = [t for t in (*ctx.saved_tensors, *gradients) if isinstance(t, Tensor) and t.requires_grad]
        with torch.no_grad():
            results = backward(ctx, *gradients)
        flat, form = tree_flatten(results)
        return tree_unflatten(_Last.apply(len(sources), *sources, *flat), form)  # type: ignore[no-untyped-call]

    return wrapped
