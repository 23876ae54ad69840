"""seq2seq: every variant emits the very tokens of the float64 oracle, and a sentence that has ended stays ended."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernels import seq2seq as module
from warpwatch.contract.words import Status
from warpwatch.operator import Case, Operator
from warpwatch.worker.harness.problem import SeededMaker

from .conftest import DEVICES, check_variant, runnable
from .test_concat import Calls


@pytest.mark.parametrize(("name", "case", "device"), runnable(module.operator, (*module.QUICK, *module.EDGE)))
def test_every_variant_emits_the_oracles_tokens(operator: Operator, name: str, case: Case, device: str) -> None:
    reply = check_variant(operator, name, case, device)
    assert reply.status is Status.OK, reply.message
    assert all(error.relative == 0.0 for error in reply.tensors)


COMPILED = [module.decode(2, 3, 4, 5, (6, 7), 2)]


@pytest.mark.parametrize(("name", "case", "device"), runnable(module.operator, COMPILED, compiled=True))
def test_torch_compile_is_right(operator: Operator, name: str, case: Case, device: str) -> None:
    assert check_variant(operator, name, case, device).status is Status.OK


def given(case: Case, device: str = "cpu", seed: int = 3) -> dict[str, Any]:
    return module.inputs(case, SeededMaker(seed, torch.device(device), case.precision))


DECODERS = runnable(module.operator, [module.decode(5, 6, 8, 16, (20, 12), 25)])


@pytest.mark.parametrize(("name", "case", "device"), DECODERS)
def test_a_sentence_that_has_ended_stays_ended(operator: Operator, name: str, case: Case, device: str) -> None:
    variant, data = operator.variants[name], given(case, device)
    data["b_fc"][module.END] += 1.0
    tokens = variant.function(**data, **(variant.prepare(**data) if variant.prepare else {}))
    assert torch.equal(tokens, module.reference(**data))
    ended = (tokens == module.END).cumsum(1) > 0
    assert 0 < int(ended.sum()) < ended.numel()
    assert bool((tokens[ended] == module.END).all())


def test_the_calls_into_torch_do_not_grow_with_the_steps(operator: Operator) -> None:
    """A decode is launch-bound first: kernels that are quicker one by one lose to one call that makes all steps."""
    counted: dict[str, list[int]] = {"v2": [], "split": [], "v3": []}
    for steps in (2, 20):
        data = given(module.decode(3, 2, 4, 5, (6, 7), steps))
        for name, counts in counted.items():
            with Calls() as calls:
                operator.variants[name].function(**data)
            counts.append(len(calls.names))
    assert counted["v3"] == [1, 1]
    assert counted["v2"][1] - counted["v2"][0] >= 5 * 18
    assert counted["split"][1] - counted["split"][0] >= 5 * 18


def test_decodes_wander(operator: Operator) -> None:
    """Otherwise a variant that repeats its first token would pass."""
    tokens = module.reference(**given(module.QUICK[1]))
    assert sorted(len(row.unique()) for row in tokens)[1] > 5
    assert len(torch.unique(tokens, dim=0)) == 4


@pytest.mark.parametrize("device", DEVICES)
def test_of_equal_logits_the_first_token_wins(operator: Operator, device: str) -> None:
    data = given(module.decode(2, 3, 4, 5, (6, 1200), 2), device)
    data["w_fc"].zero_()
    data["b_fc"].fill_(-1.0)[[700, 40, 1199]] = 1.0
    assert module.v3(**data).tolist() == [[40, 40]] * 3


@pytest.mark.parametrize("device", DEVICES)
def test_logits_without_numbers_still_give_a_token(operator: Operator, device: str) -> None:
    data = given(module.decode(2, 3, 4, 5, (6, 70), 2), device)
    data["w_fc"].fill_(torch.nan)
    tokens = module.v3(**data)
    assert bool(((tokens >= 0) & (tokens < 70)).all())


@pytest.mark.parametrize("device", DEVICES)
def test_the_torch_operator_keeps_torchs_rules(operator: Operator, device: str) -> None:
    data = given(module.decode(2, 3, 4, 5, (6, 7), 2), device)
    steps = data.pop("steps")
    torch.library.opcheck(torch.ops.warpwatch.seq2seq_decode.default, (*data.values(), module.START, module.END, steps))


def test_operands_that_do_not_fit_are_refused(operator: Operator) -> None:
    data = given(module.decode(2, 3, 4, 5, (6, 7), 2))
    for name in ("source_table", "w_fc", "b_fc"):
        with pytest.raises(RuntimeError):
            module.v3(**{**data, name: data[name][..., :-1]})
    with pytest.raises(RuntimeError):
        module.v3(**{**data, "source": data["source"].int()})


def test_costs() -> None:
    cost = module.cost(module.decode(13, 1, 256, 512, (7853, 5893), 25))
    encoder, step, context = 1536 * 768, (1536 + 5893) * 768, 512 * (1536 + 5893)
    assert cost.flops == 2 * (13 * encoder + context + 25 * step)
