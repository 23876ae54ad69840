"""Samples, their statistics, and the proof that what was timed is right."""

from __future__ import annotations

import gzip
import json
import statistics
from pathlib import Path

import pytest
import torch

from tests.harness.child import Harness
from warpwatch import Cost, Operator, case
from worker.harness.failures import WrongResultError
from worker.harness.problem import Problem
from worker.harness.profiling import events_of, summarize_trace
from worker.harness.summary import interval, is_narrow, summarize
from worker.harness.timer_cpu import HotTimer
from worker.protocol import BenchReply, CheckReply, ProfileReply, SampleReply, Status

BUDGET_NS = 100_000_000


def bench(harness: Harness, variant: str, case: str = "n=1000,f32,fwd", operator: str = "scale") -> BenchReply:
    return harness.ask(BenchReply, "bench", operator=operator, variant=variant, case=case, budget_ns=BUDGET_NS)


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_bench_measures_every_metric(harness: Harness, direction: str) -> None:
    reply = bench(harness, "right_gradient", f"n=1000,f32,{direction}")
    assert (reply.status, reply.message) == (Status.OK, "")
    assert (reply.flops, reply.bytes) == (2000, 8000)
    assert [m.metric for m in reply.measurements] == ["hot", "cold"]
    for measurement in reply.measurements:
        assert len(measurement.samples_ns) >= 10
        assert measurement.low_ns <= measurement.median_ns <= measurement.high_ns
        assert measurement.median_ns == pytest.approx(statistics.median(measurement.samples_ns), rel=1e-6)
        assert measurement.dropped == 0
    assert reply.health["before"] == {"note": "no sensors are read on this device"}
    assert [event["text"] for event in harness.events] == ["hot", "cold"]


def test_more_work_takes_longer(harness: Harness) -> None:
    small, large = bench(harness, "good"), bench(harness, "good", "n=1000000,f32,fwd")
    assert large.measurements[0].median_ns > 3 * small.measurements[0].median_ns


@pytest.mark.parametrize("variant", ["last_wrong", "keeps_by_shape", "keeps_by_address", "keeps_when_timed", "mutates"])
def test_what_is_wrong_when_timed_has_no_time(harness: Harness, variant: str) -> None:
    reply = bench(harness, variant)
    assert reply.status is Status.WRONG, reply.message
    assert reply.measurements == []


def test_a_check_alone_would_not_see_it(harness: Harness) -> None:
    reply = harness.ask(CheckReply, "check", operator="scale", variant="keeps_when_timed", case="n=1000,f32,fwd")
    assert reply.status is Status.OK


@pytest.mark.parametrize("slices", [1, 2, 3])
def test_numbers_that_come_round_again_hide_nothing(slices: int) -> None:
    """Three sets roll back to where they were in three slices, which is when a result kept by address is right again."""
    kept: dict[int, torch.Tensor] = {}
    operator = Operator(
        "twice",
        "Twice.",
        inputs=lambda case, make: {"x": make.normal(case["n"])},
        reference=lambda x: 2 * x,
        cost=lambda case: Cost(1, 1),
        cases={"quick": (case(n=100),)},
    )
    operator.variant("keeps", idea="by address")(lambda x: kept.setdefault(x.data_ptr(), 2 * x))
    problem = Problem(operator, operator.variants["keeps"], case(n=100), torch.device("cpu"))
    with problem.modes():
        timer = HotTimer(problem, 0, 1_000_000)
        for _ in range(slices):
            timer.take()
        with pytest.raises(WrongResultError, match="wrong inside the timed loop"):
            timer.verify()


def test_wrong_gradients_have_no_time(harness: Harness) -> None:
    for variant in ("gradient_is_incoming", "gradient_is_none", "detached"):
        assert bench(harness, variant, "n=1000,f32,bwd").status is Status.WRONG


@pytest.mark.parametrize(("variant", "status"), [("raises", Status.CRASHED), ("huge", Status.OUT_OF_MEMORY)])
def test_failures_of_bench_and_profile(harness: Harness, tmp_path: Path, variant: str, status: Status) -> None:
    assert bench(harness, variant).status is status
    names = {"operator": "scale", "variant": variant, "case": "n=1000,f32,fwd"}
    assert harness.ask(ProfileReply, "profile", **names, output=str(tmp_path / "t.json.gz")).status is status
    assert harness.ask(SampleReply, "prepare", **names).status is status
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("case", ["n=33,f32,fwd", "n=33,f32,bwd"])
def test_interleaved_slices(harness: Harness, case: str) -> None:
    names = {"operator": "pair", "variant": "good", "case": case, "budget_ns": 60_000_000, "rounds": 12}
    prepared = harness.ask(SampleReply, "prepare", **names)
    assert (prepared.status, prepared.metric, prepared.samples_ns) == (Status.OK, "hot", [])
    for _ in range(3):
        reply = harness.ask(SampleReply, "sample", **names)
        assert reply.status is Status.OK
        assert len(reply.samples_ns) >= 1
        assert min(reply.samples_ns) > 0
    assert harness.ask(SampleReply, "finish", **names).status is Status.OK
    assert harness.ask(SampleReply, "sample", **names).status is Status.SKIPPED


