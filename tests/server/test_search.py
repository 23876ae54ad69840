"""The search finds what people look for, in one repository, page by page."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.builders import CASES, Lab
from warpwatch.contract.words import Status
from warpwatch.db import regressions


@pytest.fixture
def measured(lab: Lab) -> Lab:
    """Two jobs of square, one of cube, and a regression of square."""
    lab.operators = ("square", "cube")
    lab.bench(0, {("v1", CASES[0]): 1000.0})
    lab.check(1, {("v1", CASES[0]): Status.OK}, operator="cube")
    lab.bench(1, {("v1", CASES[0]): 1500.0, ("v1", CASES[1]): 900.0})
    with lab.database.session() as session:
        regressions.open_suspicion(
            session,
            operator_id=1,
            device_id=lab.device,
            direction="slower",
            ratio=1.5,
            series=[(1, 1.5)],
            base_commit_id=lab.commits[lab.shas[0]],
            head_commit_id=lab.commits[lab.shas[1]],
        )
    return lab


def look_up(client: TestClient, words: str, **more: Any) -> dict[str, Any]:
    answer = client.get("/api/v1/search", params={"repository": "kernels", "q": words, **more})
    assert answer.status_code == 200, answer.text
    page: dict[str, Any] = answer.json()
    return page


def test_every_kind_is_found_and_its_page_exists(client: TestClient, measured: Lab) -> None:
    items = look_up(client, "square")["items"]
    assert {item["kind"] for item in items} == {"operator", "regression", "case", "job"}
    commits = look_up(client, "change 3")["items"]
    assert [item["kind"] for item in commits] == ["commit"]
    for item in [*items, *commits]:
        assert client.get(item["path"], headers={"Accept": "text/html"}).status_code == 200, item


def test_a_sha_an_author_and_a_number_are_found(client: TestClient, measured: Lab) -> None:
    sha = measured.shas[2]
    assert [item["path"] for item in look_up(client, sha[:10])["items"]] == [f"/commits/{sha}?repository=kernels"]
    assert len(look_up(client, "ann chan")["items"]) == len(measured.shas), "words match by their beginning"
    assert "/jobs/3?repository=kernels" in [item["path"] for item in look_up(client, "#3")["items"]]


def test_all_words_must_match_and_signs_mean_themselves(client: TestClient, measured: Lab) -> None:
    assert {item["kind"] for item in look_up(client, "square bwd")["items"]} == {"case"}
    assert look_up(client, "square nothing")["items"] == []
    for hostile in ("%", "_", "\\", "' | !", "&:*", "<->", "", " ", "\u0131", "a" * 200):
        assert look_up(client, hostile)["items"] == []


def test_pages_follow_one_another(client: TestClient, measured: Lab) -> None:
    everything = look_up(client, "square", limit=200)["items"]
    paged, before = [], None
    while True:
        page = look_up(client, "square", limit=2, **({"before": before} if before else {}))
        paged += page["items"]
        before = page["next_before"]
        if before is None:
            break
    assert paged == everything
    assert len(everything) > 4


def test_another_repository_is_not_searched(client: TestClient, measured: Lab) -> None:
    Lab(measured.database, measured.source, measured.shas, measured.folder, name="other")
    answer = client.get("/api/v1/search", params={"repository": "other", "q": "square"})
    assert answer.json()["items"] == []
    assert client.get("/api/v1/search", params={"repository": "nobody", "q": "x"}).status_code == 404
