"""A check says whether bits differ from call to call, whether rows depend on their neighbours, and how long the first
call took."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.harness.child import Harness
from warpwatch.contract.measurement import BatchRows
from warpwatch.contract.messages import BenchReply, CheckReply
from warpwatch.contract.words import BatchState, Status

DEPENDENT, INVARIANT, NOT_APPLICABLE = BatchState.DEPENDENT, BatchState.INVARIANT, BatchState.NOT_APPLICABLE


def check(harness: Harness, variant: str, case: str = "rows=8,n=8,f32,fwd", operator: str = "rows") -> CheckReply:
    reply = harness.ask(CheckReply, "check", operator=operator, variant=variant, case=case)
    assert reply.status is Status.OK, reply.message
    return reply


@pytest.mark.parametrize(
    ("variant", "case", "rows"),
    [
        ("alone", "rows=8,n=8,f32,fwd", BatchRows(INVARIANT, 4, 0)),
        ("alone", "rows=5,n=4,f32,fwd", BatchRows(INVARIANT, 2, 0)),
        ("alone", "rows=2,n=4,f32,fwd", BatchRows(INVARIANT, 1, 0)),
        # Of both gradients, that of `shift` has no rows, though it is as long.
        ("alone", "rows=8,n=8,f32,bwd", BatchRows(INVARIANT, 4, 0)),
        # Only the first of the four has lost the row before it.
        ("neighbour", "rows=8,n=8,f32,fwd", BatchRows(DEPENDENT, 4, 1)),
        ("neighbour", "rows=2,n=4,f32,fwd", BatchRows(DEPENDENT, 1, 1)),
    ],
)
def test_rows_alone_and_among_others(harness: Harness, variant: str, case: str, rows: BatchRows) -> None:
    assert check(harness, variant, case).batch == rows


def test_an_order_that_the_size_of_the_batch_decides_depends_on_it(harness: Harness) -> None:
    batch = check(harness, "split", "rows=5,n=4,f32,fwd").batch
    assert batch is not None
    assert (batch.state, batch.rows) == (DEPENDENT, 2)


@pytest.mark.parametrize(
    ("variant", "operator", "case", "words"),
    [
        ("unsteady", "rows", "rows=8,n=8,f32,fwd", "differ from call to call"),
        ("one_size", "rows", "rows=8,n=8,f32,fwd", "a part of the batch does not run: eight rows or none"),
        ("refuses", "rows", "rows=8,n=8,f32,fwd", "does not support rows=4: too few rows"),
        ("right_gradient", "scale", "n=1000,f32,fwd", "no result has independent rows"),
        ("good", "pair", "n=33,f32,fwd", "or no case varies their number"),
    ],
)
def test_it_accuses_nothing_that_has_no_batch(
    harness: Harness, variant: str, operator: str, case: str, words: str
) -> None:
    batch = check(harness, variant, case, operator).batch
    assert batch is not None
    assert (batch.state, batch.rows) == (NOT_APPLICABLE, 0)
    assert words in batch.note


def test_the_elements_that_differ_between_two_calls_are_counted(harness: Harness) -> None:
    assert check(harness, "alone").differing == 0
    reply = check(harness, "unsteady")
    assert (reply.moving, reply.differing) == (["y"], 1)


def test_bits_that_every_call_draws_anew_are_no_dependence_on_other_rows(harness: Harness) -> None:
    replies = [check(harness, "drawn") for _ in range(40)]
    for reply in replies:
        assert reply.batch is not None
        assert reply.batch.state is not DEPENDENT
        is_named = "differ from call to call" in reply.batch.note
        assert (is_named, is_named) == (reply.moving == ["y"], bool(reply.differing)), reply
    assert len([reply for reply in replies if reply.moving]) > 30, "three of four calls differ from the first"


def test_the_first_use_of_a_variant_in_a_process_is_timed(
    repository: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "jit" / "triton"))
    harness = Harness(repository, cache)
    try:
        first, second = check(harness, "alone"), check(harness, "alone", "rows=5,n=4,f32,fwd")
        bench = harness.ask(
            BenchReply, "bench", operator="rows", variant="split", case="rows=8,n=8,f32,fwd", budget_ns=1_000_000
        )
    finally:
        assert harness.stop() == 0
    assert first.counters.keys() == {"first_call", "load"}
    assert all(counter.unit == "seconds" and counter.median > 0 for counter in first.counters.values())
    assert second.counters == {}
    assert "load" in bench.counters
    assert "first_call" not in bench.counters, "its first call is not alone"


def test_a_first_call_that_finds_compiled_code_does_not_count(
    repository: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "jit" / "triton" / "key" / "kernel.cubin"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "jit" / "triton"))
    harness = Harness(repository, cache)
    try:
        assert check(harness, "alone").counters.keys() == {"load"}
    finally:
        assert harness.stop() == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_bits_and_first_uses_on_a_gpu(
    repository: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "jit" / "triton"))
    harness = Harness(repository, cache, device="cuda:0")
    try:
        first, second = check(harness, "alone"), check(harness, "neighbour")
        bench = harness.ask(
            BenchReply, "bench", operator="rows", variant="split", case="rows=8,n=8,f32,fwd", budget_ns=50_000_000
        )
    finally:
        assert harness.stop() == 0
    assert (first.differing, first.batch) == (0, BatchRows(INVARIANT, 4, 0))
    assert second.batch == BatchRows(DEPENDENT, 4, 1)
    assert first.counters.keys() == {"first_call", "load"}
    assert "load" in bench.counters
    assert "first_call" not in bench.counters, "its first call is not alone"
