"""Work on a GPU that does not run on the current stream."""

import functools

import torch
from kernels._product import make_operator

operator = make_operator("streams", "Runs work on another stream.")

caught_by = {
    "unjoined": "other_stream",
    "detached": "other_stream",
    "behind_the_default_stream": "times_disagree busy",
    "tf32": "reduced_precision tf32",
}


@functools.cache
def _other():
    return torch.cuda.Stream()


@operator.variant("honest", idea="computes", devices=("cuda",))
def honest(a, b):
    return a @ b


@operator.variant("honest_joined", idea="uses another stream and waits at both ends", devices=("cuda",))
def honest_joined(a, b):
    y = torch.empty_like(a)
    _other().wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(_other()):
        torch.mm(a, b, out=y)
    torch.cuda.current_stream().wait_stream(_other())
    return y


@operator.variant("honest_default_stream", idea="launches on the default stream, as CuTe DSL does", devices=("cuda",))
def honest_default_stream(a, b):
    y = torch.empty_like(a)
    with torch.cuda.stream(torch.cuda.default_stream()):
        torch.mm(a, b, out=y)
    return y


@operator.variant("unjoined", idea="uses another stream that the current stream does not wait for", devices=("cuda",))
def unjoined(a, b):
    y = torch.empty_like(a)
    _other().wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(_other()):
        torch.mm(a, b, out=y)
    return y


@operator.variant("detached", idea="uses another stream, and neither stream waits for the other", devices=("cuda",))
def detached(a, b):
    y = torch.empty_like(a)
    with torch.cuda.stream(_other()):
        torch.mm(a, b, out=y)
    return y


@operator.variant(
    "behind_the_default_stream",
    idea="uses a stream that waits for the default stream, and that nobody waits for",
    devices=("cuda",),
)
def behind_the_default_stream(a, b):
    y = torch.empty_like(a)
    _other().wait_stream(torch.cuda.default_stream())
    with torch.cuda.stream(_other()):
        torch.mm(a, b, out=y)
    return y


@operator.variant("tf32", idea="TF32 tensor cores for an f32 case", devices=("cuda",))
def tf32(a, b):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        return a @ b
    finally:
        torch.set_float32_matmul_precision(before)
