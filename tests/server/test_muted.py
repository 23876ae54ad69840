"""A noisy series that somebody mutes raises neither suspicion nor alarm, until the day has passed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from tests.builders import CASES, Lab
from tests.planted import plant, series_of
from tests.server.test_code import problem
from warpwatch import git
from warpwatch.db.database import Database
from warpwatch.db.reads.missing import list_missing
from warpwatch.server.judge import Judge
from warpwatch.settings import Settings

V1, V2 = ("v1", CASES[0]), ("v2", CASES[0])
TODAY = datetime.now(UTC).date()
TOMORROW = (TODAY + timedelta(days=1)).isoformat()


def series(lab: Lab, cell: tuple[str, str]) -> int:
    with lab.database.session() as s:
        operator_id = s.execute(text("SELECT id FROM operators WHERE name = 'square'")).scalar()
        return series_of(s, int(operator_id or 0), lab.device, *cell)


def end_all(lab: Lab) -> None:
    """As if the day had passed."""
    with lab.database.session() as s:
        s.execute(text("UPDATE muted_series SET until = current_date - 1"))


def test_a_muted_series_raises_no_suspicion(
    client: TestClient, lab: Lab, settings: Settings, database: Database
) -> None:
    git.update_mirror(str(lab.source), settings.home)
    judge = Judge(settings, database)
    lab.bench(0, {V1: 10_000.0, V2: 10_000.0})
    number = series(lab, V1)
    answer = client.put(f"/api/v1/series/{number}/mute", json={"until": TOMORROW, "author": "ann", "reason": "noisy"})
    assert (answer.json()["id"], answer.json()["until"], answer.json()["reason"]) == (number, TOMORROW, "noisy")
    lab.bench(1, {V1: 15_000.0, V2: 15_000.0})
    judge.sweep()

    def suspected() -> set[int]:
        asked = {"repository": "kernels", "verdict": "suspected"}
        rows = client.get("/api/v1/regressions", params=asked).json()["items"]
        details = [client.get(f"/api/v1/regressions/{row['id']}").json() for row in rows]
        return {entry["series_id"] for detail in details for entry in detail["series"]}

    assert suspected() == {series(lab, V2)}
    (muted,) = client.get("/api/v1/muted", params={"repository": "kernels"}).json()["items"]
    assert (muted["operator"], muted["variant"], muted["case"]) == ("square", *V1)
    assert client.delete(f"/api/v1/series/{number}/mute").status_code == 204
    lab.bench(2, {V1: 20_000.0, V2: 15_000.0})
    judge.sweep()
    assert number in suspected(), "it counts again"


def test_a_mute_ends_with_its_day(client: TestClient, lab: Lab) -> None:
    lab.bench(0, {V1: 10_000.0})
    number = series(lab, V1)
    client.put(f"/api/v1/series/{number}/mute", json={"until": TODAY.isoformat(), "author": "ann"})
    assert len(client.get("/api/v1/muted", params={"repository": "kernels"}).json()["items"]) == 1
    end_all(lab)
    assert client.get("/api/v1/muted", params={"repository": "kernels"}).json()["items"] == []


def test_a_muted_series_is_not_missed(client: TestClient, lab: Lab) -> None:
    for index in range(4):
        lab.bench(index, {V1: 10_000.0, V2: 10_000.0})
    lab.bench(4, {V2: 10_000.0})

    def missed() -> set[str]:
        with lab.database.session() as s:
            return {row.variant for row in list_missing(s, datetime.now(UTC), lab.repository)}

    assert missed() == {"v1"}
    client.put(f"/api/v1/series/{series(lab, V1)}/mute", json={"until": TOMORROW, "author": "ann"})
    assert missed() == set()


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"until": "2020-01-01", "author": "ann"}, "until"),
        ({"until": "9999-01-01", "author": "ann"}, "until"),
        ({"until": "soon", "author": "ann"}, "until"),
        ({"until": TOMORROW, "author": ""}, "author"),
        ({"until": TOMORROW}, "author"),
    ],
)
def test_what_cannot_be_muted_is_refused(client: TestClient, lab: Lab, body: dict[str, str], field: str) -> None:
    lab.bench(0, {V1: 10_000.0})
    refusal = problem(client.put(f"/api/v1/series/{series(lab, V1)}/mute", json=body), 422)
    assert [error["field"] for error in refusal["errors"]] == [field]
    problem(client.put("/api/v1/series/999999/mute", json={"until": TOMORROW, "author": "ann"}), 404)


def test_the_page_of_a_regression_mutes_its_series(client: TestClient, lab: Lab) -> None:
    lab.bench(0, {V1: 10_000.0, V2: 10_000.0})
    number = plant(lab, 0, 1, 1.02, [V1, V2], verdict="dismissed")
    for body, field in (({"until": TOMORROW}, "author"), ({"author": "ann", "until": "2020-01-01"}, "until")):
        answer = client.post(f"/regressions/{number}/mute", data={**body, "reason": "a busy rack"})
        assert answer.status_code == 422
        assert f'id="{field}-error"' in answer.text
        assert "data-muted" not in answer.text
        for entered in (*body.values(), "a busy rack"):
            assert f'value="{entered}"' in answer.text, "nothing that was entered is lost"
    page = client.post(
        f"/regressions/{number}/mute", data={"author": "ann", "until": TOMORROW, "reason": "<b>noisy</b>"}
    ).text
    assert 'data-muted="2"' in page
    assert page.count(f"muted until {TOMORROW}") == 2
    listed = client.get("/muted").text
    assert "&lt;b&gt;noisy" in listed
    assert "<b>noisy" not in listed
    client.post(f"/muted/{series(lab, V1)}/end")
    assert 'data-muted="1"' in client.get(f"/regressions/{number}").text
