"""y = x wᵀ + bias."""

import torch

from warpwatch import Cost, Operator, both_directions, case

caught_by = {
    "transpose_dropped": "wrong_values y",
    "bias_of_last_row": "wrong_values grad bias",
    "bias_forgotten": "wrong_values y",
    "accumulates_into_bias": "modified_input bias",
    "relies_on_zeros": "probe guard bands",
    "misaligned_vectors": "probe offset inputs",
    "spreads_nan": "probe special values",
}


def inputs(case, make):
    rows, out, k = case["rows"], case["out"], case["k"]
    return {"x": make.normal(rows, k), "w": make.normal(out, k, scale=k**-0.5), "bias": make.normal(out)}


def cost(case):
    rows, out, k = case["rows"], case["out"], case["k"]
    return Cost(2 * rows * out * k, case.element_bytes * (rows * k + out * k + rows * out))


operator = Operator(
    "linear",
    "y = x times w transposed, plus bias.",
    inputs=inputs,
    reference=lambda x, w, bias: x @ w.mT + bias,
    cost=cost,
    gradients=("x", "w", "bias"),
    depth=lambda case: max(case["k"], case["rows"], case["out"]),
    cases={
        "quick": both_directions(case(rows=32, out=24, k=24), case(rows=33, out=8, k=17)),
        "edge": (case(rows=1, out=1, k=1), case(rows=0, out=3, k=4)),
    },
)


@operator.variant("addmm", idea="one torch call")
def addmm(x, w, bias):
    return torch.addmm(bias, x, w.mT)


@operator.variant("own_gradient", idea="with its gradient written by hand")
def own_gradient(x, w, bias):
    return Linear.apply(x, w, bias, lambda g: g.sum(dim=0))


@operator.variant("transpose_dropped", idea="x @ w where the shapes allow it")
def transpose_dropped(x, w, bias):
    return x @ (w if w.shape[0] == w.shape[1] else w.mT) + bias


@operator.variant("bias_of_last_row", idea="returns the gradient of the last row as that of the bias, and not the sum")
def bias_of_last_row(x, w, bias):
    return Linear.apply(x, w, bias, lambda g: g[-1].clone())


@operator.variant("bias_forgotten", idea="adds no bias to the last column")
def bias_forgotten(x, w, bias):
    y = torch.addmm(bias, x, w.mT)
    return torch.cat([y[:, :-1], (x @ w.mT)[:, -1:]], dim=1)


@operator.variant("accumulates_into_bias", idea="accumulates into the bias")
def accumulates_into_bias(x, w, bias):
    y = torch.addmm(bias, x, w.mT)
    with torch.no_grad():
        bias += 0.5
    return y


def forward_only(case, device):
    return "has no gradient" if case.direction == "bwd" else None


@operator.variant("relies_on_zeros", idea="adds to new memory that happens to hold zeros", unsupported=forward_only)
def relies_on_zeros(x, w, bias):
    y = torch.empty(2**23, dtype=x.dtype, device=x.device)[: x.shape[0] * w.shape[0]].view(x.shape[0], w.shape[0])
    y += torch.addmm(bias, x, w.mT)
    return y


@operator.variant("misaligned_vectors", idea="drops the elements before the first 16-byte boundary")
def misaligned_vectors(x, w, bias):
    lost = -x.data_ptr() % 16 // x.element_size()
    kept = x.reshape(-1).clone()
    kept[:lost] = 0
    return torch.addmm(bias, kept.view(x.shape), w.mT)


@operator.variant("spreads_nan", idea="adds zero times the sum of x, as a padded tile does")
def spreads_nan(x, w, bias):
    return torch.addmm(bias, x, w.mT) + 0 * x.sum()


class Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, bias, bias_gradient):
        ctx.save_for_backward(x, w)
        ctx.bias_gradient = bias_gradient
        return torch.addmm(bias, x, w.mT)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w, g.mT @ x, ctx.bias_gradient(g), None
