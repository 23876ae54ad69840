"""Saved views: links to our own pages, each name once, listed on the overview."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.builders import CASES, Lab
from warpwatch.db.deletion import delete_some, mark_deleted
from warpwatch.db.saved_views import list_saved_views
from warpwatch.server.web.saved_views import own_path

VIEW = {"repository": "kernels", "name": "square at 1024", "path": "/history?operator=square&from=12345678"}


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("/history/7", "/history/7?repository=mine"),
        ("/history/7?repository=other&y=first", "/history/7?repository=mine&y=first"),
        ("/compare?base=a&head=b", "/compare?repository=mine&base=a&head=b"),
        ("/kernels/kron?variant=v1&variant=v2", "/kernels/kron?repository=mine&variant=v1&variant=v2"),
        ("https://elsewhere/history/7", None),
        ("//elsewhere/history/7", None),
        ("/\\elsewhere/history", None),
        ("javascript:alert(1)", None),
        ("/history/../logout", None),
        ("/historyx", None),
        ("/jobs/1/cancel", None),
        ("/history/7\n", None),
        ("//[", None),
    ],
)
def test_only_our_own_pages_can_be_saved(text: str, path: str | None) -> None:
    assert own_path(text, "mine") == path


def test_a_view_is_saved_listed_and_deleted(client: TestClient, lab: Lab) -> None:
    lab.bench(0, {("v1", CASES[0]): 100.0})
    answer = client.post("/api/v1/views", json=VIEW)
    assert answer.status_code == 201
    view: dict[str, Any] = answer.json()
    assert view["path"] == "/history?repository=kernels&operator=square&from=12345678"
    assert client.get("/api/v1/views?repository=kernels").json()["items"] == [view]
    for page in ("/overview", "/views"):
        assert "square at 1024" in client.get(page).text
    assert client.delete(f"/api/v1/views/{view['id']}").status_code == 204
    assert client.delete(f"/api/v1/views/{view['id']}").status_code == 404
    assert client.get("/api/v1/views?repository=kernels").json()["items"] == []


def test_what_cannot_be_saved_names_its_field(client: TestClient, lab: Lab) -> None:
    assert lab.repository
    assert client.post("/api/v1/views", json=VIEW).status_code == 201
    for change, field in (
        ({}, "name"),
        ({"name": "other", "path": "https://elsewhere"}, "path"),
        ({"name": " "}, "name"),
        ({"repository": "nobody"}, "repository"),
    ):
        answer = client.post("/api/v1/views", json=VIEW | change)
        assert answer.status_code == 422
        assert [error["field"] for error in answer.json()["errors"]] == [field]


def test_the_form_returns_to_the_view_or_says_what_is_wrong(client: TestClient, lab: Lab) -> None:
    lab.bench(0, {("v1", CASES[0]): 100.0})
    form = {"repository": "kernels", "name": "mine", "path": "/history?operator=square"}
    saved = client.post("/views", data=form, follow_redirects=False)
    assert (saved.status_code, saved.headers["location"]) == (303, "/history?repository=kernels&operator=square")
    again = client.post("/views", data=form)
    assert again.status_code == 422
    assert 'id="name-error"' in again.text
    with lab.database.session() as s:
        (view,) = list_saved_views(s, lab.repository).items
    assert client.post(f"/views/{view.id}/remove", follow_redirects=False).status_code == 303
    assert client.post(f"/views/{view.id}/remove", follow_redirects=False).status_code == 404


def test_pages_of_the_list_follow_one_another(client: TestClient, lab: Lab) -> None:
    assert lab.repository
    for number in range(5):
        assert client.post("/api/v1/views", json=VIEW | {"name": f"view {number}"}).status_code == 201
    first = client.get("/api/v1/views?repository=kernels&limit=3").json()
    second = client.get(f"/api/v1/views?repository=kernels&limit=3&before={first['next_before']}").json()
    names = [view["name"] for page in (first, second) for view in page["items"]]
    assert names == [f"view {number}" for number in (4, 3, 2, 1, 0)]
    assert second["next_before"] is None


def test_a_deleted_repository_takes_its_views_along(client: TestClient, lab: Lab) -> None:
    client.post("/api/v1/views", json=VIEW)
    with lab.database.session() as s:
        mark_deleted(s, lab.repository)
        while delete_some(s, lab.repository):
            pass
        assert list_saved_views(s, lab.repository).items == []
