"""Traces over REST: kernel table and streamed files."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import resource
import urllib.request
import zipfile
from typing import Any

from fastapi.testclient import TestClient

from tests.builders import CASES, Lab
from tests.server.test_code import problem
from warpwatch.contract.messages import ProfileReply
from warpwatch.contract.outcome import Finding
from warpwatch.contract.words import Status
from warpwatch.settings import Settings


def traced(client: TestClient, lab: Lab) -> int:
    job = lab.profile(0)
    return int(client.get(f"/api/v1/jobs/{job}").json()["results"][0]["trace_id"])


def test_kernel_table(client: TestClient, lab: Lab) -> None:
    number = traced(client, lab)
    trace: dict[str, Any] = client.get(f"/api/v1/traces/{number}").json()
    assert [kernel["name"] for kernel in trace["kernels"]] == ["kernel 0", "kernel 1", "kernel 2"]
    assert trace["kernels"][0]["details"] == {"grid": [1, 1, 1]}
    assert (trace["operator"], trace["variant"], trace["commit_sha"]) == ("square", "v1", lab.shas[0])
    rows = list(csv.DictReader(io.StringIO(client.get(f"/api/v1/traces/{number}/kernels.csv").text)))
    assert [row["total_ns"] for row in rows] == ["2000.0", "1999.0", "1998.0"]


def test_downloads_are_the_same_trace(client: TestClient, lab: Lab) -> None:
    number = traced(client, lab)
    plain = client.get(f"/api/v1/traces/{number}/download.json")
    packed = client.get(f"/api/v1/traces/{number}/download.json.gz")
    assert len(json.loads(plain.text)["traceEvents"]) == 3
    assert gzip.decompress(packed.content) == plain.content
    assert packed.headers["content-length"] == str(len(packed.content))
    assert packed.headers["content-type"] == "application/gzip"
    assert f"square-v1-n=1024_f32_fwd-{lab.shas[0][:12]}.pt.trace.json.gz" in packed.headers["content-disposition"]
    for path in ("", "/kernels.csv", "/download.json", "/download.json.gz"):
        problem(client.get(f"/api/v1/traces/999{path}"), 404)


def test_tensorboard_gets_a_log_folder(client: TestClient, lab: Lab) -> None:
    """Its plugin takes every folder with such files as a run, and what stands before the time as the worker."""
    number = traced(client, lab)
    answer = client.get(f"/api/v1/traces/{number}/tensorboard.zip")
    assert answer.headers["content-type"] == "application/zip"
    with zipfile.ZipFile(io.BytesIO(answer.content)) as file:
        (name,) = file.namelist()
        assert re.fullmatch(rf"square-v1-[^/]*/trace-{number}/([^/]+?)\.(\d+)\.pt\.trace\.json\.gz", name)
        assert file.read(name) == client.get(f"/api/v1/traces/{number}/download.json.gz").content
    problem(client.get("/api/v1/traces/999/tensorboard.zip"), 404)
    assert (
        f"/api/v1/traces/{number}/tensorboard.zip"
        in client.get(f"/traces/{number}", headers={"accept": "text/html"}).text
    )


def test_200_megabytes_are_streamed_with_bounded_memory(served: Settings, client: TestClient, lab: Lab) -> None:
    path = lab.folder / "big.json.gz"
    block = b'{"name":"kernel","ph":"X","ts":1,"dur":1,"pid":1,"tid":1},' * 20_000
    size = 2
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b"[ ")
        while size < 200_000_000:
            file.write(block)
            size += len(block)
    job = lab.submit("profile", 0)
    lab.finish(
        job,
        lab.outcome([Finding("v1", CASES[0], Status.OK, profile=ProfileReply(Status.OK, "", str(path), size, [], {}))]),
    )
    number = client.get(f"/api/v1/jobs/{job}").json()["results"][0]["trace_id"]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    received = 0
    with urllib.request.urlopen(f"{served.server_url}/api/v1/traces/{number}/download.json", timeout=60) as answer:
        while piece := answer.read(1 << 20):
            received += len(piece)
    assert received == size
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 60_000, "kilobytes"
