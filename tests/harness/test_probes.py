"""Runs each probe on a variant that only this probe detects, and on a right one."""

from __future__ import annotations

import pytest

from tests.harness.child import Harness
from warpwatch.contract.measurement import Probe
from warpwatch.contract.messages import CheckReply
from warpwatch.contract.words import Status

FORWARD, BACKWARD = "n=1000,f32,fwd", "n=1000,f32,bwd"


def check(
    harness: Harness, variant: str, case: str = FORWARD, operator: str = "probed"
) -> tuple[CheckReply, dict[str, Probe]]:
    reply = harness.ask(CheckReply, "check", operator=operator, variant=variant, case=case, seed=3)
    return reply, {probe.name: probe for probe in reply.probes}


@pytest.mark.parametrize(
    ("variant", "case", "name", "words"),
    [
        ("writes_past_end", FORWARD, "guard bands", "4 bytes, the first 0 past the end of (1000,) float32"),
        ("writes_past_input", FORWARD, "guard bands", "its input x: 4 bytes, the first 0 past the end"),
        ("reads_past_end", FORWARD, "guard bands", "1000 of 1000 elements NaN"),
        ("counts_on_zeros", FORWARD, "guard bands", "at [999], 1 of 1000 elements NaN"),
        ("ignores_strides", FORWARD, "strided inputs", "y off by"),
        ("trips_over_strides", FORWARD, "strided inputs", "raises KeyError: 'no idea'"),
        ("unaware_gradient", BACKWARD, "strided inputs", "grad x off by"),
        ("needs_alignment", FORWARD, "offset inputs", "y off by"),
        ("swallows_nan", FORWARD, "special values", "is 0, expected nan, as are 2 of 2"),
        ("swallows_infinity", FORWARD, "special values", "swallows infinities"),
        ("spreads_nan", FORWARD, "special values", "NaN reach elements that do not depend on them"),
    ],
)
def test_one_probe_alone_finds_it(harness: Harness, variant: str, case: str, name: str, words: str) -> None:
    reply, probes = check(harness, variant, case)
    assert reply.status is Status.WRONG
    assert all(error.right for error in reply.tensors), "the plain runs find nothing"
    # A kernel that reads past its input reads arbitrary memory, so other layouts may detect it as well.
    others = {"guard bands": {"strided inputs", "offset inputs", "special values"}}.get(name, set())
    wrong = {probe.name for probe in probes.values() if probe.status == "wrong"}
    assert name in wrong
    assert wrong <= {name} | others, reply.message
    assert words in probes[name].message
    assert reply.message.startswith(f"{name}: {probes[name].message}")


def test_all_probes_pass_what_is_right(harness: Harness) -> None:
    for variant in ("good", "in_torch_memory"):
        for case in (FORWARD, BACKWARD, "n=0,f32,fwd", "n=1,f32,fwd"):
            reply, probes = check(harness, variant, case)
            assert reply.status is Status.OK, (variant, case, reply.message)
            assert {probe.status for probe in probes.values()} <= {"ok", "skipped"}
    _, probes = check(harness, "good")
    assert "Only the inputs are guarded" in probes["guard bands"].message, "torch's own results need no guarding"
    _, probes = check(harness, "in_torch_memory")
    assert probes["guard bands"].message == ""
    assert probes["opcheck"] == Probe("opcheck", "skipped", "It calls no torch operator of its own")


def test_a_clean_refusal_is_no_wrong_answer(harness: Harness) -> None:
    reply, probes = check(harness, "refuses_strides")
    assert reply.status is Status.OK
    message = "The variant raises ValueError: x must be contiguous"
    assert probes["strided inputs"] == Probe("strided inputs", "refuses", message)
    reply, probes = check(harness, "refuses_nan")
    assert reply.status is Status.OK
    assert probes["special values"].status == "refuses"


def test_a_variant_may_say_why_special_values_spread(harness: Harness) -> None:
    reply, probes = check(harness, "owns_up_to_spreading")
    assert reply.status is Status.OK
    assert probes["special values"] == Probe("special values", "skipped", "sums over all elements")


def test_whole_numbers_have_no_special_values(harness: Harness) -> None:
    reply, probes = check(harness, "good", "n=1000,i32,fwd", "scale")
    assert reply.status is Status.OK
    assert probes["special values"] == Probe("special values", "skipped", "No input holds floating-point numbers")
    assert probes["strided inputs"].status == probes["offset inputs"].status == "ok"


def test_native_allocations_are_guarded_and_operators_checked_once(harness: Harness) -> None:
    reply, probes = check(harness, "v3", operator="native_scale")
    assert reply.status is Status.OK, reply.message
    assert probes["guard bands"] == Probe("guard bands", "ok", ""), "its result lies in memory that was guarded"
    again = check(harness, "v3", operator="native_scale")[1]["opcheck"]
    assert "earlier case" in again.message


@pytest.mark.parametrize(
    ("variant", "status", "words"),
    [
        ("wrong_fake", "wrong", "native_scale::wrong_fake fails test_faketensor"),
        ("wrong_schema", "wrong", "native_scale::secretly_in_place fails test_schema"),
        ("no_fake", "ok", "has no fake kernel, so torch.compile cannot trace it"),
    ],
)
def test_registrations_are_checked(harness: Harness, variant: str, status: str, words: str) -> None:
    reply, probes = check(harness, variant, operator="native_scale")
    assert (probes["opcheck"].status, reply.status) == (status, Status.OK if status == "ok" else Status.WRONG)
    assert words in probes["opcheck"].message
    assert [name for name, probe in probes.items() if probe.status == "wrong"] == ["opcheck"] * (status == "wrong")
