"""A whole BERT layer, end to end, with the mask of padded tokens and the feed-forward part, without dropout:

h = LayerNorm(x + W_o · attention(W_q x, W_k x, W_v x)), y = LayerNorm(h + W_2 · gelu(W_1 h)).

x is (batch, rows, heads * dim). Weights have the names and shapes of Hugging Face's BertLayer. With `sparsity`, each
matrix keeps its largest magnitudes alone: a percentage of its elements is zero and stays so, its gradient included.
"""

from __future__ import annotations

import functools
import importlib.util
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from warpwatch.operator import Case, Cost, DeviceKind, Maker, Operator, SizeQuestion, both_directions, case
from warpwatch.peers import compile_unsupported

from . import _bert_swap, cublas_matmul, spmm
from ._compiled import compiled

QUERY, KEY, VALUE = (f"attention.self.{name}" for name in ("query", "key", "value"))
OUT, UP, DOWN = "attention.output.dense", "intermediate.dense", "output.dense"
NORMS = ("attention.output.LayerNorm", "output.LayerNorm")
EPSILON = 1e-5

Linear = Callable[[Tensor, str], Tensor]
"""The product with a matrix, by its name, and its bias."""
Attend = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""softmax(Q Kᵀ / √D) V over the keys that the mask (batch, 1, 1, rows) keeps."""


def shapes(case: Case) -> dict[str, tuple[int, int]]:
    """(out, in) of each matrix."""
    width, ffn = case["h"] * case["d"], case["ffn"]
    square = dict.fromkeys((QUERY, KEY, VALUE, OUT), (width, width))
    return {**square, UP: (ffn, width), DOWN: (width, ffn)}


def kept(case: Case, name: str) -> int:
    """Elements of a matrix that are no zeros."""
    return math.prod(shapes(case)[name]) * int(100 - case["sparsity"]) // 100


def inputs(case: Case, make: Maker) -> dict[str, Any]:
    width = case["h"] * case["d"]
    weights: dict[str, Tensor] = {}
    patterns: dict[str, Tensor] = {}
    for name, (out, columns) in shapes(case).items():
        w = make.normal(out, columns, scale=columns**-0.5)
        if case["sparsity"]:
            largest = w.abs().flatten().topk(kept(case, name)).indices
            patterns[name] = torch.zeros(w.numel(), dtype=torch.bool, device=w.device)
            patterns[name][largest] = True
            patterns[name] = patterns[name].view(w.shape)
            w = w * patterns[name]
        weights[f"{name}.weight"] = w
        if name != KEY:
            weights[f"{name}.bias"] = make.normal(out, scale=0.1)
    for name in NORMS:
        weights[f"{name}.weight"] = make.normal(width, scale=0.1) + 1
        weights[f"{name}.bias"] = make.normal(width, scale=0.1)
    # With one token kept, the gradients of queries and keys are zero, and errors relative to zero mean nothing.
    lengths = make.integers(case["s"] // 2 + 1, case["s"] + 1, case["b"])
    return {
        "x": make.normal(case["b"], case["s"], width),
        "keep": torch.arange(case["s"], device=lengths.device) < lengths[:, None],
        "weights": weights,
        # It moves all scores of a query alike, which no softmax notices: its gradient is zero.
        "key_bias": make.normal(width, scale=0.1),
        "patterns": patterns,
        "heads": case["h"],
    }


def case_of(x: Tensor, patterns: dict[str, Tensor], heads: int, **_others: Any) -> Case:
    """`sparsity` says whether weights are sparse, which is all that variants ask."""
    return case(b=x.shape[0], s=x.shape[1], h=heads, d=x.shape[2] // heads, sparsity=int(bool(patterns)))


def layer(linear: Linear, attend: Attend, x: Tensor, keep: Tensor, weights: dict[str, Tensor], heads: int) -> Tensor:
    """The layer without its products, which the caller passes."""

    def by_head(name: str) -> Tensor:
        return linear(x, name).view(*x.shape[:2], heads, x.shape[2] // heads).transpose(1, 2)

    def norm(z: Tensor, name: str) -> Tensor:
        return F.layer_norm(z, z.shape[2:], weights[f"{name}.weight"], weights[f"{name}.bias"], EPSILON)

    y = attend(by_head(QUERY), by_head(KEY), by_head(VALUE), keep[:, None, None])
    h = norm(x + linear(y.transpose(1, 2).flatten(2), OUT), NORMS[0])
    return norm(h + linear(F.gelu(linear(h, UP)), DOWN), NORMS[1])


def dense(weights: dict[str, Tensor], patterns: dict[str, Tensor], name: str) -> Tensor:
    w = weights[f"{name}.weight"]
    return w * patterns[name] if name in patterns else w


def bias(weights: dict[str, Tensor], key_bias: Tensor, name: str) -> Tensor:
    return key_bias if name == KEY else weights[f"{name}.bias"]


def plain_attention(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    scores = (q @ k.mT / math.sqrt(q.shape[3])).masked_fill(~keep, -math.inf)
    return scores.softmax(3) @ v


def fused_attention(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    out: Tensor = F.scaled_dot_product_attention(q, k, v, attn_mask=keep)
    return out


def swapped_attention(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    scores = (_bert_swap.product(q, k, True) / math.sqrt(q.shape[3])).masked_fill(~keep, -math.inf)
    return _bert_swap.product(scores.softmax(3), v, False)


def through(attend: Attend, multiply: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """The layer with dense products by multiply(x, w, bias)."""

    def run(
        x: Tensor,
        keep: Tensor,
        weights: dict[str, Tensor],
        key_bias: Tensor,
        patterns: dict[str, Tensor],
        heads: int,
    ) -> Tensor:
        def linear(z: Tensor, name: str) -> Tensor:
            return multiply(z, dense(weights, patterns, name), bias(weights, key_bias, name))

        return layer(linear, attend, x, keep, weights, heads)

    return run


def swapped_linear(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return _bert_swap.product(x.flatten(0, 1), w, True).view(*x.shape[:2], w.shape[0]) + b


def reference(**given: Any) -> Tensor:
    return through(plain_attention, F.linear)(**given)


def cost(case: Case) -> Cost:
    """Products alone, with the elements of the matrices that are no zeros; backward makes two of each.

    Backward reads x, the weights and the incoming gradient, and writes a gradient for each of x and the weights.
    """
    rows, width = case["b"] * case["s"], case["h"] * case["d"]
    entries = sum(kept(case, name) for name in shapes(case))
    flops = 2 * rows * entries + 4 * rows * case["s"] * width
    weights = entries + 9 * width + case["ffn"]
    if case.direction == "fwd":
        return Cost(flops, case.element_bytes * (2 * rows * width + weights))
    return Cost(2 * flops, case.element_bytes * (3 * rows * width + 2 * weights))


def depth(case: Case) -> int:
    """A result passes through sums over the width, the rows and the feed-forward part; a weight's gradient sums over
    the rows of the whole batch."""
    through_all: int = 3 * case["h"] * case["d"] + case["d"] + case["s"] + case["ffn"]
    return through_all if case.direction == "fwd" else 2 * through_all + int(case["b"] * case["s"])


@functools.cache
def register_native() -> None:
    cublas_matmul.register_native()
    spmm.register_native()


def sized(precision: Any, b: int, s: int, h: int, d: int, ffn: int, sparsity: int = 0) -> Case:
    return case(precision, b=b, s=s, h=h, d=d, ffn=ffn, sparsity=sparsity)


QUICK = both_directions(
    sized("f32", 2, 48, 4, 16, 192),
    sized("f32", 2, 37, 3, 8, 52, 90),
    sized("bf16", 1, 40, 2, 32, 128),
)
FULL = (
    *QUICK,
    *both_directions(
        *(sized(p, 8, 128, 12, 64, 3072) for p in ("f32", "tf32", "bf16")),
        *(sized("f32", 8, 128, 12, 64, 3072, sparsity) for sparsity in (50, 90, 95)),
        *(sized(p, 16, 512, 16, 64, 4096) for p in ("f32", "bf16")),
        sized("f32", 16, 512, 16, 64, 4096, 90),
    ),
)
EDGE = (sized("f32", 1, 1, 1, 8, 3), *both_directions(sized("f64", 3, 5, 2, 3, 7, 50)))

operator = Operator(
    "bert_layer",
    "A whole BERT layer with mask and feed-forward, its products swapped.",
    inputs=inputs,
    case_of=case_of,
    reference=reference,
    cost=cost,
    cases={"quick": QUICK, "full": FULL, "edge": EDGE},
    gradients=("x", "weights"),
    depth=depth,
    native=register_native,
    no_special_values="NaN of a padded token meets weights of zero in some variants, and nothing in others",
    uses=("cublas_matmul", "spmm"),
    questions=(
        SizeQuestion(
            "From which share of zeros on is a layer with sparse weights faster than the dense one?", "sparsity", "v1"
        ),
    ),
)


@operator.variant("v1", idea="as the model is written: dense products of torch, and a softmax between two of them")
def v1(**given: Any) -> Tensor:
    return through(plain_attention, F.linear)(**given)


@operator.variant("v2", idea="attention by scaled_dot_product_attention")
def v2(**given: Any) -> Tensor:
    return through(fused_attention, F.linear)(**given)


@operator.variant(
    "cublas_matmul",
    idea="all eight products by our cublas_matmul, Q Kᵀ as its batched product with the second operand transposed",
    native=True,
)
def by_cublas_matmul(**given: Any) -> Tensor:
    return through(swapped_attention, swapped_linear)(**given)


def pruned_f32_only(case: Case, _device: DeviceKind) -> str | None:
    if not case["sparsity"]:
        return "its matrices are dense: see the cases with a sparsity"
    return None if case.precision in ("f32", "f64") else "our spmm computes in f32 and f64"


def find_patterns(patterns: dict[str, Tensor], **_given: Any) -> dict[str, Any]:
    """Each matrix's rows and columns in CSR, and where its values lie in the dense matrix; values may change."""
    found = {}
    for name, pattern in patterns.items():
        places = pattern.flatten().nonzero().flatten()
        crow = F.pad(pattern.sum(1).cumsum(0), (1, 0)).int()
        found[name] = (crow, (places % pattern.shape[1]).int(), places)
    return {"found": found}


