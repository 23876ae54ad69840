"""Digests of what calls launch: equal for equal work in two processes, and different for twenty changes that no text of
the kernel shows, or that leave the results as they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.harness.child import Harness
from warpwatch.contract.catalogue import Catalogue
from warpwatch.contract.measurement import LaunchedCode
from warpwatch.contract.messages import BenchReply, CheckReply, ProfileReply
from warpwatch.contract.words import Status

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]
ROOT = Path(__file__).parent / "launched_repository"
CASE = "n=512,f32,fwd"
SAME = ("first", "commented", "renamed", "by_the_environment", "by_a_file", "with_a_default", "looped_once")


@pytest.fixture(scope="module")
def children(cache: Path) -> Iterator[tuple[Harness, Harness]]:
    pair = Harness(ROOT, cache, device="cuda:0"), Harness(ROOT, cache, device="cuda:0")
    yield pair
    for child in pair:
        assert child.stop() == 0, child.log.read_text()


def launched(child: Harness, variant: str) -> LaunchedCode:
    reply = child.ask(CheckReply, "check", operator="sums", variant=variant, case=CASE)
    assert reply.status is Status.OK, reply.message
    assert reply.launched is not None
    assert reply.launched.digest, reply.launched
    assert all(kernel.code_hash for kernel in reply.launched.kernels)
    return reply.launched


def test_equal_work_has_one_digest_and_other_work_another(children: tuple[Harness, Harness]) -> None:
    (entry,) = children[0].ask(Catalogue, "catalogue").operators
    assert entry.error is None, entry.error
    names = [variant.name for variant in entry.variants]
    found = {name: launched(children[0], name) for name in names}
    digests = {name: launched.digest for name, launched in found.items()}
    print(found["first"], found["a_tuned_choice"])
    assert {digests[name] for name in SAME} == {digests["first"]}
    others = [name for name in names if name not in SAME]
    assert len(others) >= 20
    assert [name for name in others if digests[name] == digests["first"]] == []
    assert len({digests[name] for name in others}) == len(others)
    again = {name: launched(children[1], name).digest for name in reversed(names)}
    # An autotuner may choose another configuration in another process.
    assert {name for name in names if digests[name] != again[name]} <= {"a_tuned_choice"}


def test_a_choice_is_told_with_its_candidates(children: tuple[Harness, Harness]) -> None:
    (choice,) = launched(children[0], "a_tuned_choice").choices
    assert (choice.kernel, choice.tried, len(choice.candidates)) == ("sums", 2, 2)
    assert choice.candidates[0].config == choice.config
    assert choice.candidates[0].ns <= choice.candidates[1].ns


def test_nothing_is_recorded_while_time_is_measured(children: tuple[Harness, Harness]) -> None:
    child = children[0]
    launched(child, "first")
    reply = child.ask(BenchReply, "bench", operator="sums", variant="first", case=CASE, budget_ns=200_000_000)
    assert reply.status is Status.OK, reply.message
    profile = child.ask(ProfileReply, "profile", operator="sums", variant="first", case=CASE, output="t.json.gz")
    assert (profile.status, len(profile.kernels)) == (Status.OK, 1), profile.message
    # The profiler keeps CUPTI, so that later checks of this child know nothing.
    later = child.ask(CheckReply, "check", operator="sums", variant="first", case=CASE)
    assert later.launched is None or not later.launched.digest
