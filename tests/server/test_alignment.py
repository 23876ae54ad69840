"""Traces beside each other: what is matched, and what is called a change."""

from __future__ import annotations

import gzip
from base64 import b64encode
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.builders import CASES, Lab, trace
from warpwatch.bundle import BundleReader
from warpwatch.contract.outcome import Finding
from warpwatch.contract.words import Status
from warpwatch.db.traces import KernelView, TraceDetail
from warpwatch.server.explanation.alignment import AlignmentStep, align, align_traces
from warpwatch.server.explanation.kernel_names import plain_name, short_name

ROOT = Path(__file__).parents[2]


def steps(*names: str, ns: float = 1000.0) -> list[AlignmentStep]:
    return [AlignmentStep(name, 1, ns) for name in names]


def told(a: list[AlignmentStep], b: list[AlignmentStep]) -> dict[str, str]:
    return {str(row.b_name or row.a_name): row.state for row in align(a, b)}


def detail(
    kernels: dict[str, tuple[int, float]], runtime: dict[str, float] | None = None, **summary: Any
) -> TraceDetail:
    rows = [KernelView(name, calls, total, total / calls, 0.1, {}) for name, (calls, total) in kernels.items()]
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return TraceDetail(1, "r", "kron", "v3", "n=1", "a" * 40, "gpu", 1, 1, "", runtime or {}, now, rows, summary)


def test_every_step_is_counted_once() -> None:
    a, b = steps("x", "y", "x", "z"), steps("x", "x", "w", "z", "x")
    rows = align(a, b)
    assert sum(row.a_count for row in rows) == len(a)
    assert sum(row.b_count for row in rows) == len(b)
    assert sum(row.difference_ns for row in rows) == pytest.approx(sum(s.ns for s in b) - sum(s.ns for s in a))
    assert sum(abs(row.contribution) for row in rows) == pytest.approx(1)


def test_added_and_removed() -> None:
    assert told(steps("load", "mul"), steps("load", "store", "mul")) == {
        "store": "added",
        "load": "same",
        "mul": "same",
    }
    assert told(steps("load", "copy", "mul"), steps("load", "mul")) == {
        "copy": "removed",
        "load": "same",
        "mul": "same",
    }


def test_one_more_run_of_the_same_kernel_is_a_row_of_its_own() -> None:
    extra, kept = align(steps("k", "k"), steps("k", "k", "k"))
    assert (extra.state, extra.a_name, extra.b_count) == ("added", None, 1)
    assert (kept.state, kept.a_count, kept.b_count) == ("same", 2, 2)


def test_a_kernel_that_moved_is_still_the_same() -> None:
    assert set(told(steps("a", "b", "c"), steps("c", "a", "b")).values()) == {"same"}


def test_other_template_arguments_are_the_same_kernel() -> None:
    (row,) = align(steps("void kron::fused<float, 32>(float*)"), steps("void kron::fused<float, 64>(float*)", ns=3000))
    assert (row.state, row.a_name != row.b_name, row.difference_ns) == ("longer", True, 2000)
    exact = align(steps("f<1>", "f<2>"), steps("f<2>"))
    assert [(row.state, row.a_name) for row in exact] == [("removed", "f<1>"), ("same", "f<2>")]


@pytest.mark.parametrize(
    ("before", "after", "state"),
    [
        (10_000, 10_400, "same"),
        (10_000, 10_600, "longer"),
        (10_000, 9_000, "shorter"),
        (500, 650, "same"),
        (500, 800, "longer"),
    ],
)
def test_a_change_is_relative_and_absolute(before: float, after: float, state: str) -> None:
    assert told(steps("k", ns=before), steps("k", ns=after)) == {"k": state}


def test_the_largest_contribution_comes_first() -> None:
    a = [AlignmentStep("small", 1, 1000), AlignmentStep("large", 1, 9000), AlignmentStep("gone", 1, 3000)]
    b = [AlignmentStep("small", 1, 1500), AlignmentStep("large", 1, 4000)]
    assert [(row.b_name or row.a_name, round(row.contribution, 3)) for row in align(a, b)] == [
        ("large", -0.588),
        ("gone", -0.353),
        ("small", 0.059),
    ]


def test_traces_without_an_order_are_matched_by_their_tables() -> None:
    old = detail({"k": (4, 8000.0)}, {"cudaLaunchKernel": 2.0, "cudaMemsetAsync": 1.0})
    new = detail(
        {"k": (2, 9000.0)},
        {"cudaLaunchKernel": 1.0, "cudaMemsetAsync": 1.0},
        calls=1,
        sequence=[["k", 4500.0], ["k", 4500.0]],
    )
    found = align_traces(old, new)
    assert not found.ordered
    assert (found.a_ns, found.b_ns) == (4000.0, 9000.0)
    assert [(row.a_count, row.b_count, row.state) for row in found.rows] == [(2.0, 2.0, "longer")]
    assert [(row.name, row.a, row.b) for row in found.runtime] == [("cudaLaunchKernel", 2.0, 1.0)]


