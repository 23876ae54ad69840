"""Mutants of seq2seq_train."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import seq2seq_train
from ..seq2seq_train import Layer, joined, run_naively
from ._common import skew, without_variants

operator = without_variants(seq2seq_train.operator)

caught_by = {
    "padding_counts": "wrong_values y",
    "sees_the_answer": "wrong_values y",
    "half_of_the_encoders_gradient": "wrong_values grad encoder[0][0]",
    "deeper_layers_start_at_zero": "wrong_values y",
    "start_token_left_out": "wrong_values grad target_table",
}


@operator.variant("padding_counts", idea="divides the loss by all target tokens, padding included")
def padding_counts(**given: Any) -> Tensor:
    target = given["target"]
    share: Tensor = (target != seq2seq_train.PADDING).sum() / target.numel()
    return joined(run_naively, **given) * share


@operator.variant("sees_the_answer", idea="gives each step the token that it must predict")
def sees_the_answer(**given: Any) -> Tensor:
    shifted = torch.cat([given["target"][1:], given["target"][:1]])
    kept = torch.where(given["target"] == seq2seq_train.PADDING, seq2seq_train.PADDING, shifted)
    return joined(run_naively, **given | {"target": kept})


@operator.variant("half_of_the_encoders_gradient", idea="halves the gradients of the encoder's weights")
def half_of_the_encoders_gradient(**given: Any) -> Tensor:
    halved = [[skew(weight, lambda gradient: gradient / 2) for weight in layer] for layer in given["encoder"]]
    return joined(run_naively, **given | {"encoder": halved})


@operator.variant("deeper_layers_start_at_zero", idea="begins the decoder's deeper layers at zero")
def deeper_layers_start_at_zero(**given: Any) -> Tensor:
    def run(x: Tensor, h: Sequence[Tensor], layers: Sequence[Layer]) -> tuple[Tensor, list[Tensor]]:
        return run_naively(x, [h[0], *(torch.zeros_like(state) for state in h[1:])], layers)

    return joined(run, **given)


@operator.variant("start_token_left_out", idea="leaves the first step's token out of its embedding's gradient")
def start_token_left_out(**given: Any) -> Tensor:
    def without_start(gradient: Tensor) -> Tensor:
        return torch.cat([gradient[: seq2seq_train.START], 0 * gradient[:1], gradient[seq2seq_train.START + 1 :]])

    return joined(run_naively, **given | {"target_table": skew(given["target_table"], without_start)})
