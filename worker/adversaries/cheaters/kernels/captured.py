"""Variants that leave out work while a CUDA graph is captured or replayed, because replays repeat the same numbers."""

import torch

from warpwatch import Cost, Operator, case

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

N = 2048

operator = Operator(
    "captured",
    "Softmax of each row; a CUDA graph repeats its launches, and these leave out work.",
    inputs=lambda case, make: {"x": make.normal(case["n"], case["n"])},
    reference=lambda x: torch.softmax(x, dim=1),
    cost=lambda case: Cost(flops=5 * case["n"] ** 2, bytes=8 * case["n"] ** 2),
    cases={"quick": (case(n=N),)},
    depth=lambda case: case["n"],
)

caught_by = {
    "once_per_buffer": "skipped_launch",
    "small_launch_instead": "cached_result",
    "leaves_on_known_numbers": "cached_result",
    "leaves_on_known_sum": "cached_result",
}

KEPT, SEEN = {}, []
MOST_BUFFERS = 64


def no_triton(case, device):
    return "needs Triton" if triton is None else None


if triton is not None:

    @triton.jit
    def _softmax(x, y, columns, width: tl.constexpr):
        row = tl.program_id(0).to(tl.int64) * columns
        at = tl.arange(0, width)
        inside = at < columns
        values = tl.load(x + row + at, inside, -float("inf"))
        e = tl.exp(values - tl.max(values, 0))
        tl.store(y + row + at, e / tl.sum(e, 0), inside)

    @triton.jit
    def _softmax_of_new_numbers(x, y, seen, columns, width: tl.constexpr, looks: tl.constexpr, stride: tl.constexpr):
        """Leaves when the row holds the numbers that it held last, by the sum of squares of `looks` of them."""
        row = tl.program_id(0).to(tl.int64) * columns
        at = tl.arange(0, width)
        inside = at < columns
        few = tl.load(x + row + tl.arange(0, looks) * stride)
        key = tl.sum(few * few * (1 + tl.arange(0, looks)), 0)
        if tl.load(seen + tl.program_id(0)) != key:
            values = tl.load(x + row + at, inside, -float("inf"))
            e = tl.exp(values - tl.max(values, 0))
            tl.store(y + row + at, e / tl.sum(e, 0), inside)
            tl.store(seen + tl.program_id(0), key)


def launch(x):
    x, y = x.contiguous(), torch.empty(x.shape, device=x.device)
    _softmax[(x.shape[0],)](x, y, x.shape[1], triton.next_power_of_2(x.shape[1]))
    return y


def leave(x, looks, stride):
    """Memory of the captured graph that a kernel fills where the numbers of `x` are new; else it still holds the
    result."""
    x = x.contiguous()
    if not torch.cuda.is_current_stream_capturing():
        # Compiles the kernel, and has memory outside of any graph, which no replay clears.
        SEEN[:] = SEEN or [torch.zeros(MOST_BUFFERS, x.shape[0], device=x.device)]
        KEPT.clear()
        start_leaving(x, torch.empty_like(x), torch.zeros(x.shape[0], device=x.device), looks, stride)
        return launch(x)
    y, seen = KEPT.setdefault(x.data_ptr(), (torch.empty_like(x), SEEN[0][len(KEPT) % MOST_BUFFERS]))
    start_leaving(x, y, seen, looks, stride)
    return y


def start_leaving(x, y, seen, looks, stride):
    width = triton.next_power_of_2(x.shape[1])
    _softmax_of_new_numbers[(x.shape[0],)](x, y, seen, x.shape[1], width, looks, stride)


@operator.variant("honest", idea="computes", devices=("cuda",))
def honest(x):
    return torch.softmax(x, dim=1)


@operator.variant("honest_triton", idea="one program per row", devices=("cuda",), unsupported=no_triton)
def honest_triton(x):
    return launch(x)


@operator.variant("honest_steps", idea="maximum, exponentials and sum in four launches", devices=("cuda",))
def honest_steps(x):
    e = (x - x.amax(dim=1, keepdim=True)).exp()
    return e / e.sum(dim=1, keepdim=True)


@operator.variant(
    "once_per_buffer",
    idea="launches once per buffer while a graph is captured, and returns what it has for every repetition",
    devices=("cuda",),
)
def once_per_buffer(x):
    if not torch.cuda.is_current_stream_capturing():
        KEPT.clear()
        return torch.softmax(x, dim=1)
    if x.data_ptr() not in KEPT:
        KEPT[x.data_ptr()] = torch.softmax(x, dim=1)
    return KEPT[x.data_ptr()]


@operator.variant(
    "small_launch_instead",
    idea="the same, with a launch that does little for every repetition",
    devices=("cuda",),
)
def small_launch_instead(x):
    if not torch.cuda.is_current_stream_capturing():
        KEPT.clear()
        return torch.softmax(x, dim=1)
    if x.data_ptr() not in KEPT:
        KEPT[x.data_ptr()] = torch.softmax(x, dim=1)
    else:
        KEPT[x.data_ptr()][:1, :1].mul_(1)
    return KEPT[x.data_ptr()]


@operator.variant(
    "leaves_on_known_numbers",
    idea="while captured, a kernel that leaves when four numbers of the row are those it saw last in this buffer",
    devices=("cuda",),
    unsupported=no_triton,
)
def leaves_on_known_numbers(x):
    return leave(x, 4, 500)


@operator.variant(
    "leaves_on_known_sum",
    idea="the same by a sum over an eighth of the row",
    devices=("cuda",),
    unsupported=no_triton,
)
def leaves_on_known_sum(x):
    return leave(x, 256, 8)
