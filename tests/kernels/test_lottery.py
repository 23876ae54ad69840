"""lottery: every variant agrees with the oracle on each round's accuracy, tickets win, and survivors begin where they
began."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from kernels import lottery as module
from warpwatch.contract.words import Status
from warpwatch.operator import Case, Operator, case
from warpwatch.worker.harness.child import verbs
from warpwatch.worker.harness.problem import SeededMaker

from .conftest import DEVICES, check_variant, runnable

pytestmark = pytest.mark.usefixtures("operator")

SMALL = case("f32", samples=64, features=8, hidden=24, steps=40, rounds=2, percent=50)
TENTH = case("f32", samples=128, features=8, hidden=24, steps=40, rounds=5, percent=56)
CONTROLLED = case("f32", samples=128, features=8, hidden=24, steps=40, rounds=5, percent=56, seeds=3)


def data(given: Case, seed: int, precision: str = "f32") -> dict[str, Any]:
    return module.inputs(given, SeededMaker(seed, torch.device("cpu"), precision))


@pytest.mark.parametrize(("name", "case", "device"), runnable(module.operator, (*module.QUICK, *module.EDGE)))
def test_every_variant_is_right(operator: Operator, name: str, case: Case, device: str) -> None:
    reply = check_variant(operator, name, case, device)
    assert (reply.status, reply.message) == (Status.OK, "")
    assert reply.curves is not None
    assert reply.curves.at == list(module.kept(case))
    controls = ["new initial weights", "random mask"] if "seeds" in dict(case.sizes) else []
    assert list(reply.curves.lines) == ["winning ticket", "all weights", *controls]
    assert set(reply.curves.lines["all weights"]) == {reply.curves.lines["winning ticket"][0]}


def test_the_first_case_records_the_controls() -> None:
    assert "seeds" in dict(module.operator.cases["quick"][0].sizes)


@pytest.mark.parametrize(("name", "case", "device"), runnable(module.operator, [SMALL], compiled=True))
def test_torch_compile_is_right(operator: Operator, name: str, case: Case, device: str) -> None:
    assert check_variant(operator, name, case, device).status is Status.OK


@pytest.mark.parametrize("seed", range(6))
def test_float32_and_float64_agree_on_every_round(seed: int) -> None:
    given = data(TENTH, seed)
    wide: dict[str, Any] = {
        name: value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
        for name, value in given.items()
    }
    accuracy, left, loss, weights = module.v3(**given)
    expected, expected_left, expected_loss, expected_weights = module.reference(**wide)
    torch.testing.assert_close(accuracy.double(), expected, rtol=0, atol=1e-4)
    assert left.tolist() == expected_left.tolist() == list(module.kept(TENTH))
    torch.testing.assert_close(loss.double(), expected_loss, rtol=1e-4, atol=0)
    torch.testing.assert_close(weights.double(), expected_weights, rtol=0, atol=1e-4)


def test_tickets_win_against_new_weights_and_those_against_random_masks() -> None:
    """Were the smallest weights kept instead of the largest, or the survivors not rewound, the accuracy would tell."""
    rows = []
    for seed in range(6):
        accuracy, left, _, _, new_weights, random_masks = module.v2(**data(CONTROLLED, seed))
        assert left[-1] <= 0.1 * left[0]
        assert bool((accuracy < 1).all())
        rows.append(torch.stack([accuracy, new_weights.mean(1), random_masks.mean(1)]))
    ticket, new_weights, random_masks = torch.stack(rows).mean(0)
    # With all weights, a mask drawn at random is the ticket's own.
    assert ticket[0] == random_masks[0]
    assert ticket[0] > 0.9
    assert bool((ticket[1:] > new_weights[1:] + 0.01).all())
    assert bool((ticket[3:] > new_weights[3:] + 0.05).all())
    assert bool((new_weights[2:] > random_masks[2:] + 0.05).all())


def test_the_accuracy_of_the_smallest_weights_is_that_of_chance() -> None:
    def smallest(w: Tensor, keep: int) -> Tensor:
        mask = torch.zeros_like(w, dtype=torch.bool)
        mask[w.abs().argsort()[:keep]] = True
        return mask

    given = data(TENTH, 3)
    assert module.tickets(**given, train=module.in_steps(module.descend), prune=smallest)[0][-1] < 0.65


def test_weights_are_recorded_after_every_so_many_steps() -> None:
    """Training in parts is training: the records end with the weights of one call, whatever the parts are."""
    given = data(SMALL, 4, "f64")
    whole = module.v2(**given)[3]
    parts = module.v2(**given, every=15)[3]
    assert parts.shape == (2, 3, module.weights(SMALL))
    torch.testing.assert_close(parts[:, -1], whole[:, -1])
    assert torch.equal(parts[0, 0], module.v2(**given | {"steps": 15})[3][0, 0])
    assert bool(((parts[:, 1:] - parts[:, :-1]).norm(dim=2) > 1e-3).all())


def test_a_sample_that_is_nearly_undecided_counts_in_part() -> None:
    scores = torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.0, 0.005], [0.0, 0.0]], dtype=torch.float64)
    side = torch.tensor([1.0, 1.0, -1.0, 1.0], dtype=torch.float64) / module.BLURRED
    assert float(module.accuracy(scores, side)) == pytest.approx((1 + 0 + 0.25 + 0.5) / 4)


def test_survivors_are_rewound_and_the_pruned_stay_zero() -> None:
    """Each round's first step sees initial weights and zeros, never what the round before had learnt."""
    given, seen = data(SMALL, 1), []

    def step(
        x: Tensor, target: Tensor, a: Tensor, b: Tensor, mask1: Tensor, mask2: Tensor, speed: float
    ) -> tuple[Tensor, Tensor]:
        seen.append((a, mask1))
        return module.descend(x, target, a, b, mask1, mask2, speed)

    module.tickets(**given, train=module.in_steps(step), prune=module.largest)
    first, second = seen[0], seen[given["steps"]]
    assert torch.equal(first[0], given["w1"])
    assert torch.equal(second[0], given["w1"] * second[1])
    assert 0 < second[1].sum() < second[1].numel()
    assert all(not a[mask == 0].any() for a, mask in seen)


