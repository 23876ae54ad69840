"""y[i] = w0 x[i-2] + w1 x[i-1] + w2 x[i] with zeros before the start: a causal convolution in C++ over tiles with a
halo."""

import torch

from warpwatch import Cost, Operator, both_directions, case

RIGHT, SHORT_HALO, UNWRITTEN, PAST_END, NO_STRIDES, SMALL_SCRATCH, READS_PAST_END = range(7)
"""Numbered as in csrc/stencil/stencil.cpp."""

caught_by = {
    "short_halo": "wrong_values y",
    "uninitialised_output": "wrong_values y",
    "writes_past_end": "probe guard bands",
    "ignores_strides": "probe strided inputs",
    "reads_past_end": "probe guard bands",
    "wrong_fake": "probe opcheck",
    "wrong_schema": "probe opcheck",
    "scratch_too_small": "sanitizer",
}
sanitize = {"scratch_too_small": "address"}


def inputs(case, make):
    return {"x": make.normal(case["n"]), "w": make.normal(3)}


def reference(x, w):
    padded = torch.nn.functional.pad(x, (2, 0))
    return w[0] * padded[:-2] + w[1] * padded[1:-1] + w[2] * padded[2:]


def register():
    for name in ("run", "in_place"):
        torch.library.register_fake(f"mutant_stencil::{name}", lambda x, w, fault: torch.empty_like(x))
    torch.library.register_fake("mutant_stencil::misdescribed", lambda x, w, fault: x.new_empty(x.numel() + 1))
    torch.library.register_autograd("mutant_stencil::run", backward, setup_context=remember)


def remember(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:2])
    ctx.fault = inputs[2]


def backward(ctx, g):
    x, w = ctx.saved_tensors
    # The gradient of x is the same stencil, run backwards.
    dx = torch.ops.mutant_stencil.run(g.flip(0), w, ctx.fault).flip(0)
    padded = torch.nn.functional.pad(x, (2, 0))
    dw = torch.stack([padded[:-2] @ g, padded[1:-1] @ g, x @ g])
    return dx, dw, None


operator = Operator(
    "stencil",
    "A causal convolution of width three.",
    inputs=inputs,
    reference=reference,
    cost=lambda case: Cost(5 * case["n"], 2 * case.element_bytes * case["n"]),
    gradients=("x", "w"),
    depth=lambda case: case["n"] if case.direction == "bwd" else 3,
    native=register,
    # One element more than whole tiles, so that a write past the end stays inside the slack of the allocation.
    cases={"quick": both_directions(case(n=1001), case(n=65)), "edge": (case(n=1), case(n=0), case(n=64))},
)


def run(x, w, fault):
    return torch.ops.mutant_stencil.run(x, w, fault)


def odd_sizes_only(case, device):
    return None if case["n"] % 8 == 1 else "would overwrite data of the allocator"


def forward_only(case, device):
    return "has no gradient" if case.direction == "bwd" else None


@operator.variant("tiles", idea="tiles of 64 with a halo of two", native=True, devices=("cpu",))
def tiles(x, w):
    return run(x, w, RIGHT)


@operator.variant(
    "short_halo",
    idea="a halo of one: the second element before each tile counts as zero",
    native=True,
    devices=("cpu",),
)
def short_halo(x, w):
    return run(x, w, SHORT_HALO)


@operator.variant("uninitialised_output", idea="never writes the last, partial tile", native=True, devices=("cpu",))
def uninitialised_output(x, w):
    return run(x, w, UNWRITTEN)


@operator.variant(
    "writes_past_end", idea="writes one element too many", native=True, devices=("cpu",), unsupported=odd_sizes_only
)
def writes_past_end(x, w):
    return run(x, w, PAST_END)


@operator.variant(
    "ignores_strides", idea="uses the pointer of a view and ignores its strides", native=True, devices=("cpu",)
)
def ignores_strides(x, w):
    return run(x, w, NO_STRIDES)


@operator.variant(
    "scratch_too_small", idea="overruns its scratch memory, which no tensor guards", native=True, devices=("cpu",)
)
def scratch_too_small(x, w):
    return run(x, w, SMALL_SCRATCH)


@operator.variant(
    "reads_past_end", idea="adds zero times the element after the last one", native=True, devices=("cpu",)
)
def reads_past_end(x, w):
    return run(x, w, READS_PAST_END)


@operator.variant(
    "wrong_fake",
    idea="registers a fake kernel with one element too many",
    native=True,
    devices=("cpu",),
    unsupported=forward_only,
)
def wrong_fake(x, w):
    return torch.ops.mutant_stencil.misdescribed(x, w, RIGHT)


@operator.variant(
    "wrong_schema",
    idea="clears an argument that its schema declares unchanged",
    native=True,
    devices=("cpu",),
    unsupported=forward_only,
)
def wrong_schema(x, w):
    return torch.ops.mutant_stencil.in_place(x.clone(), w, RIGHT)
