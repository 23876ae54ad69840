"""One training step of a recurrent encoder-decoder: the loss over a batch of sentence pairs, and all its gradients.

A GRU encoder of one or several layers runs over the source's embeddings. The last states of its layers are the first
states of the decoder's, and that of the top layer is the context of every step. The decoder is given the right previous
tokens: a step reads the embedding of the token before and the context, and its logits come from that embedding, the top
state and the context. The loss is the mean cross-entropy over all target tokens that are no padding.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from warpwatch.operator import Case, Cost, DeviceKind, Maker, Operator, both_directions, case
from warpwatch.peers import compile_unsupported

from . import _recurrent, gru
from ._compiled import compiled

PADDING, START = 0, 1

Layer = Sequence[Tensor]
"""w_ih, w_hh, b_ih, b_hh."""
Run = Callable[[Tensor, Sequence[Tensor], Sequence[Layer]], tuple[Tensor, list[Tensor]]]
"""All states of the top layer, and the last state of each layer, from inputs and first states."""


def inputs(case: Case, make: Maker) -> dict[str, Any]:
    width, hidden, batch = case["embedding"], case["hidden"], case["batch"]
    (source_vocab, vocab), steps = case["vocab"], case["target"]

    def layer(columns: int) -> list[Tensor]:
        matrices = [make.normal(3 * hidden, n, scale=hidden**-0.5) for n in (columns, hidden)]
        return [*matrices, *(make.normal(3 * hidden, scale=0.1) for _ in range(2))]

    def stack(columns: int) -> list[list[Tensor]]:
        return [layer(columns if index == 0 else hidden) for index in range(case["layers"])]

    target = make.integers(START + 1, vocab, steps, batch)
    lengths = make.integers(steps // 2 + 1, steps + 1, batch)
    places = torch.arange(steps, device=target.device)
    return {
        "source": make.integers(0, source_vocab, case["source"], batch),
        "target": torch.where(places[:, None] < lengths, target, PADDING),
        "source_table": make.normal(source_vocab, width),
        "target_table": make.normal(vocab, width),
        "encoder": stack(width),
        "decoder": stack(width + hidden),
        "w_fc": make.normal(vocab, width + 2 * hidden, scale=hidden**-0.5),
        "b_fc": make.normal(vocab, scale=0.1),
    }


def previous(target: Tensor) -> Tensor:
    """What each step is given: the token before, and START at first."""
    return torch.cat([torch.full_like(target[:1], START), target[:-1]])


def loss_of(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=PADDING)


def run_naively(x: Tensor, h: Sequence[Tensor], layers: Sequence[Layer]) -> tuple[Tensor, list[Tensor]]:
    last = []
    for state, layer in zip(h, layers, strict=True):
        states = []
        for step in x:
            state = _recurrent.naive_cell(step, state, *layer)
            states.append(state)
        x = torch.stack(states)
        last.append(state)
    return x, last


def zeros(table: Tensor, source: Tensor, encoder: Sequence[Layer]) -> list[Tensor]:
    return [table.new_zeros(source.shape[1], layer[1].shape[1]) for layer in encoder]


def joined(
    run: Run,
    source: Tensor,
    target: Tensor,
    source_table: Tensor,
    target_table: Tensor,
    encoder: Sequence[Layer],
    decoder: Sequence[Layer],
    w_fc: Tensor,
    b_fc: Tensor,
) -> Tensor:
    """The loss with every step's operands concatenated, as the model is written."""
    _, h = run(source_table[source], zeros(source_table, source, encoder), encoder)
    e = target_table[previous(target)]
    c = h[-1].expand(len(e), *h[-1].shape)
    states, _ = run(torch.cat([e, c], 2), h, decoder)
    return loss_of(torch.cat([e, states, c], 2) @ w_fc.t() + b_fc, target)


def reference(**given: Any) -> Tensor:
    return joined(run_naively, **given)


def cost(case: Case) -> Cost:
    """The context's products count once. Backward is two products for each of forward's, and reads and writes every
    weight."""
    batch, width, hidden, (_, vocab) = case["batch"], case["embedding"], case["hidden"], case["vocab"]
    deeper = (case["layers"] - 1) * 6 * hidden**2
    encoder, decoder = 3 * hidden * (width + hidden) + deeper, 3 * hidden * (width + 2 * hidden) + deeper
    fc = vocab * (width + 2 * hidden)
    context = hidden * (3 * hidden + vocab)
    flops = 2 * batch * (case["source"] * encoder + context + case["target"] * (decoder + fc - context))
    weights = encoder + decoder + fc + 12 * hidden * case["layers"] + vocab
    rows = batch * width * (case["source"] + case["target"])
    tokens = 8 * batch * (case["source"] + case["target"])
    if case.direction == "fwd":
        return Cost(flops, case.element_bytes * (weights + rows) + tokens)
    tables = sum(case["vocab"]) * width
    return Cost(2 * flops, case.element_bytes * (2 * weights + 2 * rows + tables) + tokens)


def depth(case: Case) -> int:
    """A gradient passes through all steps of both sides, and sums over the batch."""
    width, hidden, (_, vocab) = case["embedding"], case["hidden"], case["vocab"]
    steps: int = case["layers"] * (case["source"] + case["target"])
    through: int = steps * (width + 2 * hidden) + vocab
    return through if case.direction == "fwd" else through + int(case["batch"] * case["target"])


