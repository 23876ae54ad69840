"""seq2seq_train: every variant against the oracle, torch's own modules with the same weights, and a training that
learns."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernels import seq2seq_train as module
from warpwatch.contract.words import Status
from warpwatch.operator import Case, Operator
from warpwatch.worker.harness.problem import SeededMaker

from .conftest import check_variant, runnable

pytestmark = pytest.mark.usefixtures("operator")

DEEP = module.training(3, 2, (5, 7), (11, 13), (4, 6), "f64")
SHORT = module.training(2, 1, (5, 7), (11, 13), (3, 4))


def data(given: Case, seed: int = 1) -> dict[str, Any]:
    return module.inputs(given, SeededMaker(seed, torch.device("cpu"), given.precision))


@pytest.mark.parametrize(("name", "case", "device"), runnable(module.operator, (*module.QUICK, *module.EDGE)))
def test_every_variant_is_right(operator: Operator, name: str, case: Case, device: str) -> None:
    reply = check_variant(operator, name, case, device)
    assert (reply.status, reply.message) == (Status.OK, "")


@pytest.mark.parametrize(("name", "case", "device"), runnable(module.operator, [SHORT], compiled=True))
def test_torch_compile_is_right(operator: Operator, name: str, case: Case, device: str) -> None:
    assert check_variant(operator, name, case, device).status is Status.OK


def test_the_model_is_that_of_torchs_modules() -> None:
    given = data(DEEP)
    width, hidden, layers = 5, 7, 2
    encoder = torch.nn.GRU(width, hidden, layers, dtype=torch.float64)
    decoder = torch.nn.GRU(width + hidden, hidden, layers, dtype=torch.float64)
    for theirs, ours in ((encoder, given["encoder"]), (decoder, given["decoder"])):
        for index, weights in enumerate(ours):
            for name, weight in zip(("weight_ih", "weight_hh", "bias_ih", "bias_hh"), weights, strict=True):
                getattr(theirs, f"{name}_l{index}").data.copy_(weight)
    _, h = encoder(given["source_table"][given["source"]])
    e, c = given["target_table"][module.previous(given["target"])], h[-1].expand(6, 3, hidden)
    states, _ = decoder(torch.cat([e, c], 2), h)
    logits = torch.cat([e, states, c], 2) @ given["w_fc"].t() + given["b_fc"]
    kept = given["target"] != module.PADDING
    expected = -logits.log_softmax(2).gather(2, given["target"][..., None])[..., 0][kept].mean()
    torch.testing.assert_close(module.reference(**given), expected.detach())


def test_logits_at_padding_count_nowhere() -> None:
    """What the last step reads changes nothing where its target is padding."""
    given = data(DEEP)
    given["target"][4:] = module.PADDING
    changed = given["target_table"].clone()
    changed[module.PADDING] += 1
    assert torch.equal(module.v3(**given), module.v3(**given | {"target_table": changed}))
    changed[module.START] += 1
    assert not torch.equal(module.v3(**given), module.v3(**given | {"target_table": changed}))


@pytest.mark.parametrize("layers", [1, 3])
def test_gradient_descent_by_our_scan_learns(layers: int) -> None:
    given = data(module.training(4, layers, (12, 16), (11, 13), (4, 6)))
    leaves = [given["source_table"], given["target_table"], given["w_fc"], given["b_fc"]]
    leaves += [weight for side in ("encoder", "decoder") for layer in given[side] for weight in layer]
    optimizer = torch.optim.Adam([leaf.requires_grad_() for leaf in leaves], lr=0.02)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = module.v3(**given)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert all(leaf.grad is not None and bool(leaf.grad.any()) for leaf in leaves)
    assert losses[-1] < 0.2 * losses[0]


def test_costs() -> None:
    forward, backward = (
        module.cost(given)
        for given in (module.training(2, 1, (3, 5), (7, 11), (4, 6)), Case(module.EDGE[1].sizes, "f32", "bwd"))
    )
    encoder, decoder, fc, context = 15 * 8, 15 * 13, 11 * 13, 5 * 26
    assert forward.flops == 4 * (4 * encoder + context + 6 * (decoder + fc - context))
    same = module.cost(Case(module.EDGE[1].sizes, "f32", "fwd"))
    assert backward.flops == 2 * same.flops
    assert backward.bytes > 2 * same.bytes - 16
