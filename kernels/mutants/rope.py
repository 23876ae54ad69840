"""Mutants of rope."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .. import rope
from ._common import skew, without_variants

operator = without_variants(rope.operator)

caught_by = {
    "turns_backwards": "wrong_values y[0]",
    "next_position": "wrong_values y[0]",
    "halves_for_pairs": "wrong_values y[0]",
    "keys_not_rotated": "wrong_values y[1]",
    "gradient_rotated_forward": "wrong_values grad q",
}


@operator.variant("turns_backwards", idea="rotates by the opposite angle")
def turns_backwards(sin: Tensor, **given: Any) -> rope.Both:
    return rope.reference(sin=-sin, **given)


@operator.variant("next_position", idea="counts positions from one")
def next_position(cos: Tensor, sin: Tensor, **given: Any) -> rope.Both:
    return rope.reference(cos=cos.roll(-1, 0), sin=sin.roll(-1, 0), **given)


@operator.variant("halves_for_pairs", idea="pairs the halves of a row where neighbours are to be paired")
def halves_for_pairs(interleaved: bool, **given: Any) -> rope.Both:
    return rope.reference(interleaved=False, **given)


@operator.variant("keys_not_rotated", idea="rotates all heads of the keys but the last")
def keys_not_rotated(k: Tensor, heads_first: bool, **given: Any) -> rope.Both:
    q_turned, k_turned = rope.reference(k=k, heads_first=heads_first, **given)
    k_turned = k_turned.clone()
    last = k_turned.select(1 if heads_first else 2, -1)
    last.copy_(k.select(1 if heads_first else 2, -1))
    return q_turned, k_turned


@operator.variant("gradient_rotated_forward", idea="rotates the gradient in the direction of the forward pass")
def gradient_rotated_forward(q: Tensor, **given: Any) -> rope.Both:
    twice = given | {"k": q.detach()}

    def turn_on(g: Tensor) -> Tensor:
        # The gradient was rotated back; twice forward makes it one rotation forward.
        once = rope.reference(**twice | {"q": g})[0]
        return rope.reference(**twice | {"q": once})[0]

    return rope.reference(q=skew(q, turn_on), **given)
