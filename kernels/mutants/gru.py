"""Mutants of gru."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .. import gru
from .._recurrent import naive_cell
from ._common import without_variants

operator = without_variants(gru.operator)

caught_by = {
    "gate_inverted": "wrong_values y[0]",
    "reset_before_product": "wrong_values y[0]",
    "one_step_late": "wrong_values y[0]",
    "state_of_the_layer_below": "wrong_values y[1]",
    "forgets_through_time": "wrong_values grad h0",
}

Cell = Callable[..., Tensor]


def run(x: Tensor, h0: Tensor, weights: Sequence[Tensor], cell: Cell) -> gru.Outputs:
    """The reference, with another cell."""
    last = []
    for h, layer in gru.layers_of(h0, weights):
        states = []
        for step in x:
            h = cell(step, h, *layer)
            states.append(h)
        x = torch.stack(states)
        last.append(h)
    return x, torch.stack(last)


def gates(x: Tensor, h: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor) -> tuple[Tensor, Tensor]:
    """(r, z) of a step."""
    (x_r, x_z, _), (h_r, h_z, _) = (x @ w_ih.t() + b_ih).chunk(3, 1), (h @ w_hh.t() + b_hh).chunk(3, 1)
    return torch.sigmoid(x_r + h_r), torch.sigmoid(x_z + h_z)


def inverted(x: Tensor, h: Tensor, *layer: Tensor) -> Tensor:
    """z n + (1 - z) h: the sum of both is n + h."""
    return reset_first(x, h, *layer, first=False, invert=True)


def reset_first(x: Tensor, h: Tensor, *layer: Tensor, first: bool = True, invert: bool = False) -> Tensor:
    """A cell that multiplies the state, and not the product, by r."""
    w_ih, w_hh, b_ih, b_hh = layer
    r, z = gates(x, h, *layer)
    w_n, b_n = w_hh.chunk(3)[2], b_hh.chunk(3)[2]
    q = (r * h) @ w_n.t() + b_n if first else r * (h @ w_n.t() + b_n)
    n = torch.tanh(x @ w_ih.chunk(3)[2].t() + b_ih.chunk(3)[2] + q)
    return z * n + (1 - z) * h if invert else (1 - z) * n + z * h


@operator.variant("gate_inverted", idea="takes the update gate for its opposite")
def gate_inverted(x: Tensor, h0: Tensor, weights: Sequence[Tensor]) -> gru.Outputs:
    return run(x, h0, weights, inverted)


@operator.variant(
    "reset_before_product", idea="multiplies the state by the reset gate before the product, not after it"
)
def reset_before_product(x: Tensor, h0: Tensor, weights: Sequence[Tensor]) -> gru.Outputs:
    return run(x, h0, weights, reset_first)


@operator.variant("one_step_late", idea="returns the state before every step and not after it")
def one_step_late(x: Tensor, h0: Tensor, weights: Sequence[Tensor]) -> gru.Outputs:
    out, last = run(x, h0, weights, naive_cell)
    return torch.cat([h0[-1:], out[:-1]]), last


@operator.variant("state_of_the_layer_below", idea="begins every layer with the first state of the first layer")
def state_of_the_layer_below(x: Tensor, h0: Tensor, weights: Sequence[Tensor]) -> gru.Outputs:
    return run(x, h0[:1].expand_as(h0), weights, naive_cell)


@operator.variant("forgets_through_time", idea="carries the gradient of a state one step back and no further")
def forgets_through_time(x: Tensor, h0: Tensor, weights: Sequence[Tensor]) -> gru.Outputs:
    def cell(x: Tensor, h: Tensor, *layer: Tensor) -> Tensor:
        return naive_cell(x, h if h.is_leaf or h._base is h0 else h.detach(), *layer)

    return run(x, h0, weights, cell)