def training(
    batch: int,
    layers: int,
    sizes: tuple[int, int],
    vocab: tuple[int, int],
    steps: tuple[int, int],
    precision: Any = "f32",
) -> Case:
    """sizes: of embeddings and states; steps: of sources and targets."""
    (embedding, hidden), (source, target) = sizes, steps
    return case(
        precision,
        source=source,
        target=target,
        batch=batch,
        layers=layers,
        embedding=embedding,
        hidden=hidden,
        vocab=vocab,
    )


QUICK = both_directions(
    training(4, 1, (32, 48), (90, 80), (9, 7)),
    training(3, 2, (13, 19), (40, 37), (5, 6)),
    training(2, 2, (8, 12), (20, 21), (4, 5), "f64"),
)
FULL = (
    *QUICK,
    *both_directions(
        *(training(batch, layers, (256, 512), (7853, 5893), (13, 13)) for batch in (8, 64) for layers in (1, 2)),
    ),
)
EDGE = both_directions(training(1, 1, (5, 7), (9, 11), (1, 1)), training(2, 3, (4, 33), (9, 65), (2, 3)))

operator = Operator(
    "seq2seq_train",
    "Loss and gradients of a recurrent encoder-decoder.",
    inputs=inputs,
    reference=reference,
    cost=cost,
    cases={"quick": QUICK, "full": FULL, "edge": EDGE},
    gradients=("source_table", "target_table", "encoder", "decoder", "w_fc", "b_fc"),
    depth=depth,
    native=gru.operator.native,
    no_special_values="one NaN makes the loss NaN",
    uses=("gru",),
)


@operator.variant("v1", idea="as the formula is written: a Python loop of cells over steps and layers")
def v1(**given: Any) -> Tensor:
    return joined(run_naively, **given)


def run_library(x: Tensor, h: Sequence[Tensor], layers: Sequence[Layer]) -> tuple[Tensor, list[Tensor]]:
    flat = [weight for layer in layers for weight in layer]
    states, last = torch._VF.gru(
        x, torch.stack(list(h)), flat, True, len(layers), 0.0, torch.is_grad_enabled(), False, False
    )
    return states, list(last.unbind())


@operator.variant("v2", idea="torch.gru over the whole source and the whole target, whose tokens are all known")
def v2(**given: Any) -> Tensor:
    return joined(run_library, **given)


def split(
    run: Callable[[Tensor, Tensor, Layer], Tensor],
    source: Tensor,
    target: Tensor,
    source_table: Tensor,
    target_table: Tensor,
    encoder: Sequence[Layer],
    decoder: Sequence[Layer],
    w_fc: Tensor,
    b_fc: Tensor,
) -> Tensor:
    """The loss with the products of all steps' inputs at once, and those of the context once; `run` returns a layer's
    states from its input gates and first state."""
    x, h = source_table[source], []
    for layer, first in zip(encoder, zeros(source_table, source, encoder), strict=True):
        x = run(F.linear(x, layer[0], layer[2]), first, layer)
        h.append(x[-1])
    e, c, width, hidden = target_table[previous(target)], h[-1], target_table.shape[1], h[-1].shape[1]
    w_e, w_c = torch.split(decoder[0][0], [width, hidden], dim=1)
    x = run(F.linear(e, w_e) + F.linear(c, w_c, decoder[0][2]), h[0], decoder[0])
    for layer, first in zip(decoder[1:], h[1:], strict=True):
        x = run(F.linear(x, layer[0], layer[2]), first, layer)
    v_e, v_h, v_c = torch.split(w_fc, [width, hidden, hidden], dim=1)
    return loss_of(F.linear(e, v_e) + F.linear(x, v_h) + F.linear(c, v_c, b_fc), target)


def step_of_cell(gates: Tensor, h: Tensor, turned: Tensor, bias: Tensor) -> Tensor:
    return _recurrent.cell(gates, torch.addmm(bias, h, turned), h)


def run_steps(step: Callable[..., Tensor], gates: Tensor, h: Tensor, layer: Layer) -> Tensor:
    states, turned = [], layer[1].t()
    for of_step in gates:
        h = step(of_step, h, turned, layer[3])
        states.append(h)
    return torch.stack(states)


@operator.variant(
    "split",
    idea="products of all steps at once, those of the context once and without a concatenation; a loop of cells",
)
def split_eagerly(**given: Any) -> Tensor:
    return split(functools.partial(run_steps, step_of_cell), **given)


def full_precision_only(case: Case, _device: DeviceKind) -> str | None:
    return None if case.precision in ("f32", "f64") else "its cells are made for f32 and f64"


@operator.variant(
    "v3",
    idea="split, with our scan of a whole layer and its own gradients in place of the loop",
    native=True,
    unsupported=full_precision_only,
)
def v3(**given: Any) -> Tensor:
    def run(gates: Tensor, h: Tensor, layer: Layer) -> Tensor:
        return _recurrent.scan(gates, h, layer[1], layer[3], _recurrent.CELL)

    return split(run, **given)


@operator.variant(
    "compile",
    idea="split, with torch.compile of a step; unrolled, all steps of all layers would compile for minutes",
    unsupported=compile_unsupported,
)
def compiled_split(**given: Any) -> Tensor:
    return split(functools.partial(run_steps, _compiled()), **given)


@functools.cache
def _compiled() -> Callable[..., Tensor]:
    return compiled(step_of_cell)
