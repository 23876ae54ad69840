"""Every kind of fault gives the right status, and a message that names it."""

from __future__ import annotations

import pytest

from tests.harness.child import Harness
from warpwatch.contract.messages import CheckReply
from warpwatch.contract.words import Status

PROBES = ("guard bands", "opcheck", "strided inputs", "offset inputs", "special values")


def check(
    harness: Harness, variant: str, case: str = "n=1000,f32,fwd", operator: str = "scale", seed: int = 0
) -> CheckReply:
    return harness.ask(CheckReply, "check", operator=operator, variant=variant, case=case, seed=seed)


@pytest.mark.parametrize("precision", ["f64", "f32", "bf16", "f16"])
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_right_in_every_precision(harness: Harness, precision: str, direction: str) -> None:
    reply = check(harness, "right_gradient", f"n=1000,{precision},{direction}", seed=5)
    assert (reply.status, reply.message, reply.seed) == (Status.OK, "", 5)
    (error,) = reply.tensors
    assert error.name == ("y" if direction == "fwd" else "grad x")
    assert error.right
    assert error.relative <= error.tolerance
    assert error.norm == pytest.approx(error.oracle_norm, rel=1e-2)
    assert error.torch_relative is not None
    # 3x + 1 is rounded at most twice, so no element is off by more than about one ULP of the larger term.
    assert error.relative < {"f64": 1e-15, "f32": 1e-7, "bf16": 1e-2, "f16": 1e-3}[precision]


def test_whole_numbers_are_exact(harness: Harness) -> None:
    right = check(harness, "good", "n=1000,i32,fwd")
    assert right.status is Status.OK
    assert (right.tensors[0].relative, right.tensors[0].tolerance) == (0.0, 0.0)
    wrong = check(harness, "last_wrong", "n=1000,i32,fwd")
    assert wrong.status is Status.WRONG
    assert (wrong.tensors[0].absolute, wrong.tensors[0].ulp, wrong.tensors[0].worst_index) == (1.0, 1.0, [999])


def test_an_empty_tensor_is_right(harness: Harness) -> None:
    assert check(harness, "good", "n=0,f32,fwd").status is Status.OK


def test_every_output_and_gradient_is_reported(harness: Harness) -> None:
    forward = check(harness, "good", "n=33,f32,fwd", "pair")
    assert [error.name for error in forward.tensors] == ["y[0]", "y[1]"]
    backward = check(harness, "good", "n=33,f32,bwd", "pair")
    assert [error.name for error in backward.tensors] == ["grad x", "grad weights[0]", "grad weights[1]"]
    assert (forward.status, backward.status) == (Status.OK, Status.OK)


@pytest.mark.parametrize(
    ("variant", "case", "words"),
    [
        ("last_missing", "n=1000,f32,fwd", "y off by"),
        ("last_wrong", "n=1000,f32,fwd", "at [999]"),
        ("nan", "n=1000,f32,fwd", "at [7], 1 of 1000 elements NaN or infinite"),
        ("wrong_shape", "n=1000,f32,fwd", "y has shape (1, 1000), expected (1000,)"),
        ("wrong_dtype", "n=1000,f32,fwd", "y is float64, expected float32"),
        ("no_tensor", "n=1000,f32,fwd", "returns float, expected a tensor"),
        ("mutates", "n=1000,f32,fwd", "modifies its input x"),
        ("keeps_by_shape", "n=1000,f64,fwd", "bit for bit: the variant caches results"),
        ("keeps_by_address", "n=1000,f64,fwd", "bit for bit: the variant caches results"),
        ("one_buffer", "n=1000,f32,fwd", "The next call overwrites y"),
        ("gradient_is_incoming", "n=1000,f32,bwd", "grad x off by 0.667"),
        ("gradient_is_none", "n=1000,f32,bwd", "grad x is None"),
        ("gradient_too_short", "n=1000,f32,bwd", "returned an invalid gradient"),
        ("detached", "n=1000,f32,bwd", "y carries no gradient"),
        ("nan", "n=1000,bf16,fwd", "NaN"),
    ],
)
def test_wrong_results(harness: Harness, variant: str, case: str, words: str) -> None:
    reply = check(harness, variant, case)
    assert reply.status is Status.WRONG, reply.message
    assert words in reply.message


def test_wrong_pairs(harness: Harness) -> None:
    assert "grad weights[1] is None" in check(harness, "second_weight_lost", "n=33,f32,bwd", "pair").message
    assert "1 tensors, expected 2" in check(harness, "one_output", "n=33,f32,fwd", "pair").message
    assert "1 tensors, expected 2" in check(harness, "one_output", "n=33,f32,bwd", "pair").message


@pytest.mark.parametrize(
    ("variant", "status", "words"),
    [
        ("raises", Status.CRASHED, "a bug of the kernel"),
        ("leaves", Status.CRASHED, "SystemExit"),
        ("huge", Status.OUT_OF_MEMORY, "can't allocate memory"),
        ("memory_error", Status.OUT_OF_MEMORY, "MemoryError"),
        ("bad_alloc", Status.OUT_OF_MEMORY, "std::bad_alloc"),
    ],
)
def test_exceptions_become_statuses(harness: Harness, variant: str, status: Status, words: str) -> None:
    reply = check(harness, variant)
    assert reply.status is status
    assert words in reply.message
    # The child serves the next request.
    assert check(harness, "good").status is Status.OK


def test_nondeterminism_is_noted_and_no_failure(harness: Harness) -> None:
    reply = check(harness, "unsteady", "n=1000,f32,fwd")
    assert reply.status is Status.OK
    assert reply.message == "Nondeterministic: y differ between two calls on the same inputs"


def test_kernel_code_that_prints_and_reads_disturbs_nothing(harness: Harness) -> None:
    assert check(harness, "chatty").status is Status.OK
    assert '{"id": 1, "reply": {}}' in harness.log.read_text()


def test_progress_comes_before_the_reply(harness: Harness) -> None:
    check(harness, "good")
    assert {event["event"] for event in harness.events} == {"progress"}
    texts = [event["text"] for event in harness.events]
    assert texts == ["first inputs right", "second inputs right", *(f"probing {name}" for name in PROBES)]