@operator.variant(
    "spmm",
    idea="the six pruned matrices in CSR by our spmm, their values gathered in every call; attention by cublas_matmul",
    native=True,
    unsupported=pruned_f32_only,
    prepare=find_patterns,
)
def by_spmm(
    x: Tensor,
    keep: Tensor,
    weights: dict[str, Tensor],
    key_bias: Tensor,
    patterns: dict[str, Tensor],
    heads: int,
    found: dict[str, tuple[Tensor, Tensor, Tensor]],
) -> Tensor:
    def linear(z: Tensor, name: str) -> Tensor:
        crow, col, places = found[name]
        values = weights[f"{name}.weight"].flatten()[places]
        y: Tensor = torch.ops.warpwatch.spmm(crow, col, values, z.flatten(0, 1).mT.contiguous())
        return y.mT.reshape(*z.shape[:2], y.shape[0]) + bias(weights, key_bias, name)

    return layer(linear, swapped_attention, x, keep, weights, heads)


def transformers_unsupported(_case: Case, _device: DeviceKind) -> str | None:
    found = importlib.util.find_spec("transformers")
    return None if found else "transformers is not installed: pip install transformers"


@functools.cache
def hugging_face_layer(width: int, heads: int, ffn: int, swapped: bool) -> Any:
    """A BertLayer from a local configuration, without weights of its own."""
    from transformers import BertConfig
    from transformers.models.bert.modeling_bert import BertLayer

    config = BertConfig(
        hidden_size=width,
        num_attention_heads=heads,
        intermediate_size=ffn,
        layer_norm_eps=EPSILON,
        attn_implementation="eager",
    )
    with torch.device("meta"):
        made = BertLayer(config).eval()
    if swapped:
        _bert_swap.swap(made)
    return made


