"""The page and the REST calls of byte-pair tokenizers: the round trip, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from warpwatch.byte_pairs import to_json

STRINGS = ["MKVLAAMK", "VLMKVL", "LLMK", "MKVLAAMKVL"]
TOKENS = [[7, 0, 0, 5], [6, 7], [2, 2, 5], [7, 0, 0, 7]]
"""A, K, L, M, V; then MK, VL and MKVL: what tests/kernels/test_tokenizer.py expects of the command."""


def test_strings_survive_the_round_trip(client: TestClient) -> None:
    trained = client.post("/api/v1/tokenizer/train", json={"strings": STRINGS, "merges": 3}).json()
    encoded = client.post("/api/v1/tokenizer/encode", json=trained | {"strings": STRINGS}).json()
    assert encoded == {"tokens": TOKENS}
    decoded = client.post("/api/v1/tokenizer/decode", json=trained | encoded)
    assert decoded.json() == {"strings": STRINGS}


@pytest.mark.parametrize(
    ("call", "change", "field", "message"),
    [
        ("train", {"merges": 2000, "strings": ["AB" * 5000]}, "merges", "use at most 500 merges"),
        ("train", {"merges": 1, "strings": ["A" * 40_000, "B" * 20_000]}, "strings", "more than 50000"),
        ("encode", {"strings": ["AC"]}, "strings", "does not know 'C'"),
        ("encode", {"strings": [], "tokenizer": {"model": {}}}, "tokenizer", "type None"),
        ("encode", {"strings": [], "tokenizer": {"model": {"type": "BPE", "vocab": 7}}}, "tokenizer", "no tokenizer"),
        ("decode", {"tokens": [[0, 9]]}, "tokens", "9 is no token"),
        ("decode", {"tokens": [[2] * 30_000] * 2}, "tokens", "more than 50000"),
    ],
)
def test_what_cannot_be_done_names_the_field(
    client: TestClient, call: str, change: dict[str, Any], field: str, message: str
) -> None:
    body = ({} if call == "train" else {"tokenizer": json.loads(to_json("AB", [(0, 1)]))}) | change
    answer = client.post(f"/api/v1/tokenizer/{call}", json=body)
    assert answer.status_code == 422, answer.text
    (error,) = answer.json()["errors"]
    assert error["field"] == field
    assert message in f"{error['message']}; {error['remedy']}"


def test_the_page_trains_encodes_and_decodes(client: TestClient) -> None:
    assert "MKVLAAMKVL" in client.get("/tokenizer").text
    form = {"strings": "\r\n".join(STRINGS), "merges": "3", "action": "train"}
    page = client.post("/tokenizer", data=form)
    assert '<td class="mono long">MKVL</td>' in page.text
    tokenizer = to_json("AKLMV", [(3, 1), (4, 2), (5, 6)])
    page = client.post("/tokenizer", data=form | {"tokenizer": tokenizer, "action": "encode"})
    assert "7 0 0 5\n6 7\n" in page.text
    page = client.post("/tokenizer", data={"tokenizer": tokenizer, "tokens": "7 0\n6", "action": "decode"})
    assert "MKVLA\nVL</textarea>" in page.text
    for change in ({"tokenizer": "{", "action": "encode"}, {"merges": "many"}, {"strings": ""}):
        page = client.post("/tokenizer", data=form | change)
        assert page.status_code == 422
        assert "Not done" in page.text
