"""Jensen-Shannon divergence (beta 0.5) of log-probabilities."""

from liger_kernel.ops.jsd import LigerJSDFunction
from operators._liger import LOGITS, apply

from warpwatch import Cost, Operator


def inputs(case, make):
    y, target = (make.normal(case["rows"], case["vocabulary"]).log_softmax(-1) for _ in range(2))
    return {"y": y, "target": target}


def reference(y, target):
    p, q = target.exp(), y.exp()
    m = ((p + q) / 2).log()
    return ((p * (target - m)).sum() + (q * (y - m)).sum()) / (2 * y.shape[0])


def cost(case):
    n, passes = case["rows"] * case["vocabulary"], 1 if case.direction == "fwd" else 2
    return Cost(flops=5 * n, bytes=passes * case.element_bytes * n)


operator = Operator(
    "jsd",
    "Jensen-Shannon divergence (beta 0.5) of log-probabilities.",
    inputs=inputs,
    reference=reference,
    cost=cost,
    gradients=("y",),
    depth=lambda case: case["rows"] * case["vocabulary"],
    cases=LOGITS,
)


@operator.variant("torch", idea="torch calls")
def torch_calls(y, target):
    return reference(y, target)


@operator.variant("liger", idea="the package's Triton kernel", devices=("cuda",))
def liger(y, target):
    return apply(LigerJSDFunction, y, target, beta=0.5)
