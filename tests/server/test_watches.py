"""Watches: a person keeps an eye on operators or cases, and narrows overview and regressions to them."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.builders import CASES, Lab
from tests.planted import plant
from warpwatch.db.deletion import delete_some, mark_deleted
from warpwatch.db.watches import list_watchers, list_watches

WATCHES = "/settings/repository?repository=kernels&tab=watches"
WATCH = {"repository": "kernels", "person": "ann", "operator": "square"}


@pytest.fixture
def measured(lab: Lab) -> Lab:
    """Two cases, measured at two commits, one of which became slower."""
    for number in (0, 1):
        lab.bench(number, {("v1", CASES[0]): 100.0, ("v1", CASES[1]): 200.0})
    plant(lab, 0, 1, 1.2, [("v1", CASES[0])])
    return lab


def cases_of(client: TestClient, **filters: str) -> set[str]:
    asked = {"repository": "kernels", **filters}
    return {cell["case"] for cell in client.get("/api/v1/overview", params=asked).json()["items"]}


def compared(client: TestClient, **filters: str) -> int:
    """The largest number of series of one cell of the heat map."""
    answer = client.get("/api/v1/overview/trends", params={"repository": "kernels", **filters})
    return max(cell["compared"] for cell in answer.json()["cells"])


def test_the_overview_shows_what_a_person_watches(client: TestClient, measured: Lab) -> None:
    device = client.get("/api/v1/devices").json()["items"][0]["key"]
    assert cases_of(client, device=device) == set(CASES[:2])
    assert cases_of(client, device=device, watcher="ann") == set()
    client.post("/api/v1/watches", json=WATCH | {"case": CASES[1]})
    assert cases_of(client, device=device, watcher="ann") == {CASES[1]}
    assert (compared(client, device=device), compared(client, device=device, watcher="ann")) == (2, 1)
    client.post("/api/v1/watches", json=WATCH)
    assert cases_of(client, device=device, watcher="ann") == set(CASES[:2])
    assert cases_of(client, device=device, watcher="bob") == set()
    page = client.get("/overview?watcher=ann").text
    assert 'data-operator="square"' in page
    assert 'data-operator="square"' not in client.get("/overview?watcher=bob").text


@pytest.mark.parametrize("address", ["regressions", "events", "regressions.csv"])
def test_regressions_are_narrowed_to_watched_cases(client: TestClient, measured: Lab, address: str) -> None:
    def count(watcher: str) -> int:
        answer = client.get(f"/api/v1/{address}?repository=kernels&watcher={watcher}")
        assert answer.status_code == 200
        return len(answer.text.splitlines()) - 1 if address.endswith("csv") else len(answer.json()["items"])

    client.post("/api/v1/watches", json=WATCH | {"case": CASES[1], "person": "other"})
    client.post("/api/v1/watches", json=WATCH | {"case": CASES[0], "person": "case"})
    client.post("/api/v1/watches", json=WATCH | {"person": "operator"})
    assert [count(name) for name in ("nobody", "other", "case", "operator")] == [0, 0, 1, 1]


def test_a_watch_is_stored_once_listed_and_ended(client: TestClient, measured: Lab) -> None:
    answers = [client.post("/api/v1/watches", json=WATCH) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 201]
    row: dict[str, Any] = answers[0].json()
    assert answers[1].json() == row
    assert (row["person"], row["operator"], row["case"]) == ("ann", "square", None)
    assert client.get("/api/v1/watches?repository=kernels&person=ann").json()["items"] == [row]
    assert client.get("/api/v1/watches?repository=kernels&person=bob").json()["items"] == []
    assert client.delete(f"/api/v1/watches/{row['id']}").status_code == 204
    assert client.delete(f"/api/v1/watches/{row['id']}").status_code == 404


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"operator": "nothing"}, "operator"),
        ({"case": "n=1"}, "case"),
        ({"person": " "}, "person"),
        ({"repository": "nobody"}, "repository"),
    ],
)
def test_what_cannot_be_watched_names_its_field(
    client: TestClient, measured: Lab, change: dict[str, str], field: str
) -> None:
    answer = client.post("/api/v1/watches", json=WATCH | change)
    assert answer.status_code == 422
    assert [error["field"] for error in answer.json()["errors"]] == [field]
    if field != "repository":
        page = client.post("/watches", data=WATCH | change)
        assert page.status_code == 422
        assert f'id="{field}-error"' in page.text


def test_the_form_returns_to_its_page_which_names_the_watcher(client: TestClient, measured: Lab) -> None:
    form = WATCH | {"person": "Ann Other", "case": CASES[0], "path": f"/history?operator=square&case={CASES[0]}"}
    answer = client.post("/watches", data=form, follow_redirects=False)
    assert answer.status_code == 303
    assert "Ann Other" in client.get(answer.headers["location"]).text
    assert "Ann Other" in client.get("/kernels/square").text
    assert "Ann Other" not in client.get(f"/history?operator=square&case={CASES[1]}").text
    with measured.database.session() as s:
        (row,) = list_watches(s, measured.repository).items
        assert list_watchers(s, measured.repository) == ["Ann Other"]
    for path, target in (("/kernels/square", "/kernels/square?repository=kernels"), ("//elsewhere", WATCHES)):
        client.post("/watches", data=form)
        with measured.database.session() as s:
            (row,) = list_watches(s, measured.repository).items
        ended = client.post(f"/watches/{row.id}/remove", data={"path": path}, follow_redirects=False)
        assert ended.headers["location"] == target


def test_pages_of_the_list_follow_one_another(client: TestClient, measured: Lab) -> None:
    for name in "abcde":
        client.post("/api/v1/watches", json=WATCH | {"person": name})
    first = client.get("/api/v1/watches?repository=kernels&limit=3").json()
    second = client.get(f"/api/v1/watches?repository=kernels&limit=3&before={first['next_before']}").json()
    assert [row["person"] for page in (first, second) for row in page["items"]] == list("edcba")
    assert second["next_before"] is None


def test_a_deleted_repository_takes_its_watches_along(client: TestClient, measured: Lab) -> None:
    client.post("/api/v1/watches", json=WATCH | {"case": CASES[0]})
    with measured.database.session() as s:
        mark_deleted(s, measured.repository)
        while delete_some(s, measured.repository):
            pass
        assert list_watches(s, measured.repository).items == []
