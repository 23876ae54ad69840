"""Runs of the adversaries over REST, and on their page."""

from __future__ import annotations

from typing import Any

from fastapi.testclient import TestClient

from tests.builders import Lab
from tests.server.test_code import problem

URL = "/api/v1/proofs"


def proof(**fields: Any) -> dict[str, Any]:
    exhibit = {
        "operator": "matmul",
        "variant": "stale_tile",
        "fault": "multiplies by the tile before",
        "expected": "y: relative error",
        "outcome": "caught",
        "caught_by": "plain runs",
        "case": "k=24,f32,fwd",
        "message": "y: relative error 0.8\0",
    }
    device = {"key": "test-cpu", "kind": "cpu", "name": "Another name"}
    return {
        "kind": "mutants",
        "device": device,
        "version": "0.1.0",
        "seeds": 3,
        "innocent": 42,
        "exhibits": [exhibit],
        "accused": [],
    } | fields


def test_the_newest_of_each_device_and_kind_is_shown(client: TestClient, lab: Lab) -> None:
    assert client.get(URL).json()["items"] == []
    assert "warpwatch prove all" in client.get("/proofs").text
    for body in (
        proof(seeds=1),
        proof(seeds=200),
        proof(kind="cheaters"),
        proof(device={"key": "gpu", "kind": "cuda", "name": "A GPU"}),
    ):
        answer = client.post(URL, json=body)
        assert answer.status_code == 201, answer.text
    items = client.get(URL).json()["items"]
    assert [(item["device_name"], item["kind"], item["seeds"]) for item in items] == [
        ("A GPU", "mutants", 3),
        ("Test CPU", "mutants", 200),
        ("Test CPU", "cheaters", 3),
    ]
    assert items[0]["exhibits"][0]["variant"] == "stale_tile"
    assert items[0]["version"] == "0.1.0"


def test_the_page_names_what_survived_first(client: TestClient, lab: Lab) -> None:
    body = proof()
    survived = body["exhibits"][0] | {"variant": "unseen", "outcome": "survived", "caught_by": "", "message": ""}
    accused = {
        "operator": "matmul",
        "variant": "tiled",
        "case": "k=24,f32,fwd",
        "seed": 9,
        "message": "y: relative error 1e-6",
    }
    client.post(URL, json=body | {"exhibits": [*body["exhibits"], survived], "accused": [accused]})
    text = client.get("/proofs").text
    assert text.index("unseen") < text.index("stale_tile")
    assert "1 of 2" in text
    assert "False alarms" in text
    assert "seed 9" in text
    assert "tab=self-tests" in client.get("/devices").text


def test_what_is_no_proof_is_refused(client: TestClient, lab: Lab) -> None:
    for wrong in (
        {"kind": "angels"},
        {"seeds": -1},
        {"device": {"key": "A b", "kind": "cpu", "name": "x"}},
        {"extra": 1},
    ):
        problem(client.post(URL, json=proof(**wrong)), 422)
