"""A bench names results that are kept by value, and takes equal answers and uneven work for what they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.child import ROOT, Harness
from warpwatch.contract.messages import BenchReply
from warpwatch.contract.words import Fault, Status

ADVERSARIES = ROOT / "worker" / "adversaries"
CACHES = {
    ("products", "contents"): "n=384,f32,fwd",
    ("products_f64", "glance"): "n=256,f64,fwd",
    ("permuted_topk", "glance"): "rows=32,n=4096,f64,fwd",
    ("permuted_order", "sums"): "rows=32,n=4096,f32,fwd",
    ("permuted_order", "bucket_1000"): "rows=32,n=4096,f32,fwd",
    ("signs", "ends"): "n=384,f32,fwd",
    ("balanced", "digits"): "rows=128,columns=192,f32,fwd",
    ("gradients", "moments"): "n=256,f32,bwd",
    ("steps", "product"): "n=256,f32,step",
    ("convolved", "bucket_10"): "batch=4,channels=24,size=40,f32,fwd",
}
HONEST = {
    ("exits", "seldom_short"): "rows=32,n=64,f32,fwd",
    ("exits", "half_and_half"): "rows=32,n=64,f32,fwd",
    ("permuted", "sorts"): "rows=16,n=500,f32,fwd",
    ("plans", "split"): "m=48,n=64,k=96,f32,fwd",
    ("signs", "refuses"): "n=64,f32,fwd",
    ("steps", "in_forward"): "rows=96,n=128,f32,step",
    ("tables", "lazy"): "n=20000,i32,fwd",
}


@pytest.fixture(scope="module")
def children(cache: Path) -> Iterator[dict[str, Harness]]:
    found = {name: Harness(ADVERSARIES / name, cache.parent / name) for name in ("caches", "honest")}
    yield found
    assert [child.stop() for child in found.values()] == [0, 0]


def bench(child: Harness, operator: str, variant: str, case: str) -> BenchReply:
    return child.ask(BenchReply, "bench", operator=operator, variant=variant, case=case, budget_ns=10_000_000)


LONG = {("permuted_topk", "glance"), ("permuted_order", "bucket_1000")}
"""Caches that are found by what others here are found by."""


@pytest.mark.parametrize(
    ("operator", "variant"),
    [pytest.param(*names, marks=[pytest.mark.nightly] if names in LONG else []) for names in CACHES],
)
def test_a_cache_by_value_is_named(children: dict[str, Harness], operator: str, variant: str) -> None:
    reply = bench(children["caches"], operator, variant, CACHES[operator, variant])
    assert (reply.status, reply.fault) == (Status.WRONG, Fault.CACHED_RESULT), reply.message


@pytest.mark.parametrize(("operator", "variant"), HONEST)
def test_honest_code_is_not_taken_for_a_cache(children: dict[str, Harness], operator: str, variant: str) -> None:
    reply = bench(children["honest"], operator, variant, HONEST[operator, variant])
    assert (reply.status, reply.message) == (Status.OK, "")
