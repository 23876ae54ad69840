"""The lottery ticket: train a small network, prune its smallest weights, reset the others to their initial values, and
repeat.

A network of one hidden layer, y = tanh(x · W1) · W2, learns an exclusive or of two directions of x, by plain gradient
descent over all samples. A sample lies at ±2 along both directions, with normal noise of deviation 1 in every
direction, so that classes overlap: the best classifier there is has an accuracy of 0.956. All noise is drawn from the
seed and training is deterministic.

Three controls say whether a ticket won because of its weights or because of its size. The first is the network with
all weights, which every search trains in its first round. With `seeds`, every round also trains so many networks with
the ticket's mask and newly drawn initial weights, and as many with the initial weights and a mask of as many weights
drawn at random.

The outputs have a row for each round: the accuracy on samples not trained on, the number of weights that remain, the
mean cross-entropy on the same samples, the trained weights, and with `seeds` the accuracies of the drawn controls, one
column per seed. The weights are recorded every `every` steps, by default after the last. A sample whose two scores
differ by less than BLURRED counts in part: otherwise the last bit of a weight could decide a whole sample, and float32
and float64 would disagree.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from warpwatch.operator import Case, Cost, Curves, DeviceKind, Maker, Operator, case
from warpwatch.peers import compile_unsupported

from . import magnitude_prune
from ._compiled import compiled

CLASSES, TESTED = 2, 256
BLURRED = 0.01

SHARED_BYTES = 160 * 1024
"""Of an sm_80's multiprocessor, the smallest that is measured."""
MOST_WEIGHTS = 512 * 16

Step = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]
Outputs = tuple[Tensor, ...]
Train = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, float, int], tuple[Tensor, Tensor]]
Prune = Callable[[Tensor, int], Tensor]


def inputs(case: Case, make: Maker) -> dict[str, Any]:
    samples, features, hidden = case["samples"], case["features"], case["hidden"]
    signs = 2 * make.integers(0, 2, samples + TESTED, 2) - 1
    directions = torch.linalg.qr(make.normal(features - 1, 2))[0].T
    x = 2 * signs.to(directions.dtype) @ directions + make.normal(samples + TESTED, features - 1)
    x = torch.cat([x, torch.ones_like(x[:, :1])], dim=1)
    given = {
        "x": x,
        "labels": (signs.prod(dim=1) > 0).long(),
        "w1": make.normal(features, hidden, scale=features**-0.5),
        "w2": make.normal(hidden, CLASSES, scale=hidden**-0.5),
        "steps": case["steps"],
        "kept": kept(case),
    }
    sizes = dict(case.sizes)
    if "every" in sizes:
        given["every"] = case["every"]
    if "seeds" in sizes:
        given["others1"] = make.normal(case["seeds"], features, hidden, scale=features**-0.5)
        given["others2"] = make.normal(case["seeds"], hidden, CLASSES, scale=hidden**-0.5)
        given["ranks"] = make.normal(case["seeds"], weights(case))
    return given


def case_of(x: Tensor, w1: Tensor, **_others: Any) -> Case:
    return case(samples=x.shape[0] - TESTED, features=w1.shape[0], hidden=w1.shape[1])


