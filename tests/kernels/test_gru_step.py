"""gru_step: every variant against the oracle, and that a step touches neither the context nor a concatenation."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels import gru_step as module
from warpwatch.contract.words import Status
from warpwatch.operator import Case, Operator
from warpwatch.worker.harness.problem import SeededMaker

from .conftest import DEVICES, check_variant, runnable
from .test_concat import Calls


@pytest.mark.parametrize(("name", "case", "device"), runnable(module.operator, (*module.QUICK, *module.EDGE)))
def test_every_variant_is_right(operator: Operator, name: str, case: Case, device: str) -> None:
    reply = check_variant(operator, name, case, device)
    assert reply.status is Status.OK, reply.message


COMPILED = module.both_directions(module.step(2, 3, 4, 5))


@pytest.mark.parametrize(("name", "case", "device"), runnable(module.operator, COMPILED, compiled=True))
def test_torch_compile_is_right(operator: Operator, name: str, case: Case, device: str) -> None:
    assert check_variant(operator, name, case, device).status is Status.OK


def given(case: Case, device: str = "cpu") -> dict[str, Tensor]:
    return module.inputs(case, SeededMaker(3, torch.device(device), case.precision))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("batch", [1, 3])
def test_the_gradients_are_those_of_the_function(operator: Operator, device: str, batch: int) -> None:
    tensors = {name: t.requires_grad_() for name, t in given(module.step(batch, 2, 3, 4, "f64"), device).items()}

    def whole(*values: Tensor) -> tuple[Tensor, Tensor]:
        named = dict(zip(tensors, values, strict=True))
        return module.v3(**named, **module.context(**named))

    assert torch.autograd.gradcheck(whole, tuple(tensors.values()))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("batch", [1, 3])
def test_the_gradients_of_the_whole_step_are_those_of_the_function(operator: Operator, device: str, batch: int) -> None:
    tensors = {name: t.requires_grad_() for name, t in given(module.step(batch, 2, 3, 4, "f64"), device).items()}

    def whole(*values: Tensor) -> tuple[Tensor, Tensor]:
        named = dict(zip(tensors, values, strict=True))
        return module.v5(**named, **module.detached_context(**named))

    assert torch.autograd.gradcheck(whole, tuple(tensors.values()))


def test_gradients_of_the_whole_step_are_joined_from_no_parts(operator: Operator) -> None:
    tensors = {name: t.requires_grad_() for name, t in given(module.step(3, 8, 16, 33)).items()}
    y, after = module.v5(**tensors, **module.detached_context(**tensors))
    with Calls() as calls:
        torch.autograd.grad((y.sum(), after.sum()), tuple(tensors.values()))
    assert not [name for name in calls.names if "cat" in name or "mm" in name]


@pytest.mark.parametrize("device", DEVICES)
def test_the_torch_operator_keeps_torchs_rules(operator: Operator, device: str) -> None:
    t = {name: value.requires_grad_() for name, value in given(module.step(3, 5, 7, 9), device).items()}
    ready_made = {name: value.detach() for name, value in module.context(**t).items()}
    own = (
        t["e"],
        t["h"],
        t["w_ih"][:, :5].detach(),
        t["w_hh"],
        t["b_hh"],
        ready_made["gates"],
        t["w_fc"][:, :12].detach(),
    )
    torch.library.opcheck(torch.ops.warpwatch.gru_step.default, (*own, ready_made["logits"], True))
    y, after, saved = (x.detach() for x in torch.ops.warpwatch.gru_step(*own, ready_made["logits"], True))
    operands = (t["e"], t["h"], t["c"], after, saved, t["w_ih"], t["w_hh"], t["w_fc"])
    gradients = torch.randn_like(y), torch.randn_like(after)
    torch.library.opcheck(
        torch.ops.warpwatch.gru_step_backward.default, (*gradients, *(operand.detach() for operand in operands))
    )


@pytest.mark.parametrize("name", ["split", "v3"])
def test_a_step_reads_no_context(operator: Operator, name: str) -> None:
    """The context and its columns of the weights count only through what was prepared from them; nothing is
    concatenated."""
    tensors = given(module.step(3, 8, 16, 33))
    prepared = module.context(**tensors)
    expected = module.reference(**tensors)
    tensors["c"].fill_(torch.nan)
    tensors["w_ih"][:, 8:] = torch.nan
    tensors["w_fc"][:, 8 + 16 :] = torch.nan
    with Calls() as calls:
        y, h = operator.variants[name].function(**tensors, **prepared)
    torch.testing.assert_close((y, h), expected)
    assert "aten::cat" not in calls.names


def test_operands_that_do_not_fit_are_refused(operator: Operator) -> None:
    t = given(module.step(3, 5, 7, 9))
    ready_made = module.context(**t)
    own = [
        t["e"],
        t["h"],
        t["w_ih"][:, :5],
        t["w_hh"],
        t["b_hh"],
        ready_made["gates"],
        t["w_fc"][:, :12],
        ready_made["logits"],
    ]
    for index in range(len(own)):
        wrong = [*own]
        wrong[index] = own[index][:-1]
        with pytest.raises(RuntimeError):
            torch.ops.warpwatch.gru_step(*wrong)


def test_costs() -> None:
    forward, backward = (module.cost(case) for case in module.both_directions(module.step(1, 256, 512, 5893))[:2])
    assert forward.flops == 2 * (1536 + 5893) * 768
    assert backward.flops == 4 * (1536 + 5893) * 1280
    # Two fifths of the vocabulary's weights are the context's.
    assert forward.bytes < 0.62 * 4 * (1536 + 5893) * 1280