def test_the_gradients_by_hand_are_those_of_autograd() -> None:
    given = data(SMALL, 2, "f64")
    target = torch.nn.functional.one_hot(given["labels"], module.CLASSES).double()
    ones = [torch.ones_like(given[name]) for name in ("w1", "w2")]
    arguments = (given["x"], target, given["w1"], given["w2"], *ones, 0.5)
    for step in (module.descend, module.descend_foreach):
        for mine, right in zip(step(*arguments), module.descend_by_autograd(*arguments), strict=True):
            torch.testing.assert_close(mine, right)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("samples", "features", "hidden"), [(64, 8, 24), (101, 9, 31), (1, 2, 5), (6, 40, 3), (401, 33, 17)]
)
def test_one_call_trains_as_single_steps_do(device: str, samples: int, features: int, hidden: int) -> None:
    """Sizes that are no multiple of a vector, fewer samples than share a tile's sums, and so many that several threads
    take parts."""
    make = SeededMaker(5, torch.device(device), "f64")
    target = torch.nn.functional.one_hot(make.integers(0, 2, samples), module.CLASSES).double()
    weights = make.normal(features, hidden), make.normal(hidden, module.CLASSES)
    masks = [(w > -0.3).double() for w in weights]
    arguments = [make.normal(samples, features), target, *weights, *masks]
    right = module.in_steps(module.descend)(*arguments, 0.7, 3)  # type: ignore[call-arg,arg-type]
    for dtype, most in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        if device == "cuda" and dtype == torch.float64 and samples > 200:
            continue  # These do not fit shared memory in float64.
        trained = torch.ops.warpwatch.lottery_train(*(t.to(dtype) for t in arguments), 0.7, 3)
        for mine, theirs, before in zip(trained, right, weights, strict=True):
            assert (theirs - before).norm() > 1e-3, "or training shows nothing"
            assert (mine.double() - theirs).norm() <= most * theirs.norm()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(3)}, r"x must be \(samples, features\)"),
        ({"target": torch.zeros(4, 3)}, "target has the wrong shape"),
        ({"w2": torch.zeros(5, 2, dtype=torch.float64)}, "w2 has another dtype"),
        ({"steps": -1}, "steps must not be negative"),
    ],
)
def test_training_refuses_what_does_not_fit(change: dict[str, Any], message: str) -> None:
    shapes = {"x": (4, 3), "target": (4, 2), "w1": (3, 5), "w2": (5, 2), "mask1": (3, 5), "mask2": (5, 2)}
    given = {name: torch.zeros(shape) for name, shape in shapes.items()} | {"speed": 0.1, "steps": 1} | change
    with pytest.raises(RuntimeError, match=message):
        torch.ops.warpwatch.lottery_train(*given.values())


def test_its_native_variants_use_the_library_of_another_operator_too(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(verbs.native, "load", loaded.append)
    child = object.__new__(verbs.Verbs)
    child._native_ready = set()
    child._start = verbs.StartTimes()
    child._load_native(module.operator)
    assert loaded == ["lottery", "magnitude_prune"]


def test_costs() -> None:
    cost = module.cost(case("f32", samples=10, features=3, hidden=5, steps=2, rounds=3, percent=50))
    step, test = 2 * 10 * 5 * (3 + 3 + 3 * 2), 2 * module.TESTED * 5 * (3 + 2)
    assert cost.flops == 3 * (2 * step + test)
    assert cost.bytes == 4 * ((10 + module.TESTED) * 3 + 25 + 3 * (2 + 25)) + 8 * (10 + module.TESTED + 3)
    with_seeds = module.cost(
        case("f32", samples=10, features=3, hidden=5, steps=2, rounds=3, percent=50, every=1, seeds=4)
    )
    assert with_seeds.flops == 9 * cost.flops
    assert with_seeds.bytes == cost.bytes + 4 * (8 * 25 + 3 * (25 + 8))
