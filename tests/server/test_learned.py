"""What a series has taught, over REST and on the history page."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.builders import CASES, CPU, Lab
from tests.server.test_code import problem
from tests.server.test_results import series_id

CELL = ("v1", CASES[0])
LATER = replace(CPU, key="d" * 64, facts=CPU.facts | {"torch": "2.14.0"})


def learned(client: TestClient) -> list[dict[str, Any]]:
    answer = client.get(f"/api/v1/history/{series_id(client)}/noise")
    assert answer.status_code == 200, answer.text
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


def test_repeats_are_readings_and_teach_the_noise(client: TestClient, lab: Lab) -> None:
    for median in (100_000.0, 101_000.0, 99_500.0, 100_400.0):
        lab.bench(2, {CELL: median})
    (found,) = learned(client)
    assert (found["readings"], found["repeats"], found["steps"]) == (4, 3, [])
    assert 0.003 < found["between"] < 0.03
    assert found["level_ns"] == pytest.approx(100_200)
    assert found["detectable"] > found["between"]


def test_a_step_is_told_with_its_commits(client: TestClient, lab: Lab) -> None:
    for index, median in enumerate((100_000.0, 100_100.0, 99_900.0, 150_000.0, 150_200.0, 149_900.0)):
        for _ in range(2):
            lab.bench(index, {CELL: median})
    (found,) = learned(client)
    (step,) = found["steps"]
    assert (step["base_sha"], step["head_sha"]) == (lab.shas[2], lab.shas[3])
    assert step["ratio"] == pytest.approx(1.5, rel=0.01)
    assert found["level_ns"] == pytest.approx(150_000, rel=0.01)
    page = client.get(f"/history/{series_id(client)}", headers={"Accept": "text/html"})
    assert '"name":"shift"' in page.text
    assert "Smallest detectable change" in page.text


def test_environments_learn_apart(client: TestClient, lab: Lab) -> None:
    for index in range(3):
        lab.bench(index, {CELL: 100_000.0})
    lab.switch(LATER)
    for index in range(3, 6):
        lab.bench(index, {CELL: 200_000.0})
    newest, oldest = learned(client)
    assert (newest["readings"], oldest["readings"]) == (3, 3)
    assert (newest["steps"], oldest["steps"]) == ([], [])
    assert newest["level_ns"] == 2 * oldest["level_ns"]


def test_an_unknown_series_says_so(client: TestClient, lab: Lab) -> None:
    assert problem(client.get("/api/v1/history/999/noise"), 404)
