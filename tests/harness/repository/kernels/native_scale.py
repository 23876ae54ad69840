"""y = 2x in C++, with a gradient registered from Python."""

import torch
from torch.library import custom_op

from kernels._shared import cost_per_element
from warpwatch import Operator, both_directions, case


def register():
    """Gradient and fake kernel of the native operator."""
    torch.library.register_fake("native_scale::forward", torch.empty_like)
    torch.library.register_autograd(
        "native_scale::forward", lambda ctx, g: torch.ops.native_scale.forward(g.contiguous())
    )


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


@custom_op("native_scale::no_fake", mutates_args=())
def no_fake(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


@custom_op("native_scale::wrong_fake", mutates_args=())
def wrong_fake(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


@wrong_fake.register_fake
def _(x):
    return x.new_empty(x.numel() + 1)


@custom_op("native_scale::secretly_in_place", mutates_args=())
def secretly_in_place(x: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    return x.clone()


@operator.variant("no_fake", idea="torch.compile cannot know its shape", native=True)
def with_no_fake(x):
    return no_fake(x)


@operator.variant("wrong_fake", idea="torch.compile is told the wrong shape", native=True)
def with_wrong_fake(x):
    return wrong_fake(x)


@operator.variant("wrong_schema", idea="changes an argument that its schema says it leaves alone", native=True)
def with_wrong_schema(x):
    return secretly_in_place(x.clone())
