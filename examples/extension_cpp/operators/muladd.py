"""extension_cpp.ops.mymuladd: a · b + c in one kernel."""

import extension_cpp

from warpwatch import Cost, Operator, both_directions, case


def inputs(case, make):
    return {"a": make.normal(case["n"]), "b": make.normal(case["n"]), "c": 0.5}


def reference(a, b, c):
    return a * b + c


def cost(case):
    return Cost(flops=2 * case["n"], bytes=12 * case["n"])


operator = Operator(
    "muladd",
    "Multiplies two vectors and adds a number.",
    inputs=inputs,
    reference=reference,
    cost=cost,
    gradients=("a", "b"),
    cases={"quick": both_directions(case(n=1000), case(n=65536), case(n=1 << 20), case(n=1 << 24))},
)


@operator.variant("torch", idea="two calls of torch", devices=("cpu", "cuda"))
def by_torch(a, b, c):
    return reference(a, b, c)


@operator.variant("extension", idea="one kernel", devices=("cpu", "cuda"))
def muladd(a, b, c):
    return extension_cpp.ops.mymuladd(a, b, c)
