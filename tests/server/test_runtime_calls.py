"""Launches, idle gaps and CUDA calls over all traces of an operator and a commit."""

from __future__ import annotations

import csv
import gzip
import io
import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.builders import CASES, Lab
from tests.server.test_code import problem
from tests.server.test_timelines import event
from warpwatch.contract.messages import ProfileReply
from warpwatch.contract.outcome import Finding
from warpwatch.contract.words import Status
from warpwatch.server.explanation.runtime_calls import calls_with_callers, launches_of

GRID = {"grid": [8, 1, 1], "block": [128, 1, 1], "registers per thread": 76, "shared memory": 1024}
EVENTS = [
    event("aten::linear", "cpu_op", 0, 50),
    event("aten::mm", "cpu_op", 5, 20),
    event("cudaLaunchKernel", "cuda_runtime", 10, 4, correlation=1),
    event("cudaLaunchKernel", "cuda_runtime", 30, 6, correlation=2),
    event("cudaDeviceSynchronize", "cuda_runtime", 60, 100, correlation=3),
    event("gemm", "kernel", 20, 40, correlation=1, **GRID),
    event("add", "kernel", 70, 10, correlation=2),
]


def store(lab: Lab, summary: dict[str, Any], case: str = CASES[0]) -> None:
    path = lab.folder / f"{len(case)}.json.gz"
    text = json.dumps({"traceEvents": EVENTS}).encode()
    path.write_bytes(gzip.compress(text))
    reply = ProfileReply(Status.OK, "", str(path), len(text), [], {}, summary=summary)
    lab.finish(lab.submit("profile", 0), lab.outcome([Finding("v1", case, Status.OK, profile=reply)]))


def test_the_caller_is_the_innermost_operator_around_a_call() -> None:
    found = [(call.name, caller, call.end - call.start) for call, caller in calls_with_callers({"traceEvents": EVENTS})]
    assert found == [
        ("cudaLaunchKernel", "aten::mm", 4e3),
        ("cudaLaunchKernel", "aten::linear", 6e3),
        ("cudaDeviceSynchronize", "", 100e3),
    ]


def test_kernels_belong_to_the_operator_that_launched_them() -> None:
    gemm, add = launches_of({"traceEvents": EVENTS})
    assert (gemm["operator"], gemm["kernel"], gemm["launches"], gemm["total_ns"]) == ("aten::mm", "gemm", 1, 40e3)
    assert (gemm["grid"], gemm["block"], gemm["registers"], gemm["shared_bytes"]) == ([8, 1, 1], [128, 1, 1], 76, 1024)
    assert (add["operator"], add["grid"], add["registers"]) == ("aten::linear", [], None)


@pytest.mark.parametrize("trace", [None, [], {"traceEvents": 3}, {"traceEvents": [{"ph": "X", "cat": "kernel"}]}])
def test_what_is_no_trace_launches_nothing(trace: Any) -> None:
    assert not launches_of(trace)
    assert not list(calls_with_callers(trace))


def test_values_from_kernel_code_are_checked() -> None:
    odd = {"grid": ["<b>", 1, 2, 3], "block": "x", "registers per thread": "many", "shared memory": -1}
    (row,) = launches_of({"traceEvents": [event("k", "kernel", 0, 1, **odd)]})
    assert (row["grid"], row["block"], row["registers"], row["shared_bytes"]) == ([1, 2], [], None, None)


def test_a_page_adds_up_all_traces_of_an_operator(client: TestClient, lab: Lab) -> None:
    store(lab, {})
    gap = {"ns": 10_000.0, "after": "gemm", "before": "add", "operator": "aten::linear"}
    newer = {"operator": "aten::mm", "kernel": "gemm", "launches": 2, "total_ns": 80e3, "grid": [8, 1, 1]}
    store(lab, {"survey": [newer], "gaps": {"largest": [gap]}}, CASES[1])
    asked = {"repository": "kernels", "operator": "square"}
    survey = client.get("/api/v1/traces/survey", params=asked).json()["items"]
    assert sorted((row["kernel"], row["launches"]) for row in survey) == [("add", 1), ("gemm", 1), ("gemm", 2)]
    calls = client.get("/api/v1/traces/runtime-calls", params=asked).json()["items"]
    assert [row["total_ns"] for row in calls if row["function"] == "cudaDeviceSynchronize"] == [100e3, 100e3]
    idle = csv.DictReader(io.StringIO(client.get("/api/v1/traces/idle.csv", params=asked).text))
    assert [(row["before"], row["torch_operator"]) for row in idle] == [("add", "aten::linear")]
    page = client.get("/runs/traces", params=asked | {"view": "launches"}).text
    assert '<dd class="hero">4</dd>' in page, "launches of both traces"
    assert "cudaDeviceSynchronize" in page
    assert "view=launches" in client.get(f"/commits/{lab.shas[0]}").text
    assert client.get("/traces/survey", params=asked | {"operator": "cube"}).status_code == 200
    assert client.get("/traces/survey", params=asked | {"commit": "<script>"}).status_code == 200
    problem(client.get("/api/v1/traces/runtime-calls", params=asked | {"limit": 1000}), 422)


def test_launches_that_took_no_time_are_listed(client: TestClient, lab: Lab) -> None:
    launched = {"operator": "aten::mm", "launches": 2, "total_ns": 0.0, "grid": [8, 1, 1]}
    store(lab, {"survey": [launched | {"kernel": f"k{number}"} for number in range(30)]})
    asked = {"repository": "kernels", "operator": "square", "view": "launches"}
    assert "<summary>5 more</summary>" in client.get("/runs/traces", params=asked).text


def test_a_trace_without_a_survey_is_read(client: TestClient, lab: Lab) -> None:
    store(lab, {})
    assert 'id="survey"' in client.get("/traces/1").text