def by_hugging_face(
    swapped: bool,
    x: Tensor,
    keep: Tensor,
    weights: dict[str, Tensor],
    key_bias: Tensor,
    patterns: dict[str, Tensor],
    heads: int,
) -> Tensor:
    module = hugging_face_layer(x.shape[2], heads, weights[f"{UP}.bias"].shape[0], swapped)
    parameters = {**weights, f"{KEY}.bias": key_bias}
    parameters |= {f"{name}.weight": dense(weights, patterns, name) for name in patterns}
    mask = torch.zeros(keep.shape, dtype=x.dtype, device=x.device).masked_fill(~keep, torch.finfo(x.dtype).min)
    y: Tensor = torch.func.functional_call(module, parameters, (x, mask[:, None, None]))
    return y


@operator.variant(
    "hf",
    idea="Hugging Face's BertLayer from a local configuration, with these weights",
    unsupported=transformers_unsupported,
)
def hugging_face(**given: Any) -> Tensor:
    return by_hugging_face(False, **given)


@operator.variant(
    "hf_swapped",
    idea="hf after one call of warpwatch.swap_bert: its linear layers and its attention multiply by our cublas_matmul",
    native=True,
    unsupported=transformers_unsupported,
)
def swapped_hugging_face(**given: Any) -> Tensor:
    return by_hugging_face(True, **given)


@operator.variant("compile", idea="torch.compile of v2", unsupported=compile_unsupported)
def compiled_v2(**given: Any) -> Tensor:
    return _compiled()(**given)


@functools.cache
def _compiled() -> Callable[..., Tensor]:
    return compiled(v2)
