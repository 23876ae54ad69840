"""The same verbs on a GPU: graphs, events, traces, and failures that destroy the CUDA context."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch

from tests.harness.child import Harness
from warpwatch.contract.catalogue import Catalogue
from warpwatch.contract.environment import Environment
from warpwatch.contract.measurement import Measurement
from warpwatch.contract.messages import BenchReply, CeilingsReply, CheckReply, ProfileReply, SampleReply
from warpwatch.contract.words import Fault, Status

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]
ROOT = Path(__file__).parent / "gpu_repository"


@pytest.fixture(scope="module")
def gpu(cache: Path) -> Iterator[Harness]:
    child = Harness(ROOT, cache, device="cuda:0")
    yield child
    assert child.stop() == 0, child.log.read_text()


def check(gpu: Harness, variant: str, case: str = "n=256,f32,fwd") -> CheckReply:
    return gpu.ask(CheckReply, "check", operator="product", variant=variant, case=case)


def bench(gpu: Harness, variant: str, case: str = "n=256,f32,fwd", budget_ns: int = 500_000_000) -> BenchReply:
    return gpu.ask(BenchReply, "bench", operator="product", variant=variant, case=case, budget_ns=budget_ns)


def by_metric(reply: BenchReply) -> dict[str, Measurement]:
    assert reply.status is Status.OK, reply.message
    return {measurement.metric: measurement for measurement in reply.measurements}


def test_catalogue_and_environment(gpu: Harness) -> None:
    (entry,) = gpu.ask(Catalogue, "catalogue").operators
    assert entry.error is None
    environment = gpu.ask(Environment, "environment")
    assert environment.device_kind == "cuda"
    assert environment.device_name == torch.cuda.get_device_name(0)
    assert environment.device_key.startswith("nvidia-")
    assert all(environment.facts[name] for name in ("driver", "cuda", "sm_count", "l2_bytes", "capability"))
    print(environment)


@pytest.mark.parametrize("precision", ["f64", "f32", "tf32", "bf16", "f16"])
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_right_in_every_precision(gpu: Harness, precision: str, direction: str) -> None:
    reply = check(gpu, "good", f"n=256,{precision},{direction}")
    assert reply.status is Status.OK, reply.message
    assert len(reply.tensors) == (1 if direction == "fwd" else 2)
    print(precision, direction, [(error.relative, error.ulp, error.tolerance) for error in reply.tensors])


def test_wrong_results(gpu: Harness) -> None:
    assert "at [255," in check(gpu, "last_missing").message
    assert check(gpu, "with_tf32").status is Status.WRONG
    assert "the variant caches results" in check(gpu, "keeps").message
    assert bench(gpu, "last_missing").status is Status.WRONG
    kept = bench(gpu, "keeps", "n=333,f32,fwd")
    assert (kept.status, kept.measurements) == (Status.WRONG, [])


@pytest.mark.parametrize("case", ["n=64,f32,fwd", "n=333,f32,bwd", "n=2048,f32,fwd", "n=256,bf16,bwd"])
def test_bench_measures_every_metric(gpu: Harness, case: str) -> None:
    reply = bench(gpu, "good", case)
    assert reply.message == ""
    metrics = by_metric(reply)
    assert list(metrics) == ["graph", "kernel", "cold", "hot", "call", "launch"]
    assert all(len(m.samples_ns) >= 10 for m in metrics.values())
    # `graph` excludes launches, `cold` excludes host time, `launch` the device's time, `call` includes all.
    assert metrics["launch"].median_ns < metrics["call"].median_ns
    assert metrics["graph"].median_ns < metrics["call"].median_ns
    assert metrics["cold"].median_ns < 1.5 * metrics["call"].median_ns
    print(
        case,
        {name: (m.median_ns, m.low_ns, m.high_ns, m.noise, len(m.samples_ns)) for name, m in metrics.items()},
        reply.health,
    )


def test_a_benched_product_is_not_faster_than_the_device(gpu: Harness) -> None:
    peaks = gpu.ask(CeilingsReply, "ceilings").peaks
    print(peaks)
    assert set(peaks) == {"copy", "f32", "tf32", "bf16", "f16", "f64"}
    assert peaks["bf16"] > peaks["tf32"] > peaks["f32"] > 0
    reply = bench(gpu, "good", "n=2048,f32,fwd")
    rate = reply.flops / (by_metric(reply)["graph"].median_ns / 1e9)
    assert 0.2 * peaks["f32"] < rate < 1.1 * peaks["f32"]


def test_what_cannot_be_captured_has_no_graph_metric(gpu: Harness) -> None:
    reply = bench(gpu, "waits")
    assert list(by_metric(reply)) == ["kernel", "cold", "call"]
    assert "cannot be captured in a CUDA graph" in reply.message
    assert "No metric launch: every call returned after the device had slept" in reply.message
    assert (reply.fault, reply.subjects) == (Fault.NOT_CAPTURABLE, ["graph", "hot"])
    print(reply.message)
    # A failed capture does not disturb the next one.
    assert list(by_metric(bench(gpu, "good"))) == ["graph", "kernel", "cold", "hot", "call", "launch"]


def test_a_launch_on_the_default_stream_is_no_fault(gpu: Harness) -> None:
    checked = check(gpu, "on_default_stream")
    assert checked.status is Status.OK, checked.message
    reply = bench(gpu, "on_default_stream")
    metrics = by_metric(reply)
    print(reply.message, {name: m.median_ns for name, m in metrics.items()})
    assert {"graph", "hot"}.isdisjoint(metrics)
    assert {"kernel", "cold", "call"} <= metrics.keys()
    assert (reply.fault, reply.subjects) == (Fault.NOT_CAPTURABLE, ["graph", "hot"])
    assert "launches on CUDA's default stream" in reply.message
    names = {"operator": "product", "variant": "on_default_stream", "case": "n=256,f32,fwd"}
    assert gpu.ask(SampleReply, "prepare", **names).metric != "graph"
    for verb in ("sample", "testify", "finish"):
        sampled = gpu.ask(SampleReply, verb, **names)
        assert sampled.status is Status.OK, sampled.message
    # Neither the stream nor the failed captures disturb the next variant.
    assert bench(gpu, "good").fault is None


def test_out_of_memory_frees_what_it_took(gpu: Harness) -> None:
    for reply in (check(gpu, "huge"), bench(gpu, "huge")):
        assert reply.status is Status.OUT_OF_MEMORY
    assert check(gpu, "good").status is Status.OK


@pytest.mark.parametrize(("variant", "metric"), [("good", "graph"), ("waits", "kernel")])
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_interleaved_slices(gpu: Harness, variant: str, metric: str, direction: str) -> None:
    names = {"operator": "product", "variant": variant, "case": f"n=256,f32,{direction}", "rounds": 12}
    if (variant, direction) == ("waits", "bwd"):
        # The number is read back in the forward pass, which is not timed.
        metric = "graph"
    assert gpu.ask(SampleReply, "rehearse", **names).status is Status.OK
    planned = gpu.ask(SampleReply, "plan", **names, sides=2)
    assert planned.plan is not None, planned.message
    assert planned.plan.metric == metric
    prepared = gpu.ask(SampleReply, "prepare", **names, plan=planned.plan)
    assert prepared.metric == metric
    assert (prepared.no_launch == "") is (metric == "graph")
    medians, launches = [], []
    for _ in range(6):
        reply = gpu.ask(SampleReply, "sample", **names)
        assert reply.status is Status.OK, reply.message
        medians.append(median(reply.samples_ns))
        launches.append(reply.launch_ns)
    print(variant, direction, medians, launches)
    assert all(bool(times) is (metric == "graph") for times in launches)
    # A call that waits for the device includes host time, which varies more.
    assert max(medians) < (1.5 if metric == "graph" else 3) * min(medians)
    assert gpu.ask(SampleReply, "testify", **names).status is Status.OK
    assert gpu.ask(SampleReply, "finish", **names).status is Status.OK


def test_two_children_interleave(gpu: Harness, cache: Path) -> None:
    other = Harness(ROOT, cache, device="cuda:0")
    names = {"operator": "product", "variant": "good", "case": "n=2048,f32,fwd", "rounds": 12}
    for child in (gpu, other):
        assert child.ask(SampleReply, "prepare", **names).status is Status.OK
    pairs = [
        [median(child.ask(SampleReply, "sample", **names).samples_ns) for child in (gpu, other)] for _ in range(12)
    ]
    for child in (gpu, other):
        assert child.ask(SampleReply, "finish", **names).status is Status.OK
    assert other.stop() == 0
    ratio = median(theirs / ours for ours, theirs in pairs)
    print("ratio of two children on the same code", ratio)
    assert 0.95 < ratio < 1.05


def test_profile_lists_device_kernels(gpu: Harness, tmp_path: Path) -> None:
    output = tmp_path / "trace.json.gz"
    reply = gpu.ask(
        ProfileReply, "profile", operator="product", variant="good", case="n=256,f32,bwd", output=str(output)
    )
    assert reply.status is Status.OK, reply.message
    assert sum(kernel.calls for kernel in reply.kernels) >= 4
    details = reply.kernels[0].details
    assert len(details["grid"]) == len(details["block"]) == 3
    assert details["registers"] > 0
    assert sum(count for name, count in reply.runtime_calls.items() if "Launch" in name) >= 2
    # The harness waits for the device after each call; the call does not include this.
    assert "cudaDeviceSynchronize" not in reply.runtime_calls
    print(reply)


def test_a_full_budget_is_stable(gpu: Harness) -> None:
    for case in ("n=256,f32,fwd", "n=2048,f32,fwd"):
        medians = [by_metric(bench(gpu, "good", case, 1_000_000_000))["graph"].median_ns for _ in range(4)]
        print(case, medians)
        assert max(medians) < 1.2 * min(medians)


@pytest.mark.parametrize("variant", ["illegal", "asserts"])
@pytest.mark.parametrize("verb", ["check", "bench"])
def test_a_lost_context_ends_the_child(cache: Path, variant: str, verb: str) -> None:
    child = Harness(ROOT, cache, device="cuda:0")
    kinds: dict[str, Any] = {"check": CheckReply, "bench": BenchReply}
    kind = kinds[verb]
    reply = child.ask(kind, verb, operator="product", variant=variant, case="n=256,f32,fwd")
    assert reply.status is Status.CRASHED, reply
    assert "The CUDA context is lost" in reply.message
    assert ("illegal memory access" if variant == "illegal" else "assert") in reply.message
    assert child.process.wait(timeout=60) == 3
