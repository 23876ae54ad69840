"""The summary of a profile on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.harness.child import Harness
from warpwatch.contract.messages import ProfileReply
from warpwatch.contract.spec import ProfilePlan
from warpwatch.contract.words import Status
from warpwatch.worker.harness.timers.health import DeviceHealth

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]
ROOT = Path(__file__).parent / "gpu_repository"


@pytest.fixture(scope="module")
def gpu(cache: Path) -> Iterator[Harness]:
    child = Harness(ROOT, cache, device="cuda:0")
    yield child
    assert child.stop() == 0, child.log.read_text()


def profiled(gpu: Harness, folder: Path, case: str, *, energy: bool = False, **plan: Any) -> ProfileReply:
    names = {"operator": "product", "variant": "good", "case": case, "output": str(folder / "trace.json.gz")}
    reply = gpu.ask(ProfileReply, "profile", **names, profile=ProfilePlan(**plan), energy=energy)
    assert reply.status is Status.OK, reply.message
    return reply


def test_small_and_large_calls_are_told_apart(gpu: Harness, tmp_path: Path) -> None:
    small, large = (profiled(gpu, tmp_path, case).summary for case in ("n=64,f32,fwd", "n=2048,f32,fwd"))
    assert (small["launch"]["bound"], large["launch"]["bound"]) == (True, False)
    for summary in (small, large):
        timer = summary["host_timer"]
        assert 0 < timer["issue_ns"] < timer["call_ns"]
        assert summary["launch"]["launches"] >= 1
        assert summary["memory"]["device"] == "cuda"
        assert summary["memory"]["allocations"] >= 2
        print(summary["launch"]["sentence"], timer)
    assert large["host_timer"]["call_ns"] > large["launch"]["device_ns"]


def test_kernels_are_told_with_their_launch(gpu: Harness, tmp_path: Path) -> None:
    reply = profiled(gpu, tmp_path, "n=256,f32,bwd", wait=0, warm_up=1, active=3)
    assert sum(ns for _, ns in reply.summary["sequence"]) == pytest.approx(sum(k.total_ns for k in reply.kernels) / 3)
    for kernel in reply.kernels:
        if "grid" in kernel.details:
            assert 0 < kernel.details["theoretical_occupancy"] <= 1
            assert kernel.details["waves"] > 0
    assert {row["operator"] for row in reply.summary["survey"]} >= {"aten::mm"}
    assert reply.summary["gaps"]["share"] < 1
    assert "Self CUDA" in reply.summary["table"]


def test_counters_are_rows_or_a_sentence(gpu: Harness, tmp_path: Path) -> None:
    reply = profiled(gpu, tmp_path, "n=256,f32,fwd", counters=True)
    counters = reply.summary["counters"]
    print(counters)
    assert bool(counters["rows"]) != bool(counters["message"])
    assert (reply.report is not None) == bool(counters["rows"])


def test_the_energy_of_a_call_is_that_of_its_work(gpu: Harness, tmp_path: Path) -> None:
    """Where the card counts its energy."""
    health = DeviceHealth(torch.device("cuda", 0))
    replies = [profiled(gpu, tmp_path, f"n={n},f32,fwd", energy=True) for n in (64, 2048, 2048)]
    if health.millijoules() is None:
        assert [reply.counters for reply in replies] == [{}, {}, {}]
        pytest.skip("this GPU does not count its energy")
    small, large, again = (reply.counters["energy"] for reply in replies)
    for reply in replies:
        print({name: (counter.median, counter.low, counter.high) for name, counter in reply.counters.items()})
        assert 20 < reply.counters["power"].median < 1500
    assert large.median > 10 * small.median
    assert large.high - large.low < 0.2 * large.median
    assert again.median == pytest.approx(large.median, rel=0.1)


def test_without_being_asked_a_profile_measures_no_energy(gpu: Harness, tmp_path: Path) -> None:
    assert profiled(gpu, tmp_path, "n=64,f32,fwd").counters == {}
