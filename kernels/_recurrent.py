"""A GRU cell in plain torch calls, and the native scan of a layer; shared by the recurrent operators.

Gates are ordered r, z, n: r = σ(W_ir x + b_ir + W_hr h + b_hr), z likewise, q = W_hn h + b_hn, n = tanh(W_in x + b_in +
r q) and h' = (1 - z) n + z h. Weights are (3 hidden, ·), biases (3 hidden).
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from ._gradients import once_differentiable

CELL, PERSISTENT, TILES = 3, 4, 5
"""Versions of the native scan, numbered as in csrc/gru/gru.h."""


def naive_cell(x: Tensor, h: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor) -> Tensor:
    """One step, gate by gate, as the formula is written."""
    (w_ir, w_iz, w_in), (w_hr, w_hz, w_hn) = w_ih.chunk(3), w_hh.chunk(3)
    (b_ir, b_iz, b_in), (b_hr, b_hz, b_hn) = b_ih.chunk(3), b_hh.chunk(3)
    r = torch.sigmoid(x @ w_ir.t() + b_ir + h @ w_hr.t() + b_hr)
    z = torch.sigmoid(x @ w_iz.t() + b_iz + h @ w_hz.t() + b_hz)
    q = h @ w_hn.t() + b_hn
    n = torch.tanh(x @ w_in.t() + b_in + r * q)
    return (1 - z) * n + z * h


def cell(input_gates: Tensor, hidden_gates: Tensor, h: Tensor) -> Tensor:
    """The element-wise part of a step: (batch, 3 hidden) from either side, both with their bias."""
    x_r, x_z, x_n = input_gates.chunk(3, 1)
    h_r, h_z, h_n = hidden_gates.chunk(3, 1)
    r, z = torch.sigmoid(x_r + h_r), torch.sigmoid(x_z + h_z)
    n = torch.tanh(torch.addcmul(x_n, r, h_n))
    return torch.lerp(n, h, z)


def fused_cell(input_gates: Tensor, hidden_gates: Tensor, h: Tensor) -> Tensor:
    """`cell` in one launch by torch's own kernel on CUDA; `cell` itself elsewhere, where torch has none."""
    if not h.is_cuda:
        return cell(input_gates, hidden_gates, h)
    after: Tensor = torch.ops.aten._thnn_fused_gru_cell(input_gates, hidden_gates, h)[0]
    return after


@functools.cache
def register_scan() -> None:
    """Shapes for torch.compile, and the gradients, for the torch operators of csrc/gru."""

    @torch.library.register_fake("warpwatch::gru_scan")  # type: ignore[untyped-decorator]
    def fake(
        gates: Tensor, h0: Tensor, w: Tensor, bias: Tensor, version: int = CELL, keep: bool = False
    ) -> tuple[Tensor, Tensor]:
        steps, (batch, hidden) = gates.shape[0], h0.shape
        return h0.new_empty((steps, batch, hidden)), h0.new_empty((steps if keep else 0, batch, 4 * hidden))

    @torch.library.register_fake("warpwatch::gru_scan_backward")  # type: ignore[untyped-decorator]
    def fake_backward(
        gradient: Tensor, h0: Tensor, w: Tensor, out: Tensor, saved: Tensor, version: int = CELL
    ) -> tuple[Tensor, Tensor, Tensor]:
        steps, batch, hidden = out.shape
        shape = (steps, batch, 3 * hidden)
        return h0.new_empty(shape), h0.new_empty(shape), h0.new_empty(h0.shape)

    torch.library.register_autograd("warpwatch::gru_scan", _backward, setup_context=_remember)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    gates, h0, w, bias, ctx.version, _ = inputs
    out, saved = output
    ctx.mark_non_differentiable(saved)
    # Otherwise autograd fills a tensor four times as large as the output with zeros, as the gradient of what has none.
    ctx.set_materialize_grads(False)
    kept = saved.shape[0] == out.shape[0]
    ctx.save_for_backward(h0, w, out, saved if kept else None, *(() if kept else (gates, bias)))


@once_differentiable
def _backward(ctx: Any, gradient: Tensor | None, _saved: None) -> tuple[Tensor | None, ...]:
    if gradient is None:
        return (None,) * 6
    h0, w, out, saved, *again = ctx.saved_tensors
    if saved is None:
        # The forward call was not asked to keep what the gradients need.
        _, saved = torch.ops.warpwatch.gru_scan(again[0], h0, w, again[1], ctx.version, True)
    d_input, d_hidden, d_h0 = torch.ops.warpwatch.gru_scan_backward(gradient, h0, w, out, saved, ctx.version)
    # All steps' weight gradients are one product of a library.
    before = torch.cat([h0[None], out[:-1]]).flatten(0, 1)
    slopes = d_hidden.flatten(0, 1)
    return d_input, d_h0, slopes.t() @ before, slopes.sum(0), None, None


def scan(gates: Tensor, h0: Tensor, w: Tensor, bias: Tensor, version: int) -> Tensor:
    """All states of a layer, (steps, batch, hidden), from the products of its inputs."""
    keep = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (gates, h0, w, bias))
    out: Tensor = torch.ops.warpwatch.gru_scan(gates, h0, w, bias, version, keep)[0]
    return out