def test_a_wrong_result_comes_out_at_the_finish(harness: Harness) -> None:
    names = {"operator": "scale", "variant": "keeps_when_timed", "case": "n=1000,f32,fwd"}
    assert harness.ask(SampleReply, "prepare", **names).status is Status.OK
    assert harness.ask(SampleReply, "sample", **names).status is Status.OK
    reply = harness.ask(SampleReply, "finish", **names)
    assert reply.status is Status.WRONG
    assert "wrong inside the timed loop" in reply.message


def test_profile_writes_a_trace_and_its_table(harness: Harness, tmp_path: Path) -> None:
    output = tmp_path / "trace.json.gz"
    reply = harness.ask(ProfileReply, "profile", operator="pair", variant="good", case="n=33,f32,bwd", output=str(output))
    assert (reply.status, reply.message, reply.path) == (Status.OK, "", str(output))
    text = gzip.decompress(output.read_bytes())
    assert len(text) == reply.size
    events = json.loads(text)["traceEvents"]
    assert sum(event["name"] == "warpwatch call" and event.get("cat") == "user_annotation" for event in events) == 2
    rows = {kernel.name: kernel for kernel in reply.kernels}
    assert rows["aten::mm"].calls == 4
    assert rows["aten::mm"].details["shapes"][0] == [33, 33]
    assert rows["aten::mm"].mean_ns == pytest.approx(rows["aten::mm"].total_ns / 4)
    assert sum(kernel.share for kernel in reply.kernels) == pytest.approx(1)
    assert [kernel.total_ns for kernel in reply.kernels] == sorted((k.total_ns for k in reply.kernels), reverse=True)
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json.gz"]


def test_the_table_counts_no_time_twice(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    spans = [("outer", 1, 0, 10), ("inner", 1, 2, 3), ("inner", 1, 6, 1), ("outer", 1, 20, 5), ("elsewhere", 2, 3, 4)]
    events = [{"cat": "cpu_op", "name": name, "tid": tid, "ts": ts, "dur": dur} for name, tid, ts, dur in spans]
    path.write_text(json.dumps({"traceEvents": events}))
    table, _ = summarize_trace(path, "cpu")
    assert [(row.name, row.calls, row.total_ns) for row in table] == [("outer", 2, 11e3), ("inner", 2, 4e3), ("elsewhere", 1, 4e3)]


def test_runtime_calls_outside_the_measured_calls_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    runtime = [("cudaLaunchKernel", 1), ("cudaDeviceSynchronize", 9), ("cudaLaunchKernel", 12), ("INVALID", 13)]
    events = [{"cat": "cuda_runtime", "name": name, "ts": ts, "dur": 1} for name, ts in runtime]
    events += [{"cat": "user_annotation", "name": "warpwatch call", "ts": ts, "dur": 5} for ts in (0, 10)]
    kernel = {"cat": "kernel", "name": "k", "dur": 2, "args": {"grid": [1, 1, 1], "block": [32, 1, 1], "registers per thread": 8}}
    path.write_text(json.dumps({"traceEvents": [*events, kernel, kernel]}))
    table, calls = summarize_trace(path, "cuda")
    assert calls == {"cudaLaunchKernel": 1.0, "unknown": 0.5}
    assert [(row.calls, row.mean_ns, row.share, row.details["registers"]) for row in table] == [(2, 2000.0, 1.0, 8)]


def test_traces_are_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.harness.profiling._CHUNK", 7)
    path = tmp_path / "trace.json"
    events = [{"name": f"é{i}", "args": {"Input Dims": [[i]]}} for i in range(20)]
    path.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": [{}], "traceEvents": events, "end": "[]"}))
    assert list(events_of(path)) == events


def test_median_interval_covers_as_often_as_it_says() -> None:
    import random

    source = random.Random(1)
    for count in (10, 30, 100):
        hits = 0
        for _ in range(400):
            _, low, high = interval([source.gauss(0, 1) for _ in range(count)])
            hits += low <= 0 <= high
        assert hits >= 0.93 * 400


def test_summaries() -> None:
    assert is_narrow([100.0] * 10)
    assert not is_narrow([100.0] * 9)
    assert not is_narrow([90.0, 110.0] * 20)
    measurement = summarize("hot", [3.0, 1.0, 2.0], 4, "software thermal")
    assert (measurement.samples_ns, measurement.median_ns, measurement.low_ns, measurement.high_ns) == (
        [3.0, 1.0, 2.0],
        2.0,
        1.0,
        3.0,
    )
    assert (measurement.noise, measurement.dropped, measurement.dropped_reason) == (0.5, 4, "software thermal")
