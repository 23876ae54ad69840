"""Old addresses of pages lead to those of today."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from warpwatch.server.web.moved import MOVED


def test_an_old_address_leads_to_that_of_today_with_its_query(client: TestClient) -> None:
    answer = client.get("/operators/sq%20u%3Fre?device=gpu&against=v1", follow_redirects=False)
    assert answer.status_code == 308
    assert answer.headers["location"] == "/kernels/sq%20u%3Fre?device=gpu&against=v1"


def test_the_first_address_with_a_repository_leads_to_its_overview(client: TestClient) -> None:
    answer = client.get("/?repository=kernels&branch=topic", follow_redirects=False)
    assert answer.status_code == 308
    assert answer.headers["location"] == "/overview?repository=kernels&branch=topic"


@pytest.mark.parametrize("old", MOVED)
def test_no_old_address_leads_to_another_old_one(old: str) -> None:
    assert MOVED[old].split("?")[0] not in MOVED
