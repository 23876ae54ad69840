"""y = x W on a GPU, rightly, wrongly, and fatally for the device."""

import torch
import triton
import triton.language as tl

from warpwatch import Cost, Operator, both_directions, case


def inputs(case, make):
    n = case["n"]
    return {"x": make.normal(n, n), "w": make.normal(n, n, scale=n**-0.5)}


def reference(x, w):
    return x @ w


def cost(case):
    """One product forward, two backward."""
    n, products = case["n"], 1 if case.direction == "fwd" else 2
    return Cost(flops=products * 2 * n**3, bytes=3 * products * case.element_bytes * n**2)


PRECISIONS = ("f64", "f32", "tf32", "bf16", "f16")
operator = Operator(
    "product",
    "A matrix product.",
    inputs=inputs,
    reference=reference,
    cost=cost,
    gradients=("x", "w"),
    depth=lambda case: case["n"],
    cases={"quick": both_directions(*(case(p, n=256) for p in PRECISIONS), case(n=64), case(n=2048), case(n=333))},
)


@operator.variant("good", idea="cuBLAS")
def good(x, w):
    return x @ w


@operator.variant("with_tf32", idea="less exact than the case asks for")
def with_tf32(x, w):
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        return x @ w
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


@operator.variant("last_missing", idea="leaves the last row unwritten")
def last_missing(x, w):
    y = torch.empty_like(x)
    torch.mm(x[:-1], w, out=y[:-1])
    return y


@operator.variant("waits", idea="reads a number back, which no graph can hold")
def waits(x, w):
    return x @ w if x[0, 0].item() != 12345 else x


@operator.variant("on_default_stream", idea="launches on CUDA's default stream, whatever stream is current")
def on_default_stream(x, w):
    y = torch.empty_like(x)
    with torch.cuda.stream(torch.cuda.default_stream()), torch.no_grad():
        torch.mm(x, w, out=y)
    return y


KEPT = {}


@operator.variant("keeps", idea="never computes the same address twice")
def keeps(x, w):
    return KEPT.setdefault((x.data_ptr(), w.data_ptr()), x @ w)


@operator.variant("huge", idea="takes too much memory")
def huge(x, w):
    return torch.empty(2**42, device=x.device)


@operator.variant("asserts", idea="an index out of range")
def asserts(x, w):
    return x[torch.full((x.shape[0],), 10**6, device=x.device)]


@triton.jit
def _write_anywhere(pointer, distance):
    tl.store(pointer + distance, 1.0)


@operator.variant("illegal", idea="writes where nothing is")
def illegal(x, w):
    y = x @ w
    _write_anywhere[(1,)](y, 2**45)
    return y
