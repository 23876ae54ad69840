"""Brief answers of the API: how they are asked for, their size, and their cursor."""

from __future__ import annotations

import json

import pytest
from fastapi import Request
from fastapi.testclient import TestClient

from tests.builders import CASES, Lab
from warpwatch.server.http.brief import BRIEF_TYPE, MOST_BYTES, Brief, BriefRequest


def test_rest_gives_the_same_answers(client: TestClient, lab: Lab) -> None:
    for number in (0, 1):
        lab.bench(number, {("v1", CASES[0]): 1000.0})
    lab.confirm(0, 1)
    full = client.get("/api/v1/regressions/1")
    brief = client.get("/api/v1/regressions/1?brief")
    accepted = client.get("/api/v1/regressions/1", headers={"Accept": BRIEF_TYPE})
    assert brief.headers["content-type"] == accepted.headers["content-type"] == BRIEF_TYPE
    assert brief.json() == accepted.json()
    assert (brief.json()["change"], full.json()["regression"]["id"]) == (1, 1)
    assert client.get("/api/v1/commits?repository=kernels&brief").status_code == 422, "it has no brief answer"
    assert client.get("/api/v1/regressions/1?cursor=x").status_code == 422
    # The full page says where it ends, and the brief one goes on there.
    pages = [client.get("/api/v1/series", params={"repository": "kernels", "limit": 1, "brief": ""}).json()]
    pages.append(
        client.get(
            "/api/v1/series", params={"repository": "kernels", "limit": 1, "brief": "", "cursor": pages[0]["more"]}
        ).json()
    )
    assert [page["items"][0]["series"] for page in pages] == [2, 1]


@pytest.mark.parametrize("length", [1, 50, 5_000])
def test_an_answer_fits_and_its_cursor_leads_on(length: int) -> None:
    items = [{"number": number, "text": "µ" * length} for number in range(40)]
    seen: list[int] = []
    cursor = None
    while cursor or not seen:
        request = BriefRequest(Request({"type": "http", "headers": []}), "", cursor)
        content = bytes(request.answer(Brief({"fact": "x" * 10_000, "list": ["y" * 99] * 99}, items)).body)
        assert len(content) <= MOST_BYTES
        answer = json.loads(content)
        seen += [item["number"] for item in answer["items"]]
        cursor = answer["more"]
    assert seen == list(range(40))
