"""An operator whose native source does not compile."""

import torch

from kernels._shared import cost_per_element
from warpwatch import Operator, case

operator = Operator(
    "native_broken",
    "Its C++ is no C++.",
    inputs=lambda case, make: {"x": make.normal(case["n"])},
    reference=lambda x: 2 * x,
    cost=cost_per_element,
    cases={"quick": (case(n=1000),)},
)


@operator.variant("v1", idea="torch")
def v1(x):
    return 2 * x


@operator.variant("v3", idea="C++", native=True)
def v3(x):
    return torch.ops.native_broken.forward(x)