def kept(case: Case) -> tuple[int, ...]:
    """Weights that remain in each round: all, then `percent` of the round before."""
    counts = [weights(case)]
    for _ in range(case["rounds"] - 1):
        counts.append(counts[-1] * case["percent"] // 100)
    return tuple(counts)


def weights(case: Case) -> int:
    count: int = case["hidden"] * (case["features"] + CLASSES)
    return count


def rate(hidden: int) -> float:
    """The learning rate; it falls with the width, because more weights move in one step."""
    return 24.0 / hidden


def derivatives(x: Tensor, target: Tensor, w1: Tensor, w2: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the mean cross-entropy, written by hand."""
    h = torch.tanh(x @ w1)
    d = (torch.softmax(h @ w2, dim=-1) - target) / x.shape[0]
    return x.mT @ ((d @ w2.mT) * (1 - h * h)), h.mT @ d


def descend(
    x: Tensor, target: Tensor, w1: Tensor, w2: Tensor, mask1: Tensor, mask2: Tensor, speed: float
) -> tuple[Tensor, Tensor]:
    """One step; masked weights are zero and stay so."""
    d1, d2 = derivatives(x, target, w1, w2)
    return w1 - speed * d1 * mask1, w2 - speed * d2 * mask2


def in_steps(step: Step) -> Train:
    """Training by one call of `step` after the other."""

    def train(
        x: Tensor, target: Tensor, w1: Tensor, w2: Tensor, mask1: Tensor, mask2: Tensor, speed: float, steps: int
    ) -> tuple[Tensor, Tensor]:
        for _ in range(steps):
            w1, w2 = step(x, target, w1, w2, mask1, mask2, speed)
        return w1, w2

    return train


def accuracy(scores: Tensor, side: Tensor) -> Tensor:
    """The share of samples whose own class has the higher score; those nearly undecided count in part.

    side: 1 / BLURRED for the second class, -1 / BLURRED for the first.
    """
    lead = (scores[:, 1] - scores[:, 0]) * side
    return lead.clamp(-1, 1).mean() / 2 + 0.5


def tickets(
    x: Tensor,
    labels: Tensor,
    w1: Tensor,
    w2: Tensor,
    steps: int,
    kept: tuple[int, ...],
    train: Train,
    prune: Prune,
    every: int = 0,
    others1: Tensor | None = None,
    others2: Tensor | None = None,
    ranks: Tensor | None = None,
) -> Outputs:
    """All rounds; `train` makes steps of one round, `prune` returns the mask of the largest weights."""
    target, tested = F.one_hot(labels, CLASSES).to(x.dtype)[:-TESTED], labels[-TESTED:]
    side = (2 * tested - 1).to(x.dtype) / BLURRED

    def masks_of(mask: Tensor) -> tuple[Tensor, Tensor]:
        first, second = torch.split(mask, [w1.numel(), w2.numel()])
        return first.view(w1.shape).to(x.dtype), second.view(w2.shape).to(x.dtype)

    def trained(a: Tensor, b: Tensor, mask: Tensor, count: int) -> tuple[Tensor, Tensor]:
        return train(x[:-TESTED], target, a, b, *masks_of(mask), rate(w1.shape[1]), count)

    def tried(a: Tensor, b: Tensor, mask: Tensor) -> Tensor:
        mask1, mask2 = masks_of(mask)
        a, b = trained(a * mask1, b * mask2, mask, steps)
        return accuracy(torch.tanh(x[-TESTED:] @ a) @ b, side)

    mask = torch.ones(w1.numel() + w2.numel(), dtype=torch.bool, device=x.device)
    rows: list[tuple[Tensor, ...]] = []
    for count, following in zip(kept, (*kept[1:], None), strict=True):
        mask1, mask2 = masks_of(mask)
        a, b, recorded = w1 * mask1, w2 * mask2, []
        for begin in range(0, steps, every or steps):
            a, b = trained(a, b, mask, min(every or steps, steps - begin))
            recorded.append(torch.cat([a.flatten(), b.flatten()]))
        scores = torch.tanh(x[-TESTED:] @ a) @ b
        row = [accuracy(scores, side), mask.sum(), F.cross_entropy(scores, tested), torch.stack(recorded)]
        if others1 is not None and others2 is not None and ranks is not None:
            row.append(torch.stack([tried(*other, mask) for other in zip(others1, others2, strict=True)]))
            row.append(torch.stack([tried(w1, w2, largest(rank, count)) for rank in ranks]))
        rows.append(tuple(row))
        if following is not None:
            mask = prune(recorded[-1], following)
    return tuple(torch.stack(column) for column in zip(*rows, strict=True))


def largest(w: Tensor, keep: int) -> Tensor:
    return magnitude_prune.reference(w, keep)[1]


def reference(**given: Any) -> Outputs:
    return tickets(**given, train=in_steps(descend), prune=largest)


def cost(case: Case) -> Cost:
    """Counts dense products only: two forward, three backward, in every step of every round.

    Samples and weights are read once.
    """
    samples, features, hidden, rounds = case["samples"], case["features"], case["hidden"], case["rounds"]
    sizes: dict[str, Any] = dict(case.sizes)
    recorded, seeds = math.ceil(case["steps"] / sizes.get("every", case["steps"])), sizes.get("seeds", 0)
    step = 2 * samples * hidden * (2 * features + 3 * CLASSES)
    test = 2 * TESTED * hidden * (features + CLASSES)
    # Each seed brings initial weights and ranks.
    read = (samples + TESTED) * features + (1 + 2 * seeds) * weights(case)
    written = rounds * (2 + recorded * weights(case) + 2 * seeds)
    moved = case.element_bytes * (read + written) + 8 * (samples + TESTED + rounds)
    return Cost(rounds * (1 + 2 * seeds) * (case["steps"] * step + test), moved)


def depth(case: Case) -> int:
    """A trained weight is a sum over all steps and samples, and each of its terms passes through both layers."""
    through: int = case["features"] + case["hidden"]
    return int(case["rounds"] * case["steps"] * (case["samples"] + through))


def curves(
    _case: Case,
    accuracies: Tensor,
    remaining: Tensor,
    _loss: Tensor,
    _weights: Tensor,
    new_weights: Tensor | None = None,
    random_masks: Tensor | None = None,
) -> Curves:
    """The accuracy of every round beside that of all weights; of the drawn controls, the mean over seeds."""
    ticket = accuracies.tolist()
    lines = {"winning ticket": ticket, "all weights": ticket[:1] * len(ticket)}
    if new_weights is not None and random_masks is not None:
        lines["new initial weights"] = new_weights.mean(1).tolist()
        lines["random mask"] = random_masks.mean(1).tolist()
    return Curves("weights left", "accuracy", [float(count) for count in remaining.tolist()], lines)


@functools.cache
def register_native() -> None:
    """Shapes for torch.compile, for the torch operators that the libraries define."""
    magnitude_prune.register_native()

    @torch.library.register_fake("warpwatch::lottery_train")  # type: ignore[untyped-decorator]
    def fake(
        x: Tensor, target: Tensor, w1: Tensor, w2: Tensor, mask1: Tensor, mask2: Tensor, speed: float, steps: int
    ) -> tuple[Tensor, Tensor]:
        return w1.new_empty(w1.shape), w2.new_empty(w2.shape)


QUICK = (
    # The first case records the controls, because a check draws the curves of the result that has most of them.
    case("f32", samples=128, features=8, hidden=24, steps=8, rounds=3, percent=56, seeds=3),
    case("f32", samples=101, features=9, hidden=31, steps=8, rounds=2, percent=33),
    case("f64", samples=64, features=8, hidden=24, steps=8, rounds=2, percent=20),
    case("f32", samples=64, features=8, hidden=24, steps=12, rounds=2, percent=50, every=1),
)
FULL = (
    *QUICK,
    case("f32", samples=128, features=8, hidden=24, steps=40, rounds=5, percent=56),
    case("f32", samples=128, features=8, hidden=24, steps=40, rounds=5, percent=56, seeds=3),
    # Eleven rounds of a fifth each leave a tenth.
    case("f32", samples=256, features=16, hidden=32, steps=100, rounds=11, percent=80),
    case("f32", samples=256, features=16, hidden=32, steps=100, rounds=11, percent=80, seeds=5),
    case("f32", samples=4096, features=64, hidden=256, steps=100, rounds=11, percent=80),
)
EDGE = (
    case("f32", samples=64, features=8, hidden=24, steps=40, rounds=1, percent=50),
    case("f32", samples=64, features=8, hidden=24, steps=1, rounds=1, percent=50),
    case("f64", samples=33, features=5, hidden=7, steps=7, rounds=2, percent=50, every=3),
    case("f32", samples=33, features=5, hidden=7, steps=7, rounds=2, percent=50, seeds=2),
)

operator = Operator(
    "lottery",
    "Iterative magnitude pruning with rewinding: accuracy, weights left, cross-entropy and weights in each round.",
    inputs=inputs,
    case_of=case_of,
    reference=reference,
    cost=cost,
    cases={"quick": QUICK, "full": FULL, "edge": EDGE},
    depth=depth,
    native=register_native,
    curves=curves,
    uses=("lottery", "magnitude_prune"),
    no_special_values="one NaN among the samples makes every weight NaN",
)


def descend_by_autograd(
    x: Tensor, target: Tensor, w1: Tensor, w2: Tensor, mask1: Tensor, mask2: Tensor, speed: float
) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        leaves = [w1.detach().requires_grad_(), w2.detach().requires_grad_()]
        loss = F.cross_entropy(torch.tanh(x @ leaves[0]) @ leaves[1], target)
        d1, d2 = torch.autograd.grad(loss, leaves)
    return w1 - speed * d1 * mask1, w2 - speed * d2 * mask2


def descend_foreach(
    x: Tensor, target: Tensor, w1: Tensor, w2: Tensor, mask1: Tensor, mask2: Tensor, speed: float
) -> tuple[Tensor, Tensor]:
    moves = torch._foreach_mul(derivatives(x, target, w1, w2), (mask1, mask2))
    a, b = torch._foreach_add((w1, w2), moves, alpha=-speed)
    return a, b


def largest_by_topk(w: Tensor, keep: int) -> Tensor:
    mask: Tensor = magnitude_prune.v2(w, keep)[1]
    return mask


def largest_natively(w: Tensor, keep: int) -> Tensor:
    mask: Tensor = magnitude_prune.v3(w, keep)[1]
    return mask


@operator.variant(
    "v1",
    idea="autograd in every step, dense masks, a stable sort to prune",
    outcome="launches are the limit, and no CUDA graph can capture autograd",
)
def v1(**given: Any) -> Outputs:
    return tickets(**given, train=in_steps(descend_by_autograd), prune=largest)


@operator.variant(
    "v2",
    idea="hand-written gradients instead of autograd, torch.topk to prune",
    outcome="a CUDA graph can capture it",
)
def v2(**given: Any) -> Outputs:
    return tickets(**given, train=in_steps(descend), prune=largest_by_topk)


@operator.variant(
    "foreach",
    idea="v2 with both layers' updates in one call each",
    outcome="fewer launches per step than v2",
)
def foreach(**given: Any) -> Outputs:
    return tickets(**given, train=in_steps(descend_foreach), prune=largest_by_topk)


@operator.variant(
    "v3",
    idea="v2 pruned by our own magnitude_prune",
    outcome="pruning is rare next to training steps",
    native=True,
)
def v3(**given: Any) -> Outputs:
    return tickets(**given, train=in_steps(descend), prune=largest_natively)


def resident_only(case: Case, device: DeviceKind) -> str | None:
    """The limits of csrc/lottery/train.cu: it rounds rows and columns up by at most the numbers added here, and takes
    at most 512 tiles."""
    samples, features, hidden = case["samples"] + 1, case["features"] + 7, case["hidden"] + 7
    numbers = samples * (features + 2 * hidden + 4) + 3 * features * hidden
    if device == "cpu" or (numbers * case.element_bytes <= SHARED_BYTES and features * hidden <= MOST_WEIGHTS):
        return None
    return "samples and weights do not fit one multiprocessor"


@operator.variant(
    "v4",
    idea=(
        "all steps of a round in one call; CUDA: one block keeps samples and weights in shared memory; C++: "
        "vectors of hidden values"
    ),
    outcome="no launches and no global memory between steps",
    native=True,
    unsupported=resident_only,
)
def v4(**given: Any) -> Outputs:
    return tickets(**given, train=torch.ops.warpwatch.lottery_train, prune=largest_natively)


@operator.variant(
    "compile",
    idea="v2 with a compiled step",
    unsupported=compile_unsupported,
)
def compiled_step(**given: Any) -> Outputs:
    return tickets(**given, train=in_steps(_compiled()), prune=largest_by_topk)


@functools.cache
def _compiled() -> Step:
    return compiled(descend)
