"""A comparison of one commit under two toolchains is asked for by REST and by command, and its job names both."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.builders import Lab
from warpwatch.contract.spec import JobSpec
from warpwatch.db.registry import register_worker

ASKED = {"repository": "kernels", "commits": "main", "kinds": ["compare"], "operators": ["square"]}


def jobs(client: TestClient) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = client.get("/api/v1/jobs").json()["items"]
    return rows


def test_one_commit_is_compared_with_itself(client: TestClient, lab: Lab) -> None:
    lab.bench(5, {("v1", "n=1024,f32,fwd"): 1000.0})
    answer = client.post("/api/v1/submissions", json=ASKED | {"toolchains": ["triton-3.6", "triton-3.7"]})
    assert answer.status_code == 201, answer.text
    job = jobs(client)[0]
    assert (job["kind"], job["base_sha"]) == ("compare", lab.shas[5])
    assert job["commit_sha"] == lab.shas[5]
    detail = client.get(f"/api/v1/jobs/{job['id']}").json()
    assert detail["spec"]["toolchains"] == ["triton-3.6", "triton-3.7"]
    assert "--toolchains triton-3.6,triton-3.7" in detail["replay"]
    page = client.get(f"/jobs/{job['id']}", headers={"Accept": "text/html"}).text
    assert "triton-3.6 → triton-3.7" in page


@pytest.mark.parametrize(
    "wrong",
    [
        {"toolchains": ["a"]},
        {"toolchains": ["a", "b"], "kinds": ["bench"]},
        {"toolchains": ["a", "b"], "kinds": ["bench", "compare"], "base": "parent"},
        {"toolchains": ["a", "--help"]},
        {"toolchains": ["a", "b", "c"]},
    ],
)
def test_a_wrong_request_names_the_field(client: TestClient, lab: Lab, wrong: dict[str, Any]) -> None:
    lab.bench(5, {("v1", "n=1024,f32,fwd"): 1000.0})
    answer = client.post("/api/v1/submissions", json=ASKED | wrong)
    assert answer.status_code == 422
    assert all(error["field"].startswith("toolchains") for error in answer.json()["errors"]), (
        "no baseline was asked for"
    )


def test_a_toolchain_that_no_worker_has_is_refused_with_the_nearest_names(client: TestClient, lab: Lab) -> None:
    lab.bench(5, {("v1", "n=1024,f32,fwd"): 1000.0})
    asked = ASKED | {"toolchains": ["triton-3.6", "triton-3.7"]}

    def offer(names: list[str] | None) -> None:
        with lab.database.session() as session:
            register_worker(session, "node-1", lab.device, "1", {"toolchains": names})

    offer(["triton-3-7", "triton-3.6", "o1"])
    for path in ("/api/v1/submissions", "/api/v1/submissions/preview"):
        (error,) = client.post(path, json=asked).json()["errors"]
        assert error["field"] == "toolchains"
        assert error["message"] == "there is no toolchain on Test CPU called 'triton-3.7'"
        assert error["remedy"].startswith("did you mean: triton-3")
    form = {"repository": "kernels", "commits": "main", "kinds": "compare", "operators": "square"}
    page = client.post(
        "/runs/new", data=form | {"toolchains": "triton-3.6 triton-3.7"}, headers={"Accept": "text/html"}
    )
    assert (page.status_code, "triton-3-7" in page.text) == (422, True)
    offer([])
    assert "worker.toml" in client.post("/api/v1/submissions", json=asked).json()["errors"][0]["remedy"]
    for names in (["triton-3.7", "triton-3.6"], None):
        offer(names)
        assert client.post("/api/v1/submissions", json=asked).status_code == 201, "a worker may not say what it has"


def test_a_specification_keeps_its_toolchains() -> None:
    spec = JobSpec(toolchains=("a", "b"))
    assert JobSpec.from_stored(spec.to_stored()) == spec
    words = spec.to_submit_command("kernels", "compare", "a" * 40, "square", "cpu", "a" * 40)
    assert "a,b" in words
    assert spec.of_cell("v1", "n=1").toolchains is None
