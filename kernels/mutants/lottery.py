"""Mutants of lottery."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import lottery
from ._common import without_variants

operator = without_variants(lottery.operator)

caught_by = {
    "a_quarter_of_the_steps_left_out": "wrong_values y[2]",
    "one_step_left_out": "wrong_values y[2]",
    "not_rewound": "wrong_values y[2]",
    "mask_rewound": "wrong_values y[1]",
    "prunes_the_largest": "wrong_values y[2]",
    "prunes_initial_weights": "wrong_values y[2]",
    "gradient_without_tanh": "wrong_values y[2]",
    "last_step_at_half_rate": "wrong_values y[3]",
    "controls_are_the_ticket": "wrong_values y[4]",
    "masks_of_the_last_weights": "wrong_values y[5]",
}


def run(train: lottery.Train | None = None, prune: lottery.Prune = lottery.largest, **given: Any) -> lottery.Outputs:
    return lottery.tickets(**given, train=train or lottery.in_steps(lottery.descend), prune=prune)


def shortened(share: float, least: int) -> lottery.Train:
    """Training that leaves out a share of its steps, and at least so many."""
    descend = lottery.in_steps(lottery.descend)

    def train(
        x: Tensor, target: Tensor, w1: Tensor, w2: Tensor, mask1: Tensor, mask2: Tensor, speed: float, steps: int
    ) -> tuple[Tensor, Tensor]:
        return descend(x, target, w1, w2, mask1, mask2, speed, steps - max(least, int(share * steps)))

    return train


@operator.variant("a_quarter_of_the_steps_left_out", idea="makes three quarters of the training steps")
def a_quarter_of_the_steps_left_out(**given: Any) -> lottery.Outputs:
    return run(shortened(0.25, 1), **given)


@operator.variant("one_step_left_out", idea="makes one training step too few in every round")
def one_step_left_out(**given: Any) -> lottery.Outputs:
    return run(shortened(0, 1), **given)


@operator.variant("not_rewound", idea="goes on with the trained weights, and does not reset the survivors")
def not_rewound(**given: Any) -> lottery.Outputs:
    descend = lottery.in_steps(lottery.descend)
    trained: list[Tensor] = []

    def train(
        x: Tensor, target: Tensor, w1: Tensor, w2: Tensor, mask1: Tensor, mask2: Tensor, speed: float, steps: int
    ) -> tuple[Tensor, Tensor]:
        if trained:
            w1, w2 = trained[0] * mask1, trained[1] * mask2
        trained[:] = descend(x, target, w1, w2, mask1, mask2, speed, steps)
        return trained[0], trained[1]

    return run(train, **given)


@operator.variant("mask_rewound", idea="begins every round with all weights, and so prunes once")
def mask_rewound(**given: Any) -> lottery.Outputs:
    return run(prune=lambda w, keep: torch.ones_like(w, dtype=torch.bool), **given)


@operator.variant("prunes_the_largest", idea="keeps the smallest weights")
def prunes_the_largest(**given: Any) -> lottery.Outputs:
    return run(prune=lambda w, keep: ~lottery.largest(w, w.numel() - keep), **given)


@operator.variant("prunes_initial_weights", idea="prunes by the weights before training and not by those after it")
def prunes_initial_weights(w1: Tensor, w2: Tensor, **given: Any) -> lottery.Outputs:
    initial = torch.cat([w1.flatten(), w2.flatten()])
    return run(prune=lambda w, keep: lottery.largest(initial * (w != 0), keep), w1=w1, w2=w2, **given)


@operator.variant("gradient_without_tanh", idea="leaves the derivative of tanh out of the first layer's gradient")
def gradient_without_tanh(**given: Any) -> lottery.Outputs:
    def step(
        x: Tensor, target: Tensor, w1: Tensor, w2: Tensor, mask1: Tensor, mask2: Tensor, speed: float
    ) -> tuple[Tensor, Tensor]:
        h = torch.tanh(x @ w1)
        d = (torch.softmax(h @ w2, dim=-1) - target) / x.shape[0]
        return w1 - speed * (x.mT @ (d @ w2.mT)) * mask1, w2 - speed * (h.mT @ d) * mask2

    return run(lottery.in_steps(step), **given)


@operator.variant("last_step_at_half_rate", idea="moves the weights half as far in the last step of a round")
def last_step_at_half_rate(**given: Any) -> lottery.Outputs:
    descend = lottery.in_steps(lottery.descend)

    def train(
        x: Tensor, target: Tensor, w1: Tensor, w2: Tensor, mask1: Tensor, mask2: Tensor, speed: float, steps: int
    ) -> tuple[Tensor, Tensor]:
        w1, w2 = descend(x, target, w1, w2, mask1, mask2, speed, steps - 1)
        return descend(x, target, w1, w2, mask1, mask2, 0.5 * speed, 1)

    return run(train, **given)


@operator.variant("controls_are_the_ticket", idea="trains the control of new initial weights from the ticket's own")
def controls_are_the_ticket(**given: Any) -> lottery.Outputs:
    if "others1" in given:
        given["others1"] = given["w1"].expand(given["others1"].shape)
        given["others2"] = given["w2"].expand(given["others2"].shape)
    return run(**given)


@operator.variant("masks_of_the_last_weights", idea="masks by place in place of at random")
def masks_of_the_last_weights(**given: Any) -> lottery.Outputs:
    if "ranks" in given:
        given["ranks"] = given["ranks"].abs().sort(dim=1).values
    return run(**given)
