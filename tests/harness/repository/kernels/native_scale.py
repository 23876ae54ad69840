"""y = 2x in C++, with a gradient registered from Python."""

import torch

from kernels._shared import cost_per_element
from warpwatch import Operator, both_directions, case


def register():
    """Gradient of the native operator."""
    torch.library.register_autograd("native_scale::forward", lambda ctx, g: torch.ops.native_scale.forward(g.contiguous()))


operator = Operator(
    "native_scale",
    "Twice its input.",
    inputs=lambda case, make: {"x": make.normal(case["n"])},
    reference=lambda x: 2 * x,
    cost=cost_per_element,
    gradients=("x",),
    native=register,
    cases={"quick": both_directions(case(n=1000))},
)


@operator.variant("v1", idea="torch")
def v1(x):
    return 2 * x


@operator.variant("v3", idea="C++", native=True)
def v3(x):
    return torch.ops.native_scale.forward(x)