def test_real_traces_of_two_commits() -> None:
    """What an H100 recorded of every variant of kron, each commit against the last."""
    with BundleReader(ROOT / "docs" / "example" / "h100.wwb") as bundle:
        profiles = [run for run in bundle.runs() if run.order.kind == "profile"]
    found = {
        (finding.variant, finding.case, run.order.sha): finding.profile
        for run in profiles
        for finding in run.outcome.findings
        if finding.profile is not None
    }
    pairs = 0
    shas = [run.order.sha for run in profiles]
    for (variant, case, sha), profile in found.items():
        later = found.get((variant, case, shas[-1]))
        if sha == shas[-1] or later is None:
            continue
        old, new = (
            detail({k.name: (k.calls, k.total_ns) for k in one.kernels}, one.runtime_calls) for one in (profile, later)
        )
        rows = align_traces(old, new).rows
        assert sum(row.a_ns for row in rows) == pytest.approx(sum(k.total_ns for k in profile.kernels) / 2)
        assert sum(row.b_ns for row in rows) == pytest.approx(sum(k.total_ns for k in later.kernels) / 2)
        names = [name for row in rows for name in (row.a_name, row.b_name) if name]
        assert set(names) == {k.name for one in (profile, later) for k in one.kernels}
        if variant in ("v1", "v2", "cublas"):
            assert all(row.a_name and row.b_name for row in rows), "torch's own kernels are the same at every commit"
        pairs += 1
    assert pairs > 50


LAMBDA = (
    "void at::native::elementwise_kernel<128, 2, "
    "at::native::copy(at::Iter&)::{lambda()#3}::operator()() const>(int, float*)"
)


@pytest.mark.parametrize(
    ("name", "plain", "short"),
    [
        ("void kron::fused<float, Plan<3, 4> >(Chain<float>)", "kron::fused<…>", "kron::fused<float, Plan<3, 4> >"),
        ("sm80_xmma_gemm_f32", "sm80_xmma_gemm_f32", "sm80_xmma_gemm_f32"),
        ("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pageable -> Device)"),
        (LAMBDA, "at::native::elementwise_kernel<…>", "at::native::elementwise_kernel<…>"),
        ("aten::mm", "aten::mm", "aten::mm"),
        ("(anonymous namespace)::f<1>(int)", "f<…>", "f<1>"),
        ("broken<", "broken<…", "broken<"),
        (">", ">", ">"),
    ],
)
def test_names(name: str, plain: str, short: str) -> None:
    assert (plain_name(name), short_name(name)) == (plain, short)


def traced(client: TestClient, lab: Lab, index: int, summary: dict[str, Any], report: bytes | None = None) -> int:
    job = lab.submit("profile", index)
    row = replace(trace(lab.folder), summary=summary, report=b64encode(report).decode() if report else None)
    lab.finish(job, lab.outcome([Finding("v1", CASES[0], Status.OK, profile=row)]))
    return int(client.get(f"/api/v1/jobs/{job}").json()["results"][0]["trace_id"])


def test_page_json_and_csv(client: TestClient, lab: Lab) -> None:
    a = traced(client, lab, 0, {"calls": 2, "sequence": [["kernel 0", 1000.0], ["kernel 1", 500.0]]})
    b = traced(client, lab, 1, {"calls": 2, "sequence": [["kernel 0", 3000.0], ["kernel 2", 700.0]]})
    query = {"a": a, "b": b}
    found = client.get("/api/v1/traces/compare", params=query).json()
    assert (found["a"]["commit_sha"], found["b"]["commit_sha"]) == (lab.shas[0], lab.shas[1])
    assert [(row["state"], row["a_name"], row["b_name"]) for row in found["alignment"]["rows"]] == [
        ("longer", "kernel 0", "kernel 0"),
        ("added", None, "kernel 2"),
        ("removed", "kernel 1", None),
    ]
    assert client.get("/api/v1/traces/compare.csv", params=query).text.count("\n") == 4
    page = client.get("/traces/compare", params=query).text
    assert "matched by name and order" in page
    assert f"traces/{a}?" in page
    alone = client.get("/traces/compare", params={"a": a}).text
    assert f'value="{b}"' in alone, "the other trace can be chosen"
    for path in ("/api/v1/traces/compare?a=1", f"/api/v1/traces/compare?a={a}&b=0"):
        assert client.get(path).status_code == 422
    for path in (f"/api/v1/traces/compare?a={a}&b=999", f"/traces/compare?a={a}&b=999"):
        assert client.get(path).status_code == 404


def test_two_commits_lead_to_their_traces(client: TestClient, lab: Lab) -> None:
    a, b = (traced(client, lab, index, {}) for index in (0, 1))
    for index in (0, 1):
        lab.bench(index, {("v1", CASES[0]): 1000.0})
    query = {"repository": "kernels", "device": "test-cpu", "left": lab.shas[0], "right": lab.shas[1]}
    (row,) = client.get("/api/v1/compare", params=query).json()["items"]
    assert (row["left_trace_id"], row["right_trace_id"]) == (a, b)
    page = client.get(
        "/compare", params={"repository": "kernels", "device": "test-cpu", "base": lab.shas[0], "head": lab.shas[1]}
    ).text
    assert f"a={a}&amp;b={b}" in page


def test_the_counters_file_is_kept_as_it_is(client: TestClient, lab: Lab) -> None:
    number = traced(client, lab, 0, {"calls": 2, "counters": {"message": "", "rows": []}}, b"\x00ncu report\xff")
    assert client.get(f"/api/v1/traces/{number}").json()["has_report"]
    answer = client.get(f"/api/v1/traces/{number}/report.ncu-rep")
    assert (answer.content, answer.headers["content-type"]) == (b"\x00ncu report\xff", "application/octet-stream")
    without = traced(client, lab, 1, {})
    assert client.get(f"/api/v1/traces/{without}/report.ncu-rep").status_code == 404
    assert gzip.decompress(client.get(f"/api/v1/traces/{without}/download.json.gz").content).startswith(b"{")
