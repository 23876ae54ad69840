"""Greedy decode of a recurrent encoder-decoder, end to end: source tokens in, at most `steps` tokens per sentence out.

A GRU encoder runs over the source's embeddings; its last state is the decoder's first state and, unchanged, the context
of every step. A step takes the previous token, updates the state and emits the most likely token; a sentence that has
emitted END repeats it. The time of the whole decode is measured, because a step is launch-bound whatever its kernels
take.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from warpwatch.operator import Case, Cost, DeviceKind, Maker, Operator, case
from warpwatch.peers import compile_unsupported

from . import _recurrent
from ._captured import CapturedCall
from ._compiled import compiled

START, END = 1, 2

linear = torch.nn.functional.linear


def inputs(case: Case, make: Maker) -> dict[str, Any]:
    """Embeddings and weights are large enough for varied tokens: with smaller ones the decode soon repeats one."""
    width, hidden, batch = case["embedding"], case["hidden"], case["batch"]
    source_vocab, vocab = case["vocab"]

    def layer(columns: int) -> list[Tensor]:
        scale = 1.5 * hidden**-0.5
        matrices = [make.normal(3 * hidden, n, scale=scale) for n in (columns, hidden)]
        return [*matrices, *(make.normal(3 * hidden, scale=0.1) for _ in range(2))]

    return {
        "source": make.integers(0, source_vocab, case["source"], batch),
        "source_table": make.normal(source_vocab, width),
        "target_table": make.normal(vocab, width, scale=2.0),
        "encoder": layer(width),
        "decoder": layer(width + hidden),
        "w_fc": make.normal(vocab, width + 2 * hidden, scale=hidden**-0.5),
        "b_fc": make.normal(vocab, scale=0.1),
        "steps": case["steps"],
    }


def read_token(token: Tensor, h: Tensor, table: Tensor, encoder: Sequence[Tensor]) -> Tensor:
    """The encoder's next state."""
    return _recurrent.naive_cell(table[token], h, *encoder)


def emit_token(
    token: Tensor, h: Tensor, c: Tensor, table: Tensor, decoder: Sequence[Tensor], w_fc: Tensor, b_fc: Tensor
) -> tuple[Tensor, Tensor]:
    """The next token and the decoder's next state."""
    e = table[token]
    h = _recurrent.naive_cell(torch.cat([e, c], 1), h, *decoder)
    likeliest = (torch.cat([e, h, c], 1) @ w_fc.t() + b_fc).argmax(1)
    return torch.where(token == END, END, likeliest), h


def decoded(
    read: Callable[..., Tensor],
    emit: Callable[..., tuple[Tensor, Tensor]],
    source: Tensor,
    source_table: Tensor,
    target_table: Tensor,
    encoder: Sequence[Tensor],
    decoder: Sequence[Tensor],
    w_fc: Tensor,
    b_fc: Tensor,
    steps: int,
) -> Tensor:
    """The decode by the two functions for a step."""
    h = source_table.new_zeros(source.shape[1], encoder[1].shape[1])
    for step in source:
        h = read(step, h, source_table, encoder)
    c, token, emitted = h, source.new_full(source.shape[1:], START), []
    for _ in range(steps):
        token, h = emit(token, h, c, target_table, decoder, w_fc, b_fc)
        emitted.append(token)
    return torch.stack(emitted, 1)


def reference(**inputs: Any) -> Tensor:
    return decoded(read_token, emit_token, **inputs)


def cost(case: Case) -> Cost:
    """The context's products count once.

    Bytes count all weights once: each is read from memory at least once.
    """
    batch, width, hidden, (_, vocab) = case["batch"], case["embedding"], case["hidden"], case["vocab"]
    encoder, decoder, fc = (
        3 * hidden * (width + hidden),
        3 * hidden * (width + 2 * hidden),
        vocab * (width + 2 * hidden),
    )
    context = hidden * (3 * hidden + vocab)
    step = decoder + fc - context
    flops = 2 * batch * (case["source"] * encoder + context + case["steps"] * step)
    weights = encoder + decoder + fc + 12 * hidden + vocab
    embeddings = batch * width * (case["source"] + case["steps"])
    tokens = 8 * batch * (case["source"] + case["steps"])
    return Cost(flops, case.element_bytes * (weights + embeddings) + tokens)


def register_native() -> None:
    """Shapes for torch.compile; tokens have no gradients."""

    @torch.library.register_fake("warpwatch::seq2seq_decode")  # type: ignore[untyped-decorator]
    def fake(
        source: Tensor,
        source_table: Tensor,
        target_table: Tensor,
        encoder: list[Tensor],
        decoder: list[Tensor],
        w_fc: Tensor,
        b_fc: Tensor,
        start: int,
        end: int,
        steps: int,
    ) -> Tensor:
        return source.new_empty((source.shape[1], steps))


def decode(
    source: int, batch: int, embedding: int, hidden: int, vocab: tuple[int, int], steps: int, precision: Any = "f32"
) -> Case:
    return case(precision, source=source, batch=batch, embedding=embedding, hidden=hidden, vocab=vocab, steps=steps)


QUICK = (
    decode(13, 1, 32, 64, (350, 300), 25),
    decode(7, 4, 32, 64, (350, 300), 25),
    decode(5, 3, 13, 19, (40, 37), 10, "f64"),
)
FULL = (*QUICK, *(decode(13, batch, 256, 512, (7853, 5893), 25) for batch in (1, 8, 64)))
EDGE = (decode(1, 1, 5, 7, (9, 11), 1), decode(2, 9, 8, 33, (9, 65), 3), decode(2, 0, 4, 5, (6, 7), 3))

