"""Mutants of gru_step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import gru_step
from .._recurrent import naive_cell
from ._common import exchange, without_variants

operator = without_variants(gru_step.operator)

caught_by = {
    "logits_of_the_old_state": "wrong_values y[0]",
    "no_context": "wrong_values y[0]",
    "biases_exchanged": "wrong_values y[1]",
    "context_learns_half": "wrong_values grad c",
    "gradients_exchanged": "wrong_values grad b_ih",
}


@operator.variant("logits_of_the_old_state", idea="computes the logits from the state before the step")
def logits_of_the_old_state(e: Tensor, h: Tensor, c: Tensor, w_fc: Tensor, b_fc: Tensor, **cell: Any) -> Any:
    after = naive_cell(torch.cat([e, c], 1), h, **cell)
    return torch.cat([e, h, c], 1) @ w_fc.t() + b_fc, after


@operator.variant("no_context", idea="leaves the context out of the logits")
def no_context(e: Tensor, h: Tensor, c: Tensor, w_fc: Tensor, b_fc: Tensor, **cell: Any) -> Any:
    after = naive_cell(torch.cat([e, c], 1), h, **cell)
    return torch.cat([e, after, torch.zeros_like(c)], 1) @ w_fc.t() + b_fc, after


@operator.variant("biases_exchanged", idea="exchanges both biases, which matters only behind the reset gate")
def biases_exchanged(**given: Any) -> Any:
    return gru_step.reference(**given | {"b_ih": given["b_hh"], "b_hh": given["b_ih"]})


@operator.variant("context_learns_half", idea="leaves the cell out of the gradient of the context")
def context_learns_half(e: Tensor, h: Tensor, c: Tensor, w_fc: Tensor, b_fc: Tensor, **cell: Any) -> Any:
    after = naive_cell(torch.cat([e, c.detach()], 1), h, **cell)
    return torch.cat([e, after, c], 1) @ w_fc.t() + b_fc, after


@operator.variant("gradients_exchanged", idea="returns the gradient of either bias as that of the other")
def gradients_exchanged(**given: Any) -> Any:
    b_ih, b_hh = exchange(given["b_ih"], given["b_hh"])
    return gru_step.reference(**given | {"b_ih": b_ih, "b_hh": b_hh})
