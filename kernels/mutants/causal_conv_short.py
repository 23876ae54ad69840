"""Mutants of causal_conv_short."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..causal_conv_short import operator as shipped
from ..causal_conv_short import reference
from ._common import without_variants

operator = without_variants(shipped)

caught_by = {
    "looks_ahead": "wrong_values y",
    "taps_reversed": "wrong_values y",
    "bias_after_silu": "wrong_values y",
    "half_of_silus_gradient": "wrong_values grad x",
}


@operator.variant("looks_ahead", idea="sees the next element: a halo that begins one element late")
def looks_ahead(x: Tensor, **given: Any) -> Tensor:
    return reference(F.pad(x, (0, 1))[..., 1:], **given)


@operator.variant("taps_reversed", idea="weights the present element by the first tap and not by the last")
def taps_reversed(x: Tensor, w: Tensor, **given: Any) -> Tensor:
    return reference(x, w.flip(1), **given)


@operator.variant("bias_after_silu", idea="adds the bias after SiLU")
def bias_after_silu(x: Tensor, w: Tensor, bias: Tensor | None = None, silu: bool = False) -> Tensor:
    y = reference(x, w, None, silu)
    return y if bias is None else y + bias[:, None]


@operator.variant("half_of_silus_gradient", idea="leaves the derivative of the sigmoid out of SiLU's gradient")
def half_of_silus_gradient(x: Tensor, w: Tensor, bias: Tensor | None = None, silu: bool = False) -> Tensor:
    z = reference(x, w, bias)
    return z * torch.sigmoid(z).detach() if silu else z