operator = Operator(
    "seq2seq",
    "Greedy decode of a recurrent encoder-decoder, end to end.",
    inputs=inputs,
    reference=reference,
    cost=cost,
    cases={"quick": QUICK, "full": FULL, "edge": EDGE},
    native=register_native,
    no_special_values="the likeliest of logits that are NaN is no token",
)


@operator.variant(
    "v1", idea="as the formula is written; the host checks after every step whether all sentences have ended"
)
def v1(
    source: Tensor,
    source_table: Tensor,
    target_table: Tensor,
    encoder: Sequence[Tensor],
    decoder: Sequence[Tensor],
    w_fc: Tensor,
    b_fc: Tensor,
    steps: int,
) -> Tensor:
    h = source_table.new_zeros(source.shape[1], encoder[1].shape[1])
    for step in source:
        h = _recurrent.naive_cell(source_table[step], h, *encoder)
    c, token = h, source.new_full(source.shape[1:], START)
    emitted = torch.full((source.shape[1], steps), END, dtype=source.dtype, device=source.device)
    for index in range(steps):
        e = target_table[token]
        h = _recurrent.naive_cell(torch.cat([e, c], 1), h, *decoder)
        token = torch.where(token == END, END, linear(torch.cat([e, h, c], 1), w_fc, b_fc).argmax(1))
        emitted[:, index] = token
        if bool((token == END).all()):
            break
    return emitted


@operator.variant(
    "v2", idea="torch.gru of the whole source, torch.gru_cell and F.linear per step, and no wait for the host"
)
def v2(
    source: Tensor,
    source_table: Tensor,
    target_table: Tensor,
    encoder: Sequence[Tensor],
    decoder: Sequence[Tensor],
    w_fc: Tensor,
    b_fc: Tensor,
    steps: int,
) -> Tensor:
    h, token, emitted = _encode(source, source_table, encoder), source.new_full(source.shape[1:], START), []
    c = h
    for _ in range(steps):
        e = target_table[token]
        h = torch.gru_cell(torch.cat([e, c], 1), h, *decoder)
        token = _next(token, linear(torch.cat([e, h, c], 1), w_fc, b_fc))
        emitted.append(token)
    return torch.stack(emitted, 1)


@operator.variant(
    "split",
    idea=(
        "v2 with the context's products computed once: no concatenation, and fewer columns of the vocabulary's "
        "weights per step"
    ),
)
def split(
    source: Tensor,
    source_table: Tensor,
    target_table: Tensor,
    encoder: Sequence[Tensor],
    decoder: Sequence[Tensor],
    w_fc: Tensor,
    b_fc: Tensor,
    steps: int,
) -> Tensor:
    h, token, emitted = _encode(source, source_table, encoder), source.new_full(source.shape[1:], START), []
    (w_ih, w_hh, b_ih, b_hh), width, hidden = decoder, target_table.shape[1], h.shape[1]
    w_e, w_c = torch.split(w_ih, [width, hidden], dim=1)
    v_e, v_h, v_c = torch.split(w_fc, [width, hidden, hidden], dim=1)
    gates, logits = linear(h, w_c, b_ih), linear(h, v_c, b_fc)
    for _ in range(steps):
        e = target_table[token]
        h = _recurrent.fused_cell(torch.addmm(gates, e, w_e.t()), torch.addmm(b_hh, h, w_hh.t()), h)
        token = _next(token, torch.addmm(torch.addmm(logits, e, v_e.t()), h, v_h.t()))
        emitted.append(token)
    return torch.stack(emitted, 1)


def _encode(source: Tensor, table: Tensor, layer: Sequence[Tensor]) -> Tensor:
    """The state after the whole source."""
    h0 = table.new_zeros(1, source.shape[1], layer[1].shape[1])
    last: Tensor = torch._VF.gru(table[source], h0, list(layer), True, 1, 0.0, False, False, False)[1][0]
    return last


def _next(token: Tensor, logits: Tensor) -> Tensor:
    following: Tensor = torch.where(token == END, END, logits.argmax(1))
    return following


@operator.variant(
    "cuda_graph",
    idea="split captured beforehand: one launch for the whole decode",
    devices=("cuda",),
    prepare=lambda **inputs: {"captured": CapturedCall(split, **inputs)},
)
def cuda_graph(captured: CapturedCall, **inputs: Any) -> Tensor:
    tokens: Tensor = captured()
    return tokens


def native_unsupported(case: Case, _device: DeviceKind) -> str | None:
    return None if case.precision in ("f32", "f64") else "computes in f32 and f64"


@operator.variant(
    "v3",
    idea=(
        "the whole decode in one call, three launches per step: products and cell, logits, and argmax with the "
        "next embedding"
    ),
    outcome="with one sentence launches are the limit",
    native=True,
    unsupported=native_unsupported,
)
def v3(
    source: Tensor,
    source_table: Tensor,
    target_table: Tensor,
    encoder: Sequence[Tensor],
    decoder: Sequence[Tensor],
    w_fc: Tensor,
    b_fc: Tensor,
    steps: int,
) -> Tensor:
    tables = source_table, target_table
    tokens: Tensor = torch.ops.warpwatch.seq2seq_decode(
        source, *tables, list(encoder), list(decoder), w_fc, b_fc, START, END, steps
    )
    return tokens


@operator.variant(
    "compile",
    idea="the formula with torch.compile of a step; unrolled, a whole decode would compile for minutes",
    unsupported=compile_unsupported,
)
def through_compiler(**inputs: Any) -> Tensor:
    return decoded(*_compiled(), **inputs)


@functools.cache
def _compiled() -> tuple[Callable[..., Any], Callable[..., Any]]:
    return compiled(read_token), compiled(emit_token)
