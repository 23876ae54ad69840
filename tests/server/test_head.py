"""HEAD on every address that answers GET."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from tests.builders import CASES, Lab
from tests.server.test_permissions import STREAMS, filled, routes
from warpwatch.contract.words import Status

COMPARED = ("content-type", "location", "cache-control", "content-encoding")
"""Fields of an answer's head that stay the same from one request to the next."""


def test_every_address_that_answers_get_answers_head(client: TestClient, lab: Lab) -> None:
    lab.check(0, {("v1", CASES[0]): Status.OK})
    paths = [filled(template) for method, template in routes(client) if method == "GET"]
    assert len(paths) > 150
    for path in (path for path in paths if not path.endswith(STREAMS)):
        got, head = client.get(path, follow_redirects=False), client.head(path, follow_redirects=False)
        assert (head.status_code, head.content) == (got.status_code, b""), path
        for field in COMPARED:
            assert head.headers.get(field) == got.headers.get(field), f"{field} of {path}"


@pytest.mark.timeout(30)
def test_head_of_events_without_an_end_ends(client: TestClient, lab: Lab) -> None:
    answer = client.head(f"/api/v1/jobs/{lab.submit('check', 0)}/events")
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-type"].startswith("text/event-stream")


def test_head_of_an_address_that_only_takes_post_is_refused(client: TestClient) -> None:
    assert client.head("/api/v1/submissions/1/cancel").status_code == 405
